"""Learning which of several places to end at: pairs of one that is right and one that is not.

Shape letters: B episodes, T steps, J = 6 numbers about a route.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION, Rollout
from scenemem.learning.objectives import Loss, LossContext
from scenemem.tasks.episode_set import SUCCESS_METRES

ROUTE_NUMBERS = 6
"""J: decisions, sum and mean of logits, sum and mean of log-probabilities, progress."""


def route_numbers(depth: Tensor, logits: Tensor, log_p: Tensor, progress: Tensor) -> Tensor:
    """What is known of routes that end somewhere; sums count the decision to stop.

    depth: hops  logits, log_p: sums  progress: of the monitor  (...) each  ->  (..., J)
    """
    many = depth + 1
    return torch.stack([depth, logits, logits / many, log_p, log_p / many, progress], dim=-1)


def walked_routes(rollout: Rollout, logits: Tensor, progress: Tensor) -> Tensor:
    """The numbers of every place of local walks, as if they had ended there; 0 where nothing was decided.

    logits: (M, K + 1) of all actions  progress: (B, T)  ->  (B, T, J)
    """
    table = rollout.decisions[ACTION]
    both = torch.stack([logits, logits.log_softmax(dim=-1)], dim=-1)  # (M, K + 1, 2)
    taken = both.gather(1, table.choice.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
    shape = (*rollout.alive.shape, 2)
    at = table.episode, table.step
    chosen, stop = (both.new_zeros(shape).index_put(at, values) for values in (taken, both[:, -1]))
    totals = chosen.cumsum(dim=1) - chosen + stop
    depth = torch.arange(shape[1], device=logits.device).to(logits).expand(shape[:2])
    return route_numbers(depth, totals[..., 0], totals[..., 1], progress)


def rank_pairs(rollout: Rollout, context: LossContext) -> Tensor:
    """Tactical Rewind: a place of a walk within 3 m of the goal ranks above one that is not.

    Hinge with a margin of 1 on the head ``rank`` (B, T), averaged over all pairs.
    """
    table, rank = rollout.decisions[ACTION], rollout.heads["rank"]
    decided = torch.zeros_like(rollout.alive)
    decided[table.episode, table.step] = True
    metres = context.world.geodesic(rollout.viewpoint, context.episodes.goal.unsqueeze(1))
    right, wrong = decided & (metres < SUCCESS_METRES), decided & (metres >= SUCCESS_METRES)
    pairs = right.unsqueeze(2) & wrong.unsqueeze(1)  # (B, T, T)
    short = (1.0 - rank.unsqueeze(2) + rank.unsqueeze(1)).clamp_min(0.0)
    return (short * pairs).sum() / pairs.sum().clamp_min(1)


RANK_PAIRS = Loss(rank_pairs, walks="student")
