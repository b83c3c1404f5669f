"""The speaker's trainer: draws instructions with their paths and teaches the right words."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from scenemem.errors import SettingError, UserError
from scenemem.learning.objectives import LearningConfig, Stage
from scenemem.learning.speaker import Speaker, steps_along, views_along
from scenemem.learning.trainer import Learner, Weighted
from scenemem.models.speaker import SpeakerNetwork
from scenemem.tasks.episode_set import EpisodeSet

_SPEAKING = Stage("speaking", losses={"words": 1.0})


@dataclass(frozen=True)
class SpeakerLearning:
    """How long and how fast a speaker learns."""

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
        self.course()
        if self.weight_decay < 0:
            raise SettingError(f"weight_decay must be 0 or more, got {self.weight_decay}")

    def course(self) -> LearningConfig:
        """The same as the settings of any training, with the only stage: cross-entropy of the right words."""
        return LearningConfig(**asdict(self), stages=(_SPEAKING,))


class SpeakerTrainer(Learner):
    """Teaches a speaker the instructions of paths."""

    network: SpeakerNetwork

    def __init__(self, speaker: Speaker, episodes: EpisodeSet, config: SpeakerLearning, seed: int) -> None:
        if not episodes.has_goals:
            raise UserError(f"'{episodes.name}' keeps its paths secret; train on a split that shows them")
        self.speaker = speaker
        self._steps = steps_along(speaker.environment.world, episodes.path, episodes.heading)
        self._tokens, self._lengths = speaker.vocabulary.encode_batch(episodes.texts, speaker.max_words)
        super().__init__(speaker.network, config.course(), self._lengths, seed)

    def batch_losses(self, rows: Tensor) -> tuple[Weighted, int]:
        """Cross-entropy per word of a batch, and the number of its instructions."""
        environment = self.speaker.environment
        tokens = self._tokens[rows, : int(self._lengths[rows].max())].to(environment.world.device)
        views = views_along(environment, self._steps.select(rows.to(environment.world.device)))
        likelihood = self.network.likelihood(views, self._feature_mask(), tokens)
        return {"words": (1.0, -likelihood.total.sum() / likelihood.words.sum())}, len(rows)

    def _feature_mask(self) -> Tensor:
        """Environment dropout: the same columns are dropped everywhere in this batch  ->  (D,)"""
        kept = 1.0 - self.network.config.feature_dropout
        mask = torch.bernoulli(torch.full((self.network.visual,), kept), generator=self.sampling) / kept
        return mask.to(self.speaker.environment.world.device)
