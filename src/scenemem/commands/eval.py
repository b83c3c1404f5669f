"""``scenemem eval RUN``: walk a trained (or scripted) agent over a split and print its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from scenemem.agents.labels import ClosestToGoal
from scenemem.agents.scripted import Agent, ExpertAgent, RandomAgent, StopAgent
from scenemem.commands.console import open_data, output, print_json, progress_bar, use_threads
from scenemem.commands.tables import metric_table
from scenemem.errors import UserError
from scenemem.evaluation.evaluate import Walked, walk_split
from scenemem.experiment import stored_experiment
from scenemem.formats.folder import DataFolder
from scenemem.formats.submission import write_trajectories
from scenemem.learning.run_folder import RunFolder
from scenemem.presets import SCRIPTED
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World


def eval_run(
    run: Annotated[str, tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    checkpoint: Literal["best", "last"] = "last",
    task: str = "r2r",
    seed: int = 0,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Walk an agent over a split and print its metrics; the trajectories go into the run folder.

    Args:
        run: a run folder, or one of expert, random and stop.
        split: which episodes.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the run, or those that did best on its selection split.
        task: which episode files a scripted agent walks; a run knows its own.
        seed: of the random agent.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        json: print one JSON object instead of a table.
    """
    use_threads(threads)
    folder = open_data(data)
    if run in SCRIPTED:
        world = load_world(folder.connectivity)
        episodes = load_split(folder, world, task, split)
        agent = scripted_agent(run, world, seed)
        walked = _walk(agent, episodes, run)
    else:
        world, walked = walk_run(RunFolder(Path(run)), split, folder, checkpoint)
        write_trajectories(RunFolder(Path(run)).results(split), walked.trajectories(world))
    report = summary(walked, world, split)
    if json:
        print_json(report)
    else:
        title = (
            f"{run} on {walked.episodes.name}: {report['n']} instructions, {report['jumps']:.2f} jumps each"
        )
        output.print(metric_table(title, report["metrics"]))


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


def walk_run(run: RunFolder, split: str, folder: DataFolder, checkpoint: str) -> tuple[World, Walked]:
    """Walk the agent of a run over a split."""
    run.describe()
    file = run.best if checkpoint == "best" else run.last
    experiment, _ = stored_experiment(file, folder)
    return experiment.sight.world, _walk(experiment.agent, experiment.episodes(split), run.root.name)


def _walk(agent: Agent, episodes: EpisodeSet, name: str) -> Walked:
    with progress_bar(f"walking {name}") as progress:
        return walk_split(agent, episodes, progress=progress)
