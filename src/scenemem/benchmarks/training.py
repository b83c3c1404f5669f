"""Training and walking speed of presets at several widths and batch sizes; ``scenemem bench train``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

from scenemem.benchmarks.growth import Growth, measure_growth
from scenemem.benchmarks.machine import Machine, this_machine
from scenemem.benchmarks.reference import reference_speed
from scenemem.benchmarks.speed import Progress, Speed, Work, measure_speeds
from scenemem.benchmarks.workload import (
    MODES,
    Case,
    Mode,
    Width,
    Workload,
    at_width,
    columns_at,
    preset_named,
)
from scenemem.errors import UserError
from scenemem.formats.features import VIEWS
from scenemem.formats.folder import DataFolder


@dataclass(frozen=True)
class Request:
    """What to measure, and how long."""

    presets: tuple[str, ...]
    widths: tuple[Width, ...]
    batches: tuple[int, ...]
    columns: int | None = None  # of made-up features; None: 2048 at the paper's width, else the folder's own
    features: str | None = None  # name of the folder's store
    seconds: float = 2.0  # a repetition of each mode lasts about so long, one step at least
    repeats: int = 3
    growth: bool = False
    modes: tuple[Mode, ...] = MODES

    def __post_init__(self) -> None:
        for name in self.presets:
            preset_named(name)
        for name in ("batches", "presets", "widths", "modes"):
            if not getattr(self, name):
                raise UserError(f"--{name} needs at least one value")
        if min(self.batches) < 1 or self.repeats < 1 or (self.columns is not None and self.columns < 1):
            raise UserError("--batches, --repeats and --feature-columns must be 1 or more")


@dataclass(frozen=True)
class ModeSpeed:
    """The speed of one mode, and how it compares."""

    speed: Speed
    reference_episodes_per_second: float | None  # of another implementation at 68 GFLOP/s
    times_reference: float | None  # normalised speed / that


@dataclass(frozen=True)
class CaseSpeed:
    """One preset at one width and batch size."""

    preset: str
    width: Width
    batch: int
    feature_columns: int
    features: str  # what the features come from
    store_megabytes: float  # of the feature store on disk
    parameters: int
    episodes: int  # in the split
    scans: int  # of the world
    modes: dict[str, ModeSpeed]
    growth: list[Growth]


@dataclass(frozen=True)
class TrainingReport:
    """Everything ``scenemem bench train`` prints."""

    date: str
    machine: Machine
    seconds: float
    cases: list[CaseSpeed]


def measure_training(
    request: Request, folder: DataFolder, progress: Progress | None = None
) -> TrainingReport:
    """Measure every preset at every width and batch size."""
    machine = this_machine()
    wanted = [
        (preset, width, batch)
        for preset in request.presets
        for width in request.widths
        for batch in request.batches
    ]
    cases = []
    for number, (preset, width, batch) in enumerate(wanted):
        cases.append(
            _measure_case(request, folder, preset, width, batch, _within(progress, number, len(wanted)))
        )
    return TrainingReport(date.today().isoformat(), machine, request.seconds, cases)


def _measure_case(
    request: Request, folder: DataFolder, name: str, width: Width, batch: int, progress: Progress
) -> CaseSpeed:
    case = Case(
        at_width(preset_named(name), width), batch, columns_at(width, request.columns), request.features
    )
    load = Workload(case, folder)
    works: dict[str, Work] = {
        mode: load.work(mode, load.steps_within(mode, request.seconds)) for mode in request.modes
    }
    speeds = measure_speeds(
        works, load.trainer.agent, load.trainer.optimiser, repeats=request.repeats, progress=progress
    )
    columns = load.store.width
    return CaseSpeed(
        preset=name,
        width=width,
        batch=batch,
        feature_columns=columns,
        features=load.store.info.encoder,
        store_megabytes=len(load.store.info.keys) * VIEWS * columns * 2 / 1e6,
        parameters=load.parameters,
        episodes=len(load.trainer.episodes),
        scans=len(load.experiment.environment.world.scans),
        modes={mode: _compared(speed, case, columns, mode) for mode, speed in speeds.items()},
        growth=_growth(request, case, columns, folder, progress),
    )


def _compared(speed: Speed, case: Case, columns: int, mode: str) -> ModeSpeed:
    reference = reference_speed(case.preset.agent, columns, mode)
    ratio = None if reference is None else speed.normalised_episodes_per_second / reference
    return ModeSpeed(speed, reference, ratio)


def _growth(
    request: Request, case: Case, columns: int, folder: DataFolder, progress: Progress
) -> list[Growth]:
    if not request.growth:
        return []
    return measure_growth(
        replace(case, features=None), columns, folder, repeats=request.repeats, progress=progress
    )


def _within(progress: Progress | None, number: int, of: int) -> Progress:
    """The progress of one of several equal pieces, as progress of the whole."""

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(number * total + done, of * total)

    return advance
