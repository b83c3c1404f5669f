"""Commands that are killed, interrupted, or meet a folder that cannot be written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.faults.kills import SMALL, half_written, same
from scenemem.errors import UserError
from scenemem.runs.folder import RunFolder


def _start(*words: object, program: tuple[str, ...] = ("-m", "scenemem")) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def _within(seconds: float, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} seconds"
        time.sleep(0.05)


def _children(process: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(number) for number in listed.stdout.split()]


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def whole(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole")
    process = _start("train", "ssm", "--data", tiny_trainable, "--out", out / "run", *SMALL)
    assert process.communicate()[1] is not None
    assert process.returncode == 0
    return out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_training_that_is_ended_goes_on_as_if_nothing_had_happened(
    whole: Path, tiny_trainable: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = RunFolder(tmp_path / "run")
    words = ("train", "ssm", "--data", tiny_trainable, "--out", run.root)
    process = _start(*words, *SMALL)
    _wait_for(run.metrics, process)
    process.send_signal(number)
    _, told = process.communicate()
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM
        assert "continue with: scenemem train --data " in told.replace("\n", " ")
    assert half_written(run.root) == []
    second = _start(*words, "--resume", "--no-replays")
    second.communicate()
    assert second.returncode == 0
    assert same(tmp_path, whole)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("command", ["data houses", "eval"])
def test_workers_end_with_the_command_that_started_them(
    whole: Path, tiny_trainable: Path, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    shutil.copytree(whole / "run", tmp_path / "run")
    words: dict[str, tuple[object, ...]] = {
        "data houses": ("data", "houses", "--out", tmp_path / "houses", "--jobs", 2),
        "eval": ("eval", tmp_path / "run", "--data", tiny_trainable, "--processes", 2),
    }
    process = _start(*words[command])
    _within(60, lambda: len(_children(process.pid)) >= 3)  # two workers and a tracker
    workers = _children(process.pid)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    _within(20, lambda: not any(map(_alive, workers)))
    assert not (tmp_path / "houses").exists()
    assert same(tmp_path, whole), "nothing was half-written"


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may write everywhere")
def test_a_folder_that_becomes_read_only_is_one_clear_line(tiny_trainable: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    process = _start("train", "ssm", "--data", tiny_trainable, "--out", run.root, *SMALL)
    _wait_for(run.metrics, process)
    (run.root / "checkpoints").chmod(0o500)
    _, told = process.communicate()
    (run.root / "checkpoints").chmod(0o700)
    assert process.returncode == 2
    assert "Traceback" not in told
    assert half_written(run.root) == []


def test_a_second_training_is_kept_out(tiny_trainable: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    words = ("train", "ssm", "--data", tiny_trainable, "--out", run.root)
    first = _start(*words, *SMALL, "--iterations", 100_000)
    try:
        _wait_for(run.metrics, first)
        second = _start(*words, "--resume")
        _, told = second.communicate()
        assert second.returncode == 2
        told = told.replace("\n", " ")
        assert f"is being trained by another process (process {first.pid} on " in told
        assert "wait until it has ended, or name another folder with --out" in told
    finally:
        first.kill()
        first.communicate()


def test_a_run_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "run"
    with pytest.raises(UserError) as caught, RunFolder(root).locked():
        pass
    reason = "cannot be written (Not a directory); make it writable or choose another `out`"
    assert str(caught.value) == f"{root}: {reason}"
