"""A teacher that steps in where an agent has lost its way.

Shape letters: B episodes, M some of them, L points of a path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import Policy
from scenemem.learning.progress import hops_between
from scenemem.simulator.panorama import Pose
from scenemem.world.graph import NONE, World


def hops_to_path(world: World, viewpoint: Tensor, reference: Tensor) -> Tensor:
    """Hops to the nearest point of a path.  viewpoint: (M,)  reference: (M, L), padded with -1  ->  (M,)"""
    points = torch.where(reference == NONE, reference[:, :1], reference)
    return hops_between(world, viewpoint.unsqueeze(1), points).amin(dim=1)


class BackToPath:
    """Tactical Rewind and EGP: agents choose by themselves, but who is off the path does what is right.

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

    def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        """As without a teacher."""
        self._policy.observe(pose, active, space)

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """(M,) chosen options"""
        choice = self._policy.decide(request, label, pose, space)
        here, reference = pose.viewpoint[request.episode], self._reference[request.episode]
        lost = hops_to_path(self._world, here, reference) >= self._hops
        return torch.where(lost & (label != NONE), label, choice)
