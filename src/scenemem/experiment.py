"""An experiment: a preset on a data folder, with its world, eyes, words and agent."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch

from scenemem import __version__
from scenemem.agents.build import build_network
from scenemem.agents.sight import Sight
from scenemem.agents.trained import TrainedAgent
from scenemem.errors import DataError, UserError
from scenemem.features.store import open_store
from scenemem.features.words import first_embeddings
from scenemem.formats.annotations import read_word_vectors
from scenemem.formats.features import StoreInfo, read_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import Checkpoint, load_network, read_checkpoint
from scenemem.presets import Preset
from scenemem.tasks.episode_set import EpisodeSet, load_split, split_off
from scenemem.tasks.vocabulary import SPECIAL, Vocabulary
from scenemem.world.build import load_world

DEV_UNSEEN = "dev_unseen"
"""The split made of held-out training buildings."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything a preset needs, opened."""

    preset: Preset
    folder: DataFolder
    sight: Sight
    vocabulary: Vocabulary
    agent: TrainedAgent

    def episodes(self, split: str) -> EpisodeSet:
        """The episodes of a split; ``dev_unseen`` and ``train`` share the training buildings between them.

        When the preset selects on another split nothing is held out, and ``train`` is the whole split.
        """
        holds_out = self.preset.selection.split == DEV_UNSEEN
        if split not in ("train", DEV_UNSEEN) or (split == "train" and not holds_out):
            return load_split(self.folder, self.sight.world, self.preset.data.task, split)
        return self._shared[split]

    @cached_property
    def _shared(self) -> dict[str, EpisodeSet]:
        whole = load_split(self.folder, self.sight.world, self.preset.data.task, "train")
        rest, held_out = split_off(whole)
        return {"train": rest, DEV_UNSEEN: held_out}

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be loaded into this experiment."""
        info = self.sight.store.info
        return {
            "preset": msgspec.to_builtins(self.preset),
            "vocabulary": list(self.vocabulary.words),
            "features": {"width": info.width, "encoder": info.encoder, "sha256": info.sha256},
        }


def new_experiment(preset: Preset, folder: DataFolder, seed: int, device: str = "cpu") -> Experiment:
    """A preset on a data folder with fresh weights drawn from ``seed``, on a device.

    Raises:
        DataError: the folder lacks something the preset needs.
    """
    store = chosen_store(preset, folder)
    preset = replace(preset, data=replace(preset.data, features=store.stem))  # so that a run knows its store
    sight = open_sight(store, folder, device)
    whole = load_split(folder, sight.world, preset.data.task, "train")
    held_in = split_off(whole)[0] if preset.selection.split == DEV_UNSEEN else whole
    vocabulary = Vocabulary.build(held_in.texts, min_count=preset.data.min_count)
    torch.manual_seed(seed)
    experiment = _assembled(preset, folder, sight, vocabulary)
    if preset.data.word_vectors and folder.word_vectors.is_file():
        _begin_with_word_vectors(experiment)
    return experiment


def stored_experiment(
    checkpoint_file: Path, folder: DataFolder, device: str = "cpu"
) -> tuple[Experiment, Checkpoint]:
    """A trained agent from a checkpoint, on a data folder and a device.

    Raises:
        DataError: the checkpoint is damaged, or the folder's features are not the ones it was trained with.
    """
    checkpoint = read_checkpoint(checkpoint_file)
    try:
        preset = msgspec.convert(checkpoint.facts["preset"], Preset)
        vocabulary = Vocabulary(tuple(checkpoint.facts["vocabulary"]))
    except (KeyError, msgspec.ValidationError, ValueError) as error:
        raise DataError(checkpoint_file, f"does not describe its experiment ({error})") from error
    sight = open_sight(store_trained_on(checkpoint, preset, folder), folder, device)
    check_features(sight.store.info, checkpoint, checkpoint_file)
    experiment = _assembled(preset, folder, sight, vocabulary)
    load_network(experiment.agent.network, checkpoint, checkpoint_file)
    return experiment, checkpoint


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {"scenemem": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _assembled(preset: Preset, folder: DataFolder, sight: Sight, vocabulary: Vocabulary) -> Experiment:
    network = build_network(preset.agent, preset.model, preset.memory, preset.walk, vocabulary, sight.width)
    network.to(sight.world.device)
    agent = TrainedAgent(network, sight, vocabulary, max_words=preset.walk.words, max_ticks=preset.walk.ticks)
    return Experiment(preset, folder, sight, vocabulary, agent)


def _begin_with_word_vectors(experiment: Experiment) -> None:
    words, rows = read_word_vectors(experiment.folder.word_vectors)
    # the marks have no meaning to borrow, and padding has to stay 0
    vectors = {word: row for word, row in zip(words, rows, strict=True) if word not in SPECIAL}
    encoder = experiment.agent.network.encoder
    width = encoder.embedding.embedding_dim
    known, begin = first_embeddings(experiment.vocabulary.words, vectors, width)
    encoder.begin_with(torch.from_numpy(known), torch.from_numpy(begin))


def open_sight(store: Path, folder: DataFolder, device: str) -> Sight:
    """The world of a data folder and the features of its views, on a device."""
    world = load_world(folder.connectivity)
    features = open_store(store, world)
    return Sight(world, features) if device == "cpu" else Sight(world.to(device), features.to(device))


def store_trained_on(checkpoint: Checkpoint, preset: Preset, folder: DataFolder) -> Path:
    """The store an agent was trained on, whatever it is called here; else the one of the same name."""
    trained = checkpoint.facts.get("features", {}).get("sha256")
    same = [file for file in folder.feature_files() if read_store(file)[0].sha256 == trained]
    return same[0] if same else chosen_store(preset, folder)


def chosen_store(preset: Preset, folder: DataFolder) -> Path:
    """The feature store a preset names, or the only one there is."""
    if preset.data.features is not None:
        return folder.feature_file(preset.data.features)
    stores = folder.feature_files()
    if len(stores) > 1:
        names = ", ".join(file.stem for file in stores)
        raise UserError(f"{folder.root} has several feature stores ({names}); name one with --features")
    return stores[0] if stores else folder.feature_file("objects")  # which says how to build one


def check_features(info: StoreInfo, checkpoint: Checkpoint, file: Path) -> None:
    """Refuse features other than those a checkpoint was trained on."""
    trained = checkpoint.facts.get("features", {})
    for name in ("width", "sha256"):
        if trained.get(name) != getattr(info, name):
            raise DataError(
                file,
                f"was trained on features with {name} {trained.get(name)}, "
                f"this store has {getattr(info, name)}; build the store it was trained on again",
            )
