"""Published weights: all are loaded, and do what their cards say on nothing but public data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.agents.build import AGENTS, DataSizes
from scenemem.houses.build import default_houses
from scenemem.learning.checkpoint import load_network, read_checkpoint
from scenemem.models.speaker import SpeakerNetwork
from scenemem.presets import PRESETS, R2R_TRACKS, read_preset
from scenemem.runs.experiment import SpeakerPreset
from scenemem.runs.weights import published
from tests.commands.helpers import Shell

PUBLISHED = {entry.name: entry for entry in published() if not entry.is_speaker}
SPEAKERS = {entry.name: entry for entry in published() if entry.is_speaker}


def _of(*tracks: str) -> list[str]:
    """The agents of some tracks."""
    return [name for name, entry in PUBLISHED.items() if entry.track in tracks]


@pytest.mark.parametrize("name", SPEAKERS)
def test_speakers_fit_the_network_of_today(name: str) -> None:
    entry = SPEAKERS[name]
    preset = msgspec.convert(entry.metadata["preset"], SpeakerPreset)
    sizes = len(entry.metadata["vocabulary"]), entry.metadata["features"]["width"]
    load_network(SpeakerNetwork(preset.model, *sizes), read_checkpoint(entry.file), entry.file)
    assert msgspec.convert(entry.description["preset"], SpeakerPreset) == preset


def _speaks(name: str, data: Path, shell: Shell, tolerance: float) -> Any:
    """How well a speaker describes the paths of val_unseen, which its card says."""
    report = shell.json("speak", "eval", f"weights:{name}", "--data", data)
    assert report["bleu"] == pytest.approx(SPEAKERS[name].metrics["val_unseen"]["bleu"], abs=tolerance)
    assert report["bleu"] > max(report["retrieval"], report["shuffled"]), "it describes this path, not any"
    return report


def test_the_speaker_of_the_houses_reaches_its_card(shell: Shell) -> None:
    report = _speaks("speaker-houses", default_houses(), shell, 5e-4)
    assert report["retrieval"] > report["shuffled"]
    card = SPEAKERS["speaker-houses"].file.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| val_unseen | {report['bleu']:.3f} |" in card
    assert "`scenemem speak eval weights:speaker-houses --split val_unseen`" in card


@pytest.mark.real_data
def test_the_speaker_of_r2r_reaches_its_card(with_features: Path, shell: Shell) -> None:
    _speaks("speaker-r2r-captions", with_features, shell, 0.003)


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_fit_the_agent_of_today(name: str) -> None:
    entry = PUBLISHED[name]
    checkpoint, preset = read_checkpoint(entry.file), read_preset(entry.metadata["preset"])
    row = entry.description["name"].partition("-r2r-")[0]  # of results: the row and what it was trained on
    assert preset.agent == PRESETS[row].agent
    sizes = DataSizes(len(entry.metadata["vocabulary"]), entry.metadata["features"]["width"])
    network = AGENTS[preset.agent].build(preset.model, sizes)
    load_network(network, checkpoint, entry.file)  # strictly: no weight is missing or left over
    assert read_preset(entry.description["preset"]) == preset


@pytest.mark.parametrize("split", ["val_seen", "val_unseen"])
@pytest.mark.parametrize("name", _of("houses"))
def test_agents_of_the_houses_reach_their_cards(name: str, split: str, shell: Shell) -> None:
    entry, data = PUBLISHED[name], default_houses()  # built once for all tests
    metrics = shell.json("eval", f"weights:{name}", "--split", split, "--data", data)["metrics"]
    assert metrics == pytest.approx(entry.metrics[split], abs=5e-4)
    card = entry.file.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| {split} | {metrics['sr']:.3f} | {metrics['spl']:.3f} |" in card


@pytest.mark.real_data
@pytest.mark.parametrize("name", _of(*R2R_TRACKS))
def test_agents_of_r2r_reach_their_cards(name: str, with_features: Path, shell: Shell) -> None:
    words = ("eval", f"weights:{name}", "--split", "val_unseen", "--data", with_features)
    metrics = shell.json(*words)["metrics"]
    # another processor may round a close decision the other way
    for metric in ("sr", "spl"):
        assert metrics[metric] == pytest.approx(PUBLISHED[name].metrics["val_unseen"][metric], abs=0.003)


def test_there_are_agents_and_speakers_of_both_worlds_named_after_their_track() -> None:
    assert {entry.track for entry in SPEAKERS.values()} == {"houses", "captions"}
    tracks = {entry.track for entry in PUBLISHED.values()}
    assert {"houses", "captions", "oracle"} <= tracks <= {"houses", *R2R_TRACKS}
    for name, entry in {**PUBLISHED, **SPEAKERS}.items():
        assert name.endswith(f"-{entry.track}"), name
