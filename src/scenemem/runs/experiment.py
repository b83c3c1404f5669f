"""Experiments: a preset of an agent or of a speaker, opened on a data folder."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import torch
from torch import nn

from scenemem import presets
from scenemem.agents.agent import Agent
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.walker import TrainedAgent
from scenemem.errors import DataError, SettingError, UserError
from scenemem.features.store import (
    Environment,
    check_identity,
    choose_store,
    complete_stores,
    identity,
    open_environment,
)
from scenemem.features.words import first_embeddings
from scenemem.formats.annotations import read_word_vectors
from scenemem.formats.decoding import file_digest
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.learning.checkpoint import Checkpoint, load_network, read_checkpoint, stored_network
from scenemem.learning.speaker import Speaker
from scenemem.learning.speaker_trainer import SpeakerLearning
from scenemem.models.speaker import SpeakerConfig, SpeakerNetwork
from scenemem.presets import DataConfig, Preset
from scenemem.registry import Registry, UnknownNameError, require_plugins, suggestion
from scenemem.runs.folder import SPEAKER, RunFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split, split_off
from scenemem.tasks.vocabulary import SPECIAL, Vocabulary
from scenemem.world.build import graph_digest
from scenemem.world.graph import World

DEV_UNSEEN = "dev_unseen"
"""The split made of held-out training buildings."""

Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Makes a progress bar with a title; inside of it a function is called with (done, total)."""


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Hide the main module from processes that are started meanwhile, so that no script runs twice.

    A spawned process imports the main module, which a script without ``if __name__ == "__main__"`` does not
    survive. Our workers need nothing of it.
    """
    main = vars(sys.modules["__main__"])
    hidden = {name: main.pop(name) for name in ("__file__",) if name in main}
    try:
        yield
    finally:
        main.update(hidden)


@contextmanager
def silent(_title: str) -> Iterator[Callable[[int, int], None]]:
    """No progress bar."""
    yield lambda _done, _total: None


@dataclass(frozen=True)
class SpeakerSelection:
    """Which checkpoint of a run is kept as its best: the one with the highest corpus BLEU-4."""

    split: str = DEV_UNSEEN
    """dev_unseen holds out a fixed share of the training buildings; the field's habit is val_unseen"""
    every: int = 200
    """iterations between two validations, each of which is followed by a checkpoint"""
    save_every: int = 200
    """iterations between two checkpoints, at the most"""
    metric: ClassVar[str] = "bleu"

    def __post_init__(self) -> None:
        for name in ("every", "save_every"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")


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


SPEAKERS: Registry[SpeakerPreset] = Registry(
    "speaker",
    {
        "speaker": SpeakerPreset(),
        "speaker-paper": SpeakerPreset(
            words=120,
            model=SpeakerConfig(width=512, dropout=0.6, feature_dropout=0.3),
            learning=SpeakerLearning(iterations=80_000, batch=64, learning_rate=1e-4, clip=40.0),
        ),
    },
)
"""Speakers by name: everyday width, and the width and recipe of E-Dropout's speaker."""

P = TypeVar("P", Preset[Any], SpeakerPreset)


@dataclass(frozen=True, eq=False)
class Opened(Generic[P]):
    """A preset on a data folder: its environment (world and view features), words, network and episodes."""

    preset: P
    folder: DataFolder
    environment: Environment
    vocabulary: Vocabulary
    network: nn.Module

    def episodes(self, split: str) -> EpisodeSet:
        """The episodes of a split; ``dev_unseen`` and ``train`` share the training buildings between them.

        When the preset selects on another split nothing is held out, and ``train`` is the whole split.
        """
        holds_out = self.preset.selection.split == DEV_UNSEEN
        if split == DEV_UNSEEN or (split == "train" and holds_out):
            return self._shared[split]
        world, task = self.environment.world, self.preset.data.task
        return find_split(self.folder, world, task, split)

    @cached_property
    def _shared(self) -> dict[str, EpisodeSet]:
        whole = load_split(self.folder, self.environment.world, self.preset.data.task, "train")
        return dict(zip(("train", DEV_UNSEEN), split_off(whole), strict=True))

    @property
    def track(self) -> str:
        """The track of its features; empty when it is not known."""
        return self.environment.store.info.track

    @property
    def training_scans(self) -> list[str]:
        """The buildings it learns in."""
        episodes = self.episodes("train")
        return [episodes.scans[number] for number in sorted(set(episodes.scan.tolist()))]

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The sha256 of everything but the features that training reads, by what it is."""
        data, selection = self.preset.data, self.preset.selection.split
        splits = ("train",) if selection == DEV_UNSEEN else ("train", selection)
        found = {split: split_inputs(self.folder, data.task, split) for split in splits}
        digests = {split: each["episodes"] for split, each in found.items()}
        if getattr(data, "word_vectors", False) and self.folder.word_vectors.is_file():
            digests["word vectors"] = file_digest(self.folder.word_vectors)
        return {"graphs": found["train"]["graphs"], **digests}

    @property
    def metadata(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be loaded into this experiment."""
        return {
            **({"kind": SPEAKER} if isinstance(self.preset, SpeakerPreset) else {}),
            "preset": msgspec.to_builtins(self.preset),
            "vocabulary": list(self.vocabulary.words),
            "features": identity(self.environment.store),
        }


@dataclass(frozen=True, eq=False)
class Experiment(Opened[Preset[Any]]):
    """An agent on a data folder."""

    network: Agent

    @cached_property
    def agent(self) -> TrainedAgent:
        """The agent, ready to walk."""
        return TrainedAgent(self.network, self.environment, self.vocabulary, self.preset.walk)


@dataclass(frozen=True, eq=False)
class SpeakerExperiment(Opened[SpeakerPreset]):
    """A speaker on a data folder."""

    network: SpeakerNetwork

    @cached_property
    def speaker(self) -> Speaker:
        """The speaker, ready to describe paths."""
        return Speaker(self.network, self.environment, self.vocabulary, max_words=self.preset.words)


def find_split(folder: DataFolder, world: World, task: str, split: str) -> EpisodeSet:
    """The episodes of a split; the message about one that is not there lists the others."""
    _check_split(folder, task, split)
    return load_split(folder, world, task, split)


def can_be_walked(data: DataConfig, folder: DataFolder, split: str) -> bool:
    """Whether a split is there and any of its paths lies in buildings with features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told when the features were opened
        world = open_environment(choose_store(folder, data.features), folder).world
        try:
            return bool(find_split(folder, world, data.task, split))
        except UserError:
            return False


def split_inputs(folder: DataFolder, task: str, split: str) -> dict[str, str]:
    """The sha256 of the episode file of a split, and of the graphs it is walked on."""
    split = "train" if split == DEV_UNSEEN else split
    _check_split(folder, task, split)
    episodes = file_digest(folder.episodes(task, split))
    return {"episodes": episodes, "graphs": graph_digest(folder.connectivity)}


def _check_split(folder: DataFolder, task: str, split: str) -> None:
    there = [one for one in SPLITS if folder.episodes(task, one).is_file()]
    if there and not folder.episodes(task, split).is_file():
        names = dict.fromkeys((*there, *((DEV_UNSEEN,) if "train" in there else ())))
        raise UserError(f"{folder.root} has no split '{split}' of {task}; {suggestion(split, names)}")


def open_data(data: str | os.PathLike[str] | None, progress: Progress = silent) -> DataFolder:
    """A data folder; the embedded houses, which are built at the first call, when none is named."""
    if data is not None:
        return DataFolder(Path(data))
    from scenemem.houses.build import default_houses  # only needed without a data folder

    with progress("building houses") as advance, hide_main_module():
        return DataFolder(default_houses(progress=advance))


def new_experiment(preset: Preset[Any], folder: DataFolder, seed: int, device: str = "cpu") -> Experiment:
    """An agent on a data folder with fresh weights drawn from ``seed``, on a device."""
    expected = AGENTS[preset.agent].config
    if type(preset.model) is not expected:  # a run could not be read again
        raise SettingError(
            f"the agent '{preset.agent}' has the settings {expected.__name__}, "
            f"got {type(preset.model).__name__}; begin with a preset of that agent"
        )
    experiment = Experiment(*_begun(preset, folder, seed, device))
    if preset.data.word_vectors and folder.word_vectors.is_file():
        _begin_with_word_vectors(experiment)
    return experiment


def new_speaker(
    preset: SpeakerPreset, folder: DataFolder, seed: int, device: str = "cpu"
) -> SpeakerExperiment:
    """The same for a speaker."""
    return SpeakerExperiment(*_begun(preset, folder, seed, device))


def stored_experiment(file: Path, folder: DataFolder, device: str = "cpu") -> tuple[Experiment, Checkpoint]:
    """A trained agent from a checkpoint, on a data folder (with the features it was trained on) and a device.

    A plugin that its agent comes from has to be loaded already.
    """
    checkpoint = read_checkpoint(file)
    if checkpoint.metadata.get("kind") == SPEAKER:
        raise DataError(file, "holds a speaker, which describes paths; use it with 'scenemem speak'")
    experiment = Experiment(*_reopened(checkpoint, file, Preset, folder, device))
    trained = checkpoint.metadata.get("inputs")
    if isinstance(trained, dict) and trained.get("graphs") != graph_digest(folder.connectivity):
        warnings.warn(
            f"{file}: was trained on other navigation graphs than those in {folder.connectivity}; "
            "distances and scores may not be comparable",
            stacklevel=2,
        )
    return experiment, checkpoint


def stored_speaker(file: Path, folder: DataFolder, device: str = "cpu") -> SpeakerExperiment:
    """The same for a speaker."""
    checkpoint = read_checkpoint(file)
    if checkpoint.metadata.get("kind") != SPEAKER:
        raise DataError(file, "holds no speaker; train one with 'scenemem speak train'")
    return SpeakerExperiment(*_reopened(checkpoint, file, SpeakerPreset, folder, device))


def speaker_beside(run: RunFolder, experiment: Experiment) -> Speaker:
    """The trained speaker of a run, for an agent that will work with it and sees the same features."""
    run.describe()
    opened = stored_speaker(run.best, experiment.folder, str(experiment.environment.world.device))
    if opened.environment.store.info.sha256 != experiment.environment.store.info.sha256:
        advice = "train both with the same `features`"
        raise UserError(f"the speaker in {run.root} sees other features than the agent; {advice}")
    return opened.speaker


def begin_with(experiment: Experiment, run: RunFolder) -> None:
    """Load the trained weights of another run, on the same words and features, into a new experiment."""
    checkpoint = read_checkpoint(run.last)
    trained = checkpoint.metadata.get("features", {})
    same = {
        "vocabulary": checkpoint.metadata.get("vocabulary") == experiment.metadata["vocabulary"],
        "features": trained.get("sha256") == experiment.environment.store.info.sha256,
    }
    for name, kept in same.items():
        if not kept:
            advice = "begin with a run on the same data and held-out buildings"
            raise UserError(f"{run.root} has another {name}; {advice}")
    load_network(experiment.network, checkpoint, run.last)


class Features(msgspec.Struct, frozen=True):
    """The features a run has learned from."""

    features: str  # what made them
    sha256: str  # of the store
    track: str = ""  # empty when it is not known


class RunMetadata(msgspec.Struct, frozen=True):
    """The settings and sources a run was started with."""

    name: str
    seed: int
    preset: Any
    data: Features
    versions: dict[str, str]
    augmentation: dict[str, str] = {}  # where augmented episodes came from: speaker or augment
    plugins: tuple[str, ...] = ()
    computing: dict[str, Any] = {}  # threads, precision, device, processes
    began: dict[str, str] | None = msgspec.field(default=None, name="begin")

    @property
    def begin(self) -> dict[str, str]:
        """The run it began with, and the sha256 of its weights; empty for fresh ones."""
        return self.began or {}


def begun(run: RunFolder, kind: type[P]) -> RunMetadata:
    """The description of a run; plugins it names have to be loaded already."""
    content = run.describe()
    with _described_in(run.description, "a run"):
        described = msgspec.convert(content, RunMetadata)
        preset = read_preset(described.preset, kind, run.description, described.plugins)
    return msgspec.structs.replace(described, preset=preset)


@contextmanager
def _described_in(file: Path, what: str) -> Iterator[None]:
    """Turn what is wrong with plain values in a file into ``DataError``."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise DataError(file, f"does not describe {what} ({error})") from error


def read_preset(described: Mapping[str, Any], kind: type[P], file: Path, plugins: tuple[str, ...]) -> P:
    """A preset as it was written down; agents that are not known come from a plugin."""
    if kind is SpeakerPreset:
        return msgspec.convert(described, kind)
    try:
        return presets.read_preset(described)  # type: ignore[return-value]  # of an agent, as asked for
    except UnknownNameError as error:
        require_plugins(plugins, file)
        raise DataError(
            file, f"was trained with the agent '{described['agent']}', which no loaded plugin has"
        ) from error


_Parts = tuple[P, DataFolder, Environment, Vocabulary, Any]  # what an experiment consists of


def _network(preset: Preset[Any] | SpeakerPreset, environment: Environment, vocabulary: Vocabulary) -> Any:
    """The network of an agent or of a speaker, with fresh weights."""
    if isinstance(preset, SpeakerPreset):
        return SpeakerNetwork(preset.model, len(vocabulary), environment.width)
    sizes = DataSizes(words=len(vocabulary), visual=environment.width)
    return AGENTS[preset.agent].build(preset.model, sizes)


def _begin_with_word_vectors(experiment: Experiment) -> None:
    words, rows = read_word_vectors(experiment.folder.word_vectors)
    # the marks have no meaning to borrow, and padding has to stay 0
    vectors = {word: row for word, row in zip(words, rows, strict=True) if word not in SPECIAL}
    encoder = experiment.agent.network.encoder
    width = encoder.embedding.embedding_dim
    known, begin = first_embeddings(experiment.vocabulary.words, vectors, width)
    encoder.initialise_words(torch.from_numpy(known), torch.from_numpy(begin))


def _begun(preset: P, folder: DataFolder, seed: int, device: str) -> _Parts[P]:
    """A preset with the name of its feature store, the words of its training split, and fresh weights."""
    store = choose_store(folder, preset.data.features)
    preset = replace(preset, data=replace(preset.data, features=store.stem))  # so that a run names its store
    environment = open_environment(store, folder, device)
    whole = load_split(folder, environment.world, preset.data.task, "train")
    held_in = split_off(whole)[0] if preset.selection.split == DEV_UNSEEN else whole
    vocabulary = Vocabulary.build(held_in.texts, min_count=preset.data.min_count)
    torch.manual_seed(seed)
    network = _network(preset, environment, vocabulary)
    return preset, folder, environment, vocabulary, network.to(environment.world.device)


def _reopened(
    checkpoint: Checkpoint, file: Path, kind: type[P], folder: DataFolder, device: str
) -> _Parts[P]:
    """What a checkpoint was trained with; its features are found whatever they are called here."""
    run = RunFolder(file.parent.parent)
    with _described_in(file, "its experiment" if kind is Preset else "its speaker"):
        plugins = tuple(run.describe().get("plugins", ())) if run.description.is_file() else ()
        preset = read_preset(checkpoint.metadata["preset"], kind, file, plugins)
        vocabulary = Vocabulary(msgspec.convert(checkpoint.metadata["vocabulary"], tuple[str, ...]))
    trained = checkpoint.metadata.get("features", {})
    if not isinstance(trained, dict):
        raise DataError(file, "does not say which features it was trained on")
    same = [store for store, info in complete_stores(folder) if info.sha256 == trained.get("sha256")]
    environment = open_environment(
        same[0] if same else choose_store(folder, preset.data.features), folder, device
    )
    check_identity(trained, environment.store, file)
    network = stored_network(lambda: _network(preset, environment, vocabulary), checkpoint, file)
    return preset, folder, environment, vocabulary, network.to(environment.world.device)
