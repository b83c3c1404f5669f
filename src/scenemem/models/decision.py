"""Scores of what to do next (paper, Eqs. 10, 11, 13 and 14): visual and orientation confidence, weighed.

Shape letters: M decisions, O options, H state width, V visual width, 128 orientation width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.world.geometry import ANGLE_WIDTH


class WeighedScore(nn.Module):
    """[c^f, c^r] . w with c^f = f . W_f h^p, c^r = r . W_r h^a and w = W [h^p, h^a].

    The same form serves frontiers (Eq. 13), sub-nodes (Eq. 14) and the one-step variant (Eqs. 10, 11);
    each use has its own weights.

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
