"""The trainer: draws batches, lets teacher and agent walk, replays the walks and steps the optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.collect import collect
from scenemem.agents.labels import ClosestToGoal, ReferencePath, TaughtLanes
from scenemem.agents.network import AgentNetwork, Replay
from scenemem.agents.policy import NetworkPolicy, Sample
from scenemem.agents.rollout import Rollout
from scenemem.agents.trained import TrainedAgent
from scenemem.errors import NotFiniteError, UserError
from scenemem.learning.config import LearningConfig, Stage
from scenemem.learning.losses import actor_critic, imitation
from scenemem.models.language import Instructions
from scenemem.models.unrolling import Unrolling
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
            agent.network.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
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
        try:
            losses, episodes = self._losses(rows, stage)
        except NotFiniteError as error:
            raise self._not_finite(error.what) from error
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
        """Named losses with their weights, and the number of episodes they come from.

        Every episode has two lanes in one rollout: a teacher walks the first, the agent the second.
        """
        taught = len(rows) if stage.teacher else 0
        times = int(stage.teacher > 0) + int(stage.samples)
        batch = self.episodes.select(rows.repeat(times))
        unrolling = self.network.unrolling(
            self.agent.sight,
            self._read(rows).repeat(times),
            self.network.noise(len(batch)),
            keeps=True,
        )
        rollout = self._walks(batch, unrolling, taught)
        replay = self.network.judge(rollout, self.agent.sight, unrolling)
        losses: dict[str, tuple[float, Tensor]] = {}
        if stage.teacher:
            lanes = slice(0, taught)
            losses["teacher"] = (
                stage.teacher,
                imitation(
                    rollout.part(lanes), replay.part(lanes, rollout), {"frontier": stage.teacher_frontier}
                ),
            )
        if stage.samples:
            lanes = slice(taught, len(batch))
            losses |= self._own_losses(rollout.part(lanes), replay.part(lanes, rollout), stage)
        for name, (_, loss) in losses.items():
            self._check_loss(name, loss)
        return losses, len(batch)

    def _own_losses(self, rollout: Rollout, replay: Replay, stage: Stage) -> dict[str, tuple[float, Tensor]]:
        """What the agent learns from its own walks."""
        losses = {}
        if stage.student:
            term = imitation(rollout, replay, {"frontier": stage.student_frontier})
            losses["student"] = (stage.student, term)
        if stage.reinforce:
            term = actor_critic(
                rollout,
                replay,
                self.config.reward,
                entropy_weight=self.config.entropy,
                value_weight=self.config.value,
            )
            losses["reinforce"] = (stage.reinforce, term)
        return losses

    def _read(self, rows: Tensor) -> Instructions:
        words = int(self._lengths[rows].max())
        device = self.agent.sight.world.device
        read: Instructions = self.network.encoder(self._tokens[rows, :words].to(device), self._lengths[rows])
        return read

    def _walks(self, batch: EpisodeSet, unrolling: Unrolling, taught: int) -> Rollout:
        """The first ``taught`` lanes follow the reference path, the others walk by themselves."""
        world = self.agent.sight.world
        # the reference path decides how long, and one that crosses itself is walked over known places again
        length = batch.path_length
        is_taught = torch.arange(len(batch), device=world.device) < taught
        acting = self.network.acting(self.agent.sight, unrolling)
        return collect(
            world,
            batch,
            self.network.space(world, len(batch), torch.where(is_taught, length, self.config.rounds)),
            NetworkPolicy(acting, Sample(self.sampling), taught=taught),
            max_ticks=torch.where(is_taught, length.square(), self.config.ticks),
            label_rule=TaughtLanes(
                taught, ReferencePath(world, batch.path), ClosestToGoal(world, batch.goal)
            ),
        )

    def _set_learning_rate(self) -> None:
        share = self.iteration / self.config.iterations
        rate = self.config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _check_loss(self, name: str, loss: Tensor) -> None:
        if not bool(loss.isfinite()):
            raise self._not_finite(f"loss '{name}'")

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
