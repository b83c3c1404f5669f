"""What is measured: a preset at a width, on a data folder, with training batches that come again."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch

from scenemem.benchmarks.clock import now
from scenemem.benchmarks.habits import GREEDY, SAMPLED, walking_by
from scenemem.benchmarks.reference import COLUMNS
from scenemem.benchmarks.speed import Work
from scenemem.errors import UserError
from scenemem.features.store import FeatureStore
from scenemem.formats.atomic import atomic_folder
from scenemem.formats.connectivity import connectivity_files
from scenemem.formats.episodes import read_episodes, write_episodes
from scenemem.formats.features import VIEWS, write_store
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.learning.objectives import Stage
from scenemem.learning.trainer import Trainer
from scenemem.presets import PRESETS, Preset
from scenemem.runs.experiment import Experiment, new_experiment
from scenemem.world.build import load_world

Width = Literal["everyday", "paper"]
Mode = Literal["teacher", "sampled", "mixed", "greedy"]
MODES: tuple[Mode, ...] = get_args(Mode)

_STAGES: dict[Mode, tuple[Stage, ...]] = {
    "teacher": (Stage("teacher", teacher=1.0, student=0.0, reinforce=0.0),),
    "sampled": (Stage("sampled", teacher=0.0, student=0.3, reinforce=1.0),),
}
_STILL = 1e-12  # a learning rate that leaves the network as it is, so that all repetitions do the same
_RANDOM_ROWS = 64  # different rows of made-up features; speed does not depend on their values


@dataclass(frozen=True)
class Case:
    """One preset under one load."""

    preset: Preset
    batch: int
    columns: int | None = None  # of made-up features; None takes the store of the data folder
    features: str | None = None  # name of that store; None takes the only one
    scans: int | None = None  # only so many training scans, for made-up features; None keeps the whole world


def preset_named(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset '{name}'; there are: {', '.join(PRESETS)}")
    return PRESETS[name]


def at_width(preset: Preset, width: Width) -> Preset:
    """The preset as it is, or with the sizes of the paper."""
    if width == "everyday":
        return preset
    paper = PRESETS["ssm-paper"]
    memory = preset.memory
    return replace(
        preset,
        model=replace(paper.model, panorama=preset.model.panorama),
        memory=replace(paper.memory, grounding=memory.grounding, reasoning_steps=memory.reasoning_steps),
        walk=paper.walk,
        learning=replace(paper.learning, stages=preset.learning.stages),
    )


def columns_at(width: Width, columns: int | None) -> int | None:
    """How many made-up feature columns a width is measured with unless ``columns`` says otherwise."""
    return COLUMNS if width == "paper" and columns is None else columns


class Workload:
    """A trainer whose next steps can be repeated exactly.

    Args:
        case: what to train.
        folder: what to train on; all of its training split is used.
    """

    def __init__(self, case: Case, folder: DataFolder) -> None:
        self.case = case
        self.experiment = _opened(case, folder)
        config = replace(case.preset.learning, batch=case.batch, learning_rate=_STILL)
        self.trainer = Trainer(self.experiment.agent, self.experiment.episodes("train"), config, seed=0)
        self._batches = self.trainer.batches.state_dict()
        self._sampling = self.trainer.sampling.get_state()
        self._stages = config.stages

    @property
    def store(self) -> FeatureStore:
        """The features in use."""
        return self.experiment.environment.store

    @property
    def parameters(self) -> int:
        """Numbers the network learns."""
        return sum(parameter.numel() for parameter in self.trainer.network.parameters())

    def work(self, mode: Mode, steps: int) -> Work:
        """``steps`` batches in a mode, the same ones on every call."""
        return lambda: self.run(mode, steps)

    def steps_within(self, mode: Mode, seconds: float) -> int:
        """How many steps fit, at least one; the step that tells also warms up."""
        begun = now()
        self.run(mode, 1)
        return max(1, round(seconds / (now() - begun)))

    def run(self, mode: Mode, steps: int) -> int:
        """Do the first ``steps`` steps of a training again and return the episodes walked."""
        self._rewind(mode)
        if mode == "greedy":
            with walking_by(GREEDY):
                return sum(self._walk() for _ in range(steps))
        has_teacher = self.trainer.config.stage_at(0).teacher > 0
        with walking_by(SAMPLED, taught=self.case.batch if has_teacher else 0):
            return sum(self.trainer.step().episodes for _ in range(steps))

    def _rewind(self, mode: Mode) -> None:
        trainer = self.trainer
        trainer.batches.load_state_dict(self._batches)
        trainer.sampling.set_state(self._sampling)
        trainer.iteration = 0
        trainer.config = replace(trainer.config, stages=_STAGES.get(mode, self._stages))
        torch.manual_seed(0)

    def _walk(self) -> int:
        batch = self.trainer.episodes.select(next(self.trainer.batches))
        self.trainer.agent.walk(batch)
        return len(batch)


def stand_in(folder: DataFolder, task: str, columns: int, scans: int | None = None) -> DataFolder:
    """A data folder with made-up features in the cache: the training split of ``folder``, whole or in part.

    Args:
        folder: where graphs and episodes come from.
        task: which episodes.
        columns: of the made-up features.
        scans: only the first so many training scans; None keeps the whole world.
    """
    parts = (str(folder.root.resolve()), task, str(columns), str(scans))
    target = cache_folder() / "benchmarks" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    if not target.is_dir():
        with atomic_folder(target, keep_existing=True) as partial:
            made = DataFolder(partial)
            _copy_training(folder, made, task, scans)
            _write_random_features(made, columns)
    return DataFolder(target)


def training_scans(folder: DataFolder, task: str) -> list[str]:
    """The scans of the training split, by name."""
    return sorted({episode.scan for episode in read_episodes(folder.episodes(task, "train"))})


def _opened(case: Case, folder: DataFolder) -> Experiment:
    preset = case.preset
    if case.columns is not None:
        folder = stand_in(folder, preset.data.task, case.columns, case.scans)
    return new_experiment(
        replace(
            preset,
            data=replace(preset.data, features=case.features if case.columns is None else "random"),
            selection=replace(preset.selection, split="train"),  # nothing is held out
        ),
        folder,
        seed=0,
    )


def _copy_training(folder: DataFolder, made: DataFolder, task: str, scans: int | None) -> None:
    episodes = read_episodes(folder.episodes(task, "train"))
    kept = set(sorted({episode.scan for episode in episodes})[:scans])
    if scans is not None and len(kept) < scans:
        raise UserError(f"{folder.root} has {len(kept)} training scans, asked for {scans}")
    made.connectivity.mkdir()
    for file in connectivity_files(folder.connectivity):
        if scans is None or file.name.removesuffix("_connectivity.json") in kept:
            shutil.copyfile(file, made.connectivity / file.name)
    target = made.root / task / f"{task.upper()}_train.json"
    target.parent.mkdir()
    write_episodes(target, (episode for episode in episodes if episode.scan in kept))


def _write_random_features(made: DataFolder, columns: int) -> None:
    names = load_world(made.connectivity).names
    different = np.random.default_rng(0).random((_RANDOM_ROWS, VIEWS, columns), dtype=np.float32)
    halves = different.astype(np.float16)
    rows = (halves[number % _RANDOM_ROWS] for number in range(len(names)))
    write_store(
        made.root / "features" / "random.npy", names, rows, width=columns, source="none", encoder="random"
    )
