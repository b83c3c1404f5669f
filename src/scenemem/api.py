"""The Python front door: what ``import scenemem as sm`` offers.

    agent = sm.load("weights:ssm-plus-houses")
    walk = agent.walk(sm.episodes("val_unseen")[0])
    walk.save("replay.html")

    run = sm.train("ssm", iterations=300, **{"model.width": 128})
    print(sm.evaluate(run, "val_unseen").metrics)

Arguments of several functions:

    split       which episodes, for example ``train``, ``val_seen`` or ``val_unseen``
    data        the data folder; the embedded houses when left out, which the first call builds in a minute
    task        r2r, r4r, reverie or rxr
    checkpoint  the last weights of a run, or the best ones on its selection split
    processes   number of processes that walk side by side, for large splits
    progress    makes progress bars

Whatever a caller can put right is raised as ``scenemem.UserError``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gymnasium

from scenemem.agents.build import AGENTS
from scenemem.agents.scripted import SCRIPTED
from scenemem.errors import UserError
from scenemem.evaluation.evaluate import Evaluation, metrics_of
from scenemem.evaluation.metrics import Metrics
from scenemem.evaluation.score import score_trajectories
from scenemem.features.store import converted_once
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import Point, Trajectory, read_trajectories
from scenemem.learning.distributed import check_device, process_group
from scenemem.learning.objectives import LABEL_RULES, LOSSES, REWARDS
from scenemem.presets import PRESETS, PUBLISHED, R4R_LABELS, Overlays, Preset, Recipe, Task, overlaid
from scenemem.registry import Registry, load_installed_plugins
from scenemem.runs.comparison import Comparison, RowFacts, counted_once, path_groups, row_names
from scenemem.runs.config import Sources, changed, nested
from scenemem.runs.experiment import SPEAKERS, Progress, find_split, open_data, silent
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.opened import (
    LoadedAgent,
    check_run,
    evaluate_scripted,
    open_run,
)
from scenemem.runs.speakers import LoadedSpeaker, open_speaker
from scenemem.runs.training import Settings, choose_preset, run_training
from scenemem.runs.weights import find_run
from scenemem.simulator import NavigationEnv, NavigationVectorEnv
from scenemem.tasks.episode_set import EpisodeList, EpisodeSet
from scenemem.world.build import load_world
from scenemem.world.graph import World

PathLike = str | os.PathLike[str]

REGISTRIES: dict[str, Registry[Any]] = {
    "agent": AGENTS,
    "preset": PRESETS,
    "loss": LOSSES,
    "label rule": LABEL_RULES,
    "reward rule": REWARDS,
    "speaker": SPEAKERS,
    "published recipe": PUBLISHED,
    "label rule on R4R": R4R_LABELS,
}
"""What ``register`` can add to, by kind."""


@dataclass(frozen=True)
class TrainingRun:
    """A training run that is done."""

    path: Path
    data: PathLike | None = None

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: losses, and validations where there were any."""
        return list(RunFolder(self.path).logged())

    @property
    def metrics(self) -> dict[str, float]:
        """The last validation on the selection split."""
        validations = [line["validation"] for line in self.log if "validation" in line]
        return validations[-1] if validations else {}

    def load(self, checkpoint: Which = "last") -> LoadedAgent:
        """The trained agent."""
        return load(self.path, data=self.data, checkpoint=checkpoint)


Source = PathLike | LoadedAgent | TrainingRun
"""A trained agent: a run folder, packed weights, ``weights:NAME``, or what ``load`` and ``train`` return."""


def load(
    source: PathLike | TrainingRun,
    *,
    data: PathLike | None = None,
    checkpoint: Which = "last",
    device: str = "cpu",
    progress: Progress = silent,
) -> LoadedAgent:
    """A trained agent.

    Args:
        device: ``cpu`` or ``cuda``.
        source: a run folder, a ``.safetensors`` file of packed weights, or ``weights:NAME`` for weights that
            come with SceneMem. It has to fit the data folder.
    """
    if isinstance(source, TrainingRun):
        data, source = source.data if data is None else data, source.path
    check_device(device)
    run = find_run(source)
    check_run(run, checkpoint, houses=data is None)
    return open_run(run, open_data(data, progress), checkpoint, progress, device)


def load_speaker(
    source: PathLike, *, data: PathLike | None = None, checkpoint: Which = "best"
) -> LoadedSpeaker:
    """A trained speaker: of a run folder, packed weights or ``weights:NAME``."""
    return LoadedSpeaker(open_speaker(find_run(source), open_data(data), checkpoint))


def episodes(split: str, *, data: PathLike | None = None, task: str = "r2r") -> EpisodeList:
    """The episodes of a split."""
    return EpisodeList.of(*_split(split, open_data(data), task))


def train(
    preset: str | Preset[Any] | None = None,
    *,
    features: PathLike | None = None,
    task: Task | None = None,
    recipe: Recipe | None = None,
    iterations: int | None = None,
    out: PathLike | None = None,
    seed: int | None = None,
    data: PathLike | None = None,
    config: PathLike | None = None,
    begin: PathLike | None = None,
    speaker: PathLike | None = None,
    augment: PathLike | None = None,
    resume: bool = False,
    device: str = "cpu",
    watch: Callable[[TrainingStatus], None] | None = None,
    **changes: Any,
) -> TrainingRun:
    """Train an agent into a run folder.

    Args:
        preset: the name of a preset (see ``list_presets``), ``module:preset`` or ``file.py:preset`` of a
            plugin, or a ``Preset`` of your own; may be left out when ``config`` names one.
        features: a feature store, with the recipe for stores of its width; a published file (.tsv, .hdf5) is
            converted once.
        task: ``r2r``, or ``r4r`` with the settings that belong to it.
        recipe: ``published`` for the numbers of the publication.
        iterations: optimiser steps; the preset's when left out.
        out: the run folder; ``runs/PRESET-TASK-FEATURES-SEED`` when left out.
        seed: of weights, batches, dropout and sampling; 0 when left out.
        config: a TOML file that names and changes a preset.
        begin: a run whose trained weights to begin with.
        speaker: the run of a speaker that describes further paths, which are learnt from as well.
        augment: a file of augmented episodes in its place.
        resume: continue the run in ``out``.
        device: ``cpu`` or ``cuda``.
        watch: called after every step.
        changes: settings of the preset by their dotted names: ``**{"model.width": 128}``.
    """
    given = {"begin": begin and find_run(begin).root, "speaker": speaker, "augment": augment}
    sources = Sources(**{name: Path(place) for name, place in given.items() if place is not None})
    opened = partial(open_data, data)
    if features is not None:
        features = converted_once(os.fspath(features), opened().derived / "features", silent)
    overlays = Overlays(features, task, recipe)
    if preset is None and config is None:
        raise UserError(f"name a preset; there are: {', '.join(PRESETS)}")
    settings: Settings[Preset[Any]] = choose_preset(PRESETS, preset, config, overlays, sources, data=opened)
    if iterations is not None:
        changes["learning.iterations"] = iterations
    settings = replace(
        settings,
        preset=changed(settings.preset, nested(changes)),
        seed=settings.seed if seed is None else seed,
    )
    folder, run = opened(), settings.run_folder(out)
    settings.check_folder(folder, named=data is not None)
    with process_group(device) as group:
        run_training(settings, folder, run, resume=resume, watch=watch, group=group)
    return TrainingRun(run.root, data)


def evaluate(
    source: Source,
    split: str = "val_unseen",
    *,
    data: PathLike | None = None,
    checkpoint: Which = "last",
    task: str = "r2r",
    seed: int = 0,
    processes: int = 1,
    progress: Progress = silent,
) -> Evaluation:
    """Walk an agent over a split and measure its walks.

    Args:
        source: a trained agent, or one of expert, random and stop.
        task: which episodes a scripted agent walks; a trained agent has its own.
        seed: of the random agent.
    """
    if isinstance(source, str) and source in SCRIPTED:
        return evaluate_scripted(source, open_data(data, progress), task, split, seed, progress)
    if not isinstance(source, LoadedAgent):
        source = load(source, data=data, checkpoint=checkpoint, progress=progress)
    return source.evaluate(split, processes=processes)


def compare(
    sources: Sequence[Source],
    split: str = "val_unseen",
    *,
    data: PathLike | None = None,
    checkpoint: Which = "last",
    against: str | None = None,
    again: bool = False,
    processes: int = 1,
    device: str = "cpu",
    progress: Progress = silent,
) -> Comparison:
    """Compare trained agents; runs of the same preset and settings share a row.

    Args:
        against: name of a row; how far the others are from it is measured, paired by episode.
        again: walk with all of them; without it, results that a run has kept are read, if they come from
            these weights, this data and this version of the code.
        device: ``cpu`` or ``cuda``.
    """
    if not sources:
        raise UserError("name at least one run to compare")
    runs = [
        RunFolder(source.path) if isinstance(source, (LoadedAgent, TrainingRun)) else find_run(source)
        for source in sources
    ]
    names = row_names(runs, against)  # before the data is opened, which may take a while
    check_device(device)
    folder = open_data(data, progress)
    opened = [open_run(run, folder, checkpoint, progress, device) for run in runs]
    agents, remarks = counted_once(list(zip(names, opened, strict=True)))
    first, measured, walked = agents[0][1].episode_set(split), list[tuple[str, Metrics]](), 0
    for name, agent in agents:
        if agent.episode_set(split).instruction_ids != first.instruction_ids:
            advice = "compare runs of one task at a time"
            raise UserError(f"{agent.path} walks other episodes than the runs before it; {advice}")
        known = None if again else agent.kept(split)
        if known is None:
            walked += 1
            measured.append((name, agent.walks(split, processes).measured(agent.world)))
        else:
            measured.append((name, metrics_of(known, agent.world.device)))
    path = path_groups(folder, agents[0][1].preset.data.task, split, first)
    facts = [RowFacts.of(name, agent) for name, agent in agents]
    comparison = Comparison.of(split, measured, facts, path, first.scan, against)
    return replace(comparison, walked=walked, remarks=(*remarks, *comparison.remarks))


def score(
    trajectories: Mapping[str, Sequence[str]] | Sequence[Sequence[str]] | PathLike,
    split: str,
    *,
    data: PathLike | None = None,
    task: str = "r2r",
    partial: bool = False,
    allow_jumps: bool = False,
    keep_repeats: bool = False,
    progress: Progress = silent,
) -> Evaluation:
    """Score trajectories of any system.

    Args:
        trajectories: viewpoint ids by instruction id; or one list of viewpoint ids per episode, in the order
            of the split; or a result file.
        partial: allow instructions without a trajectory.
        allow_jumps: charge steps without an edge the geodesic distance instead of refusing them.
        keep_repeats: do not merge repeated viewpoints before nDTW and SDTW.

    Raises:
        UserError: an impossible walk, or an instruction that is unknown or missing.
    """
    world, bound = _split(split, open_data(data, progress), task)
    source: PathLike = "trajectories"
    if isinstance(trajectories, (str, os.PathLike)):
        source, found = trajectories, read_trajectories(trajectories)
    else:
        if not isinstance(trajectories, Mapping):
            if len(trajectories) > len(bound):
                raise UserError(f"got {len(trajectories)} trajectories for the {len(bound)} of {bound.name}")
            trajectories = dict(zip(bound.instruction_ids, trajectories, strict=False))
        found = [Trajectory(name, tuple(map(Point, walk))) for name, walk in trajectories.items()]
        for item in found:
            if not item.points:
                name = item.instruction_id
                raise UserError(f"the trajectory of instruction '{name}' is empty; it begins with the start")
    scores = score_trajectories(
        world,
        bound,
        found,
        partial=partial,
        allow_jumps=allow_jumps,
        collapse=not keep_repeats,
        source=source,
    )
    return Evaluation(split, scores.instruction_ids, scores.metrics, scores.missing)


def make_env(
    split: str = "train",
    *,
    num_envs: int | None = None,
    data: PathLike | None = None,
    task: str = "r2r",
    **options: Any,
) -> gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A Gymnasium environment: one agent in one episode at a time, or a batch of them.

    Args:
        num_envs: number of environments; None for a single one.
        options: features, max_steps, max_tokens, reward and render_mode, see docs/simulator.md.
    """
    data = open_data(data).root
    if num_envs is None:
        return NavigationEnv(data=data, task=task, split=split, **options)
    return NavigationVectorEnv(num_envs, data=data, task=task, split=split, **options)


def list_presets() -> tuple[str, ...]:
    """The names of all presets, plugins included."""
    load_installed_plugins()
    return tuple(PRESETS)


def preset(
    name: str, *, features: str | None = None, task: Task | None = None, recipe: Recipe | None = None
) -> Preset[Any]:
    """The preset of a name; change it with ``dataclasses.replace`` and give it to ``train``.

    Args:
        name: of the preset.
        features: a feature store, with the recipe of the tracks captions, objects and oracle.
        task: ``r2r``, or ``r4r`` with the settings that belong to it.
        recipe: ``published`` for the numbers of the publication.
    """
    return overlaid(name, Overlays(features, task, recipe))


def register(kind: str, name: str, value: Any = None) -> Any:
    """Add something under a name, from a plugin for example; without a value this is a decorator.

    Args:
        kind: agent, preset, loss, label rule, reward rule, speaker, published recipe or label rule on R4R.
    """
    if kind not in REGISTRIES:
        raise UserError(f"nothing is registered as '{kind}'; there are: {', '.join(REGISTRIES)}")
    return REGISTRIES[kind].register(name, value)


_world = lru_cache(maxsize=2)(load_world)


def _split(split: str, folder: DataFolder, task: str) -> tuple[World, EpisodeSet]:
    world = _world(folder.connectivity)
    return world, find_split(folder, world, task, split)
