"""The trainer: draws batches, lets teacher and agent walk, replays the walks and steps the optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.collect import FollowLabels, collect
from scenemem.agents.labels import ClosestToGoal, ReferencePath
from scenemem.agents.network import AgentNetwork
from scenemem.agents.policy import NetworkPolicy, Sample
from scenemem.agents.rollout import Rollout
from scenemem.agents.trained import TrainedAgent
from scenemem.errors import UserError
from scenemem.learning.config import LearningConfig, Stage
from scenemem.learning.losses import actor_critic, imitation
from scenemem.models.language import Instructions
from scenemem.models.navigator import Noise
from scenemem.tasks.batches import Batches
from scenemem.tasks.episode_set import EpisodeSet


@dataclass(frozen=True)
class StepReport:
    """What one optimiser step did."""

    losses: dict[str, float]  # by name, unweighted
    gradient: float  # norm before clipping
    episodes: int  # walked and learnt from


class Trainer:
    """Everything a training run changes; the loop around it decides when to validate and save.

    Args:
        agent: network, eyes and vocabulary.
        episodes: what to learn from.
        config: the course of the run.
        seed: of batches, dropout and sampling.
    """

    def __init__(self, agent: TrainedAgent, episodes: EpisodeSet, config: LearningConfig, seed: int) -> None:
        if not episodes.has_goals:
            raise UserError(f"'{episodes.name}' keeps its goals secret; train on a split that shows them")
        self.agent = agent
        self.episodes = episodes
        self.config = config
        self.iteration = 0
        self.optimiser = torch.optim.AdamW(
            agent.network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.sampling = torch.Generator(device=agent.sight.world.device).manual_seed(seed + 1)
        tokens, lengths = agent.vocabulary.encode_batch(episodes.texts, agent.max_words)
        self._tokens, self._lengths = tokens, lengths
        self.batches = Batches(len(episodes), config.batch, seed, lengths=lengths)

    @property
    def network(self) -> AgentNetwork:
        """The parameters that learn."""
        return self.agent.network

    def step(self) -> StepReport:
        """One optimiser step.

        Raises:
            UserError: a loss or a gradient is not a number; the first bad tensor is named.
        """
        self.network.train()
        stage = self.config.stage_at(self.iteration)
        self._set_learning_rate()
        rows = next(self.batches)
        losses, episodes = self._losses(rows, stage)
        total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        gradient = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self._check_gradients(gradient)
        self.optimiser.step()
        self.iteration += 1
        named = {name: float(loss.detach()) for name, (_, loss) in losses.items()}
        return StepReport(named, float(gradient), episodes)

    def _losses(self, rows: Tensor, stage: Stage) -> tuple[dict[str, tuple[float, Tensor]], int]:
        """Named losses with their weights, and the number of episodes they come from."""
        batch = self.episodes.select(rows)
        words = int(self._lengths[rows].max())
        device = self.agent.sight.world.device
        instructions = self.network.encoder(self._tokens[rows, :words].to(device), self._lengths[rows])
        losses: dict[str, tuple[float, Tensor]] = {}
        episodes = 0
        if stage.teacher:
            noise = self.network.noise(len(batch))
            rollout = self._teacher_walks(batch)
            replay = self.network.replay(rollout, self.agent.sight, instructions, noise)
            term = imitation(rollout, replay, {"frontier": stage.teacher_frontier})
            losses["teacher"] = (stage.teacher, self._checked("teacher", term))
            episodes += len(batch)
        if stage.samples:
            noise = self.network.noise(len(batch))
            rollout = self._sampled_walks(batch, instructions, noise)
            replay = self.network.replay(rollout, self.agent.sight, instructions, noise)
            if stage.student:
                term = imitation(rollout, replay, {"frontier": stage.student_frontier})
                losses["student"] = (stage.student, self._checked("student", term))
            if stage.reinforce:
                term = actor_critic(
                    rollout,
                    replay,
                    self.config.reward,
                    entropy_weight=self.config.entropy,
                    value_weight=self.config.value,
                )
                losses["reinforce"] = (stage.reinforce, self._checked("reinforce", term))
            episodes += len(batch)
        return losses, episodes

    def _teacher_walks(self, batch: EpisodeSet) -> Rollout:
        world = self.agent.sight.world
        # the longest reference path decides, and one that crosses itself is walked over known places again
        longest = int(batch.path_length.max())
        space = self.network.space(world, len(batch), rounds=longest)
        ticks = longest * longest
        rule = ReferencePath(world, batch.path)
        return collect(world, batch, space, FollowLabels(), max_ticks=ticks, label_rule=rule)

    def _sampled_walks(self, batch: EpisodeSet, instructions: Instructions, noise: Noise) -> Rollout:
        world = self.agent.sight.world
        policy = NetworkPolicy(
            self.network.acting(self.agent.sight, instructions, noise), Sample(self.sampling)
        )
        return collect(
            world,
            batch,
            self.network.space(world, len(batch), self.network.rounds),
            policy,
            max_ticks=self.agent.max_ticks,
            label_rule=ClosestToGoal(world, batch.goal),
        )

    def _set_learning_rate(self) -> None:
        share = self.iteration / self.config.iterations
        rate = self.config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _checked(self, name: str, loss: Tensor) -> Tensor:
        if not bool(loss.isfinite()):
            raise self._not_finite(f"loss '{name}'")
        return loss

    def _check_gradients(self, norm: Tensor) -> None:
        if bool(norm.isfinite()):
            return
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                raise self._not_finite(f"gradient of '{name}'")

    def _not_finite(self, what: str) -> UserError:
        return UserError(
            f"{what} is not a finite number at step {self.iteration + 1}; the last good checkpoint is kept; "
            "look for broken features, or lower the learning rate"
        )
