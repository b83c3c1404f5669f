"""The training loop: steps, validates now and then, logs, saves, and resumes bit for bit."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scenemem.errors import UserError
from scenemem.learning.checkpoint import (
    VERSION,
    load_network,
    load_optimiser,
    read_checkpoint,
    write_checkpoint,
)
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.learning.trainer import StepReport, Trainer
from scenemem.runs.folder import RunFolder

Validate = Callable[[], dict[str, float]]
"""Measures what is being trained, as it is now."""


@dataclass(frozen=True)
class Schedule:
    """When a loop saves and validates."""

    save_every: int  # iterations between two checkpoints
    validate_every: int  # iterations between two validations
    metric: str  # the validation metric that decides about the best checkpoint


@dataclass(frozen=True)
class TrainingStatus:
    """What a watcher is told after every step."""

    iteration: int
    iterations: int
    step: StepReport
    episodes_per_second: float  # of all steps since the loop was started
    validation: dict[str, float] | None  # the last one


@dataclass(eq=False)
class TrainingLoop:
    """Trains until the last iteration; everything it needs to continue is in the run folder."""

    trainer: Trainer | SpeakerTrainer
    folder: RunFolder
    validate: Validate
    schedule: Schedule
    metadata: Mapping[str, Any]  # plain values stored with every checkpoint: preset, vocabulary, ...
    watch: Callable[[TrainingStatus], None] | None = None  # called after every step

    def __post_init__(self) -> None:
        self.metadata = json.loads(json.dumps(self.metadata))  # as a checkpoint gives it back: no tuples
        self._best: dict[str, float] | None = None
        self._validation: dict[str, float] | None = None
        self._earlier = 0.0  # processor seconds spent on the run before this process
        self._started = time.process_time()
        is_main = self.trainer.group.is_main
        self._tensorboard = open_tensorboard(self.folder.root / "tensorboard") if is_main else None

    def resume(self) -> None:
        """Continue from the last checkpoint, which has to have the same metadata."""
        checkpoint = read_checkpoint(self.folder.last)
        if checkpoint.version < VERSION:
            raise UserError(
                f"{self.folder.root} was trained by an earlier version, whose runs cannot be continued bit "
                "for bit; evaluate it as it is, or begin a new run with its weights: "
                f"--begin {self.folder.root}"
            )
        for name, value in self.metadata.items():
            before = checkpoint.metadata.get(name)
            if name == "features":  # versions differ in what they say about them
                before, value = ((one or {}).get("sha256") for one in (before, value))
            if before != value:
                advice = "resume with the settings it was started with"
                raise UserError(f"{self.folder.root} was started with another {name}; {advice}")
        trainer, progress = self.trainer, checkpoint.metadata["progress"]
        load_network(trainer.network, checkpoint, self.folder.last)
        load_optimiser(trainer.optimiser, checkpoint)
        trainer.iteration = progress["iteration"]
        trainer.batches.load_state_dict(progress["batches"])
        self._best, self._validation = progress["best"], progress["validation"]
        self._earlier = progress.get("cpu_seconds", 0.0)
        torch.set_rng_state(checkpoint.tensors["random.global"])
        trainer.sampling.set_state(checkpoint.tensors["random.sampling"])
        if trainer.group.is_main:
            self.folder.forget_after(trainer.iteration)

    def run(self) -> None:
        """Train to the end; may be killed at any time and resumed."""
        trainer, last = self.trainer, self.trainer.config.iterations
        if trainer.iteration == 0:
            self._save()
        seconds, walked = 0.0, 0  # of steps; validating and saving do not count
        sums, steps = dict[str, float](), 0
        while trainer.iteration < last:
            started = time.perf_counter()
            report = trainer.step()
            seconds += time.perf_counter() - started
            walked += report.episodes
            steps += 1
            for name, loss in report.losses.items():
                sums[name] = sums.get(name, 0.0) + loss
            speed = walked / seconds
            if self.watch is not None and trainer.group.is_main:
                self.watch(TrainingStatus(trainer.iteration, last, report, speed, self._validation))
            ends = trainer.iteration == last
            if ends or trainer.iteration % self.schedule.save_every == 0:
                validates = ends or trainer.iteration % self.schedule.validate_every == 0
                self._log({name: total / steps for name, total in sums.items()}, report, validates, speed)
                sums, steps = {}, 0

    def _log(self, losses: dict[str, float], report: StepReport, validates: bool, speed: float) -> None:
        """Log, validate when it is time, and save."""
        trainer = self.trainer
        line: dict[str, Any] = {
            "iteration": trainer.iteration,
            "stage": trainer.config.stage_at(trainer.iteration - 1).name,
            "losses": losses,
            "gradient": report.gradient,
            "episodes_per_second": round(speed, 1),
            "cpu_seconds": self._cpu_seconds(),
        }
        better = False
        if validates:
            self._validation = self.validate()
            line["validation"] = self._validation
            value = self._validation[self.schedule.metric]
            better = self._best is None or value > self._best["value"]
            if better:
                self._best = {"iteration": trainer.iteration, "value": value}
        if trainer.group.is_main:
            self.folder.log(line)
            if self._tensorboard is not None:
                self._tensorboard.write(line)
            if better:
                write_checkpoint(self.folder.best, trainer.network, self._described())
        self._save()

    def _save(self) -> None:
        trainer, file = self.trainer, self.folder.last
        if trainer.group.is_main:
            states = {"random.global": torch.get_rng_state(), "random.sampling": trainer.sampling.get_state()}
            write_checkpoint(file, trainer.network, self._described(), trainer.optimiser, states)

    def _described(self) -> dict[str, Any]:
        """The metadata of a checkpoint written now."""
        progress = {
            "iteration": self.trainer.iteration,
            "batches": self.trainer.batches.state_dict(),
            "best": self._best,
            "validation": self._validation,
            "cpu_seconds": self._cpu_seconds(),
        }
        return {**self.metadata, "progress": progress}

    def _cpu_seconds(self) -> float:
        """What the run has cost this process so far, validations and earlier processes included."""
        return round(self._earlier + time.process_time() - self._started, 1)


class TensorBoardLog:
    """Writes every number of a line as a scalar, named by its place in the line."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the optional package

        self._writer = SummaryWriter(str(folder))

    def write(self, line: dict[str, Any]) -> None:
        """Add the scalars of one line at its iteration."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["iteration"])
        self._writer.flush()


def open_tensorboard(folder: Path) -> TensorBoardLog | None:
    """A log for TensorBoard when it is installed (``pip install 'scenemem[log]'``)."""
    return TensorBoardLog(folder) if importlib.util.find_spec("tensorboard") else None


def scalars(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a nested line, by ``outer/inner`` name; the iteration itself is left out."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found.update(scalars(value, f"{prefix}{name}/"))
        elif isinstance(value, (int, float)) and name != "iteration":
            found[prefix + name] = float(value)
    return found
