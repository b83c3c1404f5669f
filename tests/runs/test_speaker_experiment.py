from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import write_checkpoint
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS, DataConfig
from scenemem.runs.config import changed
from scenemem.runs.experiment import (
    SPEAKERS,
    SpeakerExperiment,
    SpeakerPreset,
    SpeakerSelection,
    new_experiment,
    new_speaker,
    stored_speaker,
)

SMALL = SpeakerPreset(words=20, model=SpeakerConfig(word_width=8, width=16), data=DataConfig(min_count=1))


@pytest.fixture
def experiment(tiny_trainable: Path) -> SpeakerExperiment:
    return new_speaker(SMALL, DataFolder(tiny_trainable), seed=0)


def _written(experiment: SpeakerExperiment, file: Path, **metadata: object) -> Path:
    write_checkpoint(
        file, experiment.speaker.network, json.loads(json.dumps({**experiment.metadata, **metadata}))
    )
    return file


@pytest.mark.parametrize("name", SPEAKERS)
def test_presets_survive_being_written_down_and_learn(name: str, tiny_trainable: Path) -> None:
    preset = SPEAKERS[name]
    assert msgspec.json.decode(msgspec.json.encode(preset), type=SpeakerPreset) == preset
    sizes = {"speaker": (256, 0.25, 80), "speaker-paper": (512, 0.6, 120)}
    assert (preset.model.width, preset.model.dropout, preset.words) == sizes[name]
    small = replace(preset, data=DataConfig(min_count=1), learning=replace(preset.learning, batch=4))
    experiment = new_speaker(small, DataFolder(tiny_trainable), seed=0)
    trainer = SpeakerTrainer(experiment.speaker, experiment.episodes("train"), small.learning, seed=0)
    before = trainer.network.decoder.words.weight.detach().clone()
    assert [trainer.step().episodes for _ in range(2)] == [4, 4]
    assert not torch.equal(trainer.network.decoder.words.weight, before)


def test_a_stored_speaker_says_the_same(
    experiment: SpeakerExperiment, tiny_trainable: Path, tmp_path: Path
) -> None:
    file = _written(experiment, tmp_path / "speaker.safetensors")
    again = stored_speaker(file, DataFolder(tiny_trainable))
    episodes = experiment.episodes("val_unseen")
    first, second = (s.speaker.describe(episodes.path, episodes.heading) for s in (experiment, again))
    assert torch.equal(first.tokens, second.tokens)
    assert again.preset == experiment.preset
    assert again.preset.data.features == "tiny", "a run knows its store"


def test_held_out_buildings_are_neither_learnt_nor_described_for_training(
    experiment: SpeakerExperiment, tiny_trainable: Path
) -> None:
    scans = set(experiment.episodes("dev_unseen").scan.tolist())
    held_out = {experiment.environment.world.scans[number] for number in scans}
    assert len(held_out) == 1
    assert set(experiment.training_scans) | held_out == {"grid", "spiral"}
    assert not set(experiment.training_scans) & held_out
    whole = replace(SMALL, selection=SpeakerSelection(split="val_unseen"))
    assert new_speaker(whole, DataFolder(tiny_trainable), seed=0).training_scans == ["grid", "spiral"]


def test_only_checkpoints_of_speakers_are_loaded(
    experiment: SpeakerExperiment, tiny_trainable: Path, tmp_path: Path
) -> None:
    folder, file = DataFolder(tiny_trainable), tmp_path / "agent.safetensors"
    small = changed(PRESETS["basic"], {"model": {"width": 16, "word_width": 8}, "data": {"min_count": 1}})
    agent = new_experiment(small, folder, seed=0)
    write_checkpoint(file, agent.agent.network, json.loads(json.dumps(agent.metadata)))
    with pytest.raises(DataError, match="holds no speaker; train one with 'scenemem speak train'"):
        stored_speaker(file, folder)
    odd = _written(experiment, tmp_path / "odd.safetensors", vocabulary=["no", "marks"])
    with pytest.raises(DataError, match="does not describe its speaker"):
        stored_speaker(odd, folder)


def test_impossible_settings_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="every must be a positive multiple of save_every, got 3 and 2"):
        SpeakerSelection(every=3, save_every=2)
    with pytest.raises(ValueError, match="words must be 3 or more to hold a word between two marks, got 2"):
        SpeakerPreset(words=2)
