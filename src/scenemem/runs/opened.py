"""Opened runs: a trained agent on a data folder, walked alone or by several processes, and what comes out."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import repeat
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
from scenemem.evaluation.evaluate import Walks, episode_results, walk_split
from scenemem.evaluation.following import (
    Agreement,
    GroundingQuality,
    measure_following,
    measure_grounding,
)
from scenemem.evaluation.metrics import Metrics
from scenemem.formats.annotations import landmark_label_file, read_landmark_labels
from scenemem.formats.decoding import code_digest, file_digest
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
from scenemem.formats.traces import Origin
from scenemem.learning.checkpoint import Checkpoint
from scenemem.learning.objectives import ClosestToGoal
from scenemem.processes import end_with_parent
from scenemem.registry import load_plugin, loaded_plugins
from scenemem.runs.experiment import (
    DEV_UNSEEN,
    Experiment,
    Progress,
    complete_stores,
    hide_main_module,
    silent,
    speaker_beside,
    split_inputs,
    stored_experiment,
)
from scenemem.runs.folder import (
    RunFolder,
    Which,
)
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.viewer.traces import TracedAgent
from scenemem.world.build import graph_digest, load_world
from scenemem.world.graph import World
from scenemem.zoo.reranking import CandidateWalker, PragmaticSearch, Reranking, RerankingAgent, searches

_AT_ONCE = 256  # episodes


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came out of a split."""

    split: str
    instruction_ids: tuple[str, ...]
    measured: Metrics  # one value per instruction
    missing: int = 0  # instructions of the split without a trajectory
    jumps: float | None = None  # mean number of frontier decisions that left the viewpoint; None if unknown
    reranking: Mapping[str, Any] | None = None  # how a speaker helped to choose, and what candidates walked
    track: str = ""  # of the features the agent saw; empty when unknown and for agents that see none

    @property
    def n(self) -> int:
        """How many instructions were walked."""
        return len(self.instruction_ids)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The mean of every metric: metres for tl and ne, fractions for the others."""
        return self.measured.means()

    @cached_property
    def per_episode(self) -> dict[str, dict[str, float]]:
        """The metrics of every instruction, by its id."""
        columns = {name: values.tolist() for name, values in vars(self.measured).items()}
        return {
            instruction_id: {name: column[number] for name, column in columns.items()}
            for number, instruction_id in enumerate(self.instruction_ids)
        }

    def summary(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        more = {"jumps": self.jumps, "reranking": self.reranking, "track": self.track or None}
        known = {name: value for name, value in more.items() if value is not None}
        return {"split": self.split, "n": self.n, "missing": self.missing, "metrics": self.metrics, **known}


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
    walks = _walk(agents[name], load_split(folder, world, task, split), name, progress)
    return _evaluation(walks, world, split)


@dataclass(frozen=True, eq=False)
class WithSpeaker:
    """An agent, and a speaker that helps to choose its answers."""

    walker: CandidateWalker | PragmaticSearch
    speaker: RunFolder
    settings: Mapping[str, Any]  # what the choice depends on besides

    @property
    def reranking(self) -> dict[str, Any]:
        """For stamps and traces: the settings, and the sum of the speaker's weights."""
        return {**self.settings, "speaker": file_digest(self.speaker.best)}

    def facts(self, walks: Walks, world: World) -> dict[str, Any]:
        """What belongs to an evaluation: the speaker, the settings, and what all candidates walked."""
        facts = {"speaker": str(self.speaker.root), **self.settings}
        if isinstance(self.walker, CandidateWalker):  # the walk of a search holds all that was walked
            all_walked = {"tl": self.walker.metres, "spl": self.walker.spl(walks, world)}
            facts["all_walked"] = {name: float(values.mean()) for name, values in all_walked.items()}
        return facts


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """The agent of a run on a data folder, ready to be evaluated."""

    run: RunFolder
    experiment: Experiment
    checkpoint: Which
    stored: Checkpoint  # what the file of its weights holds
    progress: Progress = silent

    @property
    def iteration(self) -> int:
        """Of the weights."""
        return int(self.stored.metadata["progress"]["iteration"])

    @property
    def seed(self) -> int:
        """Of the training."""
        seed = self.stored.metadata.get("seed", 0)
        if not isinstance(seed, int):
            raise TypeError(f"its seed is {seed!r:.40}")
        return seed

    @property
    def world(self) -> World:
        """Where it walks."""
        return self.experiment.environment.world

    def episodes(self, split: str) -> EpisodeSet:
        """The episodes of a split, with a warning when it was trained on other training episodes."""
        before = self.stored.metadata.get("inputs")
        if split in ("train", DEV_UNSEEN) and isinstance(before, dict) and "train" in before:
            task = self.experiment.preset.data.task
            now = split_inputs(self.experiment.folder, task, "train")["episodes"]
            if now != before["train"]:
                warnings.warn(
                    f"{self.run.root}: the training episodes of {task} are not those it was trained on "
                    f"(sha256 {str(before['train'])[:12]} then, {now[:12]} now); other buildings may be held "
                    f"out, and it may have learned from what '{split}' holds now",
                    stacklevel=2,
                )
        return self.experiment.episodes(split)

    def walk(self, split: str, processes: int = 1, helped: WithSpeaker | None = None) -> Walks:
        """Walk a split, alone, with copies in several processes, or with a speaker's help."""
        checkpoint, episodes = self.run.checkpoint(self.checkpoint), self.episodes(split)
        walker: AbstractContextManager[Walker] = nullcontext(self.experiment.agent)
        at_once = _AT_ONCE * processes
        if helped is not None:
            walker = nullcontext(helped.walker)
            at_once = max(1, _AT_ONCE // helped.settings.get("candidates", 1))
        elif processes > 1 and self.world.device.type != "cpu":
            raise UserError("several processes walk on the CPU; leave out --processes or --device")
        elif processes > 1:
            walker = WorkerPool(checkpoint, self.experiment.folder, processes)
        with walker as opened:
            return _walk(opened, episodes, self.run.root.name, self.progress, at_once)

    def record(
        self,
        split: str,
        processes: int = 1,
        place: Path | None = None,
        helped: WithSpeaker | None = None,
        *,
        optional: bool = False,
    ) -> tuple[Walks, list[EpisodeResult]]:
        """Walk a split; trajectories and (unless goals are secret) outcomes are kept with a stamp.

        They are written to ``place``, the results of the run when left out; if that is ``optional``, an error
        is ignored. With a speaker's help outcomes are not kept.
        """
        stamp = self.stamp(split)  # before the walk, because files may change meanwhile
        walks = self.walk(split, processes, helped)
        results: list[EpisodeResult] = []
        if walks.episodes.has_goals and helped is None:
            results = self._results(walks)
        else:
            stamp = msgspec.structs.replace(stamp, reranking=helped and helped.reranking)
        file = (place or self.run.results(split).parent) / f"{split}.json"
        outcomes = file.with_suffix(".jsonl")
        with suppress(UserError) if optional else nullcontext():
            write_trajectories(file, walks.trajectories(self.world))
            if results:
                write_episode_results(outcomes, results)
            files = {one.name: file_digest(one) for one in (file, outcomes) if one.is_file()}
            write_stamp(file.with_suffix(".stamp.json"), msgspec.structs.replace(stamp, files=files))
        return walks, results

    def _results(self, walks: Walks) -> list[EpisodeResult]:
        return episode_results(self.world, walks, checkpoint=self.checkpoint, iteration=self.iteration)

    def origin(self, split: str | None = None) -> Origin:
        """What walks of a split, or of an instruction that stands in none, come from now."""
        folder, task = self.experiment.folder, self.experiment.preset.data.task
        return Origin(
            versions={"scenemem": __version__, "torch": str(torch.__version__)},
            weights=file_digest(self.run.checkpoint(self.checkpoint)),
            episodes="" if split is None else split_inputs(folder, task, split)["episodes"],
            graphs=graph_digest(folder.connectivity),
            features=self.experiment.environment.store.info.sha256,
        )

    def stamp(self, split: str) -> ResultStamp:
        """What results of a split would come from now."""
        stored, preset = self.stored, self.experiment.preset
        return ResultStamp(
            **msgspec.structs.asdict(self.origin(split)),
            checkpoint=self.checkpoint,
            iteration=self.iteration,
            name=str(stored.metadata.get("name", "")),
            seed=self.seed,
            preset=msgspec.to_builtins(preset),
            task=preset.data.task,
            files={},
            code=code_digest(),
        )

    def evaluate(
        self,
        split: str,
        processes: int = 1,
        place: Path | None = None,
        helped: WithSpeaker | None = None,
    ) -> Evaluation:
        """Walk and ``record`` a split, and measure the walks; goals must be known."""
        walks, _ = self.record(split, processes, place, helped)
        found = _evaluation(walks, self.world, split, self.experiment.track)
        return found if helped is None else replace(found, reranking=helped.facts(walks, self.world))

    def with_speaker(self, speaker: RunFolder, reranking: Reranking) -> WithSpeaker:
        """The agent with a speaker that helps to choose its answers.

        It chooses among several candidates of each episode or, when the agent searches, among the routes that
        one search has found.
        """
        agent, scorer = self.experiment.agent, speaker_beside(speaker, self.experiment)
        if not searches(agent):
            walker = CandidateWalker(RerankingAgent(agent, scorer, reranking))
            return WithSpeaker(walker, speaker, asdict(reranking))
        if reranking.candidates != 1:
            raise UserError(
                f"{self.run.root} searches, and a speaker chooses among the routes of one search; "
                "leave out --candidates"
            )
        weight = reranking.weight
        return WithSpeaker(PragmaticSearch(agent, scorer, weight), speaker, {"weight": weight})

    def traced(self, name: str, split: str, helped: WithSpeaker | None = None) -> TracedAgent:
        """The agent, watched while it walks a split; a speaker may choose where its searches end."""
        agent, episodes, origin = self.experiment.agent, self.episodes(split), self.origin(split)
        if helped is None:
            return TracedAgent(name, agent, episodes, origin)
        if isinstance(helped.walker, CandidateWalker):
            raise UserError(
                f"{self.run.root} does not search, and a walk chosen among candidates cannot be watched; "
                "leave out --speaker"
            )
        name = f"{name} with {helped.speaker.root.name}"
        origin = msgspec.structs.replace(origin, reranking=helped.reranking)
        return TracedAgent(name, helped.walker, episodes, origin)

    def results_of(self, watched: TracedAgent, split: str) -> Sequence[EpisodeResult]:
        """The outcome of every episode of a split; with a speaker's help it is walked now and not kept."""
        if watched.agent is self.experiment.agent:
            return self.results(split)
        return self._results(_walk(watched.agent, watched.episodes, watched.name, self.progress))

    def results(self, split: str) -> Sequence[EpisodeResult]:
        """The outcome of every episode of a split, walked now unless these weights have walked it already."""
        kept = self.kept(split)
        return self.record(split, optional=True)[1] if kept is None else kept

    def kept(self, split: str) -> Sequence[EpisodeResult] | None:
        """What these weights have walked already of a split, with the data that is there now.

        None for an agent with parts from outside of the package, whose code has no checksum.
        """
        agent = self.experiment.agent
        makers = {type(part).__module__ for part in agent.network.modules()}
        makers.add(getattr(AGENTS[self.experiment.preset.agent].build, "__module__", ""))
        if not {maker.partition(".")[0] for maker in makers} <= {"scenemem", "torch"}:
            return None
        stamp = read_stamp(self.run.stamp(split))
        if stamp is None or stamp.features != agent.environment.store.info.sha256:
            return None
        found = kept_results(self.run, self.checkpoint, self.experiment.folder, split).get(split, ())
        wanted = self.episodes(split).instruction_ids
        return found if tuple(one.instr_id for one in found) == tuple(wanted) else None

    def grounding(self, split: str) -> GroundingQuality:
        """How well its word attention agrees with hand-made labels, along the reference paths."""
        task = self.experiment.preset.data.task
        if task != "r2r":
            raise UserError(f"word labels exist for r2r only, this run walks {task}")
        file = landmark_label_file(self.experiment.folder.root, "train" if split == DEV_UNSEEN else split)
        labels, episodes = read_landmark_labels(file), self.episodes(split)
        with self.progress("measuring attention") as advance:
            return measure_grounding(self.experiment.agent, episodes, labels, progress=advance)

    def following(self, split: str) -> list[Agreement]:
        """How often it would choose what is right where it is led along the reference paths."""
        with self.progress("leading along reference paths") as advance:
            return measure_following(self.experiment.agent, self.episodes(split), progress=advance)


def open_run(
    run: RunFolder,
    folder: DataFolder,
    checkpoint: Which = "last",
    progress: Progress = silent,
    device: str = "cpu",
) -> OpenedRun:
    """Load the weights of a run."""
    run.describe()
    experiment, stored = stored_experiment(run.checkpoint(checkpoint), folder, device)
    opened = OpenedRun(run, experiment, checkpoint, stored, progress)
    try:
        opened.iteration, opened.seed  # noqa: B018
    except (KeyError, TypeError, ValueError) as error:
        reason = f"does not say how far and with which seed it was trained ({error})"
        raise DataError(run.checkpoint(checkpoint), reason) from error
    return opened


def kept_results(
    run: RunFolder, checkpoint: Which, folder: DataFolder | None = None, split: str | None = None
) -> dict[str, Sequence[EpisodeResult]]:
    """What these very weights have walked already, by split; of one, or of all.

    Results count when their stamp says that they come from the checkpoint and the program as they are now,
    and (with a data folder) from the episodes, graphs and features that are there now.
    """
    found: dict[str, Sequence[EpisodeResult]] = {}
    file = run.checkpoint(checkpoint)
    if not file.is_file():
        return found
    for outcomes in sorted((run.root / "results").glob("*.jsonl")):
        walked = outcomes.stem
        stamp = read_stamp(run.stamp(walked)) if split in (None, walked) else None
        if stamp is None or not _is_whole(outcomes, stamp):
            continue
        ours = stamp.weights == file_digest(file) and stamp.code == code_digest()
        if ours and stamp.checkpoint == checkpoint and (folder is None or _is_of(folder, walked, stamp)):
            found[walked] = read_episode_results(outcomes)
    return found


def _is_whole(outcomes: Path, stamp: ResultStamp) -> bool:
    """Whether the result files of a stamp are all there, unchanged."""
    files = {outcomes.with_name(name): digest for name, digest in stamp.files.items()}
    return outcomes in files and all(
        place.is_file() and file_digest(place) == digest for place, digest in files.items()
    )


def _is_of(folder: DataFolder, split: str, stamp: ResultStamp) -> bool:
    """Whether results come from the data in a folder as it is now; missing features do not contradict."""
    try:
        same = split_inputs(folder, stamp.task, split) == {"episodes": stamp.episodes, "graphs": stamp.graphs}
        name = stamp.preset.get("data", {}).get("features")
        known = {store: info.sha256 for store, info in complete_stores(folder)}
        stores = [store for store, sha256 in known.items() if name == store.stem or sha256 == stamp.features]
        return same and (not stores or stamp.features in map(file_digest, stores))
    except DataError:
        return False


def run_names(runs: Sequence[Path]) -> dict[str, Path]:
    """The folders by their own names, with their parents' where those are the same."""
    paths = [path.resolve() for path in runs]
    if len(set(paths)) < len(paths):
        raise UserError(f"{runs[0]} is named twice; name another run to compare it with")
    alike = len({path.name for path in paths}) < len(paths)
    names = [str(path.relative_to(path.parents[1])) if alike else path.name for path in paths]
    return dict(zip(names, runs, strict=True))


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
                "a process of the evaluation is gone, perhaps for lack of memory; use fewer --processes"
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


def _evaluation(walks: Walks, world: World, split: str, track: str = "") -> Evaluation:
    if not walks.episodes.has_goals:
        raise UserError(
            f"'{walks.episodes.name}' keeps its goals secret; write a file with 'scenemem submit'"
        )
    jumps = float(walks.jumps.double().mean())
    measured = walks.measured(world)
    return Evaluation(split, walks.episodes.instruction_ids, measured, jumps=jumps, track=track)
