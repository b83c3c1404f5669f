"""Greedy evaluation of a whole split: seconds, episodes per second and utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from scenemem.agents.trained import TrainedAgent
from scenemem.benchmarks.clock import clock_is_processor_time
from scenemem.benchmarks.machine import Machine, this_machine
from scenemem.benchmarks.speed import Progress, Speed, measure_speeds
from scenemem.evaluation.evaluate import walk_split
from scenemem.tasks.episode_set import EpisodeSet


@dataclass(frozen=True)
class EvaluationReport:
    """Everything ``scenemem bench eval`` prints."""

    date: str
    machine: Machine
    agent: str  # a run or a preset
    trained: bool  # a fresh network walks oddly: longer or shorter than a trained one
    split: str
    episodes: int
    batch: int
    seconds: float  # for the whole split; processor time with one thread
    wall_seconds: float  # the same as a clock on the wall saw it
    speed: Speed


def measure_evaluation(
    agent: TrainedAgent,
    episodes: EpisodeSet,
    *,
    name: str,
    trained: bool,
    batch: int,
    repeats: int,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Walk all episodes again and again.

    Args:
        agent: who walks.
        episodes: the split.
        name: what the agent is called.
        trained: whether it has learnt something.
        batch: episodes walked at once.
        repeats: repetitions; their median counts.
        progress: called with (repetitions done, repetitions in all).
    """

    def walk() -> int:
        walk_split(agent, episodes, batch_size=batch)
        return len(episodes)

    agent.walk(episodes.select(range(min(batch, len(episodes)))))  # warms up
    speed = measure_speeds({"greedy": walk}, agent, repeats=repeats, progress=progress)["greedy"]
    seconds = len(episodes) / speed.episodes_per_second
    return EvaluationReport(
        date=date.today().isoformat(),
        machine=this_machine(),
        agent=name,
        trained=trained,
        split=episodes.name,
        episodes=len(episodes),
        batch=batch,
        seconds=seconds,
        wall_seconds=seconds / speed.cpus if clock_is_processor_time() else seconds,
        speed=speed,
    )
