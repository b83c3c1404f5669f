"""A teacher that intervenes where an agent has lost its way.

Shape letters: B episodes, M some of them, L points of a path.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, Arrival
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import Policy
from scenemem.world.graph import NONE, Pose, World


def hops_to_path(world: World, viewpoint: Tensor, reference: Tensor) -> Tensor:
    """Hops to the nearest point of a path.  viewpoint: (M,)  reference: (M, L), padded with -1  ->  (M,)"""
    points = torch.where(reference == NONE, reference[:, :1], reference)
    return hops_between(world, viewpoint.unsqueeze(1), points).amin(dim=1)


def hops_between(world: World, source: Tensor, target: Tensor) -> Tensor:
    """Edges of the shortest path (by metres) between connected viewpoints.  (...), (...)  ->  (...)"""
    hops = torch.zeros_like(source + target)
    here, target = source.expand_as(hops), target.expand_as(hops)
    while bool((here != target).any()):
        hops = hops + (here != target)
        following = world.next_viewpoint(here, target)
        if torch.equal(following, here):
            raise ValueError("there is no way between two of the viewpoints")
        here = following
    return hops


class InterventionPolicy:
    """Tactical Rewind and EGP: agents choose by themselves; an episode off the path follows its labels.

    Args:
        policy: how agents choose.
        world: the world to walk in.
        reference: (B, L) viewpoints, padded with -1.
        hops: how far off the path a teacher steps in.
    """

    def __init__(self, policy: Policy, world: World, reference: Tensor, hops: int) -> None:
        self._policy = policy
        self._world = world
        self._reference = reference
        self._hops = hops

    def observe(self, pose: Pose, arrival: Arrival, space: ActionSpace, /) -> Mapping[str, Tensor] | None:
        """As without a teacher."""
        return self._policy.observe(pose, arrival, space)

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, Tensor | None]:
        """The chosen options (M,), and the scores (M, O)"""
        choice, logits = self._policy.decide(request, label, pose, space)
        here, reference = pose.viewpoint[request.episode], self._reference[request.episode]
        lost = hops_to_path(self._world, here, reference) >= self._hops
        return torch.where(lost & (label != NONE), label, choice), logits
