"""The speaker's trainer: draws instructions with their paths and teaches the right words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.errors import SettingError, UserError
from scenemem.learning.distributed import SINGLE
from scenemem.learning.objectives import Stage
from scenemem.learning.speaker import Speaker, steps_along, views_along
from scenemem.learning.trainer import StepReport, WeightAverage
from scenemem.models.speaker import SpeakerNetwork
from scenemem.tasks.episode_set import Batches, EpisodeSet

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
        for name in ("iterations", "batch"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be positive, got {getattr(self, name)}")
        if self.weight_decay < 0:
            raise SettingError(f"weight_decay must be 0 or more, got {self.weight_decay}")

    def stage_at(self, _iteration: int) -> Stage:
        """The only stage: cross-entropy of the right words."""
        return _SPEAKING


class SpeakerTrainer:
    """Everything a speaker's training changes; the training loop decides when to validate and save.

    Args:
        speaker: network, environment and vocabulary.
        episodes: instructions and their paths.
        config: how long and how fast.
        seed: of batches, dropout and feature masks.
    """

    def __init__(self, speaker: Speaker, episodes: EpisodeSet, config: SpeakerLearning, seed: int) -> None:
        if not episodes.has_goals:
            raise UserError(f"'{episodes.name}' keeps its paths secret; train on a split that shows them")
        self.speaker = speaker
        self.config = config
        self.group = SINGLE
        self.iteration = 0
        self.optimiser: torch.optim.Optimizer = torch.optim.AdamW(
            speaker.network.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.average = WeightAverage(speaker.network, decay=0.0)
        self.sampling = torch.Generator().manual_seed(seed + 1)
        self._steps = steps_along(speaker.environment.world, episodes.path, episodes.heading)
        self._tokens, self._lengths = speaker.vocabulary.encode_batch(episodes.texts, speaker.max_words)
        self.batches = Batches(len(episodes), config.batch, seed, lengths=self._lengths)

    @property
    def network(self) -> SpeakerNetwork:
        """The parameters that learn."""
        return self.speaker.network

    def step(self) -> StepReport:
        """One optimiser step.

        Raises:
            UserError: the loss or a gradient is not a number.
        """
        self.network.train()
        self._set_learning_rate()
        rows = next(self.batches)
        loss = self._loss(rows)
        self._check("the loss", loss)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        gradient = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self._check("the gradient", gradient)
        self.optimiser.step()
        self.iteration += 1
        return StepReport({"words": float(loss.detach())}, float(gradient), len(rows))

    def _loss(self, rows: Tensor) -> Tensor:
        """Cross-entropy per word."""
        environment = self.speaker.environment
        tokens = self._tokens[rows, : int(self._lengths[rows].max())].to(environment.world.device)
        views = views_along(environment, self._steps.select(rows.to(environment.world.device)))
        likelihood = self.network.likelihood(views, self._feature_mask(), tokens)
        return -likelihood.total.sum() / likelihood.words.sum()

    def _feature_mask(self) -> Tensor:
        """Environment dropout: the same columns are dropped everywhere in this batch  ->  (D,)"""
        kept = 1.0 - self.network.config.feature_dropout
        mask = torch.bernoulli(torch.full((self.network.visual,), kept), generator=self.sampling) / kept
        return mask.to(self.speaker.environment.world.device)

    def _set_learning_rate(self) -> None:
        share = min(self.iteration / self.config.iterations, 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))

    def _check(self, what: str, value: Tensor) -> None:
        if not bool(value.isfinite()):
            raise UserError(
                f"{what} is not a finite number at step {self.iteration + 1}; the last good checkpoint is "
                "kept; look for broken features, or lower the learning rate"
            )
