"""Speakers on a data folder: their presets, and how one is begun or loaded with its world, eyes and words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch

from scenemem.agents.sight import Sight
from scenemem.errors import DataError, SettingError, UserError
from scenemem.experiment import (
    DEV_UNSEEN,
    Experiment,
    check_features,
    chosen_store,
    open_sight,
    store_trained_on,
)
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import load_network, read_checkpoint
from scenemem.learning.run_folder import RunFolder
from scenemem.learning.speaker_config import SpeakerLearning
from scenemem.learning.speaker_voice import Speaker
from scenemem.models.speaker import SpeakerConfig, SpeakerNetwork
from scenemem.presets import DataConfig, Preset
from scenemem.tasks.episode_set import EpisodeSet, load_split, split_off
from scenemem.tasks.vocabulary import Vocabulary

KIND = "speaker"
"""What a checkpoint of a speaker says it is."""


@dataclass(frozen=True)
class SpeakerSelection:
    """Which checkpoint of a run is kept as its best: the one with the highest corpus BLEU-4."""

    split: str = DEV_UNSEEN
    """dev_unseen holds out a fixed share of the training buildings; the field's habit is val_unseen"""
    every: int = 200
    """iterations between two validations; a multiple of save_every"""
    save_every: int = 200
    """iterations between two checkpoints"""

    def __post_init__(self) -> None:
        if self.save_every < 1 or self.every < 1 or self.every % self.save_every:
            raise SettingError(
                f"every must be a positive multiple of save_every, got {self.every} and {self.save_every}"
            )


@dataclass(frozen=True)
class SpeakerPreset:
    """A speaker and how it learns."""

    words: int = 80
    """tokens of the longest text, both marks included: longer instructions are cut, descriptions end there"""
    model: SpeakerConfig = field(default_factory=SpeakerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learning: SpeakerLearning = field(default_factory=SpeakerLearning)
    selection: SpeakerSelection = field(default_factory=SpeakerSelection)

    def __post_init__(self) -> None:
        if self.words < 3:
            raise SettingError(f"words must be 3 or more to hold a word between two marks, got {self.words}")


SPEAKERS: dict[str, SpeakerPreset] = {
    "speaker": SpeakerPreset(),
    "speaker-paper": SpeakerPreset(
        words=120,
        model=SpeakerConfig(width=512, dropout=0.6, feature_dropout=0.3),
        learning=SpeakerLearning(iterations=80_000, batch=64, learning_rate=1e-4, clip=40.0),
    ),
}
"""Speakers by name: everyday width, and the width and recipe of E-Dropout's speaker."""


@dataclass(frozen=True, eq=False)
class Speaking:
    """Everything a speaker needs, opened."""

    preset: SpeakerPreset
    folder: DataFolder
    speaker: Speaker

    @property
    def sight(self) -> Sight:
        """The world and the features of its views."""
        return self.speaker.sight

    def episodes(self, split: str) -> EpisodeSet:
        """The episodes of a split; ``dev_unseen`` and ``train`` share the training buildings between them.

        When the preset selects on another split nothing is held out, and ``train`` is the whole split.
        """
        holds_out = self.preset.selection.split == DEV_UNSEEN
        if split == DEV_UNSEEN or (split == "train" and holds_out):
            return self._shared[split]
        return load_split(self.folder, self.sight.world, self.preset.data.task, split)

    @cached_property
    def _shared(self) -> dict[str, EpisodeSet]:
        whole = load_split(self.folder, self.sight.world, self.preset.data.task, "train")
        rest, held_out = split_off(whole)
        return {"train": rest, DEV_UNSEEN: held_out}

    @property
    def training_scans(self) -> list[str]:
        """The buildings it learns in."""
        episodes = self.episodes("train")
        return [episodes.scans[number] for number in sorted(set(episodes.scan.tolist()))]

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be loaded into this speaker."""
        info = self.sight.store.info
        return {
            "kind": KIND,
            "preset": msgspec.to_builtins(self.preset),
            "vocabulary": list(self.speaker.vocabulary.words),
            "features": {"width": info.width, "encoder": info.encoder, "sha256": info.sha256},
        }


def new_speaking(preset: SpeakerPreset, folder: DataFolder, seed: int, device: str = "cpu") -> Speaking:
    """A speaker on a data folder with fresh weights drawn from ``seed``, on a device.

    Raises:
        DataError: the folder lacks something the preset needs.
    """
    store = chosen_store(Preset(data=preset.data), folder)
    preset = replace(preset, data=replace(preset.data, features=store.stem))  # so that a run knows its store
    sight = open_sight(store, folder, device)
    whole = load_split(folder, sight.world, preset.data.task, "train")
    held_in = split_off(whole)[0] if preset.selection.split == DEV_UNSEEN else whole
    vocabulary = Vocabulary.build(held_in.texts, min_count=preset.data.min_count)
    torch.manual_seed(seed)
    return _assembled(preset, folder, sight, vocabulary)


def stored_speaking(checkpoint_file: Path, folder: DataFolder, device: str = "cpu") -> Speaking:
    """A trained speaker from a checkpoint, on a data folder and a device.

    Raises:
        DataError: the checkpoint is damaged or holds no speaker, or the folder's features are not the ones it
            was trained with.
    """
    checkpoint = read_checkpoint(checkpoint_file)
    if checkpoint.facts.get("kind") != KIND:
        raise DataError(checkpoint_file, "holds no speaker; train one with 'scenemem speak train'")
    try:
        preset = msgspec.convert(checkpoint.facts["preset"], SpeakerPreset)
        vocabulary = Vocabulary(tuple(checkpoint.facts["vocabulary"]))
    except (KeyError, msgspec.ValidationError, ValueError) as error:
        raise DataError(checkpoint_file, f"does not describe its speaker ({error})") from error
    sight = open_sight(store_trained_on(checkpoint, Preset(data=preset.data), folder), folder, device)
    check_features(sight.store.info, checkpoint, checkpoint_file)
    speaking = _assembled(preset, folder, sight, vocabulary)
    load_network(speaking.speaker.network, checkpoint, checkpoint_file)
    return speaking


def speaker_beside(run: RunFolder, experiment: Experiment) -> Speaker:
    """The trained speaker of a run, for an agent that will work with it.

    Raises:
        UserError: there is no such run, or its speaker sees other features than the agent.
        DataError: the checkpoint is damaged or holds no speaker.
    """
    run.describe()
    speaking = stored_speaking(run.best, experiment.folder, str(experiment.sight.world.device))
    if speaking.sight.store.info.sha256 != experiment.sight.store.info.sha256:
        raise UserError(
            f"the speaker in {run.root} sees other features than the agent; "
            "train both with the same --features"
        )
    return speaking.speaker


def _assembled(preset: SpeakerPreset, folder: DataFolder, sight: Sight, vocabulary: Vocabulary) -> Speaking:
    network = SpeakerNetwork(preset.model, len(vocabulary), sight.width).to(sight.world.device)
    return Speaking(preset, folder, Speaker(network, sight, vocabulary, max_words=preset.words))
