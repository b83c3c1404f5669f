"""The recurrent core of the paper's baseline: an LSTM that attends to views and words.

Shape letters: B episodes, M episodes that observe, D visual columns, H state width, L words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import dots, masked_softmax, untiled
from scenemem.models.language import Instructions, gate_order
from scenemem.models.states import Observation, State, StateUpdater
from scenemem.world.graph import (
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
class LSTMState(State):
    """The state of ``LSTMUpdater``; ``hidden`` is h~, the LSTM's output joined with what the words say."""

    cell: Tensor  # (B, H)
    word_attention: Tensor  # (B, L) the words the last update attended to

    @property
    def attention(self) -> dict[str, Tensor]:
        """The attention of the recurrent navigator over the words."""
        return {"navigator": self.word_attention}


@dataclass(frozen=True)
class LSTMWeights:
    """The updater's parameters as its arithmetic uses them.

    Orientation features repeat four numbers 32 times; a layer on them is the same layer on the four numbers
    with its columns summed. Gates stand in the order input, forget, output, candidate.
    """

    view_query: Tensor | None  # (D + 4, H); None when only the view ahead is seen
    pose: Tensor  # (36, 64) the embedding of every direction an agent can face
    lstm: Tensor  # (4H, 64 + D + 4 + H) on pose, attended view, its direction and the previous state
    bias: Tensor  # (4H,)
    word_query: Tensor  # (H, H)
    join: Tensor  # (H, 2H)


@dataclass(frozen=True)
class LSTMStep:
    """One update and all that its gradient needs."""

    query: Tensor  # (M, H) the state that attends to the views
    view_attention: Tensor  # (M, 36)
    lstm_input: Tensor  # (M, 64 + D + 4 + H)
    gates: Tensor  # (M, 4H) input, forget, output, candidate
    previous_cell: Tensor  # (M, H)
    cell: Tensor  # (M, H)
    tanh_cell: Tensor  # (M, H)
    word_query: Tensor  # (M, H)
    word_attention: Tensor  # (M, L)
    joined: Tensor  # (M, 2H) attended words, and the LSTM's output
    hidden: Tensor  # (M, H)

    @property
    def state(self) -> LSTMState:
        """The state after the update."""
        return LSTMState(self.hidden, self.cell, self.word_attention)


class PanoramaQuery(nn.Module):
    """The query of the state about all 36 views, visual and orientation features together."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.visual = nn.Linear(width, visual, bias=False)
        self.angle = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def folded(self) -> Tensor | None:
        """(D + 4, H)"""
        return torch.cat([self.visual.weight, untiled(self.angle.weight.t()).t()])


class AheadOnly(nn.Module):
    """No query: only the view ahead is seen, as by the sequence-to-sequence baseline of R2R."""

    def folded(self) -> Tensor | None:
        """None"""
        return None


class LSTMUpdater(StateUpdater):
    """h_t = LSTM([X, O_t], h_{t-1}).

    The previous state attends to the views, the LSTM reads the attended view and where the agent faces, and
    attention over the words gives the new state h~ = tanh(W [sum_l a_l x_l, h]).

    Args:
        visual: columns D of the view features.
        width: H of the state.
        view_query: how the state attends to the views: ``PanoramaQuery`` or ``AheadOnly``.
    """

    def __init__(self, visual: int, width: int, view_query: PanoramaQuery | AheadOnly) -> None:
        super().__init__()
        self.visual = visual
        self.width = width
        self.view_query = view_query
        self.pose = nn.Linear(ANGLE_WIDTH, POSE_WIDTH)
        self.lstm = nn.LSTMCell(POSE_WIDTH + visual + ANGLE_WIDTH, width)
        self.word_query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("view_angles", _view_angles(), persistent=False)
        self.register_buffer("pose_angles", _pose_angles(), persistent=False)

    view_angles: Tensor
    pose_angles: Tensor

    def mask_widths(self) -> dict[str, int]:
        """Masks on what enters the LSTM, on the query about views, and on the query about words."""
        return {
            "lstm_input": POSE_WIDTH + self.visual,
            "view_query": self.width,
            "word_query": self.width,
        }

    def initial_state(self, instructions: Instructions) -> LSTMState:
        """The summaries of the instruction."""
        return LSTMState(
            instructions.hidden, instructions.cell, torch.zeros_like(instructions.context[..., 0])
        )

    def folded_weights(self) -> LSTMWeights:
        """The parameters as ``lstm_step`` uses them; gradients flow through the folding."""
        plain, angles = self.lstm.weight_ih.split_with_sizes([POSE_WIDTH + self.visual, ANGLE_WIDTH], dim=1)
        return LSTMWeights(
            view_query=self.view_query.folded(),
            pose=torch.tanh(self.pose(self.pose_angles)),
            lstm=gate_order(torch.cat([plain, untiled(angles), self.lstm.weight_hh], dim=1)),
            bias=gate_order(self.lstm.bias_ih + self.lstm.bias_hh),
            word_query=self.word_query.weight,
            join=self.join.weight,
        )

    def relative_angles(self, view: Tensor) -> Tensor:
        """Directions of the 36 views, relative to the view faced.  view: (M,)  ->  (M, 36, 4)"""
        return self.view_angles[view % HEADINGS]

    def forward(self, state: LSTMState, observation: Observation) -> LSTMState:
        """One update."""
        weights = observation.once_per_rollout(self.folded_weights)
        return lstm_step(weights, state, observation, self.relative_angles(observation.view)).state


def lstm_step(weights: LSTMWeights, state: LSTMState, observation: Observation, angles: Tensor) -> LSTMStep:
    """Attend to the views, update the LSTM, attend to the words.  angles: (M, 36, 4)"""
    masks, words = observation.masks, observation.instructions
    query = state.hidden * masks["view_query"]
    view_attention = _view_attention(weights, query, observation, angles)
    view = torch.bmm(view_attention.unsqueeze(1), observation.panorama).squeeze(1) * masks.feature
    angle = torch.bmm(view_attention.unsqueeze(1), angles).squeeze(1)
    dropped = torch.cat([weights.pose[observation.view], view], dim=1) * masks["lstm_input"]
    lstm_input = torch.cat([dropped, angle, state.hidden], dim=1)

    sums = torch.addmm(weights.bias, lstm_input, weights.lstm.t())
    opened, candidate = sums.split_with_sizes([3 * state.hidden.shape[1], state.hidden.shape[1]], dim=1)
    gates = torch.cat([opened.sigmoid(), candidate.tanh()], dim=1)
    input_gate, forget_gate, output_gate, candidate = gates.chunk(4, dim=1)
    cell = forget_gate * state.cell + input_gate * candidate
    tanh_cell = cell.tanh()
    output = output_gate * tanh_cell * masks["word_query"]

    word_query = output @ weights.word_query.t()
    word_attention = masked_softmax(dots(words.context, word_query), words.mask)
    joined = torch.cat([torch.bmm(word_attention.unsqueeze(1), words.context).squeeze(1), output], dim=1)
    hidden = torch.tanh(joined @ weights.join.t())
    return LSTMStep(
        query=query,
        view_attention=view_attention,
        lstm_input=lstm_input,
        gates=gates,
        previous_cell=state.cell,
        cell=cell,
        tanh_cell=tanh_cell,
        word_query=word_query,
        word_attention=word_attention,
        joined=joined,
        hidden=hidden,
    )


def _view_attention(weights: LSTMWeights, query: Tensor, observation: Observation, angles: Tensor) -> Tensor:
    """query: (M, H)  angles: (M, 36, 4)  ->  (M, 36)"""
    if weights.view_query is None:
        return nn.functional.one_hot(observation.view, VIEWS).to(query.dtype)
    width = observation.panorama.shape[2]
    visual, angle = (query @ weights.view_query.t()).split_with_sizes([width, ANGLES], dim=1)
    # masking the query is masking the features, for a 36th of the work
    scores = dots(observation.panorama, visual * observation.masks.feature) + dots(angles, angle)
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
