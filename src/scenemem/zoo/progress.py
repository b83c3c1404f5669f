"""Targets for progress heads, and the losses that teach them.

A head says how much of the way is done. Systems differ in what counts: metres, hops, or steps of the walk.
Shape letters: B episodes, T steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.rollout import Rollout
from scenemem.learning.objectives import Loss, LossContext
from scenemem.tasks.episode_set import SUCCESS_METRES


def metres_done(metres: Tensor) -> Tensor:
    """(d_0 - d_t) / d_0, and 1 within 3 m of the goal; may be negative.  metres: (B, T)  ->  (B, T)"""
    start = metres[:, :1].clamp_min(1e-6)
    return torch.where(metres <= SUCCESS_METRES, 1.0, (start - metres) / start)


def hops_done(hops: Tensor) -> Tensor:
    """1 - hops_t / hops_0; falls below 0 off the route.  hops to the goal (B, T)  ->  (B, T)"""
    return 1.0 - hops / hops[:, :1].clamp_min(1)


def squared_error(progress: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """Squared errors, summed over the counted steps of an episode, averaged over episodes; as imitation is.

    (B, T) each, counted bool  ->  ()
    """
    error = (progress - target.to(progress)).square() * counted
    return error.sum() / len(progress)


def progress_in_metres(rollout: Rollout, context: LossContext) -> Tensor:
    """Self-Monitoring: squared error of the head ``progress``, without the first step."""
    goal = context.episodes.goal.unsqueeze(1)
    target = metres_done(context.world.geodesic(rollout.viewpoint, goal))
    counted = rollout.alive.clone()
    counted[:, 0] = False
    return squared_error(rollout.heads["progress"], target, counted)


def progress_in_hops(rollout: Rollout, context: LossContext) -> Tensor:
    """Tactical Rewind: the same with hops, at all steps."""
    target = hops_done(context.world.hops(rollout.viewpoint, context.episodes.goal.unsqueeze(1)))
    return squared_error(rollout.heads["progress"], target, rollout.alive)


PROGRESS_METRES = Loss(progress_in_metres, walks="student")
PROGRESS_HOPS = Loss(progress_in_hops, walks="student")
