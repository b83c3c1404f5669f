"""``scenemem eval RUN``: walk a trained (or scripted) agent over a split and print its metrics.

With ``--grounding`` the agent is led along the reference paths instead, and its word attention is measured.
With ``--speaker`` it walks several candidate routes and a speaker helps to choose among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.table import Table

from scenemem.learning.objectives import ClosestToGoal
from scenemem.agents.reranking import Reranking, RerankingAgent
from scenemem.agents.scripted import Agent, ExpertAgent, RandomAgent, StopAgent
from scenemem.commands.console import open_data, output, print_json, progress_bar, use_threads
from scenemem.commands.speaker_choice import add_rows, check_flags, facts
from scenemem.commands.tables import metric_table
from scenemem.crew import Crew
from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.evaluate import Surveyor, Walked, walk_split
from scenemem.evaluation.grounding import OWN, GroundingQuality, measure_grounding
from scenemem.evaluation.outcomes import episode_results
from scenemem.experiment import DEV_UNSEEN, Experiment, stored_experiment
from scenemem.formats.annotations import landmark_label_file, read_landmark_labels
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import EpisodeResult, write_episode_results, write_trajectories
from scenemem.learning.run_folder import RunFolder
from scenemem.presets import SCRIPTED
from scenemem.speaking import speaker_beside
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World

Weights = Literal["best", "last"]
"""Which checkpoint of a run."""

_LANES = 256  # walks at once


def eval_run(
    run: Annotated[str, tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    checkpoint: Weights = "last",
    task: str = "r2r",
    seed: int = 0,
    threads: int = 1,
    processes: int = 1,
    speaker: Path | None = None,
    candidates: int = 1,
    speaker_weight: float = Reranking.weight,
    grounding: bool = False,
    json: bool = False,
) -> None:
    """Walk an agent over a split and print its metrics; trajectories and outcomes go into the run folder.

    Args:
        run: a run folder, or one of expert, random and stop.
        split: which episodes.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the run, or those that did best on its selection split.
        task: which episode files a scripted agent walks; a run knows its own.
        seed: of the random agent, and of sampled candidates.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        processes: walk a run's episodes with this many processes of one thread each, for large splits.
        speaker: run of a speaker that helps to choose among candidate routes, see --candidates.
        candidates: routes walked per episode before one is the answer: the greedy one, the others sampled.
        speaker_weight: of the speaker's log-likelihood per word; the agent's per decision has the rest.
        grounding: measure instead how well the word attention agrees with hand-made labels (lar2r/).
        json: print one JSON object instead of a table.
    """
    use_threads(threads)
    check_processes(processes)
    check_flags(run, speaker, candidates, processes, grounding=grounding)
    reranking = None if speaker is None else Reranking(candidates, speaker_weight, seed)
    folder = open_data(data)
    if grounding:
        _show_grounding(run, split, folder, checkpoint, json=json)
        return
    surveyor = None
    if run in SCRIPTED:
        world = load_world(folder.connectivity)
        episodes = load_split(folder, world, task, split)
        agent = scripted_agent(run, world, seed)
        walked = _walk(agent, episodes, run)
    else:
        opened = open_run(RunFolder(Path(run)), folder, checkpoint)
        world = opened.experiment.sight.world
        if speaker is None or reranking is None:
            walked, _ = opened.evaluate(split, processes)
        else:
            walked, surveyor = opened.evaluate_reranked(split, RunFolder(speaker), reranking)
    report = summary(walked, world, split)
    if surveyor is not None:
        report["reranking"] = {"speaker": str(speaker), **facts(surveyor, walked, world)}
    if json:
        print_json(report)
    else:
        title = (
            f"{run} on {walked.episodes.name}: {report['n']} instructions, {report['jumps']:.2f} jumps each"
        )
        table = metric_table(title, report["metrics"])
        if "reranking" in report:
            add_rows(table, report["reranking"])
        output.print(table)


def scripted_agent(name: str, world: World, seed: int) -> Agent:
    """The agent called ``expert``, ``random`` or ``stop``."""
    if name == "expert":
        return ExpertAgent(world, lambda episodes: ClosestToGoal(world, episodes.goal))
    if name == "random":
        return RandomAgent(world, torch.Generator().manual_seed(seed))
    return StopAgent(world)


def summary(walked: Walked, world: World, split: str) -> dict[str, Any]:
    """The object ``score --json`` prints as well, and how often the agent jumped."""
    if not walked.episodes.has_goals:
        raise UserError(
            f"'{walked.episodes.name}' keeps its goals secret; write a file with 'scenemem submit'"
        )
    return {
        "split": split,
        "n": len(walked.episodes),
        "missing": 0,
        "metrics": walked.measured(world).means(),
        "jumps": float(walked.jumps.double().mean()),
    }


def check_processes(processes: int) -> None:
    """Refuse impossible numbers before anything is opened.

    Raises:
        UserError: there is no such number of processes.
    """
    if processes < 1:
        raise UserError(f"--processes must be 1 or more, got {processes}")


def walk_run(
    run: RunFolder, split: str, folder: DataFolder, checkpoint: Weights, processes: int = 1
) -> tuple[World, Walked]:
    """Walk the agent of a run over a split."""
    opened = open_run(run, folder, checkpoint)
    return opened.experiment.sight.world, opened.walk(split, processes)


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """The agent of a run on a data folder, ready to be evaluated."""

    run: RunFolder
    experiment: Experiment
    checkpoint: Weights
    iteration: int  # of the weights

    def walk(self, split: str, processes: int = 1) -> Walked:
        """Walk a split, alone or with copies in several processes."""
        episodes = self.experiment.episodes(split)
        with self._agent(processes) as agent:
            return _walk(agent, episodes, self.run.root.name, batch_size=_LANES * processes)

    def evaluate(self, split: str, processes: int = 1) -> tuple[Walked, list[EpisodeResult]]:
        """Walk a split; trajectories and (unless goals are secret) outcomes are kept in the run folder."""
        world = self.experiment.sight.world
        walked = self.walk(split, processes)
        write_trajectories(self.run.results(split), walked.trajectories(world))
        if not walked.episodes.has_goals:
            return walked, []
        results = episode_results(world, walked, checkpoint=self.checkpoint, iteration=self.iteration)
        write_episode_results(outcome_file(self.run, split), results)
        return walked, results

    def evaluate_reranked(
        self, split: str, speaker: RunFolder, reranking: Reranking
    ) -> tuple[Walked, Surveyor]:
        """Walk a split, the best of several candidates each; trajectories lie apart from ordinary ones."""
        listener = speaker_beside(speaker, self.experiment)
        surveyor = Surveyor(RerankingAgent(self.experiment.agent, listener, reranking))
        walked = _walk(
            surveyor,
            self.experiment.episodes(split),
            self.run.root.name,
            batch_size=max(1, _LANES // reranking.candidates),
        )
        write_trajectories(
            self.run.root / "results" / "reranked" / f"{split}.json",
            walked.trajectories(self.experiment.sight.world),
        )
        return walked, surveyor

    @contextmanager
    def _agent(self, processes: int) -> Iterator[Agent]:
        """Who walks: the agent itself, or copies of it in several processes."""
        if processes == 1:
            yield self.experiment.agent
            return
        with Crew(weights_file(self.run, self.checkpoint), self.experiment.folder, processes) as crew:
            yield crew


def weights_file(run: RunFolder, checkpoint: Weights) -> Path:
    """The checkpoint file."""
    return run.best if checkpoint == "best" else run.last


def open_run(run: RunFolder, folder: DataFolder, checkpoint: Weights) -> OpenedRun:
    """Load the weights of a run."""
    run.describe()
    experiment, stored = stored_experiment(weights_file(run, checkpoint), folder)
    return OpenedRun(run, experiment, checkpoint, int(stored.facts["progress"]["iteration"]))


def outcome_file(run: RunFolder, split: str) -> Path:
    """Where the outcome of every episode of a split is kept, beside its trajectories."""
    return run.results(split).with_suffix(".jsonl")


def _walk(agent: Agent, episodes: EpisodeSet, name: str, batch_size: int = _LANES) -> Walked:
    with progress_bar(f"walking {name}") as progress:
        return walk_split(agent, episodes, batch_size=batch_size, progress=progress)


def _show_grounding(run: str, split: str, folder: DataFolder, checkpoint: Weights, *, json: bool) -> None:
    if run in SCRIPTED:
        raise UserError(f"'{run}' listens to no word; --grounding needs a trained run")
    opened = open_run(RunFolder(Path(run)), folder, checkpoint)
    experiment = opened.experiment
    if experiment.preset.data.task != "r2r":
        raise UserError(f"word labels exist for r2r only, this run walks {experiment.preset.data.task}")
    file = landmark_label_file(folder.root, "train" if split == DEV_UNSEEN else split)
    labels, episodes = read_landmark_labels(file), experiment.episodes(split)
    with progress_bar("listening") as progress:
        quality = measure_grounding(experiment.agent, episodes, labels, progress=progress)
    if json:
        print_json({"split": split, "iteration": opened.iteration, "grounding": quality})
    else:
        output.print(grounding_table(f"{run} on {episodes.name}", quality))


def grounding_table(title: str, quality: GroundingQuality) -> Table:
    """One row per kind of words and attention; intervals are 95 %."""
    table = Table("words", "attention", "mass", "chance", "lift", "lift elsewhere", "pointing", title=title)
    for row in quality.attention:
        elsewhere = "-" if row.elsewhere is None else _interval(row.elsewhere, 2)
        own = " (own)" if OWN[row.words] == row.stream else ""
        table.add_row(
            row.words,
            row.stream + own,
            _interval(row.mass, 3),
            f"{row.chance:.3f}",
            _interval(row.lift, 2),
            elsewhere,
            _interval(row.pointing, 3),
        )
    covered = quality.coverage
    table.caption = (
        f"{quality.episodes} instructions of {quality.paths} paths; {covered.measured} of {covered.labels} "
        f"labels measured: {covered.empty} are empty, {covered.beyond} point past the end, "
        f"{covered.cut} past what is read, {covered.unvisited} lie off the walk"
    )
    return table


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
