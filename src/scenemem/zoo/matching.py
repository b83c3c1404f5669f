"""How well a speaker can tell an instruction from the walk it led to, as a reward."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from scenemem.agents.rollout import Decisions, Rollout
from scenemem.features.store import Environment
from scenemem.learning.objectives import Loss, LossContext, a2c
from scenemem.learning.speaker import Steps, views_along
from scenemem.models.speaker import PathViews
from scenemem.world.graph import NONE, STOP


def views_of_walk(environment: Environment, rollout: Rollout) -> PathViews:
    """What was seen along walks, as a speaker wants it; every step of a walk is a hop."""
    place = rollout.walked
    there = torch.nn.functional.pad(place[:, 1:], (0, 1), value=NONE)
    slot = environment.world.slot_of(place.clamp_min(0), there).masked_fill(there == NONE, STOP)
    return views_along(environment, Steps(place, rollout.view, slot))


def matching_critic(rollout: Rollout, context: LossContext) -> Tensor:
    """The critic learns from reference paths: minus the log-likelihood of a word, head ``match``."""
    del context
    return -rollout.heads["match"][:, 0].mean()


def matched_a2c(rollout: Rollout, context: LossContext) -> Tensor:
    """A2C whose reward for stopping has what the critic says added, head ``intrinsic``."""
    intrinsic = rollout.heads["intrinsic"][:, 0].detach()

    def reward(table: Decisions, rollout: Rollout, inner: LossContext) -> Tensor:
        earned = context.reward(table, rollout, inner)
        return earned + intrinsic[table.episode] * table.stops

    return a2c(rollout, replace(context, reward=reward))


MATCHING_CRITIC = Loss(matching_critic, walks="teacher")
MATCHED_A2C = Loss(matched_a2c, walks="student")
