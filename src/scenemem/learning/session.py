"""A training session: steps, looks at the result now and then, saves, and resumes bit for bit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from scenemem.errors import UserError
from scenemem.learning.checkpoint import load_network, load_optimiser, read_checkpoint, write_checkpoint
from scenemem.learning.objectives import Stage
from scenemem.learning.run_folder import RunFolder
from scenemem.learning.team import Team
from scenemem.learning.tensorboard import open_mirror
from scenemem.learning.trainer import StepReport
from scenemem.tasks.episode_set import Batches

Validate = Callable[[], dict[str, float]]
"""Measures the agent as it is now; the trainer does not know on what."""


class Course(Protocol):
    """How long something learns, and in which stages."""

    @property
    def iterations(self) -> int:
        """Optimiser steps."""

    def stage_at(self, iteration: int, /) -> Stage:
        """The stage an iteration belongs to."""


class Learner(Protocol):
    """What a session trains: the trainer of an agent, or of a speaker."""

    iteration: int
    batches: Batches
    sampling: torch.Generator
    team: Team

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        """What steps."""

    @property
    def config(self) -> Course:
        """The course of the run."""

    @property
    def network(self) -> nn.Module:
        """The parameters that learn."""

    def step(self) -> StepReport:
        """One optimiser step."""


@dataclass(frozen=True)
class Rhythm:
    """When a session looks up from its work."""

    save_every: int  # iterations between two checkpoints
    validate_every: int  # iterations between two validations
    metric: str  # which validation metric decides about the best checkpoint


@dataclass(frozen=True)
class Glimpse:
    """What a watcher gets to see after every step."""

    iteration: int
    iterations: int
    step: StepReport
    episodes_per_second: float  # of all steps since the session began
    validation: dict[str, float] | None  # the last one


class Session:
    """Trains until the last iteration; everything it needs to continue is in the run folder.

    Args:
        trainer: what learns.
        folder: where to write.
        validate: measures the agent.
        rhythm: when to validate and save.
        facts: plain values stored with every checkpoint (preset, vocabulary, ...).
        watch: called after every step.
    """

    def __init__(
        self,
        trainer: Learner,
        folder: RunFolder,
        validate: Validate,
        rhythm: Rhythm,
        facts: dict[str, Any],
        watch: Callable[[Glimpse], None] | None = None,
    ) -> None:
        self._trainer = trainer
        self._folder = folder
        self._validate = validate
        self._rhythm = rhythm
        self._facts = json.loads(json.dumps(facts))  # as a checkpoint gives them back: tuples become lists
        self._watch = watch
        self._best: dict[str, float] | None = None
        self._validation: dict[str, float] | None = None
        self._earlier = 0.0  # processor seconds spent on the run before this session
        self._begun = time.process_time()
        self._mirror = open_mirror(folder.root / "tensorboard") if trainer.team.leads else None

    def resume(self) -> None:
        """Continue from the last checkpoint.

        Raises:
            UserError: the run was started with other settings.
            DataError: the checkpoint is damaged or does not fit.
        """
        checkpoint = read_checkpoint(self._folder.last)
        for name, value in self._facts.items():
            if checkpoint.facts.get(name) != value:
                raise UserError(
                    f"{self._folder.root} was started with another {name}; "
                    "resume with the settings it was started with"
                )
        trainer, progress = self._trainer, checkpoint.facts["progress"]
        load_network(trainer.network, checkpoint, self._folder.last)
        load_optimiser(trainer.optimiser, checkpoint)
        trainer.iteration = progress["iteration"]
        trainer.batches.load_state_dict(progress["batches"])
        self._best, self._validation = progress["best"], progress["validation"]
        self._earlier = progress.get("cpu_seconds", 0.0)
        torch.set_rng_state(checkpoint.tensors["random.global"])
        trainer.sampling.set_state(checkpoint.tensors["random.sampling"])
        if trainer.team.leads:
            self._folder.forget_after(trainer.iteration)

    def run(self) -> None:
        """Train to the end; may be killed at any time and resumed."""
        trainer, last = self._trainer, self._trainer.config.iterations
        if trainer.iteration == 0:
            self._save()
        seconds, walked = 0.0, 0  # of steps; looking and saving do not count
        sums: dict[str, float] = {}
        steps = 0
        while trainer.iteration < last:
            begun = time.perf_counter()
            report = trainer.step()
            seconds += time.perf_counter() - begun
            walked += report.episodes
            steps += 1
            for name, loss in report.losses.items():
                sums[name] = sums.get(name, 0.0) + loss
            speed = walked / seconds
            if self._watch is not None and trainer.team.leads:
                self._watch(Glimpse(trainer.iteration, last, report, speed, self._validation))
            ends = trainer.iteration == last
            if ends or trainer.iteration % self._rhythm.save_every == 0:
                looks = ends or trainer.iteration % self._rhythm.validate_every == 0
                self._look({name: total / steps for name, total in sums.items()}, report, looks, speed)
                sums, steps = {}, 0

    def _look(self, losses: dict[str, float], report: StepReport, validates: bool, speed: float) -> None:
        """Log, validate when it is time, and save."""
        trainer = self._trainer
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
            self._validation = self._validate()
            line["validation"] = self._validation
            value = self._validation[self._rhythm.metric]
            better = self._best is None or value > self._best["value"]
            if better:
                self._best = {"iteration": trainer.iteration, "value": value}
        if self._mirror is not None:  # only the leader of a team writes
            self._folder.log(line)
            self._mirror.write(line)
            if better:
                facts = {**self._facts, "progress": self._progress()}
                write_checkpoint(self._folder.best, trainer.network, facts)
        self._save()

    def _save(self) -> None:
        trainer = self._trainer
        if not trainer.team.leads:
            return
        randomness = {
            "random.global": torch.get_rng_state(),
            "random.sampling": trainer.sampling.get_state(),
        }
        facts = {**self._facts, "progress": self._progress()}
        write_checkpoint(self._folder.last, trainer.network, facts, trainer.optimiser, randomness)

    def _progress(self) -> dict[str, Any]:
        return {
            "iteration": self._trainer.iteration,
            "batches": self._trainer.batches.state_dict(),
            "best": self._best,
            "validation": self._validation,
            "cpu_seconds": self._cpu_seconds(),
        }

    def _cpu_seconds(self) -> float:
        """What the run has cost this process so far, validations and earlier sessions included."""
        return round(self._earlier + time.process_time() - self._begun, 1)
