"""The scene memory by itself: visits per second, growth with its size, share of a training step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import torch
from torch import Tensor

from scenemem.benchmarks.clock import now
from scenemem.benchmarks.growth import slope
from scenemem.benchmarks.machine import Machine, this_machine
from scenemem.benchmarks.parts import watched_parts
from scenemem.benchmarks.speed import Progress
from scenemem.benchmarks.workload import Case, Workload, preset_named
from scenemem.formats.folder import DataFolder
from scenemem.memory.scene_memory import SceneMemory
from scenemem.simulator.panorama import Simulator
from scenemem.world.graph import World

_STEPS = 4  # of the training whose shares are reported


@dataclass(frozen=True)
class Visiting:
    """Random walks written into memories that can hold every place of them."""

    lanes: int
    places: int  # a memory can hold, and visits of every lane
    visits_per_second: float


@dataclass(frozen=True)
class MemoryReport:
    """Everything ``scenemem bench memory`` prints."""

    date: str
    machine: Machine
    visiting: list[Visiting]
    seconds_per_visit_slope: float  # with the places a memory can hold
    training: str  # preset of the training step
    batch: int
    memory_share: float  # of the time of the training step
    world_share: float  # action spaces, labels, simulator


def measure_memory(
    folder: DataFolder,
    *,
    lanes: int,
    places: Sequence[int],
    repeats: int,
    preset: str = "ssm",
    features: str | None = None,
    progress: Progress | None = None,
) -> MemoryReport:
    """Measure the memory alone, and inside training steps of ``preset``.

    Args:
        folder: whose world is walked.
        lanes: memories written at once, and episodes per training step.
        places: sizes of memory to measure.
        repeats: repetitions, all sizes taking turns; their median counts.
        preset: what is trained.
        features: name of the feature store, when the folder has several.
        progress: called with (repetitions done, repetitions in all).
    """
    load = Workload(Case(preset_named(preset), lanes, features=features), folder)
    world = load.experiment.environment.world
    walks = [_random_walk(world, lanes, count) for count in places]
    for walk in walks:
        _seconds(world, walk)  # warms up
    taken = []
    for repeat in range(repeats):
        taken.append([_seconds(world, walk) for walk in walks])
        if progress is not None:
            progress(repeat + 1, repeats)
    seconds = [statistics.median(column) for column in zip(*taken, strict=True)]
    shares = _shares(load)
    return MemoryReport(
        date=date.today().isoformat(),
        machine=this_machine(),
        visiting=[
            Visiting(lanes, count, lanes * count / second)
            for count, second in zip(places, seconds, strict=True)
        ],
        seconds_per_visit_slope=slope(
            places, [second / count for count, second in zip(places, seconds, strict=True)]
        ),
        training=preset,
        batch=lanes,
        memory_share=shares["memory"],
        world_share=shares["world"],
    )


def _random_walk(world: World, lanes: int, steps: int) -> Tensor:
    """Viewpoints of random legal walks  ->  (steps, lanes)"""
    random, simulator = torch.Generator().manual_seed(0), Simulator(world, check=False)
    connected = (world.degree > 0).nonzero().squeeze(1)
    start = connected[torch.randint(len(connected), (lanes,), generator=random)]
    pose = simulator.reset(start, torch.zeros(lanes))
    places = [pose.viewpoint]
    for _ in range(steps - 1):
        slot = (torch.rand(lanes, generator=random) * world.degree[pose.viewpoint]).long()
        pose = simulator.step(pose, slot)
        places.append(pose.viewpoint)
    return torch.stack(places)


def _seconds(world: World, walk: Tensor) -> float:
    steps, lanes = walk.shape
    memory, rows = SceneMemory(world, lanes, capacity=steps), torch.arange(lanes)
    begun = now()
    for places in walk:
        memory.visit(places, rows)
    return now() - begun


def _shares(load: Workload) -> dict[str, float]:
    load.run("mixed", 1)
    with watched_parts(load.trainer.agent, load.trainer.optimiser) as clock:
        load.run("mixed", _STEPS)
        return clock.shares()
