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
LARGER = r"its preset makes no network that fits its weights \(.*\)"


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
        ("basic", {"width": 32}, DIFFERS.format(r".*weight.*", r"\(.*\)", r"\(.*\)")),
        ("basic", {"width": 100_000}, LARGER),
        ("basic", {"word_width": 10**9}, LARGER),
        ("ssm", {"width": 10**9}, LARGER),
        ("basic", {"width": 2 * 10**30}, LARGER),
        ("duet", {"layers": 10**9}, LARGER),
        ("duet", {"text_layers": 10**9}, LARGER),
        ("speaker", {"width": 100_000}, LARGER),
        ("speaker", {"width": 10**30}, LARGER),
    ],
)
def test_an_enormous_network_is_refused(
    agent: str, settings: dict[str, int], reason: str, tiny_trainable: Path, tmp_path: Path
) -> None:
    folder, speaks = DataFolder(tiny_trainable), agent == "speaker"
    new, read = (new_speaker, stored_speaker) if speaks else (new_experiment, stored_experiment)
    preset = _small((SPEAKERS if speaks else PRESETS)[agent])
    file = _lying(new(preset, folder, seed=0), tmp_path / "c", **settings)
    _refused(lambda: read(file, folder), reason)


@pytest.mark.parametrize("agent", sorted({preset.agent for preset in NETWORKS}))
def test_every_agent_is_built_within_the_bounds(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all spare room is taken away, so that the bounds that grow with the weights have to do."""
    monkeypatch.setattr("scenemem.learning.checkpoint._SPARE_NUMBERS", 2**14)
    monkeypatch.setattr("scenemem.learning.checkpoint._SPARE_TENSORS", 0)
    sizes = DataSizes(words=20, visual=8)
    for preset in (preset for preset in NETWORKS if preset.agent == agent):
        build = partial(AGENTS[agent].build, small(preset).model, sizes)
        fresh = build()
        network = stored_network(build, _checkpoint(fresh), "c")
        for mine, theirs in zip(fresh.parameters(), network.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def _checkpoint(network: nn.Module) -> Checkpoint:
    return Checkpoint({NETWORK + name: tensor for name, tensor in network.state_dict().items()}, {})


def test_building_leaves_nothing_behind() -> None:
    stored = _checkpoint(nn.Linear(2, 2))
    stored_network(lambda: nn.Linear(2, 2), stored, "c")
    nn.ModuleList(nn.Linear(1, 1) for _ in range(2000))  # more than the file has, but it is not asked for
    wrong: dict[str, Callable[[], nn.Module]] = {
        "1,009 tensors and more; the file has 2": lambda: nn.Sequential(
            *(nn.Linear(1, 1) for _ in range(2000))
        ),
        "embed_dim must be divisible by num_heads": lambda: nn.MultiheadAttention(6, 4),
    }
    for reason, build in wrong.items():
        fits = rf"its preset makes no network that fits its weights \({reason}\)"
        _refused(partial(stored_network, build, stored, "c"), fits)
