"""How long, how fast and from what an agent learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scenemem.errors import SettingError
from scenemem.learning.losses import RewardConfig


@dataclass(frozen=True)
class Stage:
    """A stretch of training with its own mix of losses; a weight of 0 leaves that loss out."""

    name: str = "mixed"
    """for logs"""
    share: float = 1.0
    """of all iterations, relative to the other stages"""
    teacher: float = 1.0
    """teacher forcing: clone the reference path"""
    student: float = 0.0
    """student forcing: on sampled walks, the place known to be closest to the goal"""
    reinforce: float = 1.0
    """A2C on sampled walks"""
    augmented: float = 0.0
    """teacher forcing on a further batch of augmented episodes, which also get the other losses"""
    teacher_frontier: float = 0.2
    """weight of the frontier decisions within teacher forcing, where "stay" is always right"""
    student_frontier: float = 1.0
    """weight of the frontier decisions within student forcing"""

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise SettingError(f"the share of stage '{self.name}' must be positive, got {self.share}")
        if self.augmented and not self.teacher:
            raise SettingError(
                f"stage '{self.name}' learns from augmented episodes only; give teacher a weight, too"
            )
        if not (self.teacher or self.student or self.reinforce):
            raise SettingError(
                f"stage '{self.name}' has no loss; give teacher, student or reinforce a weight"
            )

    @property
    def samples(self) -> bool:
        """Whether the agent has to walk by itself in this stage."""
        return bool(self.student or self.reinforce)


@dataclass(frozen=True)
class LearningConfig:
    """The course of a training run."""

    iterations: int = 2000
    """optimiser steps"""
    batch: int = 64
    """episodes per step"""
    learning_rate: float = 1e-3
    """at the start; falls to 0 along a cosine"""
    weight_decay: float = 0.01
    """of AdamW"""
    clip: float = 40.0
    """largest norm of all gradients together"""
    rounds: int = 15
    """decisions before a walk sampled while learning is cut off; the critic says what was still to come"""
    ticks: int = 40
    """observations before such a walk is cut off"""
    labels: Literal["goal", "path"] = "goal"
    """what is right on sampled walks: the shortest way to the goal, or the rest of the reference path"""
    entropy: float = 0.01
    """weight of the entropy bonus in A2C"""
    value: float = 0.5
    """weight of the value error in A2C"""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """what is earned"""
    stages: tuple[Stage, ...] = (Stage(),)
    """one after the other"""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "rounds", "ticks"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.stages:
            raise SettingError("at least one stage is needed")

    def stage_at(self, iteration: int) -> Stage:
        """The stage that iteration number ``iteration`` (from 0) belongs to."""
        whole = sum(stage.share for stage in self.stages)
        reached = 0.0
        for stage in self.stages:
            reached += stage.share / whole * self.iterations
            if iteration < reached - 1e-9:
                return stage
        return self.stages[-1]
