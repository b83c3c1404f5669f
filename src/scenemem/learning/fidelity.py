"""Objectives that keep an agent on the reference path: the path loss, and an entropy bonus for imitation.

Shape letters: B episodes, M decisions, K candidate slots, L viewpoints of a reference path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION, Outputs, Rollout
from scenemem.learning.objectives import Loss, LossContext
from scenemem.world.graph import NONE, World


def metres_to_path(world: World, viewpoints: Tensor, reference: Tensor) -> Tensor:
    """From every viewpoint to the nearest one of a path; 0 where there is no viewpoint (-1).

    viewpoints: (M, P)  reference: (M, L), padded with -1  ->  (M, P)
    """
    metres = world.geodesic(viewpoints.clamp_min(0).unsqueeze(2), reference.clamp_min(0).unsqueeze(1))
    nearest = metres.masked_fill((reference == NONE).unsqueeze(1), torch.inf).amin(dim=2)
    return nearest.masked_fill(viewpoints == NONE, 0.0)


def path_loss(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """OAAM: sum_k p_k d_k, how far from the path the next place is expected to be, averaged over decisions."""
    table, logits = rollout.decisions[ACTION], outputs.logits[ACTION]
    here = rollout.viewpoint[table.episode, table.step]
    places = torch.cat([context.world.neighbour[here], here.unsqueeze(1)], dim=1)  # (M, K + 1)
    metres = metres_to_path(context.world, places, context.episodes.path[table.episode])
    return (logits.softmax(dim=-1) * metres.to(logits)).sum(dim=-1).mean()


def negative_entropy(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """A bonus for doubt: p log p, summed over the decisions of an episode, averaged over episodes."""
    del context
    terms = []
    for logits in outputs.logits.values():
        log_p = logits.log_softmax(dim=-1)
        terms.append((log_p.exp() * log_p.masked_fill(log_p.isinf(), 0.0)).sum())
    return torch.stack(terms).sum() / len(rollout.alive)


PATH = Loss(path_loss, walks="student")
NEGATIVE_ENTROPY = Loss(negative_entropy, walks="student")
