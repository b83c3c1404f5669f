"""Experts: the right next step, by the shortest path to the goal or along the reference path."""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.world.graph import NONE, World


def shortest_path_action(world: World, viewpoint: Tensor, goal: Tensor) -> Tensor:
    """The slot that leads to the goal along the shortest path; STOP (-1) at the goal.

    viewpoint, goal: (B,)  ->  (B,)
    """
    return world.next_slot(viewpoint, goal)


def reference_progress(reference: Tensor, progress: Tensor, viewpoint: Tensor) -> Tensor:
    """Count reference points reached so far, in order; call once after every hop (and at the start with 0).

    reference: (B, L) padded with -1  progress: (B,)  viewpoint: (B,)  ->  (B,)
    """
    upcoming = reference.gather(1, progress.clamp_max(reference.shape[1] - 1).unsqueeze(1)).squeeze(1)
    reached = (upcoming == viewpoint) & (progress < _lengths(reference))
    return progress + reached


def reference_action(world: World, reference: Tensor, progress: Tensor, viewpoint: Tensor) -> Tensor:
    """The slot that leads to the next reference point not reached yet; STOP (-1) when all are reached.

    An agent off the path is led to its next reference point by the shortest way, so every point is visited
    in order even where the path crosses itself (as in R4R).

    reference: (B, L) padded with -1  progress, viewpoint: (B,)  ->  (B,)
    """
    finished = progress >= _lengths(reference)
    target = reference.gather(1, progress.clamp_max(reference.shape[1] - 1).unsqueeze(1)).squeeze(1)
    target = torch.where(finished, viewpoint, target)
    direct = world.slot_of(viewpoint, target)
    slot = torch.where(direct == NONE, world.next_slot(viewpoint, target), direct)
    return slot.masked_fill(finished, NONE)


def _lengths(reference: Tensor) -> Tensor:
    return (reference != NONE).sum(dim=1)
