"""The recurrent navigator (paper, Eq. 1), as in the basic agent: look around, update the state, listen.

Shape letters: B lanes, D visual columns, H state width, L words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import masked_softmax, tiled, untiled
from scenemem.models.language import Instructions
from scenemem.world.geometry import (
    ANGLE_WIDTH,
    HEADINGS,
    STEP,
    VIEWS,
    angle_feature,
    view_elevation,
    view_heading,
)

POSE_WIDTH = 64  # of the embedding of where the agent looks


@dataclass(frozen=True)
class NavigatorState:
    """What the navigator carries from hop to hop."""

    hidden: Tensor  # (B, H) the attended state h~, input to every decision
    cell: Tensor  # (B, H)


@dataclass(frozen=True)
class Noise:
    """Dropout masks drawn once per rollout, so that acting and learning see the same network.

    Each is already scaled by 1 / (1 - p); ones when nothing is dropped.
    """

    feature: Tensor  # (D,) environment dropout: one mask for all views, places and steps
    entered: Tensor  # (B, 64 + D + 128) on the input of the LSTM
    looking: Tensor  # (B, H) on the state that looks around
    listening: Tensor  # (B, H) on the state that listens
    deciding: Tensor  # (B, H) on the state that decides

    def select(self, rows: Tensor | slice) -> Noise:
        """The masks of the given lanes."""
        picked = (mask[rows] for mask in (self.entered, self.looking, self.listening, self.deciding))
        return Noise(self.feature, *picked)


@dataclass(frozen=True)
class Panorama:
    """What an agent can see from where it stands."""

    visual: Tensor  # (B, 36, D) features of all views
    angles: Tensor  # (B, 36, 4) their directions, as seen by the agent
    facing: Tensor  # (B,) the view it faces


class LookAround(nn.Module):
    """Attention of the state over the 36 views, visual and orientation features together."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_angle = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, query: Tensor, seen: Panorama, feature_mask: Tensor) -> Tensor:
        """query: (B, H)  feature_mask: (D,)  ->  (B, D + 128)"""
        # masking the query is masking the features, for a 36th of the work
        wanted = self.ask_visual(query) * feature_mask
        scores = torch.bmm(seen.visual, wanted.unsqueeze(-1)).squeeze(-1)
        scores = scores + torch.bmm(seen.angles, untiled(self.ask_angle(query)).unsqueeze(-1)).squeeze(-1)
        weights = scores.softmax(dim=-1).unsqueeze(1)
        visual = torch.bmm(weights, seen.visual).squeeze(1) * feature_mask
        return torch.cat([visual, tiled(torch.bmm(weights, seen.angles).squeeze(1))], dim=-1)


class LookAhead(nn.Module):
    """Only the view the agent faces, as the sequence-to-sequence baseline of R2R."""

    def forward(self, query: Tensor, seen: Panorama, feature_mask: Tensor) -> Tensor:
        """query: (B, H)  feature_mask: (D,)  ->  (B, D + 128)"""
        rows = torch.arange(len(query), device=query.device)
        ahead = seen.visual[rows, seen.facing] * feature_mask
        return torch.cat([ahead, tiled(seen.angles[rows, seen.facing])], dim=-1)


class Navigator(nn.Module):
    """h_t = LSTM([X, O_t], h_{t-1}).

    The previous attended state looks at the views, the LSTM reads what it saw and where the agent faces,
    and attention over the words gives the new attended state h~ = tanh(W [sum_l a_l x_l, h]).

    Args:
        visual: columns D of the view features.
        width: H of the state.
        look: how the state looks at the views: ``LookAround`` or ``LookAhead``.
    """

    def __init__(self, visual: int, width: int, look: nn.Module) -> None:
        super().__init__()
        self.visual = visual
        self.width = width
        self.look = look
        self.pose = nn.Linear(ANGLE_WIDTH, POSE_WIDTH)
        self.lstm = nn.LSTMCell(POSE_WIDTH + visual + ANGLE_WIDTH, width)
        self.listen = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("view_angles", _view_angles(), persistent=False)
        self.register_buffer("pose_angles", _pose_angles(), persistent=False)

    view_angles: Tensor
    pose_angles: Tensor

    def begin(self, instructions: Instructions) -> NavigatorState:
        """The state before the first look."""
        return NavigatorState(instructions.hidden, instructions.cell)

    def forward(
        self, state: NavigatorState, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
    ) -> NavigatorState:
        """One observation.

        panorama: (B, 36, D) visual features  view: (B,) the view the agent faces
        """
        around = Panorama(panorama, self.view_angles[view % HEADINGS], view)
        seen = self.look(state.hidden * noise.looking, around, noise.feature)
        pose = torch.tanh(self.pose(self.pose_angles[view]))
        entered = torch.cat([pose, seen], dim=-1) * noise.entered
        hidden, cell = self.lstm(entered, (state.hidden, state.cell))
        return NavigatorState(self._listen(hidden * noise.listening, instructions), cell)

    def _listen(self, hidden: Tensor, instructions: Instructions) -> Tensor:
        scores = torch.bmm(instructions.context, self.listen(hidden).unsqueeze(-1)).squeeze(-1)
        weights = masked_softmax(scores, instructions.mask).unsqueeze(1)
        heard = torch.bmm(weights, instructions.context).squeeze(1)
        return torch.tanh(self.join(torch.cat([heard, hidden], dim=-1)))


def _view_angles() -> Tensor:
    """Orientation features of the 36 views for each of the 12 steps an agent can face  ->  (12, 36, 4)"""
    views = torch.arange(VIEWS)
    relative = view_heading(views) - (torch.arange(HEADINGS) * STEP).unsqueeze(-1)
    return angle_feature(relative, view_elevation(views).expand_as(relative), width=4)


def _pose_angles() -> Tensor:
    """Orientation features of the direction an agent faces, per view  ->  (36, 128)"""
    views = torch.arange(VIEWS)
    return angle_feature(view_heading(views), view_elevation(views))
