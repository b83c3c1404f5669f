"""Auxiliary losses on what an agent says about its walks: retelling, progress, matching, the next direction.

Shape letters: B episodes, T steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from scenemem.agents.rollout import Rollout
from scenemem.learning.objectives import Loss, LossContext
from scenemem.world.graph import World, angle_feature, rotated, view_heading


def retelling(rollout: Rollout, context: LossContext) -> Tensor:
    """The head ``retelling`` is the cost of saying an instruction again, the same at all steps of a walk."""
    del context
    return rollout.heads["retelling"][:, 0].mean()


def step_progress(rollout: Rollout, context: LossContext) -> Tensor:
    """Binary cross-entropy of the logit ``step_progress`` against t / T, T the last step of the walk."""
    del context
    alive = rollout.alive
    step = torch.arange(alive.shape[1], device=alive.device)
    target = step / (rollout.length - 1).clamp_min(1).unsqueeze(1)
    logits = rollout.heads["step_progress"]
    return binary_cross_entropy_with_logits(logits[alive], target.to(logits)[alive])


def matching(rollout: Rollout, context: LossContext) -> Tensor:
    """The logits ``matching`` (B, T, 2) at the end: its own instruction is right, another's is wrong."""
    del context
    last = (rollout.length - 1).view(-1, 1, 1).expand(-1, 1, 2)
    logits = rollout.heads["matching"].gather(1, last).squeeze(1)
    target = torch.tensor([1.0, 0.0], device=logits.device).expand_as(logits)
    return binary_cross_entropy_with_logits(logits, target)


def next_angle(rollout: Rollout, context: LossContext) -> Tensor:
    """Squared error of the four numbers ``angle`` against the direction walked next; ends do not count."""
    target, moves = next_directions(context.world, rollout)
    error = (rollout.heads["angle"] - target.to(rollout.heads["angle"])).square().sum(dim=-1)
    return (error * moves).sum() / moves.sum().clamp_min(1)


def next_directions(world: World, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """The direction of every hop, relative to the view faced before it, and where there is a hop.

    ->  (B, T, 4), 0 where there is none; (B, T) bool
    """
    moves = torch.zeros_like(rollout.alive)
    moves[:, :-1] = rollout.alive[:, 1:]
    here, there = rollout.viewpoint, rollout.viewpoint.roll(-1, dims=1)
    slot = world.slot_of(here, there).clamp_min(0)
    towards = angle_feature(world.neighbour_heading[here, slot], world.neighbour_elevation[here, slot], 4)
    relative = rotated(towards, view_heading(rollout.view))
    return relative.masked_fill(~moves.unsqueeze(-1), 0.0), moves


RETELLING = Loss(retelling, walks="teacher")
STEP_PROGRESS = Loss(step_progress, walks="teacher")
MATCHING = Loss(matching, walks="teacher")
NEXT_ANGLE = Loss(next_angle, walks="teacher")
