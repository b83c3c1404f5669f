"""The recurrent navigator (paper, Eq. 1), as in the basic agent: look around, update the state, listen.

Shape letters: B lanes, D visual columns, H state width, L words. ``unrolling`` runs it over whole walks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import dots, masked_softmax, untiled
from scenemem.models.language import Instructions
from scenemem.models.recurrence import gate_order
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
ANGLES = 4  # different numbers in an orientation feature


@dataclass(frozen=True)
class NavigatorState:
    """What the navigator carries from hop to hop."""

    hidden: Tensor  # (B, H) the attended state h~, input to every decision
    cell: Tensor  # (B, H)


@dataclass(frozen=True)
class Noise:
    """Dropout masks drawn once per rollout, so that acting and learning see the same network.

    Each is already scaled by 1 / (1 - p); ones when nothing is dropped. Angles are never dropped.
    """

    feature: Tensor  # (D,) environment dropout: one mask for all views, places and steps
    entered: Tensor  # (B, 64 + D) on the pose and the view that enter the LSTM
    looking: Tensor  # (B, H) on the state that looks around
    listening: Tensor  # (B, H) on the state that listens
    deciding: Tensor  # (B, H) on the state that decides

    def select(self, rows: Tensor) -> Noise:
        """The masks of the given lanes."""
        picked = (
            mask.index_select(0, rows) for mask in (self.entered, self.looking, self.listening, self.deciding)
        )
        return Noise(self.feature, *picked)


@dataclass(frozen=True)
class Panorama:
    """What an agent can see from where it stands."""

    visual: Tensor  # (B, 36, D) features of all views
    angles: Tensor  # (B, 36, 4) their directions, as seen by the agent
    facing: Tensor  # (B,) the view it faces


@dataclass(frozen=True)
class NavigatorWeights:
    """The navigator's parameters as its arithmetic uses them.

    Orientation features repeat four numbers 32 times; a layer on them is the same layer on the four numbers
    with its columns summed. Gates stand in the order input, forget, output, candidate.
    """

    ask: Tensor | None  # (D + 4, H) what the state looks for; None when it only looks ahead
    pose: Tensor  # (36, 64) the embedding of every direction an agent can face
    enter: Tensor  # (4H, 64 + D + 4 + H) the LSTM on pose, view, direction and previous state
    bias: Tensor  # (4H,)
    listen: Tensor  # (H, H)
    join: Tensor  # (H, 2H)


@dataclass(frozen=True)
class Step:
    """One observation and all that its gradient needs."""

    query: Tensor  # (B, H) the state that looked
    looked: Tensor  # (B, 36) attention over the views
    entered: Tensor  # (B, 64 + D + 4 + H) what entered the LSTM
    gates: Tensor  # (B, 4H) input, forget, output, candidate
    before: Tensor  # (B, H) the cell before
    cell: Tensor  # (B, H)
    squashed: Tensor  # (B, H) tanh of the cell
    asked: Tensor  # (B, H) what was listened for
    heard: Tensor  # (B, L) attention over the words
    joined: Tensor  # (B, 2H) what was heard, and the state that listened
    hidden: Tensor  # (B, H)


class LookAround(nn.Module):
    """Attention of the state over the 36 views, visual and orientation features together."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_angle = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def query(self) -> Tensor | None:
        """(D + 4, H)"""
        return torch.cat([self.ask_visual.weight, untiled(self.ask_angle.weight.t()).t()])


class LookAhead(nn.Module):
    """Only the view the agent faces, as the sequence-to-sequence baseline of R2R."""

    def query(self) -> Tensor | None:
        """Nothing is looked for."""
        return None


class Navigator(nn.Module):
    """h_t = LSTM([X, O_t], h_{t-1}).

    The previous attended state looks at the views, the LSTM reads what it saw and where the agent faces,
    and attention over the words gives the new attended state h~ = tanh(W [sum_l a_l x_l, h]).

    Args:
        visual: columns D of the view features.
        width: H of the state.
        look: how the state looks at the views: ``LookAround`` or ``LookAhead``.
    """

    def __init__(self, visual: int, width: int, look: LookAround | LookAhead) -> None:
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

    def weights(self) -> NavigatorWeights:
        """The parameters, folded; gradients flow through the folding."""
        plain, angles = self.lstm.weight_ih.split_with_sizes([POSE_WIDTH + self.visual, ANGLE_WIDTH], dim=1)
        return NavigatorWeights(
            ask=self.look.query(),
            pose=torch.tanh(self.pose(self.pose_angles)),
            enter=gate_order(torch.cat([plain, untiled(angles), self.lstm.weight_hh], dim=1)),
            bias=gate_order(self.lstm.bias_ih + self.lstm.bias_hh),
            listen=self.listen.weight,
            join=self.join.weight,
        )

    def around(self, panorama: Tensor, view: Tensor) -> Panorama:
        """panorama: (B, 36, D) visual features  view: (B,) the view the agent faces"""
        return Panorama(panorama, self.view_angles[view % HEADINGS], view)

    def forward(
        self, state: NavigatorState, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
    ) -> NavigatorState:
        """One observation.

        panorama: (B, 36, D) visual features  view: (B,) the view the agent faces
        """
        step = observe(self.weights(), state, self.around(panorama, view), instructions, noise)
        return NavigatorState(step.hidden, step.cell)


def observe(
    weights: NavigatorWeights, state: NavigatorState, seen: Panorama, words: Instructions, noise: Noise
) -> Step:
    """Look around, update the state, listen."""
    query = state.hidden * noise.looking
    looked = _attention_over_views(weights, query, seen, noise.feature)
    view = torch.bmm(looked.unsqueeze(1), seen.visual).squeeze(1) * noise.feature
    angle = torch.bmm(looked.unsqueeze(1), seen.angles).squeeze(1)
    dropped = torch.cat([weights.pose[seen.facing], view], dim=1) * noise.entered
    entered = torch.cat([dropped, angle, state.hidden], dim=1)

    sums = torch.addmm(weights.bias, entered, weights.enter.t())
    opened, candidate = sums.split_with_sizes([3 * state.hidden.shape[1], state.hidden.shape[1]], dim=1)
    gates = torch.cat([opened.sigmoid(), candidate.tanh()], dim=1)
    let_in, keep, let_out, candidate = gates.chunk(4, dim=1)
    cell = keep * state.cell + let_in * candidate
    squashed = cell.tanh()
    listening = let_out * squashed * noise.listening

    asked = listening @ weights.listen.t()
    heard = masked_softmax(dots(words.context, asked), words.mask)
    joined = torch.cat([torch.bmm(heard.unsqueeze(1), words.context).squeeze(1), listening], dim=1)
    hidden = torch.tanh(joined @ weights.join.t())
    return Step(query, looked, entered, gates, state.cell, cell, squashed, asked, heard, joined, hidden)


def _attention_over_views(
    weights: NavigatorWeights, query: Tensor, seen: Panorama, feature_mask: Tensor
) -> Tensor:
    """query: (B, H)  ->  (B, 36)"""
    if weights.ask is None:
        return nn.functional.one_hot(seen.facing, VIEWS).to(query.dtype)
    wanted, direction = (query @ weights.ask.t()).split_with_sizes([seen.visual.shape[2], ANGLES], dim=1)
    # masking the query is masking the features, for a 36th of the work
    scores = dots(seen.visual, wanted * feature_mask) + dots(seen.angles, direction)
    return scores.softmax(dim=-1)


def _view_angles() -> Tensor:
    """Orientation features of the 36 views for each of the 12 steps an agent can face  ->  (12, 36, 4)"""
    views = torch.arange(VIEWS)
    relative = view_heading(views) - (torch.arange(HEADINGS) * STEP).unsqueeze(-1)
    return angle_feature(relative, view_elevation(views).expand_as(relative), width=4)


def _pose_angles() -> Tensor:
    """Orientation features of the direction an agent faces, per view  ->  (36, 128)"""
    views = torch.arange(VIEWS)
    return angle_feature(view_heading(views), view_elevation(views))
