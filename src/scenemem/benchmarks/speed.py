"""Measures repeatable work: its speed, its counted arithmetic, and the share of the machine it uses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from scenemem.agents.trained import TrainedAgent
from scenemem.benchmarks.clock import now
from scenemem.benchmarks.flops import ProductCounter
from scenemem.benchmarks.parts import PARTS, watched_parts
from scenemem.benchmarks.process_memory import peak_megabytes, reset_peak
from scenemem.benchmarks.products import GIGA, ShapesUsed, measure_products, square_gigaflops
from scenemem.benchmarks.reference import REFERENCE_GIGAFLOPS

Work = Callable[[], int]
"""Does the same work each time it is called and returns the number of episodes in it."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Part:
    """One part of a piece of work."""

    share: float  # of the time
    gigaflops_per_episode: float
    gigaflops_per_second: float  # while this part runs


@dataclass(frozen=True)
class Speed:
    """How fast a piece of work is done; utilisation = achieved / measured GFLOP/s."""

    episodes: int  # in one repetition
    observations_per_episode: float  # places seen on a walk, which the cost depends on
    repeats: int
    cpus: float  # processors in use meanwhile; below 1 others had them, or the disk was waited for
    episodes_per_second: float  # median over the repetitions
    normalised_episodes_per_second: float  # on a machine whose square product reaches 68 GFLOP/s
    gigaflops_per_episode: float  # counted
    gigaflops_per_second: float  # achieved
    square_gigaflops_per_second: float  # of a large square product, measured between the repetitions
    shapes: ShapesUsed | None  # of the products this work executes; None when it executes none
    utilisation_of_square: float
    utilisation_of_shapes: float | None
    peak_megabytes: float | None
    parts: dict[str, Part]


@dataclass(frozen=True)
class _Timing:
    seconds: float
    square: float
    cpus: float


def measure_speeds(
    works: Mapping[str, Work],
    agent: TrainedAgent,
    optimiser: torch.optim.Optimizer | None = None,
    *,
    repeats: int,
    progress: Progress | None = None,
) -> dict[str, Speed]:
    """Time all works, which are warm already, in turn; then profile, weigh and count each once.

    Args:
        works: what to measure, by name.
        agent: who does the work; its parts are timed.
        optimiser: that trains the agent, if the work trains.
        repeats: timed repetitions; medians are reported.
        progress: called with (works done, works in all).
    """
    total, done = len(works) * (repeats + 3), 0
    timings: dict[str, list[_Timing]] = {name: [] for name in works}
    results: dict[str, Speed] = {}

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for _ in range(repeats):
        for name, work in works.items():
            timings[name].append(_timed(work))
            advance()
    for name, work in works.items():
        shares = _shares(work, agent, optimiser)
        advance()
        peak = _peak_megabytes(work)
        advance()
        results[name] = _counted(work, agent, optimiser, timings[name], shares, peak)
        advance()
    return results


def _timed(work: Work) -> _Timing:
    before = square_gigaflops()
    begun, cpu_begun, wall_begun = now(), time.process_time(), time.perf_counter()
    work()
    seconds, cpu, wall = now() - begun, time.process_time() - cpu_begun, time.perf_counter() - wall_begun
    # the speed of a machine drifts: what its product reaches is measured on both sides of the work
    return _Timing(seconds, (before + square_gigaflops()) / 2, cpu / wall)


def _peak_megabytes(work: Work) -> float | None:
    """Apart from the timing: memory given back has to be asked for again, as never in a running training."""
    reset_peak()
    work()
    return peak_megabytes()


def _shares(work: Work, agent: TrainedAgent, optimiser: torch.optim.Optimizer | None) -> dict[str, float]:
    with watched_parts(agent, optimiser) as clock:
        work()
        return clock.shares()


def _counted(
    work: Work,
    agent: TrainedAgent,
    optimiser: torch.optim.Optimizer | None,
    timings: list[_Timing],
    shares: dict[str, float],
    peak: float | None,
) -> Speed:
    with watched_parts(agent, optimiser) as clock:
        counter = ProductCounter(lambda: clock.part)
        with counter:
            episodes = work()
    seconds = statistics.median(timing.seconds for timing in timings)
    # compared repetition by repetition: whatever slows the machine down for a while slows both
    utilisation = statistics.median(counter.flops / t.seconds / GIGA / t.square for t in timings)
    normalised = statistics.median(episodes / t.seconds * REFERENCE_GIGAFLOPS / t.square for t in timings)
    achieved = counter.flops / seconds / GIGA
    shapes = measure_products(counter.products)
    return Speed(
        episodes=episodes,
        observations_per_episode=clock.observations / episodes,
        repeats=len(timings),
        cpus=statistics.median(timing.cpus for timing in timings),
        episodes_per_second=episodes / seconds,
        normalised_episodes_per_second=normalised,
        gigaflops_per_episode=counter.flops / episodes / GIGA,
        gigaflops_per_second=achieved,
        square_gigaflops_per_second=statistics.median(timing.square for timing in timings),
        shapes=shapes,
        utilisation_of_square=utilisation,
        utilisation_of_shapes=None if shapes is None else utilisation / shapes.of_square,
        peak_megabytes=peak,
        parts=_parts(shares, counter.by_part(), seconds, episodes),
    )


def _parts(shares: dict[str, float], flops: dict[str, int], seconds: float, episodes: int) -> dict[str, Part]:
    parts = {}
    for part in PARTS:
        operations, taken = flops.get(part, 0) / GIGA, shares[part] * seconds
        parts[part] = Part(shares[part], operations / episodes, operations / taken if taken else 0.0)
    return parts
