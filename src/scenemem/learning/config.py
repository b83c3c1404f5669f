"""How long, how fast and from what an agent learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from scenemem.errors import SettingError


@dataclass(frozen=True)
class RewardConfig:
    """What an agent earns."""

    rule: str = "distance"
    """name of the reward rule; distance pays for getting closer to the goal"""
    quantised: bool = True
    """+1 for closer, -1 for farther; False pays the metres themselves"""
    success: float = 2.0
    """for stopping within 3 m of the goal; the same is taken for stopping elsewhere"""
    discount: float = 0.9
    """per decision"""

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise SettingError(f"discount must be in [0, 1], got {self.discount}")


@dataclass(frozen=True)
class Stage:
    """A stretch of training with its own mix of losses."""

    name: str = "mixed"
    """for logs"""
    share: float = 1.0
    """of all iterations, relative to the other stages"""
    losses: dict[str, float] = field(default_factory=lambda: {"teacher_forcing": 1.0, "a2c": 1.0})
    """weight of every loss by its name; losses that are not named are left out"""
    augmented: float = 0.0
    """teacher forcing on a further batch of augmented episodes, which also get the other losses"""
    teacher_frontier: float = 0.2
    """weight of the frontier decisions within teacher forcing, where "stay" is always right"""
    student_frontier: float = 1.0
    """weight of the frontier decisions within student forcing"""

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise SettingError(f"the share of stage '{self.name}' must be positive, got {self.share}")
        if not any(self.losses.values()):
            raise SettingError(
                f"stage '{self.name}' has no loss; give one a weight, for example teacher_forcing"
            )
        if self.augmented and not self.losses.get("teacher_forcing"):
            raise SettingError(
                f"stage '{self.name}' learns from augmented episodes only; give teacher_forcing a weight, too"
            )


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
    max_decisions: int = 15
    """decisions before a walk sampled while learning is cut off; the critic says what was still to come"""
    max_steps: int = 40
    """observations before such a walk is cut off"""
    labels: str = "goal"
    """label rule on sampled walks: goal is the shortest way to it, path the rest of the reference path"""
    entropy: float = 0.01
    """weight of the entropy bonus in A2C"""
    value: float = 0.5
    """weight of the value error in A2C"""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """what is earned"""
    stages: tuple[Stage, ...] = (Stage(),)
    """one after the other"""
    fused: bool = True
    """use hand-written gradients through time where the recurrent core has them; same results, faster"""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "max_decisions", "max_steps"):
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
