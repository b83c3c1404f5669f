"""Checkpoints of strangers whose preset names an enormous network: one line, before it takes memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scenemem import zoo
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import NETWORK, Checkpoint, stored_network, write_checkpoint
from scenemem.presets import PRESETS
from scenemem.runs.experiment import (
    SPEAKERS,
    Opened,
    new_experiment,
    new_speaker,
    stored_experiment,
    stored_speaker,
)
from tests.faults.test_hostile import memory_limit
from tests.zoo.helpers import small

NETWORKS = {repr(preset.model): preset for preset in (*PRESETS.values(), *zoo.rows().values())}.values()
DIFFERS = r"'{}' has shape {}, this network needs {}; was it trained with another preset, .*\?"
LARGER = r"its preset names a network far larger than its weights \({}; the file has {}\)"


def _small(preset: Any) -> Any:
    model = replace(preset.model, width=16, word_width=8)
    return replace(preset, model=model, data=replace(preset.data, min_count=1))


def _lying(experiment: Opened[Any], file: Path, **settings: Any) -> Path:
    """A checkpoint whose preset has other settings than its network was built with."""
    described = json.loads(json.dumps(experiment.metadata))
    described["preset"]["model"].update(settings)
    write_checkpoint(file, experiment.network, described)
    return file


def _refused(read: Callable[[], object], reason: str) -> None:
    with memory_limit(600), pytest.raises(DataError) as caught:
        read()
    assert torch.is_grad_enabled(), "whatever was refused, others go on learning"
    assert re.fullmatch(reason, caught.value.reason), caught.value.reason


@pytest.mark.parametrize(
    ("agent", "settings", "reason"),
    [
        (
            "basic",
            {"width": 100_000},
            DIFFERS.format("encoder.forward_lstm.weight_ih_l0", r"\(32, 8\)", r"\(200000, 8\)"),
        ),
        (
            "basic",
            {"word_width": 10**9},
            DIFFERS.format("encoder.embedding.weight", r"\(\d+, 8\)", r"\(\d+, 1000000000\)"),
        ),
        ("ssm", {"width": 10**9}, LARGER.format(r"[\d,]{13,} numbers and more", "[0-9,]{5,6}")),
        ("basic", {"width": 2 * 10**30}, LARGER.format(r"[\d,]{40,} numbers and more", "[0-9,]{5,6}")),
        ("duet", {"layers": 10**9}, LARGER.format("its layers do not end", r"\d{3} tensors")),
        ("duet", {"text_layers": 10**9}, LARGER.format("its layers do not end", r"\d{3} tensors")),
    ],
)
def test_an_enormous_agent_is_refused(
    agent: str, settings: dict[str, int], reason: str, tiny_trainable: Path, tmp_path: Path
) -> None:
    folder = DataFolder(tiny_trainable)
    file = _lying(new_experiment(_small(PRESETS[agent]), folder, seed=0), tmp_path / "c", **settings)
    _refused(lambda: stored_experiment(file, folder), reason)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"width": 100_000},
            DIFFERS.format(r"encoder.chosen.visual.0.weight", r"\(16, 8\)", r"\(100000, 8\)"),
        ),
        ({"width": 10**30}, LARGER.format(r"[\d,]{40,} numbers and more", "[0-9,]{5}")),
    ],
)
def test_an_enormous_speaker_is_refused(
    settings: dict[str, int], reason: str, tiny_trainable: Path, tmp_path: Path
) -> None:
    folder = DataFolder(tiny_trainable)
    file = _lying(new_speaker(_small(SPEAKERS["speaker"]), folder, seed=0), tmp_path / "c", **settings)
    _refused(lambda: stored_speaker(file, folder), reason)


@pytest.mark.parametrize("agent", sorted({preset.agent for preset in NETWORKS}))
def test_every_agent_is_built_within_the_bounds(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all spare room is taken away, so that the bounds that grow with the weights have to do."""
    monkeypatch.setattr("scenemem.learning.checkpoint._SPARE_NUMBERS", 2**14)
    monkeypatch.setattr("scenemem.learning.checkpoint._SPARE_CALLS", 0)
    sizes = DataSizes(words=20, visual=8)
    for preset in (preset for preset in NETWORKS if preset.agent == agent):
        build = partial(AGENTS[agent].build, small(preset).model, sizes)
        fresh = build()
        network = stored_network(build, _checkpoint(fresh), "c")
        for mine, theirs in zip(fresh.parameters(), network.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def _checkpoint(network: nn.Module) -> Checkpoint:
    return Checkpoint({NETWORK + name: tensor for name, tensor in network.state_dict().items()}, {})


class _ReadsItself(nn.Module):
    """A module that cannot be built without numbers, as one of a plugin may be."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3) * float(torch.ones(1)))
        self.wide = nn.Parameter(torch.full((width, 2), 0.5))


def test_modules_that_need_their_numbers_are_built_too() -> None:
    stored = _checkpoint(_ReadsItself(3))
    assert torch.equal(stored_network(lambda: _ReadsItself(3), stored, "c").weight, torch.ones(3))
    larger = LARGER.format("20,000,00[0-9] numbers and more", "9")
    _refused(lambda: stored_network(lambda: _ReadsItself(10**7), stored, "c"), larger)


@pytest.mark.parametrize(
    "size", [{"args": (10**5, 10**4)}, {"args": ((10**5, 10**4),)}, {"size": (10**5, 10**4)}]
)
@pytest.mark.parametrize("function", [torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn])
def test_sizes_are_understood_however_they_are_given(function: Any, size: dict[str, Any]) -> None:
    def build() -> nn.Module:
        function(*size.get("args", ()), **{name: value for name, value in size.items() if name != "args"})
        return nn.Linear(2, 2)

    _refused(
        lambda: stored_network(build, _checkpoint(nn.Linear(2, 2)), "c"),
        LARGER.format("1,000,000,000 numbers and more", "6"),
    )


def test_settings_that_make_no_network_are_one_line() -> None:
    def build() -> nn.Module:
        return nn.MultiheadAttention(6, 4)

    _refused(
        lambda: stored_network(build, _checkpoint(nn.Linear(2, 2)), "c"),
        r"its preset makes no network \(embed_dim must be divisible by num_heads\)",
    )
