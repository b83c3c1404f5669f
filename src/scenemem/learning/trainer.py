"""The trainer: draws batches, lets teacher and agent walk, replays the walks and steps the optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scenemem.agents.collect import collect
from scenemem.agents.labels import ClosestToGoal, LabelRule, ReferencePath, RestOfPath, TaughtLanes
from scenemem.agents.network import AgentNetwork, Replay
from scenemem.agents.policy import LanewiseSampling
from scenemem.agents.rollout import Rollout
from scenemem.agents.spaces import ActionSpace
from scenemem.agents.trained import TrainedAgent
from scenemem.errors import NotFiniteError, UserError
from scenemem.learning.allocator import keep_freed_memory
from scenemem.learning.augmentation import Augmentation
from scenemem.learning.config import LearningConfig, Stage
from scenemem.learning.losses import actor_critic, imitation
from scenemem.learning.team import ALONE, Team
from scenemem.models.language import Instructions
from scenemem.models.navigator import Noise
from scenemem.models.unrolling import Unrolling
from scenemem.tasks.batches import Batches
from scenemem.tasks.episode_set import EpisodeSet

_SMALL = 100_000
"""Feature columns of a batch up to which a step is small enough for its memory to be kept.

Kept memory has gaps, as large as the blocks: half a gigabyte more for 64 walks with 2,048 columns.
"""


@dataclass(frozen=True)
class StepReport:
    """What one optimiser step did."""

    losses: dict[str, float]  # by name, unweighted
    gradient: float  # norm before clipping
    episodes: int  # walked and learnt from


class _Lesson(nn.Module):
    """The losses of a batch as a module, which is what distributed training wants."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.network = trainer.network
        self._trainer = trainer

    def forward(self, rows: Tensor, stage: Stage) -> dict[str, tuple[float, Tensor]]:
        """rows: (B,) of the episodes"""
        return self._trainer.losses(rows, stage)


class Trainer:
    """Everything a training run changes; the loop around it decides when to validate and save.

    Unless a step is large, the process keeps the memory that steps free (``allocator``).

    Args:
        agent: network, eyes and vocabulary.
        episodes: what to learn from.
        config: the course of the run.
        seed: of batches, dropout and sampling.
        team: the processes that train together; each takes its share of every batch.
        augmentation: where stages that learn from augmented episodes get them from.
    """

    def __init__(
        self,
        agent: TrainedAgent,
        episodes: EpisodeSet,
        config: LearningConfig,
        seed: int,
        team: Team = ALONE,
        augmentation: Augmentation | None = None,
    ) -> None:
        if not episodes.has_goals:
            raise UserError(f"'{episodes.name}' keeps its goals secret; train on a split that shows them")
        if augmentation is None and any(stage.augmented for stage in config.stages):
            raise UserError(
                "this preset learns from augmented episodes; name a --speaker or an --augment file"
            )
        self.agent = agent
        self.episodes = episodes
        self.augmentation = augmentation
        self.config = config
        self.team = team
        self.iteration = 0
        self.optimiser = torch.optim.AdamW(
            agent.network.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.sampling = torch.Generator().manual_seed(seed + 1)
        tokens, lengths = agent.vocabulary.encode_batch(episodes.texts, agent.max_words)
        self._tokens, self._lengths = tokens, lengths
        self.batches = Batches(
            len(episodes), config.batch, seed, lengths=lengths, rank=team.rank, world_size=team.size
        )
        self._lesson = team.together(_Lesson(self))
        if config.batch * agent.sight.width <= _SMALL:
            keep_freed_memory()

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
            losses = self._lesson(rows, stage)
        except NotFiniteError as error:
            raise self._not_finite(error.what) from error
        total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        gradient = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self._check_gradients(gradient)
        self.optimiser.step()
        self.iteration += 1
        named = self.team.means({name: float(loss.detach()) for name, (_, loss) in losses.items()})
        walked = self.config.batch * _lanes_per_episode(stage) * (2 if stage.augmented else 1)
        return StepReport(named, float(gradient), walked)

    def losses(self, rows: Tensor, stage: Stage) -> dict[str, tuple[float, Tensor]]:
        """Named losses with their weights.  rows: (B,) of the episodes"""
        times = _lanes_per_episode(stage)
        losses = self._learn(
            self.episodes.select(rows), self._tokens[rows], self._lengths[rows], self._noise(times), stage
        )
        if stage.augmented and self.augmentation is not None:
            noise = self._noise(times)
            # one environment mask: the speaker describes what the agent will see
            more = self.augmentation.draw(self.iteration, self.config.batch, noise.feature, self.team)
            tokens, lengths = self.agent.vocabulary.encode_batch(more.texts, self.agent.max_words)
            found = self._learn(more, tokens, lengths, noise, replace(stage, teacher=stage.augmented))
            losses |= {f"augmented {name}": loss for name, loss in found.items()}
        for name, (_, loss) in losses.items():
            self._check_loss(name, loss)
        return losses

    def _learn(
        self, episodes: EpisodeSet, tokens: Tensor, lengths: Tensor, noise: Noise, stage: Stage
    ) -> dict[str, tuple[float, Tensor]]:
        """Losses of one batch; an episode has two lanes in one rollout: a teacher's and the agent's own."""
        times = _lanes_per_episode(stage)
        taught = len(episodes) if stage.teacher else 0
        batch = episodes.select(torch.arange(len(episodes)).repeat(times))
        instructions = self._read(tokens, lengths).repeat(times)
        unrolling = self.network.unrolling(self.agent.sight, instructions, noise, keeps=True)
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
        return losses

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
                decisions=self.team.mean(sum(len(table.lane) for table in rollout.decisions.values())),
            )
            losses["reinforce"] = (stage.reinforce, term)
        return losses

    def _read(self, tokens: Tensor, lengths: Tensor) -> Instructions:
        words = int(lengths.max())
        device, encoder = self.agent.sight.world.device, self.network.encoder
        noise = encoder.noise(self.config.batch)[self._own_lanes(1)]
        read: Instructions = encoder(tokens[:, :words].to(device), lengths, noise)
        return read

    def _noise(self, times: int) -> Noise:
        """Drawn for the whole team, so that a lane's noise does not depend on who walks it."""
        return self.network.noise(times * self.config.batch).select(self._own_lanes(times))

    def _own_lanes(self, times: int) -> Tensor:
        """Which lanes of the team's are this process's, with ``times`` lanes per episode."""
        lanes = torch.arange(times * self.config.batch, device=self.agent.sight.world.device)
        return torch.cat([self.team.share(part) for part in lanes.chunk(times)])

    def _walks(self, batch: EpisodeSet, unrolling: Unrolling, taught: int) -> Rollout:
        """The first ``taught`` lanes follow the reference path, the others walk by themselves."""
        world = self.agent.sight.world
        # the reference path decides how long, and one that crosses itself is walked over known places again
        length = batch.path_length
        is_taught = torch.arange(len(batch), device=world.device) < taught
        acting = self.network.acting(self.agent.sight, unrolling)
        rounds = torch.where(is_taught, length, self.config.rounds)
        space = self.network.space(world, len(batch), rounds, returns=False)
        return collect(
            world,
            batch,
            space,
            LanewiseSampling(acting, self._drawn(len(batch)), taught=taught),
            max_ticks=torch.where(is_taught, length.square(), self.config.ticks),
            label_rule=TaughtLanes(taught, ReferencePath(world, batch.path), self._own_rule(batch, space)),
        )

    def _own_rule(self, batch: EpisodeSet, space: ActionSpace) -> LabelRule:
        """What is right on the agent's own walks."""
        world = self.agent.sight.world
        if self.config.labels == "goal":
            return ClosestToGoal(world, batch.goal)
        return RestOfPath(world, batch.path, passes_over=not space.revisits)

    def _drawn(self, lanes: int) -> Tensor:
        """A random number for every decision; a round has at most two  ->  (J, lanes)"""
        most = 2 * self.config.rounds + 1
        drawn = torch.rand(most, self.config.batch, generator=self.sampling)
        own = self.team.share(drawn.t()).t().to(self.agent.sight.world.device)
        return own.repeat(1, lanes // own.shape[1])

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


def _lanes_per_episode(stage: Stage) -> int:
    return int(stage.teacher > 0) + int(stage.samples)
