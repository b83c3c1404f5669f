"""Clock, threads and memory of the machine; advice about threads follows what was measured."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks import machine
from benchmarks.machine import (
    Case,
    Options,
    command,
    now,
    peak_megabytes,
    report,
    thread_advice,
    torch_threads,
)


@pytest.mark.parametrize(
    ("threads", "share", "speedup", "advice"),
    [
        (1, 1.0, 0.9, None),
        (4, 1.0, 0.9, None),
        (5, 1.0, 0.9, "5 threads for 4 usable cpus slow each other down; use --threads 4"),
        (2, 1.0, 0.05, "2 threads are 10.0 times slower than one, because another program is using "),
        (1, 1.0, 0.05, None),  # one thread is not compared with itself
        (1, 0.5, 0.9, "this program gets only 50% of a cpu, because others are running; speeds"),
    ],
)
def test_advice_about_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, share: float, speedup: float, advice: str | None
) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 4)
    monkeypatch.setattr(machine, "cpu_share", lambda: share)
    monkeypatch.setattr(machine, "speedup", lambda count: count * speedup)
    found = thread_advice(threads)
    assert found is None if advice is None else found is not None and found.startswith(advice)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="inside"), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
    assert machine.speedup(2) > 0
    assert torch.get_num_threads() == before


def test_one_thread_is_timed_by_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 2.0)
    with torch_threads(1):
        assert now() == 1.0
    with torch_threads(2):
        assert now() == 2.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_peak_is_forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    block = torch.ones(30_000_000)
    high = peak_megabytes()
    del block
    machine.reset_peak()
    low = peak_megabytes()
    assert high is not None
    assert low is not None
    assert 10 < low < high - 100
    monkeypatch.setattr(machine, "_STATUS", tmp_path / "missing")
    assert peak_megabytes() is None


def test_tables_show_numbers_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    modes = {"slow": {"speed": 0.123456, "parts": {"a": 12345.6}}, "fast": {"speed": 2.0, "nothing": 0.0}}

    def measure(_options: Options) -> list[Case]:
        return [{"preset": "ssm", "batch": 4, "modes": modes}]

    report(measure, Options())
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    for expected in ("preset ssm, batch 4", "speed 0.1235 2", "parts.a 12,346"):
        assert expected.split() in lines
    assert not any("nothing" in line for line in lines), "a row of zeros says nothing"


def test_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass(frozen=True)
    class Flags(Options):
        """Some flags."""

    monkeypatch.setattr(sys, "argv", ["benchmarks/some.py", "--batch", "0"])
    with pytest.raises(SystemExit, match="2"):
        command(Flags, lambda _: [])
    assert capsys.readouterr().err == "error: --batch must be 1 or more, got 0\n"
