"""Losses over a rollout and an agent's outputs (paper, section 3.4), rewards, and where others add theirs.

A loss is a function of a rollout, the outputs for it and a context; it is registered under a name, and a
stage gives it a weight. Shape letters: B episodes, T steps, M decisions of one type, X of all types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scenemem.agents.agent import Outputs
from scenemem.agents.rollout import FRONTIER, Decisions, DecisionType, Rollout
from scenemem.learning.config import LearningConfig, RewardConfig, Stage
from scenemem.registry import Registry
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet
from scenemem.world.graph import NONE, World

WalkKind = Literal["teacher", "student", "all"]
"""Which walks a loss learns from: those along the reference path, the agent's own, or both."""


@dataclass(frozen=True)
class LossContext:
    """What a loss may need beside the rollout and the outputs."""

    world: World
    episodes: EpisodeSet  # B, those of the rollout
    config: LearningConfig
    stage: Stage
    decisions: float  # taken in the rollout; with several processes the mean over them


LossFunction = Callable[[Rollout, Outputs, LossContext], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss and the walks it learns from."""

    function: LossFunction
    walks: WalkKind


LOSSES: Registry[Loss] = Registry("loss")
"""Losses by the name stages call them."""

RewardRule = Callable[[Decisions, Rollout, LossContext], Tensor]
"""What every decision of a table earned: (M,)"""

REWARDS: Registry[RewardRule] = Registry("reward rule")
"""Reward rules by the name presets call them."""


def loss(name: str, *, walks: WalkKind) -> Callable[[LossFunction], LossFunction]:
    """Register a loss under a name."""

    def register(function: LossFunction) -> LossFunction:
        LOSSES.register(name, Loss(function, walks))
        return function

    return register


@loss("teacher_forcing", walks="teacher")
def teacher_forcing(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """Clone the reference path."""
    return imitation(rollout, outputs, {FRONTIER: context.stage.teacher_frontier})


@loss("student_forcing", walks="student")
def student_forcing(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """On the agent's own walks, do what the label rule says would have been right."""
    return imitation(rollout, outputs, {FRONTIER: context.stage.student_frontier})


def imitation(rollout: Rollout, outputs: Outputs, weights: Mapping[DecisionType, float]) -> Tensor:
    """Cross-entropy of the labels, summed over the decisions of an episode, averaged over episodes.

    Decision types without a weight count with 1; decisions without a label do not count.
    """
    terms = [
        _label_losses(logits, rollout.decisions[kind].label).sum() * weights.get(kind, 1.0)
        for kind, logits in outputs.logits.items()
    ]
    return torch.stack(terms).sum() / len(rollout.alive)


@loss("a2c", walks="student")
def a2c(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """A2C: -log p(choice) * advantage + value error - entropy, divided by the number of decisions.

    Every frontier step and every action step earns its own reward; episodes that were cut off expect what the
    critic says about their last observation.
    """
    config, reward = context.config, context.config.reward
    rule, kinds, values = REWARDS[reward.rule], list(outputs.logits), outputs.heads["value"]
    tables = [rollout.decisions[kind] for kind in kinds]
    episode = torch.cat([table.episode for table in tables])
    order = torch.cat([table.order for table in tables])
    value = torch.cat([values[table.episode, table.step] for table in tables])
    earned = torch.cat([rule(table, rollout, context) for table in tables])
    last = values.gather(1, (rollout.length - 1).unsqueeze(1)).squeeze(1).detach()
    bootstrap = last.masked_fill(rollout.stopped, 0.0)
    target = discounted_returns(earned, episode, order, bootstrap, reward.discount)

    log_p = [outputs.logits[kind].log_softmax(dim=-1) for kind in kinds]
    chosen = torch.cat(
        [lp.gather(1, table.choice.unsqueeze(1)).squeeze(1) for lp, table in zip(log_p, tables, strict=True)]
    )
    entropy = torch.cat([-(lp.exp() * lp.masked_fill(lp.isinf(), 0.0)).sum(dim=-1) for lp in log_p])
    advantage = target - value.detach()
    policy = -(chosen * advantage)
    error = config.value * (target - value).square()
    return (policy + error - config.entropy * entropy).sum() / context.decisions


@REWARDS.register("distance")
def distance_reward(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
    """The change in metres to the goal, or the verdict at a stop  ->  (M,)"""
    del rollout
    return rewards(table.before, table.after, table.stops, context.config.reward)


def rewards(before: Tensor, after: Tensor, stops: Tensor, config: RewardConfig) -> Tensor:
    """before, after: (M,) metres to the goal  stops: (M,) bool  ->  (M,)"""
    closer = before - after
    moved = closer.sign() if config.quantised else closer
    verdict = torch.where(after < SUCCESS_METRES, config.success, -config.success)
    return torch.where(stops, verdict, moved).float()


def discounted_returns(
    reward: Tensor, episode: Tensor, order: Tensor, bootstrap: Tensor, discount: float
) -> Tensor:
    """R_j = r_j + discount * R_{j+1} along the decisions of each episode, R after the last = bootstrap.

    reward, episode, order: (X,)  bootstrap: (B,)  ->  (X,)
    """
    row = torch.argsort(episode * (int(order.max()) + 1) + order)
    length = torch.bincount(episode, minlength=len(bootstrap))
    begin = length.cumsum(0) - length
    place = torch.arange(len(row), device=row.device) - begin[episode[row]]
    padded = reward.new_zeros(len(bootstrap), int(length.max()))
    padded[episode[row], place] = reward[row]
    collected = torch.empty_like(padded)
    following = bootstrap
    for step in range(padded.shape[1] - 1, -1, -1):
        following = torch.where(step < length, padded[:, step] + discount * following, following)
        collected[:, step] = following
    result = torch.empty_like(reward)
    result[row] = collected[episode[row], place]
    return result


def _label_losses(logits: Tensor, label: Tensor) -> Tensor:
    """(M, O), (M,)  ->  (M,), 0 where there is no label"""
    losses: Tensor = torch.nn.functional.cross_entropy(logits, label, ignore_index=NONE, reduction="none")
    return losses
