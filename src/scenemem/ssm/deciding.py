"""Deciding (paper, section 3.3): first a frontier of the memory (Eq. 13), then a neighbour or stop (Eq. 14).

Shape letters: B episodes, R of them that decide, M decisions, N nodes, K candidate slots, D visual columns,
V and W widths of node states, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.actions import Decide
from scenemem.agents.rollout import FRONTIER
from scenemem.features.store import CandidateFeatures
from scenemem.models.navigator import dots, fold_angles
from scenemem.simulator.panorama import Pose
from scenemem.ssm.graph import MemoryActions
from scenemem.ssm.reading import Grounded
from scenemem.world.graph import ANGLE_WIDTH, NONE


class FrontierActions(MemoryActions):
    """The paper's two steps: a frontier of the memory, then one of its sub-nodes, or stop.

    The current node can always be chosen as the frontier, so that stopping is always possible.
    """

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Episodes that are nowhere bound choose a frontier; those at their frontier a sub-node or stop."""
        here, free = self.memory.here[episodes], self.target[episodes] == NONE
        self.decisions_left[episodes] -= free.long()
        options = self.frontiers(episodes).scatter(1, here.unsqueeze(1), True)
        # no request where staying is the only option
        several = (free & (options.sum(dim=1) > 1)).nonzero().squeeze(1)
        choosing = episodes[several]
        if len(choosing):
            self.target[choosing] = decide(self.node_request(FRONTIER, choosing, options[several]))
        target = self.target[episodes]
        arrived = episodes[(target == NONE) | (target == here)]
        self.target[arrived] = NONE
        return self.choose_neighbour(pose, action, arrived, decide) if len(arrived) else action

    def frontiers(self, episodes: Tensor) -> Tensor:
        """(R, N) bool, nodes with a sub-node"""
        return self.memory.subnode[episodes].any(dim=-1)


class FrontierScore(nn.Module):
    """Eq. 13 on nodes: [c^f, c^r] . w with c^f = f . W_f h^p, c^r = r . W_r h^a and w = W [h^p, h^a].

    Args:
        width: H of the two states.
        visual: width V of the visual node states.
        orientation: width W of the orientation node states.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> Tensor:
        """grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  ->  logits (M, N)"""
        return dots(self.confidences(grounded, nodes), self.mix(grounded.both))

    def confidences(self, grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> Tensor:
        """The perception-aware and the action-aware confidence of every node  ->  (M, N, 2)"""
        by_view = dots(nodes[0], self.query_visual(grounded.perception))
        by_direction = dots(nodes[1], self.query_orientation(grounded.action))
        return torch.stack([by_view, by_direction], dim=-1)


class StopOption(nn.Module):
    """The learned features of the option to stop; they are never dropped."""

    def __init__(self, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.visual = nn.Parameter(torch.zeros(visual))
        self.orientation = nn.Parameter(torch.zeros(orientation))

    def forward(self, visual: Tensor, orientation: Tensor) -> Tensor:
        """How well stopping fits the queries.  visual: (M, D)  orientation: (M, 128)  ->  (M, 1, 2)"""
        return torch.stack([visual @ self.visual, orientation @ self.orientation], dim=-1).unsqueeze(1)


class ActionScore(nn.Module):
    """Eq. 14: the form of Eq. 13 on the neighbours of here and on stopping, with weights of its own.

    Directions come as four numbers instead of 128; folding the query is exact (see ``fold_angles``).
    """

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.stop = StopOption(visual)
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def forward(self, grounded: Grounded, seen: CandidateFeatures, feature_mask: Tensor) -> Tensor:
        """grounded: (M, H)  seen: M rows  feature_mask: (D,)  ->  logits (M, K + 1), stop last"""
        return dots(self.confidences(grounded, seen, feature_mask), self.mix(grounded.both))

    def confidences(self, grounded: Grounded, seen: CandidateFeatures, feature_mask: Tensor) -> Tensor:
        """The perception-aware and the action-aware confidence of every option  ->  (M, K + 1, 2)"""
        query_visual = self.query_visual(grounded.perception)
        query_orientation = self.query_orientation(grounded.action)
        by_view = dots(seen.visual, query_visual * feature_mask)
        by_direction = dots(seen.orientation, fold_angles(query_orientation))
        candidates = torch.stack([by_view, by_direction], dim=-1)
        return torch.cat([candidates, self.stop(query_visual, query_orientation)], dim=1)
