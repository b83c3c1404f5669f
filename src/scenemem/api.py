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

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, overload

import gymnasium

from scenemem.agents.build import AGENTS
from scenemem.agents.scripted import SCRIPTED
from scenemem.errors import UserError
from scenemem.evaluation.evaluate import metrics_of, walk_split
from scenemem.evaluation.following import Agreement, GroundingQuality
from scenemem.evaluation.metrics import Metrics
from scenemem.evaluation.score import score_trajectories
from scenemem.features.store import converted_once
from scenemem.formats import episodes as episode_files
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import Point, Trajectory, read_trajectories
from scenemem.formats.traces import Origin, Trace, write_trace
from scenemem.learning.distributed import check_device, process_group
from scenemem.learning.objectives import LABEL_RULES, LOSSES, REWARDS
from scenemem.presets import PRESETS, PUBLISHED, R4R_LABELS, Overlays, Preset, Recipe, Task, overlaid
from scenemem.registry import Registry, load_installed_plugins
from scenemem.runs.comparison import Comparison, CountedRuns, RowFacts, path_groups, row_names
from scenemem.runs.config import Sources, changed, nested
from scenemem.runs.experiment import SPEAKERS, Experiment, Progress, open_data, silent
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.opened import Evaluation, OpenedRun, evaluate_scripted, open_run
from scenemem.runs.speakers import LoadedSpeaker, open_speaker
from scenemem.runs.training import Settings, choose_preset, run_training
from scenemem.runs.weights import find_run
from scenemem.simulator import NavigationEnv, NavigationVectorEnv
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes, load_split
from scenemem.viewer.replay import plain, write_replays
from scenemem.viewer.scenery import Sceneries
from scenemem.viewer.traces import TracedAgent
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World
from scenemem.zoo.reranking import Reranking

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
class Episode:
    """An instruction and the path it describes."""

    id: str
    text: str
    scan: str  # the building
    start: str  # viewpoint
    heading: float  # at the start, radians, clockwise from +y
    path: tuple[str, ...]  # viewpoints of the reference path; only the start where the goal is secret

    @property
    def goal(self) -> str | None:
        """The last viewpoint of the reference path; None where it is secret."""
        return self.path[-1] if len(self.path) > 1 else None


class EpisodeList(Sequence[Episode]):
    """The episodes of a split: a list that also finds an episode by its id."""

    def __init__(self, name: str, found: Sequence[Episode]) -> None:
        self.name = name
        self._episodes = list(found)
        self._by_id = {episode.id: episode for episode in self._episodes}

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> EpisodeList: ...
    def __getitem__(self, index: int | slice) -> Episode | EpisodeList:
        found = self._episodes[index]
        return EpisodeList(self.name, found) if isinstance(found, list) else found

    def __len__(self) -> int:
        return len(self._episodes)

    def get(self, episode_id: str) -> Episode:
        """The episode of an instruction id."""
        if episode_id not in self._by_id:
            like = f"; its ids look like '{self._episodes[0].id}'" if self._episodes else ""
            raise UserError(f"'{self.name}' has no instruction '{episode_id}'{like}")
        return self._by_id[episode_id]

    def __repr__(self) -> str:
        return f"EpisodeList('{self.name}', {len(self)} episodes)"


class Walk:
    """What an agent did with an instruction; made by ``LoadedAgent.walk``."""

    def __init__(self, agent: LoadedAgent, episodes: EpisodeSet) -> None:
        self._agent = agent
        self._walks = walk_split(agent.experiment.agent, episodes)

    @cached_property
    def _traced(self) -> TracedAgent:
        agent = self._agent
        return TracedAgent(agent.name, agent.experiment.agent, self._walks.episodes, agent.origin)

    @cached_property
    def path(self) -> list[str]:
        """Every viewpoint passed, in order."""
        viewpoints = self._walks.viewpoint[0].tolist()
        return [self._agent.world.viewpoints[one] for one in viewpoints if one != NONE]

    @property
    def steps(self) -> int:
        """Hops from one viewpoint to the next."""
        return sum(here != there for here, there in zip(self.path, self.path[1:], strict=False))

    @property
    def stopped(self) -> bool:
        """Whether it ended by its own decision; False when it was cut off."""
        return bool(self._walks.stopped[0])

    @cached_property
    def metrics(self) -> dict[str, float] | None:
        """The metrics of the walk; None without a goal."""
        has_goal = self._walks.episodes.has_goals
        return self._walks.measured(self._agent.world).means() if has_goal else None

    @cached_property
    def trace(self) -> Trace:
        """The agent's memory, options and decisions; recorded at the first use."""
        return self._traced.trace(self._walks.episodes.instruction_ids)[0]

    def save(self, file: PathLike) -> Path:
        """Write a self-contained page (.html) that replays the walk, its trace beside it; return the page."""
        page = Path(file)
        if page.suffix != ".html":
            raise UserError(f"{page}: a replay is a page; expected a name ending in .html")
        ids, sceneries = self._walks.episodes.instruction_ids, Sceneries(self._agent.experiment.folder)
        write_replays([self._traced], ids, sceneries, lambda _: page)
        return page

    def __repr__(self) -> str:
        end = "stopped" if self.stopped else "cut off"
        return f"Walk({self.steps} steps, {end} at {self.path[-1]})"


class LoadedAgent:
    """A trained agent on a data folder; made by ``load``."""

    def __init__(self, opened: OpenedRun) -> None:
        self._opened = opened
        self.path: Path = opened.run.root  # of its run
        self.name: str = opened.run.root.name
        self.experiment: Experiment = opened.experiment  # network, environment, vocabulary: to go deeper
        self.preset: Preset[Any] = opened.experiment.preset
        self.world: World = opened.world  # the graphs of the buildings it can walk in

    @property
    def iteration(self) -> int:
        """Optimiser steps its weights were trained for."""
        return self._opened.iteration

    @cached_property
    def origin(self) -> Origin:
        """What its walks come from: versions, and the sha256 of weights, graphs and features."""
        return self._opened.origin()

    def episodes(self, split: str) -> EpisodeList:
        """The episodes of a split, as this agent sees them: ``dev_unseen`` is what it was selected on."""
        return _listed(self.world, self.experiment.episodes(split))

    def walk(
        self,
        instruction: Episode | str,
        *,
        start: Episode | tuple[str, str] | None = None,
        heading: float | None = None,
    ) -> Walk:
        """Follow an instruction.

        Args:
            instruction: an episode, or any text.
            start: where to begin with a text: (scan, viewpoint), or the start of an episode.
            heading: where to look first, radians clockwise from +y; the episode's, or 0, when left out.
        """
        if isinstance(instruction, Episode):
            if start is not None:
                raise UserError("an episode has its own start; pass its text to begin elsewhere")
            episode = instruction
        elif start is None:
            raise UserError(
                "a text needs a start: start=(scan, viewpoint), or an episode to begin where it does"
            )
        else:
            at = start if isinstance(start, Episode) else Episode("", "", *start, heading=0.0, path=())
            episode = replace(at, id="text", text=instruction, path=(at.start,))
        heading = episode.heading if heading is None else heading
        if not math.isfinite(heading):
            raise UserError(f"the heading is {heading}, expected radians clockwise from +y")
        record = episode_files.EpisodeRecord(
            scan=episode.scan,
            path_id=episode.id,
            path=episode.path,
            heading=heading,
            instructions=(episode.text,),
            instruction_ids=(episode.id,),
        )
        return Walk(self, bind_episodes(self.world, [record], "the instruction", name="instruction"))

    def evaluate(self, split: str = "val_unseen", *, processes: int = 1) -> Evaluation:
        """Walk a split; trajectories and outcomes are kept in the run folder, as ``scenemem eval`` does."""
        return self.record(split, processes=processes)[0]

    def record(
        self,
        split: str = "val_unseen",
        *,
        out: PathLike | None = None,
        traces: int = 0,
        processes: int = 1,
        speaker: PathLike | None = None,
        candidates: int = 1,
        speaker_weight: float = Reranking.weight,
        seed: int = 0,
    ) -> tuple[Evaluation, list[Path]]:
        """Walk a split and write what came out  ->  the evaluation, the files and folders written.

        Args:
            out: folder for trajectories, outcomes and traces; ``results`` of the run when left out.
            traces: number of episodes, from the first on, whose traces are kept.
            speaker: run of a speaker that helps to choose among candidates, or among the routes of a search.
            candidates: routes walked per episode, of which one is the answer: one greedy, the others sampled.
            speaker_weight: of the speaker in that choice; the agent has the rest.
            seed: of sampled candidates.
        """
        if traces < 0:
            raise UserError(f"`traces` must be 0 or more, got {traces}")
        if speaker is not None and processes > 1:
            raise UserError("with a speaker one process walks; leave out `processes` or `speaker`")
        opened = self._opened
        helped = None
        if speaker is not None:
            reranking = Reranking(candidates, speaker_weight, seed)
            helped = opened.with_speaker(find_run(speaker), reranking)
        traced = opened.traced(self.name, split, helped) if traces else None
        place = opened.run.root / "results" / ("reranked" if helped else "") if out is None else Path(out)
        found = opened.evaluate(split, processes, place, helped)
        written = [file for end in ("json", "jsonl") if (file := place / f"{split}.{end}").is_file()]
        if traced is not None:
            for trace in traced.trace(list(traced.episodes.instruction_ids[:traces])):
                write_trace(place / "traces" / f"{split}-{plain(trace.task.instruction_id)}.json", trace)
            written.append(place / "traces")
        return found, written

    def following(self, split: str = "val_unseen") -> list[Agreement]:
        """How often it would choose what is right where it is led along the reference paths."""
        return self._opened.following(split)

    def grounding(self, split: str = "val_unseen") -> GroundingQuality:
        """How well its word attention agrees with hand-made labels (``lar2r/`` of the data folder)."""
        return self._opened.grounding(split)

    def __repr__(self) -> str:
        return f"LoadedAgent('{self.name}', iteration {self.iteration})"


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
    return LoadedAgent(open_run(find_run(source), open_data(data, progress), checkpoint, progress, device))


def load_speaker(
    source: PathLike, *, data: PathLike | None = None, checkpoint: Which = "best"
) -> LoadedSpeaker:
    """A trained speaker: of a run folder, packed weights or ``weights:NAME``."""
    return LoadedSpeaker(open_speaker(find_run(source), open_data(data), checkpoint))


def episodes(split: str, *, data: PathLike | None = None, task: str = "r2r") -> EpisodeList:
    """The episodes of a split."""
    return _listed(*_split(split, open_data(data), task))


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
    folder, measured, first = open_data(data, progress), list[tuple[str, Metrics]](), None
    facts, counted, walked = list[RowFacts](), CountedRuns(), 0
    for name, run in zip(names, runs, strict=True):
        opened = open_run(run, folder, checkpoint, progress, device)
        if not counted.counts(name, opened):
            continue
        facts.append(RowFacts.of(name, opened))
        episodes = opened.experiment.episodes(split)
        first = first or episodes
        if episodes.instruction_ids != first.instruction_ids:
            raise UserError(
                f"{run.root} walks other episodes than the runs before it; compare runs of one task at a time"
            )
        known = None if again else opened.kept(split)
        if known is None:
            walked += 1
            measured.append((name, opened.walk(split, processes).measured(opened.world)))
        else:
            measured.append((name, metrics_of(known, opened.world.device)))
    assert first is not None
    task = opened.experiment.preset.data.task
    path = path_groups(folder, task, split, first)
    comparison = Comparison.of(split, measured, facts, path, first.scan, against)
    return replace(comparison, walked=walked, remarks=(*counted.remarks, *comparison.remarks))


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
    return world, load_split(folder, world, task, split)


def _listed(world: World, bound: EpisodeSet) -> EpisodeList:
    columns = (bound.scan.tolist(), bound.start.tolist(), bound.heading.tolist(), bound.path.tolist())
    rows = zip(bound.instruction_ids, bound.texts, *columns, strict=True)
    found = [
        Episode(
            name,
            text,
            bound.scans[scan],
            world.viewpoints[start],
            heading,
            tuple(world.viewpoints[viewpoint] for viewpoint in path if viewpoint != NONE),
        )
        for name, text, scan, start, heading, path in rows
    ]
    return EpisodeList(bound.name, found)
