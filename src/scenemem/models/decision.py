"""Scores of what to do next (paper, Eqs. 10, 11, 13 and 14): visual and orientation confidence, weighed.

Shape letters: M decisions, O options, H state width, V visual width, 128 orientation width; B lanes, T times,
R decisions over the whole map, N nodes, K neighbour slots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.models.attention import rotated, untiled
from scenemem.models.collect_read import Graphs, Places
from scenemem.models.grounding import Grounded
from scenemem.world.geometry import ANGLE_WIDTH


class WeighedScore(nn.Module):
    """[c^f, c^r] . w with c^f = f . W_f h^p, c^r = r . W_r h^a and w = W [h^p, h^a].

    The same form serves frontiers (Eq. 13) and sub-nodes (Eq. 14); each use has its own weights.

    Args:
        width: H of the two states.
        visual: width V of the options' visual features.
        orientation: width of the options' orientation features.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_orientation = nn.Linear(width, orientation, bias=False)
        self.weigh = nn.Linear(2 * width, 2, bias=False)

    def forward(self, perception: Tensor, action: Tensor, visual: Tensor, orientation: Tensor) -> Tensor:
        """perception, action: (M, H)  visual: (M, O, V)  orientation: (M, O, 128)  ->  logits (M, O)"""
        return torch.bmm(
            self.confidences(perception, action, visual, orientation),
            self.weigh(torch.cat([perception, action], dim=-1)).unsqueeze(-1),
        ).squeeze(-1)

    def confidences(self, perception: Tensor, action: Tensor, visual: Tensor, orientation: Tensor) -> Tensor:
        """The perception-aware and the action-aware confidence of every option  ->  (M, O, 2)"""
        by_sight = torch.bmm(visual, self.ask_visual(perception).unsqueeze(-1))
        by_direction = torch.bmm(orientation, self.ask_orientation(action).unsqueeze(-1))
        return torch.cat([by_sight, by_direction], dim=-1)


class OneStepScore(nn.Module):
    """All sub-nodes of the map at once (Eqs. 10, 11).

    q^f = [f_{v,k}, f^_v] . W_f h^p and q^r = [r_{v,k}, r^_v] . W_r h^a: how the sub-node itself looks, and
    what its parent node was read as. Both halves of each W are separate layers here.
    """

    def __init__(self, width: int, visual: int, stream: int) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.ask_node_visual = nn.Linear(width, stream, bias=False)
        self.ask_node_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.weigh = nn.Linear(2 * width, 2, bias=False)
        self.stop = StopOption(visual)

    def forward(
        self,
        grounded: Grounded,
        places: Places,
        nodes: tuple[Tensor, Tensor],
        heading: Tensor,
        feature_mask: Tensor,
        graphs: Graphs,
    ) -> Tensor:
        """Logits of slot k of node n at n * K + k, stop last.

        grounded: (B, T, H)  nodes: visual (R, N, V), orientation (R, N, 128)  heading: (B, T)
        ->  (R, N * K + 1)
        """
        where = (graphs.lane, graphs.tick)
        perception, action = grounded.perception[where], grounded.action[where]
        by_sight = self._sight(grounded.perception, places, feature_mask)[where]  # (R, N, K)
        by_direction = self._direction(grounded.action, places, heading)[where]
        by_sight = by_sight + torch.bmm(nodes[0], self.ask_node_visual(perception).unsqueeze(-1))
        by_direction = by_direction + torch.bmm(nodes[1], self.ask_node_orientation(action).unsqueeze(-1))
        stop = torch.stack(
            [
                self.ask_visual(perception) @ self.stop.visual,
                self.ask_orientation(action) @ self.stop.orientation,
            ],
            dim=-1,
        )
        confidence = torch.stack([by_sight.flatten(1), by_direction.flatten(1)], dim=-1)
        confidence = torch.cat([confidence, stop.unsqueeze(1)], dim=1)
        weight = self.weigh(torch.cat([perception, action], dim=-1)).unsqueeze(-1)
        return torch.bmm(confidence, weight).squeeze(-1)

    def _sight(self, perception: Tensor, places: Places, feature_mask: Tensor) -> Tensor:
        """Every view is scored once and looked up per slot  ->  (B, T, N, K)"""
        lanes, nodes, views, _ = places.panoramas.shape
        wanted = self.ask_visual(perception) * feature_mask
        scores = torch.bmm(wanted, places.panoramas.flatten(1, 2).transpose(1, 2))
        scores = scores.view(lanes, -1, nodes, views)
        slots = places.views.unsqueeze(1).expand(-1, scores.shape[1], -1, -1)
        return scores.gather(3, slots)

    def _direction(self, action: Tensor, places: Places, heading: Tensor) -> Tensor:
        """->  (B, T, N, K)"""
        wanted = rotated(untiled(self.ask_orientation(action)), -heading)
        scores = torch.bmm(wanted, places.directions.flatten(1, 2).transpose(1, 2))
        return scores.view(*scores.shape[:2], *places.exists.shape[1:])


class StopOption(nn.Module):
    """The learned features of the option to stop, appended to the options of every decision."""

    def __init__(self, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.visual = nn.Parameter(torch.zeros(visual))
        self.orientation = nn.Parameter(torch.zeros(orientation))

    def forward(self, visual: Tensor, orientation: Tensor) -> tuple[Tensor, Tensor]:
        """visual: (M, O, V)  orientation: (M, O, 128)  ->  the same with one more option at the end"""
        decisions = len(visual)
        return (
            torch.cat([visual, self.visual.expand(decisions, 1, -1)], dim=1),
            torch.cat([orientation, self.orientation.expand(decisions, 1, -1)], dim=1),
        )


class Critic(nn.Module):
    """What an agent still expects to earn: V(h) = W_2 relu(W_1 h)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> Tensor:
        """state: (..., H)  ->  (...)"""
        value: Tensor = self.layers(state)
        return value.squeeze(-1)
