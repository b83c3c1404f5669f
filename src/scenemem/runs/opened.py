"""Opened runs: a trained agent on a data folder, walked alone or by several processes, and what comes out."""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import torch

from scenemem import __version__
from scenemem.agents.build import AGENTS
from scenemem.agents.rollout import Rollout, joined
from scenemem.agents.scripted import ExpertAgent, RandomAgent, StopAgent
from scenemem.agents.walker import TrainedAgent, Walker
from scenemem.errors import DataError, UserError
from scenemem.evaluation.evaluate import Walks, episode_results, walk_split
from scenemem.evaluation.following import Agreement, measure_following
from scenemem.evaluation.grounding import GroundingQuality, measure_grounding
from scenemem.evaluation.metrics import Metrics
from scenemem.formats.annotations import landmark_label_file, read_landmark_labels
from scenemem.formats.atomic import atomic_file
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
from scenemem.learning.checkpoint import Checkpoint, read_checkpoint
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
    PREFIX,
    SPEAKER,
    SPEAKER_METRICS,
    Published,
    RunFolder,
    Which,
    halved,
    read_published,
    unpack,
    write_published,
)
from scenemem.runs.speakers import evaluate_speaker, open_speaker
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
        names = [field.name for field in fields(Metrics)]
        columns = [getattr(self.measured, name).tolist() for name in names]
        return {
            instruction_id: dict(zip(names, values, strict=True))
            for instruction_id, *values in zip(self.instruction_ids, *columns, strict=True)
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
        "stop": StopAgent(world),
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
        """The episodes of a split; a warning tells when it was trained on other training episodes."""
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

    def walk(self, split: str, processes: int = 1) -> Walks:
        """Walk a split, alone or with copies in several processes."""
        agent, checkpoint = self.experiment.agent, self.run.checkpoint(self.checkpoint)
        walker: AbstractContextManager[Walker] = nullcontext(agent)
        if processes > 1 and self.world.device.type != "cpu":
            raise UserError("several processes walk on the CPU; leave out --processes or --device")
        if processes > 1:
            walker = WorkerPool(checkpoint, self.experiment.folder, processes)
        with walker as opened:
            episodes, at_once = self.episodes(split), _AT_ONCE * processes
            return _walk(opened, episodes, self.run.root.name, self.progress, at_once)

    def record(
        self, split: str, processes: int = 1, place: Path | None = None, *, optional: bool = False
    ) -> tuple[Walks, list[EpisodeResult]]:
        """Walk a split; trajectories and (unless goals are secret) outcomes are kept with a stamp.

        Args:
            split: what to walk.
            processes: that walk.
            place: the folder for the results; that of the run when left out.
            optional: go on where they cannot be written.
        """
        stamp = self.stamp(split)  # before the walk, because files may change meanwhile
        walks = self.walk(split, processes)
        results: list[EpisodeResult] = []
        if walks.episodes.has_goals:
            results = episode_results(self.world, walks, checkpoint=self.checkpoint, iteration=self.iteration)
        file = (place or self.run.results(split).parent) / f"{split}.json"
        with suppress(UserError) if optional else nullcontext():
            write_trajectories(file, walks.trajectories(self.world))
            if results:
                write_episode_results(file.with_suffix(".jsonl"), results)
            self._write_stamp(file.with_suffix(".stamp.json"), stamp)
        return walks, results

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

    def _write_stamp(
        self, file: Path, stamp: ResultStamp, reranking: Mapping[str, Any] | None = None
    ) -> None:
        stem = file.name.removesuffix(".stamp.json")
        written = [file.with_name(stem + end) for end in (".json", ".jsonl")]
        files = {one.name: file_digest(one) for one in written if one.is_file()}
        told = None if reranking is None else dict(reranking)
        write_stamp(file, msgspec.structs.replace(stamp, files=files, reranking=told))

    def evaluate(self, split: str, processes: int = 1, place: Path | None = None) -> Evaluation:
        """Walk and ``record`` a split, and measure the walks; goals must be known."""
        walks, _ = self.record(split, processes, place)
        return _evaluation(walks, self.world, split, self.experiment.track)

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

    def evaluate_with(self, helped: WithSpeaker, split: str, place: Path | None = None) -> Evaluation:
        """Walk a split with a speaker's help; trajectories lie apart from ordinary ones."""
        walker, stamp, episodes = helped.walker, self.stamp(split), self.episodes(split)
        at_once = max(1, _AT_ONCE // helped.settings.get("candidates", 1))
        walks = _walk(walker, episodes, self.run.root.name, self.progress, at_once)
        file = (place or self.run.root / "results" / "reranked") / f"{split}.json"
        write_trajectories(file, walks.trajectories(self.world))
        self._write_stamp(file.with_suffix(".stamp.json"), stamp, helped.reranking)
        evaluation = _evaluation(walks, self.world, split, self.experiment.track)
        facts = {"speaker": str(helped.speaker.root), **helped.settings}
        if isinstance(walker, CandidateWalker):  # the walk of a search holds all that was walked
            all_walked = {"tl": walker.metres, "spl": walker.spl(walks, self.world)}
            facts["all_walked"] = {name: float(values.mean()) for name, values in all_walked.items()}
        return replace(evaluation, reranking=facts)

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
        name, origin = (
            f"{name} with {helped.speaker.root.name}",
            msgspec.structs.replace(origin, reranking=helped.reranking),
        )
        return TracedAgent(name, helped.walker, episodes, origin)

    def results_of(self, watched: TracedAgent, split: str) -> Sequence[EpisodeResult]:
        """The outcome of every episode of a split; with a speaker's help it is walked now and not kept."""
        if watched.agent is self.experiment.agent:
            return self.results(split)
        walks = _walk(watched.agent, watched.episodes, watched.name, self.progress)
        return episode_results(self.world, walks, checkpoint=self.checkpoint, iteration=self.iteration)

    def results(self, split: str) -> Sequence[EpisodeResult]:
        """The outcome of every episode of a split, walked now unless these weights have walked it already."""
        kept = self.kept(split)
        return self.record(split, optional=True)[1] if kept is None else kept

    def kept(self, split: str) -> Sequence[EpisodeResult] | None:
        """What these weights have walked already of a split, with the data that is there now.

        None for an agent with a part of somebody's own: nobody knows whether its code is what it was.
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
    places = {outcomes.with_name(Path(name).name): digest for name, digest in stamp.files.items()}
    return outcomes in places and all(
        place.is_file() and file_digest(place) == digest for place, digest in places.items()
    )


def _is_of(folder: DataFolder, split: str, stamp: ResultStamp) -> bool:
    """Whether results come from the data in a folder as it is now; missing features do not contradict."""
    try:
        if split_inputs(folder, stamp.task, split) != {"episodes": stamp.episodes, "graphs": stamp.graphs}:
            return False
        name = stamp.preset.get("data", {}).get("features")
        stores = [
            store
            for store, info in complete_stores(folder)
            if store.stem == name or info.sha256 == stamp.features
        ]
        return not stores or stamp.features in map(file_digest, stores)
    except DataError:
        return False


def run_names(runs: Sequence[Path]) -> dict[str, Path]:
    """The folders by what people call them: their own names, with their parents' where those are the same."""
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


def pack_weights(
    run: RunFolder,
    out: Path,
    folder: DataFolder,
    splits: Sequence[str],
    checkpoint: Which = "last",
    progress: Progress = silent,
    device: str = "cpu",
) -> Path:
    """Pack the weights of a run in half precision, measure them, write them and a card, which is returned."""
    description = run.describe()
    # what it learned from, without where that lay on this machine
    description["data"].pop("folder", None)
    sources = description.get("augmentation", {})
    description["augmentation"] = {name: Path(place).name for name, place in sources.items()}
    description["plugins"] = [Path(name).name for name in description.get("plugins", ())]
    packed = halved(read_checkpoint(run.checkpoint(checkpoint)))
    metrics: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:  # what the packed weights reach, not those they come from
        file, copy = Path(place) / "packed.safetensors", RunFolder(Path(place) / "packed")
        write_published(file, packed, description, {})
        unpack(file, copy.root)
        if packed.metadata.get("kind") == SPEAKER:
            speaker = open_speaker(copy, folder)
            for split in splits:
                found = evaluate_speaker(speaker, split, beams=1, seed=0, progress=progress)
                metrics[split] = {name: found[name] for name in SPEAKER_METRICS}
        else:
            opened = open_run(copy, folder, "last", progress, device)
            for split in splits:
                metrics[split] = opened.evaluate(split).metrics
    write_published(out, packed, description, metrics)
    card = out.with_suffix(".md")
    with atomic_file(card) as partial:
        partial.write_text(model_card(read_published(out)), encoding="utf-8")
    return card


def model_card(entry: Published) -> str:
    """What somebody who finds the file has to know, in Markdown."""
    metadata, data, features = entry.metadata, entry.description["data"], entry.metadata["features"]
    held_out = metadata["preset"]["selection"]["split"] == DEV_UNSEEN
    columns = entry.card
    rows = "\n".join(
        f"| {split} | " + " | ".join(f"{metrics[name]:.3f}" for name in columns) + " |"
        for split, metrics in entry.metrics.items()
    )
    command = "speak eval" if entry.is_speaker else "eval"
    return f"""# {PREFIX}{entry.name}

Preset `{metadata["name"]}`, seed {metadata["seed"]}, {metadata["progress"]["iteration"]} iterations, \
{len(metadata["vocabulary"])} words, half precision.

- Task: {metadata["preset"]["data"]["task"]}. Features: {metadata["preset"]["data"]["features"]} \
({data["features"]}), track {entry.track or "unknown"}, {features["width"]} columns, \
SHA-256 `{features["sha256"]}`.
- Trained on {"the training buildings without dev_unseen" if held_out else "all training buildings"}.
- {_expected(entry)}
- Made with {", ".join(f"{name} {text}" for name, text in entry.description["versions"].items())}.
{_data_of(entry)}\
- The file of the weights has the SHA-256 `{file_digest(entry.file)}`.
- Weights only: no data is included. Use them with features of the same checksum; buildings of
  Matterport3D are under its own terms of use (non-commercial, academic).

| split | {" | ".join(columns)} |
|---{"|---" * len(columns)}|
{rows}

`scenemem {command} {PREFIX}{entry.name} --split val_unseen`, with `--data` for R2R, prints them.
"""


def _data_of(entry: Published) -> str:
    """A line about the files they were trained on; none for weights of versions that did not note them."""
    files = [f"{name} `{digest}`" for name, digest in entry.description.get("inputs", {}).items()]
    return f"- Data files, SHA-256: {', '.join(files)}.\n" if files else ""


def _expected(entry: Published) -> str:
    """Which seed of how many these weights are, and what a run of one's own may reach."""
    own, known = entry.metadata["seed"], entry.seeds
    if known is None:
        return f"Seed {own} is the only one that was trained; expect others to differ by a few hundredths."
    others = ", ".join(map(str, known.seeds))
    means = ", ".join(
        f"{name} {mean:.3f} ± {deviation:.3f}"
        for name, (mean, deviation) in (("SR", known.sr), ("SPL", known.spl))
    )
    return (
        f"Seed {own} of {len(known.seeds)} ({others}), not chosen by its result.\n"
        f"  Expect of a run of your own on val_unseen what all seeds reach: {means}."
    )
