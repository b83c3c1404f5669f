"""How long and how fast a speaker learns."""

from __future__ import annotations

from dataclasses import dataclass

from scenemem.errors import SettingError
from scenemem.learning.objectives import Stage

_SPEAKING = Stage("speaking", teacher=1.0, reinforce=0.0)


@dataclass(frozen=True)
class SpeakerLearning:
    """The course of a speaker's training."""

    iterations: int = 3000
    """optimiser steps"""
    batch: int = 32
    """instructions per step; many small steps learn to look along the path sooner than few large ones"""
    learning_rate: float = 3e-3
    """at the start; falls to 0 along a cosine"""
    weight_decay: float = 0.01
    """of AdamW"""
    clip: float = 5.0
    """largest norm of all gradients together"""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be positive, got {getattr(self, name)}")
        if self.weight_decay < 0:
            raise SettingError(f"weight_decay must be 0 or more, got {self.weight_decay}")

    def stage_at(self, _iteration: int) -> Stage:
        """A speaker has one stage: it is told the right words."""
        return _SPEAKING
