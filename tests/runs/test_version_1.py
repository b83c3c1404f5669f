"""Runs and weights of version 1; ``version_1.json`` has what it wrote down about small networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from scenemem.agents.build import AGENTS, DataSizes
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import load_network, read_checkpoint
from scenemem.models.speaker import SpeakerConfig, SpeakerNetwork
from scenemem.presets import PRESETS, Preset, read_preset
from scenemem.runs.experiment import begun, new_experiment
from scenemem.runs.folder import RunFolder
from scenemem.runs.training import Settings, run_training
from tests.commands.helpers import typed

WRITTEN: dict[str, Any] = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))
AGENTS_V1: dict[str, dict[str, Any]] = WRITTEN["agents"]
RENAMED = {
    "ssm-local": "ssm-no-memory",
    "ssm-paper": "ssm-paper-width",
    "ssm-r4r-objects": "ssm-r4r-oracle",
}
"""name of a preset then -> its name now"""


def _small(preset: Preset[Any]) -> Preset[Any]:
    return replace(preset, model=replace(preset.model, width=16, word_width=8))


@pytest.mark.parametrize("name", AGENTS_V1)
def test_a_preset_is_read_as_the_one_it_is_today(name: str) -> None:
    assert read_preset(AGENTS_V1[name]["preset"]) == _small(PRESETS[RENAMED.get(name, name)])


def test_settings_from_before_a_setting_existed_have_its_default() -> None:
    written = json.loads(json.dumps(AGENTS_V1["ssm"]["preset"]))
    for setting in ("revisits", "goes_back"):
        del written["memory"][setting]
    del written["learning"]["stages"][0]["student"]
    del written["data"]["word_vectors"]
    read = read_preset(written)
    assert (read.model.allow_revisits, read.model.final_backtrack) == (False, False)
    assert read.data.word_vectors
    assert read.learning.stages[0].losses == {"teacher_forcing": 1.0, "a2c": 1.0}


def _write(file: Path, shapes: dict[str, list[int]], metadata: dict[str, Any]) -> None:
    """Made-up weights under the names of version 1."""
    torch.manual_seed(0)
    tensors = {f"network.{name}": torch.randn(*shape) for name, shape in shapes.items()}
    save_file(tensors, file, metadata={"scenemem": json.dumps({"version": 1, **metadata})})


@pytest.mark.parametrize("name", AGENTS_V1)
def test_weights_of_every_agent_are_loaded(name: str, tmp_path: Path) -> None:
    _write(tmp_path / "old", AGENTS_V1[name]["weights"], {})
    preset = read_preset(AGENTS_V1[name]["preset"])
    sizes = DataSizes(words=WRITTEN["words"], visual=WRITTEN["visual"])
    network = AGENTS[preset.agent].build(preset.model, sizes)
    load_network(network, read_checkpoint(tmp_path / "old"), tmp_path / "old")  # strictly
    written = load_file(tmp_path / "old")
    # parameters are in the order they had, so that none has taken the name of another one of its shape
    for old, value in zip(AGENTS_V1[name]["weights"], network.state_dict().values(), strict=True):
        assert torch.equal(written[f"network.{old}"], value), old


def test_weights_of_speakers_are_loaded(tmp_path: Path) -> None:
    _write(tmp_path / "old", WRITTEN["speaker"], {"kind": "speaker"})
    network = SpeakerNetwork(SpeakerConfig(width=16, word_width=8), WRITTEN["words"], WRITTEN["visual"])
    load_network(network, read_checkpoint(tmp_path / "old"), tmp_path / "old")
    written = load_file(tmp_path / "old")
    for old, value in zip(WRITTEN["speaker"], network.state_dict().values(), strict=True):
        assert torch.equal(written[f"network.{old}"], value), old


def _tiny(preset: Preset[Any]) -> Preset[Any]:
    return replace(
        preset,
        data=replace(preset.data, min_count=1),
        learning=replace(preset.learning, iterations=4, batch=4),
        selection=replace(preset.selection, every=2, save_every=2),
    )


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunFolder]:
    """A run of today, and the same run as version 1 would have written it."""
    root = tmp_path_factory.mktemp("runs")
    today, old = RunFolder(root / "today"), RunFolder(root / "old")
    preset, folder = _tiny(_small(PRESETS["ssm"])), DataFolder(tiny_trainable)
    run_training(Settings("ssm", preset), folder, today)
    written = json.loads(json.dumps(AGENTS_V1["ssm"]["preset"]))
    written["data"] |= {"min_count": 1, "features": "tiny"}
    written["learning"] |= {"iterations": 4, "batch": 4}
    written["selection"] |= {"every": 2, "save_every": 2}
    description = {**today.describe(), "preset": written}
    del description["plugins"]
    old.begin(description)
    old.metrics.write_bytes(today.metrics.read_bytes())
    names = dict(
        zip(new_experiment(preset, folder, 0).network.state_dict(), AGENTS_V1["ssm"]["weights"], strict=True)
    )
    for source, target in ((today.last, old.last), (today.best, old.best)):
        checkpoint = read_checkpoint(source)
        tensors = {
            f"network.{names[name.removeprefix('network.')]}" if name.startswith("network.") else name: value
            for name, value in checkpoint.tensors.items()
        }
        metadata = {"version": 1, **checkpoint.metadata, "preset": written}
        target.parent.mkdir(exist_ok=True)
        save_file(tensors, target, metadata={"scenemem": json.dumps(metadata)})
    return today, old


def test_a_run_is_described(runs: tuple[RunFolder, RunFolder]) -> None:
    today, old = (begun(run, Preset) for run in runs)
    assert old.preset == today.preset
    assert (old.name, old.seed, old.plugins) == ("ssm", 0, ())


def test_runs_are_evaluated_and_compared_beside_those_of_today(
    runs: tuple[RunFolder, RunFolder], tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for run in runs:
        for checkpoint in ("last", "best"):
            words = ("eval", run.root, "--data", tiny_trainable, "--checkpoint", checkpoint, "--json")
            assert typed(*words) == 0
            found.append(json.loads(capsys.readouterr().out)["metrics"])
    assert found[:2] == found[2:]
    assert typed("compare", *(run.root for run in runs), "--data", tiny_trainable, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert list(rows) == ["ssm"]
    assert rows["ssm"]["spl"]["n"] == 2
    assert rows["ssm"]["spl"]["sd"] == 0.0


def test_a_run_is_not_continued_but_another_one_begins_with_its_weights(
    runs: tuple[RunFolder, RunFolder],
    tiny_trainable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = runs[1]
    words = ("train", "ssm", "--data", tiny_trainable, "--no-replays")
    assert typed(*words, "--out", old.root, "--resume") == 2
    message = capsys.readouterr().err
    assert "was trained by an earlier version, whose runs cannot be continued" in message
    assert f"begin a new run with its weights: --begin {old.root}" in message.replace("\n", " ")
    small = ("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 4)
    losses = []
    for run in runs:
        out = tmp_path / run.root.name
        assert typed(*words, *small, "--iterations", 2, "--begin", run.root, "--out", out) == 0
        losses.append([line["losses"] for line in RunFolder(out).logged()])
    assert losses[0] == losses[1]
