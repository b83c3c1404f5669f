"""Objectives that keep an agent on the reference path: path loss, nDTW as a reward; and an entropy bonus.

Shape letters: B episodes, T steps, M decisions, K candidate slots, L viewpoints of a reference path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION, Decisions, Rollout
from scenemem.learning.objectives import Loss, LossContext
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.world.graph import NONE, World


def metres_to_path(world: World, viewpoints: Tensor, reference: Tensor) -> Tensor:
    """From every viewpoint to the nearest one of a path; 0 where there is no viewpoint (-1).

    viewpoints: (M, P)  reference: (M, L), padded with -1  ->  (M, P)
    """
    metres = world.geodesic(viewpoints.clamp_min(0).unsqueeze(2), reference.clamp_min(0).unsqueeze(1))
    nearest = metres.masked_fill((reference == NONE).unsqueeze(1), torch.inf).amin(dim=2)
    return nearest.masked_fill(viewpoints == NONE, 0.0)


def path_loss(rollout: Rollout, context: LossContext) -> Tensor:
    """OAAM: sum_k p_k d_k, how far from the path the next place is expected to be, per decision."""
    table, logits = rollout.decisions[ACTION], rollout.decisions[ACTION].logits
    here = rollout.viewpoint[table.episode, table.step]
    places = torch.cat([context.world.neighbour[here], here.unsqueeze(1)], dim=1)  # (M, K + 1)
    metres = metres_to_path(context.world, places, context.episodes.path[table.episode])
    return (logits.softmax(dim=-1) * metres.to(logits)).sum(dim=-1).mean()


def negative_entropy(rollout: Rollout, context: LossContext) -> Tensor:
    """A bonus for doubt: p log p, summed over the decisions of an episode, averaged over episodes."""
    del context
    terms = []
    for table in rollout.learned.values():
        log_p = table.logits.log_softmax(dim=-1)
        terms.append((log_p.exp() * log_p.masked_fill(log_p.isinf(), 0.0)).sum())
    return torch.stack(terms).sum() / len(rollout.alive)


PATH = Loss(path_loss, walks="student")
NEGATIVE_ENTROPY = Loss(negative_entropy, walks="student")


def prefix_ndtw(world: World, walked: Tensor, reference: Tensor) -> Tensor:
    """NDTW of every beginning of a walk: exp(-DTW / (3 m * reference viewpoints)).

    walked: (B, T) viewpoints; what follows the end may be anything  reference: (B, L)  ->  (B, T)
    """
    exists = reference != NONE
    metres = world.geodesic(walked.clamp_min(0).unsqueeze(2), reference.clamp_min(0).unsqueeze(1))
    metres = metres.masked_fill(~exists.unsqueeze(1), 0.0)  # (B, T, L)
    costs = [metres[:, 0].cumsum(dim=1)]
    for step in metres.unbind(1)[1:]:
        above = costs[-1]
        best = torch.minimum(above, torch.nn.functional.pad(above[:, :-1], (1, 0), value=torch.inf))
        running = step.cumsum(dim=1)
        costs.append(running + (best - running + step).cummin(dim=1).values)
    many = exists.sum(dim=1)
    last = (many - 1).view(-1, 1, 1).expand(-1, len(costs), 1)
    cost = torch.stack(costs, dim=1).gather(2, last).squeeze(2)
    return torch.exp(-cost / (SUCCESS_METRES * many.unsqueeze(1)))


def ndtw_reward(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
    """What a decision adds to nDTW, a jump counted whole; at a stop the verdict of success  ->  (M,)"""
    config = context.config.reward
    values = prefix_ndtw(context.world, rollout.viewpoint, context.episodes.path)
    decided = torch.zeros_like(rollout.alive)
    for decisions in rollout.decisions.values():
        decided[decisions.episode, decisions.step] = True
    steps = torch.arange(decided.shape[1], device=decided.device)
    end = (rollout.length - 1).unsqueeze(1)
    here = torch.where(decided, steps, end)
    following = torch.cat([here[:, 1:], end], dim=1).flip(1).cummin(dim=1).values.flip(1)
    row = torch.arange(len(values), device=values.device).unsqueeze(1)
    gained = (values[row, following] - values)[table.episode, table.step]
    verdict = torch.where(table.after < SUCCESS_METRES, config.success, config.failure)
    return torch.where(table.stops, verdict, gained.to(verdict)).float()
