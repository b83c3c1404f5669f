"""Speed of evaluation: python -m benchmarks.eval RUN --split val_unseen --data DIR"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from benchmarks.machine import Case, Options, command
from benchmarks.measure import Amount, measure
from benchmarks.workload import counted_observations
from scenemem.evaluation.evaluate import walk_split
from scenemem.presets import PRESETS
from scenemem.runs.experiment import Experiment, new_experiment, stored_experiment
from scenemem.runs.weights import find_run


@dataclass(frozen=True)
class EvalOptions(Options):
    """Walk an agent greedily over a whole split and measure the time."""

    agent: Annotated[str, tyro.conf.Positional] = "ssm"
    """a run folder or weights:NAME, or a preset for a fresh network, which walks oddly"""
    split: str = "val_unseen"
    """which episodes"""
    batch: int = 256
    """episodes walked at once"""
    seconds: tyro.conf.Suppress[float] = 0.0


def measure_evaluation(options: EvalOptions) -> list[Case]:
    """One case: ``seconds`` is processor time with one thread, ``wall_seconds`` what a user waits for."""
    experiment = _opened(options)
    agent, episodes = experiment.agent, experiment.episodes(options.split)

    def walk() -> Amount:
        with counted_observations() as observations:
            walk_split(agent, episodes, batch_size=options.batch)
        return Amount(len(episodes), -(-len(episodes) // options.batch), sum(observations))

    agent.walk(episodes.select(range(min(options.batch, len(episodes)))))  # warms up
    speed = measure({"greedy": walk}, agent.network, options)["greedy"]
    seconds = len(episodes) / speed.episodes_per_second
    processor_time = options.threads == 1 and options.device == "cpu"
    numbers = {"seconds": seconds, "wall_seconds": seconds / (speed.cpus if processor_time else 1.0)}
    return [
        {
            "agent": Path(options.agent).name,
            "trained": options.agent not in PRESETS,
            "split": episodes.name,
            "batch": options.batch,
            "modes": {"greedy": {**numbers, **msgspec.to_builtins(speed)}},
        }
    ]


def _opened(options: EvalOptions) -> Experiment:
    if options.agent in PRESETS:
        preset = PRESETS[options.agent]
        data = replace(preset.data, features=options.features or preset.data.features)
        return new_experiment(replace(preset, data=data), options.folder, 0, options.device)
    return stored_experiment(find_run(options.agent).last, options.folder, options.device)[0]


if __name__ == "__main__":
    command(EvalOptions, measure_evaluation)
