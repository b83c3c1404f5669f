"""The training loop of agents and speakers: steps, validates, logs, saves, stops on request, resumes."""

from __future__ import annotations

import json
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from scenemem.errors import DataError, Interrupted, UserError
from scenemem.learning.checkpoint import (
    Checkpoint,
    load_network,
    load_optimiser,
    read_checkpoint,
    write_checkpoint,
)
from scenemem.learning.distributed import ProcessGroup
from scenemem.learning.objectives import Stage
from scenemem.learning.trainer import StepReport, WeightAverage
from scenemem.processes import ENDING, handling
from scenemem.runs.folder import RunFolder
from scenemem.runs.loggers import open_loggers
from scenemem.tasks.episode_set import Batches

Validate = Callable[[], dict[str, float]]
"""Measures what is being trained, as it is now."""

_SHOWN = 70  # characters of a setting in a message
_GLOBAL, _SAMPLING, _DEVICE = "random.global", "random.sampling", "random.device"


class Course(Protocol):
    """How long a run trains, and in which stages."""

    @property
    def iterations(self) -> int:
        """Optimiser steps of the whole run."""

    def stage_at(self, iteration: int, /) -> Stage:
        """The stage that a step belongs to."""


class Learner(Protocol):
    """What a run trains, step by step: the trainer of an agent or of a speaker."""

    iteration: int  # steps done
    group: ProcessGroup
    optimiser: torch.optim.Optimizer
    batches: Batches
    sampling: torch.Generator
    average: WeightAverage  # of the weights, which is what is validated and kept

    @property
    def config(self) -> Course:
        """How long it trains."""

    @property
    def network(self) -> nn.Module:
        """The parameters that learn."""

    def step(self) -> StepReport:
        """One optimiser step."""


@dataclass(frozen=True)
class Schedule:
    """When a loop saves and validates."""

    save_every: int  # iterations between two checkpoints
    validate_every: int  # iterations between two validations
    metric: str  # the validation metric that decides about the best checkpoint


@dataclass(frozen=True)
class TrainingStatus:
    """How far a run is, after every step."""

    iteration: int
    iterations: int
    step: StepReport
    episodes_per_second: float  # of all steps since the loop was started
    validation: dict[str, float] | None  # the last one


@dataclass
class Unlogged:
    """The steps since the last line of the metrics, for a run that is stopped between two lines."""

    losses: dict[str, float] = field(default_factory=dict)  # sums by name
    steps: int = 0
    gradient: float = 0.0  # of the last step

    def add(self, report: StepReport) -> None:
        """One more step."""
        self.steps += 1
        self.gradient = report.gradient
        for name, loss in report.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss

    def means(self) -> dict[str, float]:
        """Of the losses, per step."""
        return {name: total / self.steps for name, total in self.losses.items()}


class StopRequest:
    """Catches Ctrl-C and signals that ask the program to end, until the work comes to a good place to stop.

    A second one ends the program at once. Used as a context manager; outside of the main thread nothing is
    caught.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal that came
        self._at_once = False
        self._stack = ExitStack()

    def __enter__(self) -> StopRequest:
        self._stack.enter_context(handling(dict.fromkeys((signal.SIGINT, *ENDING), self._ask)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def came(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise ``Interrupted`` right away inside of this block, whose work may be thrown away."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.came or self._at_once:
            self.number = number
            raise Interrupted("interrupted; the last checkpoint is kept, continue with --resume", number)
        self.number = number


@dataclass(eq=False)
class TrainingLoop:
    """Trains until the last iteration; everything it needs to continue is in the run folder."""

    trainer: Learner
    folder: RunFolder
    validate: Validate
    schedule: Schedule
    metadata: Mapping[str, Any]  # plain values stored with every checkpoint: preset, vocabulary, ...
    watch: Callable[[TrainingStatus], None] | None = None  # called after every step
    advice: str = "continue with --resume"  # how to go on, when the run is stopped

    def __post_init__(self) -> None:
        self.metadata = json.loads(json.dumps(self.metadata))  # as a checkpoint gives it back: no tuples
        self._best: dict[str, float] | None = None
        self._validation: dict[str, float] | None = None
        self._earlier = 0.0  # processor seconds spent on the run before this process
        self._started = time.process_time()
        self._unlogged = Unlogged()
        is_main = self.trainer.group.is_main
        self._loggers = open_loggers(self.folder) if is_main else []

    def resume(self) -> None:
        """Continue from the newest good checkpoint, which has to have the same metadata."""
        checkpoint, file = self._newest()
        # other episodes have other words; what changed is the file
        for name, value in sorted(self.metadata.items(), key=lambda item: item[0] != "inputs"):
            before = checkpoint.metadata.get(name)
            if name == "inputs":
                self._check_inputs(value, before or {})
                continue
            if before != value:
                seen = "; ".join(differences(before, value)[:3])
                advice = "resume with the settings and the version it was started with"
                raise UserError(f"{self.folder.root} was started with another {name} ({seen}); {advice}")
        trainer = self.trainer
        load_network(trainer.network, checkpoint, file)
        load_optimiser(trainer.optimiser, checkpoint, file)
        try:
            progress = checkpoint.metadata["progress"]
            trainer.batches.load_state_dict(progress["batches"])
            trainer.iteration = int(progress["iteration"])
            self._best, self._validation = progress["best"], progress["validation"]
            self._earlier = float(progress.get("cpu_seconds", 0.0))
            self._unlogged = Unlogged(**progress.get("unlogged", {}))
            restore_randomness(checkpoint.tensors, trainer)
            trainer.average.resume(checkpoint.tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(file, f"does not hold the progress of a run ({error})") from error
        if trainer.group.is_main:
            self.folder.forget_after(trainer.iteration - (1 if self._unlogged.steps else 0))

    def _newest(self) -> tuple[Checkpoint, Path]:
        """The last checkpoint, or the one before it when the last one is damaged or gone."""
        problems: list[DataError] = []
        for file in (self.folder.last, self.folder.previous):
            try:
                checkpoint = read_checkpoint(file)
            except DataError as error:
                problems.append(error)
                continue
            if problems:
                warnings.warn(f"{problems[0]}; the run goes on from the one before it, {file}", stacklevel=3)
            return checkpoint, file
        raise (
            problems[0]
            if not self.folder.previous.exists()
            else DataError(
                self.folder.root,
                f"has no good checkpoint: {problems[0]}; {problems[1]}; begin again with --out",
            )
        )

    def _check_inputs(self, now: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Refuse data that changed since the run was started."""
        for name in sorted(now.keys() | before.keys()):
            if now.get(name) != before.get(name):
                seen = f"sha256 {before.get(name)} then, {now.get(name)} now"
                raise UserError(
                    f"the data of {self.folder.root} has changed since it was started: {name} ({seen}); "
                    "put the file back, or begin a new run"
                )

    def run(self) -> None:
        """Train to the end; may be killed at any time and resumed.

        Raises:
            Interrupted: a signal asked to stop; the run was saved first.
        """
        trainer, last = self.trainer, self.trainer.config.iterations
        with StopRequest() as stop, ExitStack() as logging:
            for logger in self._loggers:
                logging.callback(logger.close)
            if trainer.iteration == 0:
                self._save()
            seconds, walked = 0.0, 0  # of steps; validating and saving do not count
            if self._unlogged.steps and self._is_due():  # it was stopped while it validated
                self._log(0.0, stop)
            while trainer.iteration < last:
                started = time.perf_counter()
                report = trainer.step()
                seconds += time.perf_counter() - started
                walked += report.episodes
                self._unlogged.add(report)
                speed = walked / seconds
                if self.watch is not None and trainer.group.is_main:
                    self.watch(TrainingStatus(trainer.iteration, last, report, speed, self._validation))
                if self._is_due():
                    self._log(speed, stop)
                if trainer.group.any(stop.came):
                    self._stop(stop)

    def _is_due(self) -> bool:
        """Whether it is time to log and save."""
        iteration = self.trainer.iteration
        return iteration == self.trainer.config.iterations or iteration % self.schedule.save_every == 0

    def _log(self, speed: float, stop: StopRequest) -> None:
        """Log, validate when it is time, and save."""
        trainer, ends = self.trainer, self.trainer.iteration == self.trainer.config.iterations
        line: dict[str, Any] = {
            "iteration": trainer.iteration,
            "stage": trainer.config.stage_at(trainer.iteration - 1).name,
            "losses": self._unlogged.means(),
            "gradient": self._unlogged.gradient,
            "episodes_per_second": round(speed, 1),
            "cpu_seconds": self._cpu_seconds(),
        }
        better = False
        if ends or trainer.iteration % self.schedule.validate_every == 0:
            self._validation = self._validated(stop)
            line["validation"] = self._validation
            value = self._validation[self.schedule.metric]
            better = self._best is None or value > self._best["value"]
            if better:
                self._best = {"iteration": trainer.iteration, "value": value}
        self._unlogged = Unlogged()
        if trainer.group.is_main:
            self.folder.log(line)
            for logger in self._loggers:
                logger.write(line)
            if better:
                with trainer.average.applied():
                    write_checkpoint(self.folder.best, trainer.network, self._described())
        self._save()

    def _validated(self, stop: StopRequest) -> dict[str, float]:
        """Validate; a request to stop does not wait for it, the resumed run validates again."""
        if self.trainer.group.size > 1:  # the others would wait for this process's share
            with self.trainer.average.applied():
                return self.validate()
        before = random_states(self.trainer)
        try:
            with stop.at_once(), self.trainer.average.applied():
                return self.validate()
        except Interrupted:
            restore_randomness(before, self.trainer)
            self._stop(stop)

    def _stop(self, stop: StopRequest) -> NoReturn:
        """Save and end."""
        self._save()
        place = f"{self.folder.root} is saved at iteration {self.trainer.iteration}"
        raise Interrupted(f"interrupted; {place}; {self.advice}", stop.number or 0)

    def _save(self) -> None:
        trainer, folder = self.trainer, self.folder
        if not trainer.group.is_main:
            return
        with trainer.average.applied() as trained:
            write_checkpoint(
                folder.last,
                trainer.network,
                self._described(),
                trainer.optimiser,
                {**random_states(trainer), **trained},
                previous=folder.previous,
            )

    def _described(self) -> dict[str, Any]:
        """The metadata of a checkpoint written now."""
        progress = {
            "iteration": self.trainer.iteration,
            "batches": self.trainer.batches.state_dict(),
            "best": self._best,
            "validation": self._validation,
            "cpu_seconds": self._cpu_seconds(),
            "unlogged": asdict(self._unlogged),
        }
        return {**self.metadata, "progress": progress}

    def _cpu_seconds(self) -> float:
        """What the run has cost this process so far, validations and earlier processes included."""
        return round(self._earlier + time.process_time() - self._started, 1)


def random_states(trainer: Learner) -> dict[str, torch.Tensor]:
    """All states that training draws from, by name; all processes of a group have the same."""
    states = {_GLOBAL: torch.get_rng_state(), _SAMPLING: trainer.sampling.get_state()}
    device = torch.device(trainer.group.device)
    if device.type == "cuda":  # dropout masks are drawn where they are used
        states[_DEVICE] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states[_DEVICE] = torch.mps.get_rng_state()
    return states


def restore_randomness(states: Mapping[str, torch.Tensor], trainer: Learner) -> None:
    """Go on drawing from where the states were taken."""
    torch.set_rng_state(states[_GLOBAL])
    trainer.sampling.set_state(states[_SAMPLING])
    device = torch.device(trainer.group.device)
    if device.type == "cuda" and _DEVICE in states:
        torch.cuda.set_rng_state(states[_DEVICE], device)
    elif device.type == "mps" and _DEVICE in states:
        torch.mps.set_rng_state(states[_DEVICE])


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two nested records, one line each: ``model.width: 64 then, 128 now``."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        prefix = f"{name}." if name else ""
        names = sorted(before.keys() | now.keys())
        inner = (differences(before.get(item), now.get(item), f"{prefix}{item}") for item in names)
        return [line for lines in inner for line in lines]
    if before == now:
        return []
    return [f"{name + ': ' if name else ''}{_shown(before)} then, {_shown(now)} now"]


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
