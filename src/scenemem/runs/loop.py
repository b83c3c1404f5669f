"""The training loop of agents and speakers: steps, validates, logs, saves, stops on request, resumes.

``measured_cost`` takes some steps beforehand, to estimate what the whole training will take; curves are also
written for TensorBoard and Weights & Biases.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import secrets
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from scenemem.errors import DataError, Interrupted, UserError
from scenemem.formats.atomic import atomic_file
from scenemem.learning.checkpoint import (
    Checkpoint,
    load_network,
    load_optimiser,
    read_checkpoint,
    write_checkpoint,
)
from scenemem.learning.trainer import Learner, StepReport, WeightAverage
from scenemem.presets import SelectionConfig
from scenemem.processes import ENDING, handling
from scenemem.runs.experiment import SpeakerSelection
from scenemem.runs.folder import RunFolder
from scenemem.viewer.report import dotted

Validate = Callable[[], dict[str, float]]
"""Measures what is being trained, as it is now."""

PROJECT = "WANDB_PROJECT"
"""The environment variable that switches Weights & Biases on, and names the project."""

WORTH_MEASURING = 100
"""Steps of a training from which on its cost is measured first."""

_SHOWN = 70  # characters of a setting in a message
_NUMBER = 4  # bytes
_DAY = 86_400  # seconds
_GLOBAL, _SAMPLING, _DEVICE = "random.global", "random.sampling", "random.device"


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
    """Catches Ctrl-C and signals that end a program, until the work comes to a good place to stop.

    A second one ends the program at once. Outside of the main thread nothing is caught.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal that came
        self._at_once = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals inside of this block."""
        with handling(dict.fromkeys((signal.SIGINT, *ENDING), self._request)):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise ``Interrupted`` right away inside of this block, whose work may be thrown away."""
        self._at_once = True
        try:
            if self.number is not None:
                raise self._interrupted()
            yield
        finally:
            self._at_once = False

    def _request(self, number: int, _frame: FrameType | None) -> None:
        second, self.number = self.number is not None, number
        if second or self._at_once:
            raise self._interrupted()

    def _interrupted(self) -> Interrupted:
        text = "interrupted; the last checkpoint is kept, continue with `resume=True`"
        return Interrupted(text, self.number or 0)


@dataclass(eq=False)
class TrainingLoop:
    """Trains until the last iteration; everything it needs to continue is in the run folder."""

    trainer: Learner
    folder: RunFolder
    validate: Validate
    selection: SelectionConfig | SpeakerSelection  # when to save, to validate, and which weights are best
    metadata: Mapping[str, Any]  # plain values stored with every checkpoint: preset, vocabulary, ...
    watch: Callable[[TrainingStatus], None] | None = None  # called after every step
    advice: str = "continue with `resume=True`"  # how to go on, when the run is stopped

    def __post_init__(self) -> None:
        self.metadata = json.loads(json.dumps(self.metadata))  # as a checkpoint gives it back: no tuples
        self._best: dict[str, float] | None = None
        self._validation: dict[str, float] | None = None
        self._earlier = 0.0  # processor seconds spent on the run before this process
        self._started = time.process_time()
        self._unlogged = Unlogged()
        self._stop = StopRequest()
        self._loggers = open_loggers(self.folder) if self.trainer.group.is_main else []

    def resume(self) -> None:
        """Continue from the newest good checkpoint, which has to have the same metadata."""
        checkpoint, file = self._newest()
        self._check_same(checkpoint.metadata)
        trainer = self.trainer
        load_network(trainer.network, checkpoint, file)
        load_optimiser(trainer.optimiser, checkpoint, file)
        try:
            progress = checkpoint.metadata["progress"]
            trainer.batches.load_state_dict(progress["batches"])
            trainer.iteration = int(progress["iteration"])
            self._best, self._validation = progress["best"], progress["validation"]
            self._earlier = float(progress["cpu_seconds"])
            self._unlogged = Unlogged(**progress["unlogged"])
            restore_randomness(checkpoint.tensors, trainer)
            trainer.average.resume(checkpoint.tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(file, f"does not hold the progress of a run ({error})") from error
        if trainer.group.is_main:
            self.folder.forget_after(trainer.iteration - (1 if self._unlogged.steps else 0))

    def _newest(self) -> tuple[Checkpoint, Path]:
        """The last checkpoint, or the one before it when the last one is damaged or gone."""
        last, previous = self.folder.last, self.folder.previous
        try:
            return read_checkpoint(last), last
        except DataError as error:
            if not previous.exists():
                raise
            problem = error
        try:
            checkpoint = read_checkpoint(previous)
        except DataError as error:
            reason = f"has no good checkpoint: {problem}; {error}; begin again with another `out`"
            raise DataError(self.folder.root, reason) from error
        warnings.warn(f"{problem}; the run goes on from the one before it, {previous}", stacklevel=3)
        return checkpoint, previous

    def _check_same(self, before: Mapping[str, Any]) -> None:
        """Refuse data and settings that changed since the run was started."""
        then, now = before.get("inputs", {}), self.metadata.get("inputs", {})
        for name in sorted(then.keys() | now.keys()):  # first: other episodes have other words, too
            if then.get(name) != now.get(name):
                seen = f"sha256 {then.get(name)} then, {now.get(name)} now"
                raise UserError(
                    f"the data of {self.folder.root} has changed since it was started: {name} ({seen}); "
                    "put the file back, or begin a new run"
                )
        for name, value in self.metadata.items():
            if changed := differences(before.get(name), value):
                raise UserError(
                    f"{self.folder.root} was started with another {name} ({'; '.join(changed[:3])}); "
                    "resume with the settings and the version it was started with"
                )

    def run(self) -> None:
        """Train to the end; may be killed at any time and resumed."""
        trainer, last = self.trainer, self.trainer.config.iterations
        with self._stop.caught(), ExitStack() as logging:
            for logger in self._loggers:
                logging.callback(logger.close)
            if trainer.iteration == 0:
                self._save()
            seconds, walked = 0.0, 0  # of steps; validating and saving do not count
            if self._unlogged.steps and self._is_due():  # it was stopped while it validated
                self._log(0.0)
            while trainer.iteration < last:
                started = time.perf_counter()
                with self._broken_off():
                    report = trainer.compute_gradients()
                trainer.update()
                seconds += time.perf_counter() - started
                walked += report.episodes
                self._unlogged.add(report)
                speed = walked / seconds
                if self.watch is not None and trainer.group.is_main:
                    self.watch(TrainingStatus(trainer.iteration, last, report, speed, self._validation))
                if self._is_due():
                    self._log(speed)
                if trainer.group.any(self._stop.number is not None):
                    self._save_and_end()

    def _is_due(self) -> bool:
        """Whether it is time to log and save; whenever it is time to validate, too."""
        pauses = self.trainer.config.iterations, self.selection.save_every, self.selection.every
        return any(self.trainer.iteration % pause == 0 for pause in pauses)

    def _log(self, speed: float) -> None:
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
        if ends or trainer.iteration % self.selection.every == 0:
            self._validation = self._validated()
            line["validation"] = self._validation
            value = self._validation[self.selection.metric]
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

    def _validated(self) -> dict[str, float]:
        with self._broken_off(), self.trainer.average.applied():
            return self.validate()

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """A request to stop does not wait for the work inside, which a resumed run does again.

        At the width of the paper a step may take minutes, and a scheduler gives a process seconds.
        """
        trainer = self.trainer
        random, batches = random_states(trainer), trainer.batches.state_dict()
        try:  # of several processes, the others would wait for the share of this one
            with self._stop.at_once() if trainer.group.size == 1 else nullcontext():
                yield
        except Interrupted:
            restore_randomness(random, trainer)
            trainer.batches.load_state_dict(batches)
            self._save_and_end()

    def _save_and_end(self) -> NoReturn:
        self._save()
        place = f"{self.folder.root} is saved at iteration {self.trainer.iteration}"
        raise Interrupted(f"interrupted; {place}; {self.advice}", self._stop.number or 0)

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
    if trainer.group.device.startswith("cuda"):  # dropout masks are drawn where they are used
        states[_DEVICE] = torch.cuda.get_rng_state(trainer.group.device)
    return states


def restore_randomness(states: Mapping[str, torch.Tensor], trainer: Learner) -> None:
    """Go on drawing from where the states were taken."""
    torch.set_rng_state(states[_GLOBAL])
    trainer.sampling.set_state(states[_SAMPLING])
    if trainer.group.device.startswith("cuda") and _DEVICE in states:
        torch.cuda.set_rng_state(states[_DEVICE], trainer.group.device)


def differences(before: Any, now: Any) -> list[str]:
    """What differs between two nested records, one line each: ``model.width: 64 then, 128 now``."""
    then, today = dotted(before), dotted(now)
    return [
        f"{name + ': ' if name else ''}{_shown(then.get(name))} then, {_shown(today.get(name))} now"
        for name in sorted(then.keys() | today.keys())
        if then.get(name) != today.get(name)
    ]


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def measured_cost(trainer: Learner) -> str:
    """Take two steps, time the second, and undo both: training begins as if nothing had happened.

    Memory is the most this process has held so far, disk is that of the checkpoints.
    """
    network, optimiser, steps = trainer.network, trainer.optimiser, trainer.config.iterations
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    random, batches = random_states(trainer), trainer.batches.state_dict()
    trainer.step()
    begun = time.perf_counter()
    trainer.step()
    seconds = time.perf_counter() - begun
    kept = [value for state in optimiser.state.values() for value in state.values()]
    moments = sum(value.numel() for value in kept if isinstance(value, torch.Tensor))
    numbers = sum(value.numel() for value in weights.values())

    network.load_state_dict(weights)
    optimiser.state.clear()
    optimiser.zero_grad(set_to_none=True)
    trainer.average = WeightAverage(network, trainer.config.average)
    trainer.batches.load_state_dict(batches)
    trainer.iteration = 0
    restore_randomness(random, trainer)
    # the last checkpoint and the one before it hold the optimiser as well, the best one does not
    disk = _NUMBER * (2 * (numbers + moments) + numbers)
    return (
        f"{steps:,} steps, about {seconds:.2g} s each on this device: {duration(steps * seconds)}; "
        f"memory {_size(_memory(trainer.group.device))}, disk {_size(disk)}"
    )


def duration(seconds: float) -> str:
    """A span of time for people: ``45 s``, ``12 min``, ``3 h 05 min``, ``26 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if seconds < 2 * _DAY else f"{seconds / _DAY:.0f} days"


def _memory(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"


class TensorBoardLogger:
    """Scalars in ``RUN/tensorboard``."""

    def __init__(self, run: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the optional package

        self._writer = SummaryWriter(str(run.root / "tensorboard"))

    def write(self, line: dict[str, Any]) -> None:
        """Add the numbers of one line at its iteration."""
        for name, value in scalars(line).items():
            tag = re.sub(r"[^-/\w.]", "_", name)  # it has no spaces, which names of losses have
            self._writer.add_scalar(tag, value, line["iteration"])
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._writer.close()


class WandbLogger:
    """A run of a Weights & Biases project, begun with the first line; its files are in ``RUN/wandb``.

    A resumed training goes on in the same run. ``WANDB_MODE=offline`` keeps everything on this machine.
    """

    def __init__(self, run: RunFolder, project: str) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise UserError(
                f"{PROJECT} is set, but Weights & Biases is not installed; "
                f"install it with: pip install 'scenemem[wandb]', or unset {PROJECT}"
            )
        self._run, self._project = run, project
        self._begun: Any = None

    def write(self, line: dict[str, Any]) -> None:
        """Add the numbers of one line at its iteration."""
        import wandb  # needs the optional package

        if self._begun is None:
            root = self._run.root
            self._begun = wandb.init(
                project=self._project,
                name=root.resolve().name,
                id=self._id(),
                dir=str(root),
                config=self._run.describe(),
                resume="allow",
            )
        self._begun.log(scalars(line), step=line["iteration"])

    def close(self) -> None:
        """Nothing more will come."""
        if self._begun is not None:
            self._begun.finish()

    def _id(self) -> str:
        """The name of the run at Weights & Biases, the same after every resume."""
        file = self._run.root / "wandb" / "id"
        if not file.is_file():
            with atomic_file(file) as partial:
                partial.write_text(secrets.token_hex(8), encoding="utf-8")
        return file.read_text(encoding="utf-8")


def open_loggers(run: RunFolder) -> list[TensorBoardLogger | WandbLogger]:
    """TensorBoard where it is installed (extra ``log``); Weights & Biases where ``WANDB_PROJECT`` is set."""
    loggers: list[TensorBoardLogger | WandbLogger] = []
    if project := os.environ.get(PROJECT):
        loggers.append(WandbLogger(run, project))
    if importlib.util.find_spec("tensorboard") is not None:
        loggers.append(TensorBoardLogger(run))
    return loggers


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """All numbers of a nested line, by ``outer/inner`` name; the iteration itself is left out."""
    return {
        name.replace(".", "/"): float(value)
        for name, value in dotted(line).items()
        if isinstance(value, (int, float)) and name != "iteration"
    }
