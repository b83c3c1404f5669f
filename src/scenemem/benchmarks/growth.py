"""How the cost of a step grows with the batch, the features, the memory and the world: log-log slopes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from scenemem.benchmarks.clock import now
from scenemem.benchmarks.flops import ProductCounter
from scenemem.benchmarks.process_memory import peak_megabytes, reset_peak, resident_megabytes
from scenemem.benchmarks.products import GIGA
from scenemem.benchmarks.speed import Progress
from scenemem.benchmarks.workload import Case, Mode, Workload, training_scans
from scenemem.formats.folder import DataFolder

BATCHES = (16, 32, 64, 128)
COLUMNS = (128, 256, 512, 1024, 2048)
ROUNDS = (4, 8, 16, 32)
_FEW_SCANS = 8  # enough for wide features without filling the disk
_STEPS = 2


@dataclass(frozen=True)
class Growth:
    """The cost of a training step while one size grows and everything else stays."""

    size: str  # what grows
    mode: Mode
    values: tuple[int, ...]
    seconds: tuple[float, ...]  # per step, median
    gigaflops: tuple[float, ...]  # per step, counted
    megabytes: tuple[float, ...] | None  # that a step holds at most beyond what was held before it
    seconds_slope: float  # 1: cost grows as the size does; 0: it does not grow
    gigaflops_slope: float
    megabytes_slope: float | None


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p of cost = c * size^p that fits best, by least squares over the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def measure_growth(
    case: Case, width: int, folder: DataFolder, *, repeats: int, progress: Progress | None = None
) -> list[Growth]:
    """All growths of one case; ``width`` is the number of feature columns it has.

    Args:
        case: what is trained, at the sizes that do not grow.
        width: its number of feature columns.
        folder: what it is trained on.
        repeats: repetitions, all sizes taking turns; their median counts.
        progress: called with (growths measured, growths in all).
    """
    axes = list(_axes(replace(case, columns=width), folder))
    results: list[Growth] = []
    for size, mode, cases in axes:
        loads = [Workload(grown, folder) for grown in cases.values()]
        results.append(_grown(size, mode, tuple(cases), loads, repeats))
        if progress is not None:
            progress(len(results), len(axes))
    return results


def _axes(case: Case, folder: DataFolder) -> Iterator[tuple[str, Mode, dict[int, Case]]]:
    """What grows, how it is walked, and the case at every size."""
    scans = len(training_scans(folder, case.preset.data.task))
    few = replace(case, scans=min(scans, _FEW_SCANS))

    def rounds(count: int) -> Case:
        learning = replace(case.preset.learning, rounds=count, ticks=3 * count)
        return replace(few, preset=replace(case.preset, learning=learning))

    yield "batch", "mixed", {batch: replace(few, batch=batch) for batch in BATCHES}
    yield "feature columns", "mixed", {columns: replace(few, columns=columns) for columns in COLUMNS}
    yield "rounds", "sampled", {count: rounds(count) for count in ROUNDS}
    several = [count for count in (scans // 8, scans // 4, scans // 2, scans) if count]
    if len(several) > 1:
        yield "scans", "mixed", {count: replace(case, scans=count) for count in several}


def _grown(size: str, mode: Mode, values: tuple[int, ...], loads: Sequence[Workload], repeats: int) -> Growth:
    taken = [[_seconds(load.work(mode, _STEPS)) for load in loads] for _ in range(repeats + 1)][1:]
    seconds = tuple(statistics.median(column) / _STEPS for column in zip(*taken, strict=True))
    flops = tuple(_flops(load.work(mode, _STEPS)) / _STEPS / GIGA for load in loads)
    held = [_held_megabytes(load.work(mode, _STEPS)) for load in loads]
    megabytes = tuple(amount for amount in held if amount is not None)
    told = len(megabytes) == len(loads)
    return Growth(
        size=size,
        mode=mode,
        values=values,
        seconds=seconds,
        gigaflops=flops,
        megabytes=megabytes if told else None,
        seconds_slope=slope(values, seconds),
        gigaflops_slope=slope(values, flops),
        megabytes_slope=slope(values, megabytes) if told else None,
    )


def _seconds(work: Callable[[], int]) -> float:
    begun = now()
    work()
    return now() - begun


def _held_megabytes(work: Callable[[], int]) -> float | None:
    reset_peak()
    before = resident_megabytes()
    work()
    peak = peak_megabytes()
    return None if before is None or peak is None else max(peak - before, 0.01)


def _flops(work: Callable[[], int]) -> int:
    counter = ProductCounter()
    with counter:
        work()
    return counter.flops
