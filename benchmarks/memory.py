"""Speed of the scene memory, alone and within a training step: python -m benchmarks.memory --data DIR"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.machine import Case, Options, command, now
from benchmarks.measure import PartClock, watched
from benchmarks.simulator import random_walk
from benchmarks.workload import Workload, preset_at
from scenemem.errors import UserError
from scenemem.ssm.graph import SceneMemory
from scenemem.world.graph import World

_STEPS = 4  # of the training whose shares are reported


@dataclass(frozen=True)
class MemoryOptions(Options):
    """Measure writing to the scene memory, and its share of a training step."""

    capacities: tuple[int, ...] = (8, 16, 32, 64)
    """places a memory can hold; each size is measured"""
    preset: str = "ssm"
    """whose training step the shares are taken of"""
    repeats: int = 7
    """repetitions, all sizes taking turns; their median counts"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.capacities)) < 2 or min(self.capacities) < 1:
            raise UserError(f"--capacities needs two different sizes of 1 or more, got {self.capacities}")


def measure_memory(options: MemoryOptions) -> list[Case]:
    """One case: a mode per capacity, and the shares of a training step."""
    load = Workload(preset_at(options.preset, "everyday"), options)
    world, sizes = load.agent.environment.world, options.capacities
    walks = [torch.stack(random_walk(world, options.batch, size)[1]) for size in sizes]
    taken = [[_seconds(world, walk) for walk in walks] for _ in range(options.repeats + 1)]
    whole = map(statistics.median, zip(*taken[1:], strict=True))  # the first ones warm up
    each = [seconds / size for seconds, size in zip(whole, sizes, strict=True)]
    load.run("mixed", 1)
    clock = PartClock(options.device)
    with watched(load.agent.network, clock.timed):
        load.run("mixed", _STEPS)
    shares = clock.shares()
    return [
        {
            "preset": options.preset,
            "batch": options.batch,
            "seconds_per_visit_slope": slope(sizes, each),
            "memory_share": shares["memory"],
            "rollout_share": shares["rollout"],
            "modes": {
                f"{size} places": {"visits_per_second": options.batch / seconds}
                for size, seconds in zip(sizes, each, strict=True)
            },
        }
    ]


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p of cost = c * size^p that fits best, by least squares over the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def _seconds(world: World, walk: Tensor) -> float:
    """Time to write a walk.  walk: (steps, batch) viewpoints"""
    steps, batch = walk.shape
    memory = SceneMemory(world, batch, capacity=steps)
    episodes = torch.arange(batch, device=world.device)
    begun = now(str(world.device))
    for viewpoint in walk:
        memory.visit(viewpoint, episodes)
    return now(str(world.device)) - begun


if __name__ == "__main__":
    command(MemoryOptions, measure_memory)
