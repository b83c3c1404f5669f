"""Opened runs: a trained agent on a data folder, walked alone or by several processes, and what comes out."""

from __future__ import annotations

import math
import multiprocessing
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import msgspec
import torch

from scenemem import __version__
from scenemem.agents.build import AGENTS
from scenemem.agents.rollout import Rollout, joined
from scenemem.agents.scripted import ExpertAgent, RandomAgent
from scenemem.agents.walker import TrainedAgent, Walker
from scenemem.errors import DataError, UserError
from scenemem.evaluation.evaluate import Evaluation, Walks, episode_results, walk_split
from scenemem.evaluation.following import Agreement, GroundingQuality, measure_following, measure_grounding
from scenemem.formats.annotations import landmark_label_file, read_landmark_labels
from scenemem.formats.decoding import code_digest, file_digest
from scenemem.formats.episodes import EpisodeRecord
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import (
    EpisodeResult,
    ResultStamp,
    read_episode_results,
    read_stamp,
    write_episode_results,
    write_stamp,
    write_trajectories,
)
from scenemem.formats.traces import Origin, Trace, write_trace
from scenemem.houses.house import ENCODER
from scenemem.learning.checkpoint import Checkpoint
from scenemem.learning.objectives import ClosestToGoal
from scenemem.presets import Preset
from scenemem.processes import end_with_parent
from scenemem.registry import load_plugin, loaded_plugins
from scenemem.runs.experiment import (
    DEV_UNSEEN,
    Experiment,
    Progress,
    find_split,
    hide_main_module,
    silent,
    speaker_beside,
    split_inputs,
    stored_experiment,
)
from scenemem.runs.folder import RunFolder, Which
from scenemem.tasks.episode_set import Episode, EpisodeList, EpisodeSet, bind_episodes
from scenemem.viewer.replay import plain, write_replays
from scenemem.viewer.scenery import Sceneries
from scenemem.viewer.traces import TracedAgent
from scenemem.world.build import graph_digest, load_world
from scenemem.world.graph import NONE, World
from scenemem.zoo.reranking import PragmaticSearch, Reranking, RerankingAgent, searches

_AT_ONCE = 256  # episodes
_SOURCES = ("weights", "episodes", "graphs", "features", "code", "checkpoint")
"""What has to be the same now for results to count; the other fields of their stamp follow from these."""


def evaluate_scripted(
    name: str, folder: DataFolder, task: str, split: str, seed: int, progress: Progress = silent
) -> Evaluation:
    """Walk the agent called ``expert``, ``random`` or ``stop`` over a split, whose goals must be known."""
    world = load_world(folder.connectivity)
    agents: dict[str, Walker] = {
        "expert": ExpertAgent(world, lambda batch: ClosestToGoal(world, batch.goal)),
        "random": RandomAgent(world, torch.Generator().manual_seed(seed)),
        "stop": RandomAgent(world, torch.Generator(), hops=0),
    }
    walks = _walk(agents[name], find_split(folder, world, task, split), name, progress)
    return Evaluation.of(walks, world, split)


class Walk:
    """What an agent did with an instruction; made by ``LoadedAgent.walk``."""

    def __init__(self, agent: LoadedAgent, episodes: EpisodeSet) -> None:
        self._agent = agent
        self._walks = walk_split(agent.walker, episodes)

    @cached_property
    def _traced(self) -> TracedAgent:
        return self._agent.traced(self._walks.episodes)

    @cached_property
    def path(self) -> list[str]:
        """Every viewpoint passed, in order."""
        viewpoints = self._walks.viewpoint[0].tolist()
        return [self._agent.world.viewpoints[one] for one in viewpoints if one != NONE]

    @property
    def steps(self) -> int:
        """Hops from one viewpoint to the next."""
        return sum(here != there for here, there in pairwise(self.path))

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

    def save(self, file: str | os.PathLike[str]) -> Path:
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


@dataclass(frozen=True, eq=False)
class WithSpeaker:
    """An agent's walker that a speaker helps to choose its answers."""

    walker: RerankingAgent | PragmaticSearch
    speaker: RunFolder
    settings: Mapping[str, Any]  # what the choice depends on besides

    @property
    def reranking(self) -> dict[str, Any]:
        """For stamps and traces: the settings, and the sum of the speaker's weights."""
        return {**self.settings, "speaker": file_digest(self.speaker.best)}

    def facts(self, walks: Walks, world: World) -> dict[str, Any]:
        """What belongs to an evaluation: the speaker, the settings, and what all candidates walked."""
        facts = {"speaker": str(self.speaker.root), **self.settings}
        if isinstance(self.walker, RerankingAgent):  # the walk of a search holds all that was walked
            all_walked = {"tl": self.walker.metres, "spl": self.walker.spl(walks, world)}
            facts["all_walked"] = {name: float(values.mean()) for name, values in all_walked.items()}
        return facts


@dataclass(frozen=True, eq=False, repr=False)
class LoadedAgent:
    """A trained agent on a data folder; made by ``scenemem.load``."""

    run: RunFolder
    experiment: Experiment  # network, environment, vocabulary: to go deeper
    checkpoint: Which
    stored: Checkpoint  # what the file of its weights holds
    progress: Progress = silent
    helped: WithSpeaker | None = None  # a speaker that helps it to choose

    def __post_init__(self) -> None:
        try:
            self.iteration, self.seed  # noqa: B018
        except (KeyError, TypeError, ValueError) as error:
            reason = f"does not say how far and with which seed it was trained ({error})"
            raise DataError(self.file, reason) from error

    @property
    def path(self) -> Path:
        """The folder of its run."""
        return self.run.root

    @property
    def name(self) -> str:
        """That of the folder of its run."""
        return self.run.root.name

    @property
    def file(self) -> Path:
        """Its weights."""
        return self.run.checkpoint(self.checkpoint)

    @property
    def preset(self) -> Preset[Any]:
        """Its settings."""
        return self.experiment.preset

    @property
    def world(self) -> World:
        """The graphs of the buildings it can walk in."""
        return self.experiment.environment.world

    @property
    def walker(self) -> Walker:
        """What walks: its network, alone or with the help of a speaker."""
        return self.experiment.agent if self.helped is None else self.helped.walker

    @property
    def iteration(self) -> int:
        """Optimiser steps its weights were trained for."""
        return int(self.stored.metadata["progress"]["iteration"])

    @property
    def seed(self) -> int:
        """Of the training."""
        seed = self.stored.metadata.get("seed", 0)
        if not isinstance(seed, int):
            raise TypeError(f"its seed is {seed!r:.40}")
        return seed

    def episodes(self, split: str) -> EpisodeList:
        """The episodes of a split, as this agent sees them: ``dev_unseen`` is what it was selected on."""
        return EpisodeList.of(self.world, self.episode_set(split))

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
        record = EpisodeRecord(
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
        out: str | os.PathLike[str] | None = None,
        traces: int = 0,
        processes: int = 1,
        speaker: str | os.PathLike[str] | None = None,
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
        if speaker is not None:
            if processes > 1:
                raise UserError("with a speaker one process walks; leave out `processes` or `speaker`")
            from scenemem.runs.weights import find_run  # which opens runs itself

            helped = self.with_speaker(find_run(speaker), Reranking(candidates, speaker_weight, seed))
            return helped.record(split, out=out, traces=traces)
        place = self._results_folder if out is None else Path(out)
        traced = self.traced(self.episode_set(split), split) if traces else None
        walks, _ = self._kept_walks(split, processes, place)
        found = Evaluation.of(walks, self.world, split, self.experiment.track)
        if self.helped is not None:
            found = replace(found, reranking=self.helped.facts(walks, self.world))
        written = [file for end in ("json", "jsonl") if (file := place / f"{split}.{end}").is_file()]
        if traced is not None:
            for trace in traced.trace(list(traced.episodes.instruction_ids[:traces])):
                write_trace(place / "traces" / f"{split}-{plain(trace.task.instruction_id)}.json", trace)
            written.append(place / "traces")
        return found, written

    def following(self, split: str = "val_unseen") -> list[Agreement]:
        """How often it would choose what is right where it is led along the reference paths."""
        with self.progress("leading along reference paths") as advance:
            return measure_following(self.experiment.agent, self.episode_set(split), progress=advance)

    def grounding(self, split: str = "val_unseen") -> GroundingQuality:
        """How well its word attention agrees with hand-made labels (``lar2r/`` of the data folder)."""
        task = self.preset.data.task
        if task != "r2r":
            raise UserError(f"word labels exist for r2r only, this run walks {task}")
        file = landmark_label_file(self.experiment.folder.root, "train" if split == DEV_UNSEEN else split)
        labels, episodes = read_landmark_labels(file), self.episode_set(split)
        with self.progress("measuring attention") as advance:
            return measure_grounding(self.experiment.agent, episodes, labels, progress=advance)

    def with_speaker(self, speaker: RunFolder, reranking: Reranking) -> LoadedAgent:
        """The agent with a speaker that helps to choose its answers.

        It chooses among several candidates of each episode or, when the agent searches, among the routes that
        one search has found.
        """
        agent, scorer = self.experiment.agent, speaker_beside(speaker, self.experiment)
        if not searches(agent):
            walker = RerankingAgent(agent, scorer, reranking)
            return replace(self, helped=WithSpeaker(walker, speaker, asdict(reranking)))
        if reranking.candidates != 1:
            raise UserError(
                f"{self.path} searches, and a speaker chooses among the routes of one search; "
                "leave out `candidates`"
            )
        search, weight = PragmaticSearch(agent, scorer, reranking.weight), {"weight": reranking.weight}
        return replace(self, helped=WithSpeaker(search, speaker, weight))

    def episode_set(self, split: str) -> EpisodeSet:
        """The episodes of a split, with a warning when it was trained on other training episodes."""
        before = self.stored.metadata.get("inputs")
        if split in ("train", DEV_UNSEEN) and isinstance(before, dict) and "train" in before:
            task = self.preset.data.task
            now = split_inputs(self.experiment.folder, task, "train")["episodes"]
            if now != before["train"]:
                warnings.warn(
                    f"{self.path}: the training episodes of {task} are not those it was trained on "
                    f"(sha256 {str(before['train'])[:12]} then, {now[:12]} now); other buildings may be held "
                    f"out, and it may have learned from what '{split}' holds now",
                    stacklevel=2,
                )
        return self.experiment.episodes(split)

    def walks(self, split: str, processes: int = 1) -> Walks:
        """Walk a split, alone or with copies in several processes."""
        episodes, at_once = self.episode_set(split), _AT_ONCE * processes
        walker: AbstractContextManager[Walker] = nullcontext(self.walker)
        if self.helped is not None:
            at_once = max(1, _AT_ONCE // self.helped.settings.get("candidates", 1))
        elif processes > 1 and self.world.device.type != "cpu":
            raise UserError("several processes walk on the CPU; leave out `processes` or `device`")
        elif processes > 1:
            walker = WorkerPool(self.file, self.experiment.folder, processes)
        with walker as opened:
            return _walk(opened, episodes, self.name, self.progress, at_once)

    def traced(self, episodes: EpisodeSet, split: str | None = None, name: str | None = None) -> TracedAgent:
        """The agent, watched while it walks episodes (of a split); called as its run, or by another name."""
        origin, name = self.origin(split), name or self.name
        if self.helped is None:
            return TracedAgent(name, self.experiment.agent, episodes, origin)
        if isinstance(self.helped.walker, RerankingAgent):
            raise UserError(
                f"{self.path} does not search, and a walk chosen among candidates cannot be watched; "
                "leave out `speaker`"
            )
        origin = msgspec.structs.replace(origin, reranking=self.helped.reranking)
        name = f"{name} with {self.helped.speaker.root.name}"
        return TracedAgent(name, self.helped.walker, episodes, origin)

    def origin(self, split: str | None = None) -> Origin:
        """What walks of a split, or of an instruction that stands in none, come from now."""
        folder, task = self.experiment.folder, self.preset.data.task
        return Origin(
            versions={"scenemem": __version__, "torch": str(torch.__version__)},
            weights=file_digest(self.file),
            episodes="" if split is None else split_inputs(folder, task, split)["episodes"],
            graphs=graph_digest(folder.connectivity),
            features=self.experiment.environment.store.info.sha256,
        )

    def results(self, split: str) -> Sequence[EpisodeResult]:
        """The outcome of every episode of a split, walked now unless these weights have walked it already."""
        if self.helped is not None:
            return self._results(self.walks(split))
        kept = self.kept(split)
        return self._kept_walks(split, 1, self._results_folder, optional=True)[1] if kept is None else kept

    def kept(self, split: str) -> Sequence[EpisodeResult] | None:
        """What these weights have walked already of a split; None when anything has changed since then.

        None, too, for an agent with parts from outside of the package, whose code has no checksum.
        """
        makers = {type(part).__module__ for part in self.experiment.network.modules()}
        makers.add(getattr(AGENTS[self.preset.agent].build, "__module__", ""))
        if not {maker.partition(".")[0] for maker in makers} <= {"scenemem", "torch"}:
            return None
        outcomes, stamp = self.run.results(split).with_suffix(".jsonl"), read_stamp(self.run.stamp(split))
        if stamp is None or outcomes.name not in stamp.files:
            return None
        files = {outcomes.with_name(name): digest for name, digest in stamp.files.items()}
        whole = all(file.is_file() and file_digest(file) == digest for file, digest in files.items())
        try:
            now = self._stamp(split)
        except UserError:  # the data has no such split any more
            return None
        if not whole or any(getattr(stamp, name) != getattr(now, name) for name in _SOURCES):
            return None
        found, wanted = read_episode_results(outcomes), self.episode_set(split).instruction_ids
        return found if tuple(one.instr_id for one in found) == wanted else None

    @property
    def _results_folder(self) -> Path:
        return self.path / "results" / ("" if self.helped is None else "reranked")

    def _results(self, walks: Walks) -> list[EpisodeResult]:
        return episode_results(self.world, walks, checkpoint=self.checkpoint, iteration=self.iteration)

    def _kept_walks(
        self, split: str, processes: int, place: Path, *, optional: bool = False
    ) -> tuple[Walks, list[EpisodeResult]]:
        """Walk a split; trajectories and (unless goals are secret) outcomes are kept with a stamp.

        They are written to ``place``; if that is ``optional``, an error is ignored. With a speaker's help
        outcomes are not kept.
        """
        stamp = self._stamp(split)  # before the walk, because files may change meanwhile
        walks = self.walks(split, processes)
        has_outcomes = walks.episodes.has_goals and self.helped is None
        results = self._results(walks) if has_outcomes else []
        file = place / f"{split}.json"
        outcomes = file.with_suffix(".jsonl")
        with suppress(UserError) if optional else nullcontext():
            write_trajectories(file, walks.trajectories(self.world))
            if results:
                write_episode_results(outcomes, results)
            files = {one.name: file_digest(one) for one in (file, outcomes) if one.is_file()}
            write_stamp(file.with_suffix(".stamp.json"), msgspec.structs.replace(stamp, files=files))
        return walks, results

    def _stamp(self, split: str) -> ResultStamp:
        """What results of a split would come from now."""
        stamp = ResultStamp(
            **msgspec.structs.asdict(self.origin(split)),
            checkpoint=self.checkpoint,
            iteration=self.iteration,
            name=str(self.stored.metadata.get("name", "")),
            seed=self.seed,
            preset=msgspec.to_builtins(self.preset),
            task=self.preset.data.task,
            files={},
            code=code_digest(),
        )
        return msgspec.structs.replace(stamp, reranking=self.helped and self.helped.reranking)

    def __repr__(self) -> str:
        return f"LoadedAgent('{self.name}', iteration {self.iteration})"


def open_run(
    run: RunFolder,
    folder: DataFolder,
    checkpoint: Which = "last",
    progress: Progress = silent,
    device: str = "cpu",
) -> LoadedAgent:
    """The agent of a run on a data folder."""
    run.describe()
    experiment, stored = stored_experiment(run.checkpoint(checkpoint), folder, device)
    return LoadedAgent(run, experiment, checkpoint, stored, progress)


def open_runs(runs: Sequence[Path], *how: Any) -> dict[str, LoadedAgent]:
    """The agents of several runs by name; ``how`` is what ``open_run`` takes after the run."""
    return {name: open_run(RunFolder(path), *how) for name, path in names_of(runs).items()}


def names_of(runs: Sequence[Path]) -> dict[str, Path]:
    """The folders by their own names, with their parents' where those are the same."""
    paths = [path.resolve() for path in runs]
    if len(set(paths)) < len(paths):
        raise UserError(f"{runs[0]} is named twice; name another run to compare it with")
    alike = len({path.name for path in paths}) < len(paths)
    names = [str(path.relative_to(path.parents[1])) if alike else path.name for path in paths]
    return dict(zip(names, runs, strict=True))


def check_run(run: RunFolder, checkpoint: Which, *, houses: bool) -> None:
    """Refuse a run without such a checkpoint and, for the embedded houses, one that was trained elsewhere.

    This comes before anything slow: the houses may have to be built.
    """
    learned_from = run.describe().get("data", {})
    if not run.checkpoint(checkpoint).is_file():
        raise UserError(f"{run.root} has no {checkpoint} checkpoint yet; let it train on with `resume=True`")
    if houses and learned_from.get("features", ENCODER) != ENCODER:
        folder = f" in '{learned_from['folder']}'" if "folder" in learned_from else ""
        raise UserError(
            f"{run.root} was trained on '{learned_from['features']}'{folder}, not on the embedded houses; "
            "name that data folder with `data='DIR'`"
        )


class WorkerPool:
    """Walks as the agent of a checkpoint does, every process (of one thread) a share of the episodes."""

    def __init__(self, checkpoint: Path, folder: DataFolder, processes: int) -> None:
        self._processes = processes
        self._agent = (checkpoint, folder.root, loaded_plugins())
        spawn = multiprocessing.get_context("spawn")  # a forked torch may hang
        self._pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=end_with_parent)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes, in their order."""
        rows = torch.arange(len(episodes)).chunk(self._processes)
        try:
            with hide_main_module():  # the first call starts the processes
                parts = [episodes.select(part) for part in rows]
                shares = self._pool.map(_walk_in_worker, repeat(self._agent), parts)
            return joined(list(shares))
        except BrokenProcessPool as error:
            raise UserError(
                "a process of the evaluation is gone, perhaps for lack of memory; use fewer `processes`"
            ) from error


def _walk_in_worker(agent: tuple[Path, Path, tuple[str, ...]], episodes: EpisodeSet) -> Rollout:
    return _opened_in_worker(*agent).walk(episodes)


@lru_cache(maxsize=1)
def _opened_in_worker(checkpoint: Path, root: Path, plugins: tuple[str, ...]) -> TrainedAgent:
    torch.set_num_threads(1)
    for plugin in plugins:
        load_plugin(plugin)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the process that started this one has told
        return stored_experiment(checkpoint, DataFolder(root))[0].agent


def _walk(
    agent: Walker, episodes: EpisodeSet, name: str, progress: Progress, batch_size: int = _AT_ONCE
) -> Walks:
    with progress(f"walking {name}") as advance:
        return walk_split(agent, episodes, batch_size=batch_size, progress=advance)
