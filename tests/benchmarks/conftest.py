"""Benchmarks on the tiny world, with machine measurements so short that they mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from benchmarks import machine
from benchmarks.machine import Options, report
from benchmarks.measure import Amount, OperationCounter, flop_counter
from benchmarks.workload import Workload
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS, Preset
from scenemem.runs.experiment import SPEAKERS

Run = Callable[..., Any]


def small(name: str) -> Preset[Any]:
    """A preset with a network of a few numbers."""
    preset = PRESETS[name]
    sizes = {"word_width": 8, "width": 16, "node_width": 8}
    own = {item.name for item in fields(preset.model)}
    return replace(preset, model=replace(preset.model, **{k: v for k, v in sizes.items() if k in own}))


def repeated(work: Callable[[], Amount], network: nn.Module) -> Amount:
    """Check that work can be done again, with the same operations, from the same weights."""
    work()  # the first step makes the state of the optimiser
    before, counts = [weights.clone() for weights in network.parameters()], []
    for _ in range(2):
        with flop_counter() as products, OperationCounter() as operations:
            done = work()
        counts.append((done, products.get_total_flops(), operations.count))
    assert counts[0] == counts[1]
    for old, new in zip(before, network.parameters(), strict=True):
        torch.testing.assert_close(old, new)
    return done


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LONG_ENOUGH", 1e-6)
    monkeypatch.setattr(machine, "SQUARE", 32)
    monkeypatch.setattr(machine, "cpu_share", lambda: 1.0)
    for name in ("ssm", "basic"):
        monkeypatch.setitem(PRESETS._objects, name, small(name))
    speaker = replace(SPEAKERS["speaker"], model=SpeakerConfig(word_width=8, width=16))
    monkeypatch.setitem(SPEAKERS._objects, "speaker", speaker)


@pytest.fixture
def run(tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a benchmark as its command does and returns the cases of the JSON object it prints."""

    def ran(options: type[Options], measure: Callable[[Any], Any], **flags: Any) -> Any:
        given = {"data": tiny_trainable, "batch": 4, "seconds": 1e-6, "repeats": 1, **flags}
        report(measure, options(**given, json=True, out=tmp_path / "report.json"))
        shown = msgspec.json.decode(capsys.readouterr().out)
        assert shown == msgspec.json.decode((tmp_path / "report.json").read_bytes())
        assert shown["machine"]["threads"] == 1
        return shown["cases"]

    return ran


@pytest.fixture(scope="module")
def tiny_load(tiny_trainable: Path) -> Workload:
    """Training of ``ssm`` on the tiny world."""
    return Workload(small("ssm"), Options(data=tiny_trainable, batch=4))
