"""The trainer: draws batches, lets teacher and agent walk, and steps the optimiser on their losses.

The speaker's trainer shares its optimiser steps (``Learner``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scenemem.agents.agent import ActionSpace, Agent, Arrival
from scenemem.agents.rollout import DecisionRequest, Rollout
from scenemem.agents.walker import AgentPolicy, Policy, SamplePerEpisode, TrainedAgent, collect
from scenemem.errors import NotFiniteError, UserError
from scenemem.learning.augmentation import Augmentation
from scenemem.learning.distributed import SINGLE, ProcessGroup
from scenemem.learning.objectives import (
    LABEL_RULES,
    LOSSES,
    REWARDS,
    LearningConfig,
    LossContext,
    MixedRules,
    ReferencePath,
    Stage,
)
from scenemem.models.navigator import DropoutMasks, RolloutInputs
from scenemem.processes import keep_freed_memory
from scenemem.tasks.episode_set import Batches, EpisodeSet
from scenemem.world.graph import NONE, Pose, World

_SMALL = 100_000
"""Feature columns of a batch up to which a step is small enough for its memory to be kept.

Kept memory has gaps, as large as the blocks: half a gigabyte more for 64 walks with 2,048 columns.
"""

Weighted = dict[str, tuple[float, Tensor]]
"""Losses by name, each with its weight."""


@dataclass(frozen=True)
class StepReport:
    """What one optimiser step did."""

    losses: dict[str, float]  # by name, unweighted
    gradient: float  # norm before clipping
    episodes: int  # walked and learnt from


class _Walks:
    """The walks of a batch that losses with some weights need: led by a teacher, by the agent, or both."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.losses = {name: LOSSES[name] for name, weight in weights.items() if weight}
        kinds = {loss.walks for loss in self.losses.values()}
        self.teacher = bool(kinds & {"teacher", "all"})
        self.copies = self.teacher + bool(kinds & {"student", "all"})  # of every episode


def make_optimiser(network: nn.Module, config: LearningConfig) -> torch.optim.Optimizer:
    """The optimiser that the settings name."""
    weights, rate, decay = network.parameters(), config.learning_rate, config.weight_decay
    if config.optimiser == "rmsprop":
        return torch.optim.RMSprop(weights, lr=rate, weight_decay=decay)
    kind = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    return kind(weights, lr=rate, weight_decay=decay, fused=True)


class WeightAverage:
    """A running average of the weights (EMA): a <- d_t a + (1 - d_t) w with d_t = min(d, (1 + t) / (10 + t)).

    The smaller decay of the first steps forgets the random weights a run begins with.

    Args:
        network: whose weights are averaged.
        decay: d; 0 keeps the last weights.
    """

    TRAINED = "trained."
    """What the names of the weights that go on learning begin with in a checkpoint."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._weights = dict(network.named_parameters()) if decay else {}
        self._decay = decay
        self._averages: list[Tensor] = []  # of the weights the run begins with, made when they are there

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """After the last of so many optimiser steps."""
        self._begin()
        decay = min(self._decay, (1 + steps) / (10 + steps))
        for weight, average in zip(self._weights.values(), self._averages, strict=True):
            average.lerp_(weight, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """The network has the averages in this block  ->  the weights that go on learning, by name"""
        self._begin()
        self._exchange()
        names = (self.TRAINED + name for name in self._weights)
        try:
            yield dict(zip(names, self._averages, strict=True))
        finally:
            self._exchange()

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        """The network has the averages of a checkpoint; give it the weights that go on learning.

        Raises:
            KeyError: the checkpoint has none.
        """
        self._begin()
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(tensors[self.TRAINED + name])

    def _begin(self) -> None:
        self._averages = self._averages or [weight.detach().clone() for weight in self._weights.values()]

    @torch.no_grad()
    def _exchange(self) -> None:
        for weight, average in zip(self._weights.values(), self._averages, strict=True):
            trained = weight.clone()
            weight.copy_(average)
            average.copy_(trained)


def hops_to_path(world: World, viewpoint: Tensor, reference: Tensor) -> Tensor:
    """Hops to the nearest point of a path.  viewpoint: (M,)  reference: (M, L), padded with -1  ->  (M,)"""
    points = torch.where(reference == NONE, reference[:, :1], reference)
    return world.hops(viewpoint.unsqueeze(1), points).amin(dim=1)


@dataclass(frozen=True)
class InterventionPolicy:
    """Tactical Rewind and EGP: agents choose by themselves; an episode off the path follows its labels."""

    policy: Policy  # how agents choose
    world: World
    reference: Tensor  # (B, L) viewpoints, padded with -1
    hops: int  # how far off the path a teacher steps in

    def observe(self, pose: Pose, arrival: Arrival, space: ActionSpace, /) -> Mapping[str, Tensor] | None:
        """As without a teacher."""
        return self.policy.observe(pose, arrival, space)

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, Tensor | None]:
        """The chosen options (M,), and the scores (M, O)"""
        choice, logits = self.policy.decide(request, label, pose, space)
        here, reference = pose.viewpoint[request.episode], self.reference[request.episode]
        lost = hops_to_path(self.world, here, reference) >= self.hops
        return torch.where(lost & (label != NONE), label, choice), logits


class LossModule(nn.Module):
    """The losses of a batch as a module, as distributed training requires."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.network = learner.network
        self._learner = learner

    def forward(self, rows: Tensor) -> tuple[Weighted, int]:
        """rows: (B,) of the episodes"""
        return self._learner.batch_losses(rows)


class Learner(ABC):
    """What a run trains: a network, its optimiser, and everything else that a step changes.

    Args:
        network: the parameters that learn.
        config: how long, how fast and in which stages.
        lengths: (N,) words of every instruction, from which batches are drawn.
        seed: of batches, dropout and sampling.
        group: the processes that train together; each takes its share of every batch.
    """

    def __init__(
        self,
        network: nn.Module,
        config: LearningConfig,
        lengths: Tensor,
        seed: int,
        group: ProcessGroup = SINGLE,
    ) -> None:
        self.network = network
        self.config = config
        self.group = group
        self.iteration = 0
        self._losses: Callable[[Tensor], tuple[Weighted, int]] = (
            group.wrap(LossModule(self)) if group.size > 1 else self.batch_losses
        )
        self.optimiser = make_optimiser(network, config)
        self.average = WeightAverage(network, config.average)
        self.sampling = torch.Generator().manual_seed(seed + 1)
        self.batches = Batches(
            len(lengths), config.batch, seed, lengths=lengths, rank=group.rank, world_size=group.size
        )

    @abstractmethod
    def batch_losses(self, rows: Tensor) -> tuple[Weighted, int]:
        """Named losses of a batch with their weights, and the number of walks.  rows: (B,) of the episodes"""

    def step(self) -> StepReport:
        """One optimiser step."""
        report = self.compute_gradients()
        self.update()
        return report

    def compute_gradients(self) -> StepReport:
        """The part of a step that takes long and leaves all weights as they are.

        Raises:
            UserError: a loss or a gradient is not a number; the first bad tensor is named.
        """
        self.network.train()
        self._set_learning_rate()
        rows = next(self.batches)
        try:
            losses, episodes = self._losses(rows)
        except NotFiniteError as error:
            raise self._not_finite(error.what) from error
        for name, (_, loss) in losses.items():
            if not bool(loss.isfinite()):
                raise self._not_finite(f"loss '{name}'")
        total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        gradient = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        if not bool(gradient.isfinite()):
            raise self._bad_gradient()
        named = {name: float(loss.detach()) for name, (_, loss) in losses.items()}
        if self.group.size > 1:
            named = self.group.means(named)
        return StepReport(named, float(gradient), episodes)

    def update(self) -> None:
        """The part of a step that changes the weights."""
        self.optimiser.step()
        self.iteration += 1
        if self.config.average:
            self.average.update(self.iteration)

    def _set_learning_rate(self) -> None:
        rate = self.config.learning_rate
        if self.config.schedule == "cosine":
            share = self.iteration / self.config.iterations
            rate *= 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _bad_gradient(self) -> UserError:
        """Names the first parameter whose gradient is not a number."""
        bad = (
            name
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        )
        return self._not_finite(f"gradient of '{next(bad, 'all parameters together')}'")

    def _not_finite(self, what: str) -> UserError:
        return UserError(
            f"{what} is not a finite number at step {self.iteration + 1}; the last good checkpoint is kept; "
            "look for broken features, or lower the learning rate"
        )


class Trainer(Learner):
    """Teaches an agent by its own walks and those of a teacher.

    Unless a step is large, the process keeps the memory that steps free (``allocator``).

    Args:
        agent: network, environment and vocabulary.
        episodes: what to learn from.
        config: the course of the run.
        seed: of batches, dropout and sampling.
        group: the processes that train together; each takes its share of every batch.
        augmentation: where stages that learn from augmented episodes get them from.
    """

    network: Agent

    def __init__(
        self,
        agent: TrainedAgent,
        episodes: EpisodeSet,
        config: LearningConfig,
        seed: int,
        group: ProcessGroup = SINGLE,
        augmentation: Augmentation | None = None,
    ) -> None:
        if not episodes.has_goals:
            raise UserError(f"'{episodes.name}' keeps its goals secret; train on a split that shows them")
        # by stage name; unknown losses are refused before anything is trained
        self._walks = {stage.name: (_Walks(stage.losses), _Walks(stage.augmented)) for stage in config.stages}
        if augmentation is None and any(augmented.losses for _, augmented in self._walks.values()):
            raise UserError(
                "this preset learns from augmented episodes; name a `speaker` or an `augment` file"
            )
        self._stages = [config.stage_at(iteration) for iteration in range(config.iterations)]
        self._label_rule = LABEL_RULES[config.labels]
        self._reward = REWARDS[config.reward.rule]
        self.agent = agent
        self.episodes = episodes
        self.augmentation = augmentation
        self._tokens, self._lengths = agent.vocabulary.encode_batch(episodes.texts, agent.limits.max_words)
        super().__init__(agent.network, config, self._lengths, seed, group)
        if config.batch * agent.environment.width <= _SMALL:
            keep_freed_memory()

    def batch_losses(self, rows: Tensor) -> tuple[Weighted, int]:
        """Losses in the stage that the batch belongs to, of annotated and of augmented episodes."""
        stage = self._stages[min(self.iteration, len(self._stages) - 1)]
        annotated, augmented = self._walks[stage.name]
        losses: Weighted = {}
        if annotated.losses:
            own, masks = self._masks(annotated.copies)
            read = self._tokens[rows], self._lengths[rows]
            losses = self._learn(self.episodes.select(rows), *read, own, masks, stage, annotated)
        if augmented.losses and self.augmentation is not None:
            own, masks = self._masks(augmented.copies)
            # one environment mask: the speaker describes what the agent will see
            more = self.augmentation.draw(self.iteration, self.config.batch, masks.feature, self.group)
            read = self.agent.vocabulary.encode_batch(more.texts, self.agent.limits.max_words)
            found = self._learn(more, *read, own, masks, replace(stage, losses=stage.augmented), augmented)
            losses |= {f"augmented {name}": loss for name, loss in found.items()}
        return losses, self.config.batch * (annotated.copies + augmented.copies)

    def _masks(self, copies: int) -> tuple[Tensor, DropoutMasks]:
        """Which episodes of the group's batch are this process's, and the masks of ``copies`` walks of them.

        They are drawn for the whole group: those of an episode do not depend on the process that walks it.
        """
        every = torch.arange(self.config.batch, device=self.agent.environment.world.device)
        own = every[self.group.rank :: self.group.size]
        walks = torch.cat([own + copy * self.config.batch for copy in range(copies)])
        return own, self.network.dropout_masks(copies * self.config.batch, walks)

    def _learn(
        self,
        episodes: EpisodeSet,
        tokens: Tensor,
        lengths: Tensor,
        own: Tensor,
        masks: DropoutMasks,
        stage: Stage,
        walks: _Walks,
    ) -> Weighted:
        """Losses of one batch; teacher and agent walk in one rollout."""
        count, world, encoder = len(tokens), self.agent.environment.world, self.network.encoder
        batch = episodes.select(torch.arange(count).repeat(walks.copies))
        dropout = encoder.dropout_mask(self.config.batch)[own]
        instructions = encoder(tokens[:, : int(lengths.max())].to(world.device), lengths, dropout)
        every = torch.arange(walks.copies * count, device=world.device)
        forced = every < count if walks.teacher else torch.zeros_like(every, dtype=torch.bool)
        inputs = RolloutInputs(self.agent.environment, instructions.repeat(walks.copies), masks)
        rollout = self._walk(batch, inputs, forced)
        rollout = replace(rollout, heads={**rollout.heads, **self.network.whole_walk_heads(rollout, inputs)})
        parts = {"teacher": every[forced], "student": every[~forced], "all": every}
        views = {}
        for kind in dict.fromkeys(loss.walks for loss in walks.losses.values()):
            part = rollout.select(parts[kind])
            taken = sum(len(table.episode) for table in part.decisions.values())
            context = LossContext(
                world=world,
                episodes=batch.select(parts[kind]),
                config=self.config,
                stage=stage,
                decisions=self.group.mean(taken) if self.group.size > 1 else taken,
                reward=self._reward,
            )
            views[kind] = part, context
        return {
            name: (stage.losses[name], loss.function(*views[loss.walks]))
            for name, loss in walks.losses.items()
        }

    def _walk(self, batch: EpisodeSet, inputs: RolloutInputs, forced: Tensor) -> Rollout:
        """Forced episodes are led by a teacher, the remaining ones walk by themselves.  forced: (B,) bool"""
        world = self.agent.environment.world
        on_path = forced & self.network.follows_reference
        # the reference path decides how long, and one that crosses itself is walked over known places again
        length = batch.path_length
        max_decisions = torch.where(on_path, length, self.config.max_decisions)
        space = self.network.action_space(world, len(forced), max_decisions, learning=True)
        labels = self._label_rule(world, batch, space)
        if self.network.follows_reference:
            labels = MixedRules(forced, ReferencePath(world, batch.path), labels)
        # a random number for every decision; a frontier and its action are two
        most = 2 * self.config.max_decisions + 1 + space.further_requests
        drawn = torch.rand(most, self.config.batch, generator=self.sampling)
        drawn = drawn[:, self.group.rank :: self.group.size].to(world.device)
        pick = SamplePerEpisode(drawn.repeat(1, len(forced) // drawn.shape[1]))
        policy = AgentPolicy(self.network, inputs, pick, forced=forced, learns=True)
        hops = self.config.teacher_hops
        rollout = collect(
            world,
            batch,
            space,
            InterventionPolicy(policy, world, batch.path, hops) if hops else policy,
            max_steps=torch.where(on_path, length.square(), self.config.max_steps),
            label_rule=labels,
        )
        policy.check_scores()
        return rollout
