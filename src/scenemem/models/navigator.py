"""The recurrent navigator of the paper's baseline: words, views, a state, and a score of the neighbours.

An instruction is encoded once, ``LSTMUpdater`` carries a state from observation to observation (Eq. 1), and
``CandidateScore`` scores the neighbours of here (Eq. 2). Shape letters: B instructions or episodes, M
episodes that observe, L words of the longest text, D visual columns, H state width, K candidate slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import Self

from scenemem.features.store import Environment
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

_SHIFT = 37  # columns a dropout mask is shifted by from word to word; a prime

_KEPT = 2**24
"""Numbers that a part of a step may keep for the gradient; larger parts are computed again instead.

At the width of the paper the panoramas and node states of a rollout would take gigabytes.
"""

_CACHED = 2**19
"""Numbers that are looked up together where a whole table would be read from memory twice."""

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound="Instructions | State")


def recomputed(function: Callable[..., T], *inputs: Any, numbers: int) -> T:
    """``function(*inputs)``; when it holds many ``numbers``, they are not kept for the gradient."""
    if numbers <= _KEPT or not torch.is_grad_enabled():
        return function(*inputs)
    result: T = checkpoint(function, *inputs, use_reentrant=False)
    return result


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension; masked entries get 0, a row without any entry is all 0.

    scores: (..., n)  mask: (..., n) bool, broadcast  ->  (..., n)
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


def dots(rows: Tensor, query: Tensor) -> Tensor:
    """<row, query> of all rows; three times as fast on a CPU as the product the other way round.

    rows: (M, n, W)  query: (M, W)  ->  (M, n)
    """
    return torch.bmm(query.unsqueeze(1), rows.transpose(1, 2)).squeeze(1)


def attend_panoramas(query: Tensor, viewpoint: Tensor, environment: Environment) -> Tensor:
    """sum_k softmax_k(<f_k, q>) f_k, over the 36 views f_k of a viewpoint.

    query: (M, D)  viewpoint: (M,)  ->  (M, D)
    """

    def attended(query: Tensor, viewpoint: Tensor) -> Tensor:
        views = environment.panorama(viewpoint)
        return torch.bmm(dots(views, query).softmax(dim=-1).unsqueeze(1), views).squeeze(1)

    # as many at a time as fit into the cache of a processor
    some = max(16, _CACHED // (VIEWS * query.shape[1]))
    parts = zip(torch.split(query, some), torch.split(viewpoint, some), strict=True)
    numbers = len(query) * VIEWS * query.shape[1]
    return torch.cat([recomputed(attended, *part, numbers=numbers) for part in parts])


def tiled(orientation: Tensor, width: int = ANGLE_WIDTH) -> Tensor:
    """Four sines and cosines, repeated.  (..., 4)  ->  (..., width)"""
    return orientation.repeat(*[1] * (orientation.dim() - 1), width // 4)


def fold_angles(query: Tensor) -> Tensor:
    """Fold a query for tiled orientation features, so that <tiled r, query> = <r, folded query> exactly.

    query: (..., W), W a multiple of 4  ->  (..., 4)
    """
    return query.view(*query.shape[:-1], query.shape[-1] // 4, 4).sum(dim=-2)


def select_rows(record: RecordT, rows: Tensor) -> RecordT:
    """Some rows of a dataclass of tensors.  rows: (M,)"""
    tables = (getattr(record, item.name) for item in fields(record))
    return type(record)(*(table.index_select(0, rows) for table in tables))


@dataclass(frozen=True)
class Instructions:
    """Encoded instructions; B of them, L words in the longest, H wide."""

    context: Tensor  # (B, L, H) the textual embeddings X = {x_l}
    mask: Tensor  # (B, L) bool, true at words
    hidden: Tensor  # (B, H) summary of the words, the first hidden state of an agent
    cell: Tensor  # (B, H) summary of the ends of the text, the first cell state of an LSTM
    tokens: Tensor  # (B, L) numbers of the words, 0 at padding

    @classmethod
    def joined(cls, parts: Sequence[Instructions]) -> Instructions:
        """Several batches as one, padded to the longest text of all."""
        if len(parts) == 1:
            return parts[0]
        words = max(part.mask.shape[1] for part in parts)

        def padded(table: Tensor, width: int) -> Tensor:
            return nn.functional.pad(table, (0, 0) * (table.dim() - 2) + (0, words - width))

        return cls(
            torch.cat([padded(part.context, part.mask.shape[1]) for part in parts]),
            torch.cat([padded(part.mask, part.mask.shape[1]) for part in parts]),
            torch.cat([part.hidden for part in parts]),
            torch.cat([part.cell for part in parts]),
            torch.cat([padded(part.tokens, part.mask.shape[1]) for part in parts]),
        )

    def repeat(self, times: int) -> Self:
        """All instructions, ``times`` times over."""
        tables = (getattr(self, item.name) for item in fields(self))
        return type(self)(*(torch.cat([table] * times) for table in tables))

    def attend(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of every row over the words of its instruction.

        query: (B, H), or (B, Q, H) for several  ->  sum_l a_l x_l of the same shape, the weights a (..., L)
        """
        queries = query if query.dim() == 3 else query.unsqueeze(1)
        scores = torch.bmm(queries, self.context.transpose(1, 2))
        weights = masked_softmax(scores, self.mask.unsqueeze(1))
        values = torch.bmm(weights, self.context)
        return (values, weights) if query.dim() == 3 else (values.squeeze(1), weights.squeeze(1))


class InstructionEncoder(nn.Module):
    """Words -> X, and the first state of an agent: h_0 = tanh(W max_l x_l), c_0 = W [ends of X].

    The backward LSTM reads every instruction reversed within its own length, so padding always comes last and
    touches nothing.

    Args:
        words: size of the vocabulary.
        word_width: width of the word embeddings.
        width: width H of the encoding, both directions together.
        dropout: share of the encoding dropped in training; words themselves are not, which slows learning.
        padding: token number of the padding word.
    """

    def __init__(self, words: int, word_width: int, width: int, dropout: float, padding: int) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Embedding(words, word_width, padding_idx=padding)
        self.forward_lstm = nn.LSTM(word_width, width // 2, batch_first=True)
        self.backward_lstm = nn.LSTM(word_width, width // 2, batch_first=True)
        self.initial_hidden = nn.Linear(width, width)
        self.initial_cell = nn.Linear(width, width)

    @torch.no_grad()
    def initialise_words(self, words: Tensor, vectors: Tensor) -> None:
        """Start the embeddings of some words from word vectors.

        words: (n,) token numbers  vectors: (n, <= word_width), further columns stay as they are
        """
        self.embedding.weight[words, : vectors.shape[1]] = vectors.to(self.embedding.weight)

    def dropout_mask(self, texts: int) -> Tensor:
        """Dropout mask for the encoding of a batch of texts; ones in evaluation mode  ->  (B, H)"""
        ones = self.embedding.weight.new_ones(texts, self.initial_hidden.in_features)
        return nn.functional.dropout(ones, self.dropout, self.training)

    def forward(self, tokens: Tensor, lengths: Tensor, dropout: Tensor | None = None) -> Instructions:
        """tokens: (B, L) int64  lengths: (B,) int64  dropout: (B, H) mask; nothing is dropped without it"""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        length = lengths.to(tokens.device).unsqueeze(-1)
        mask = place < length
        reversed_ = torch.where(mask, length - 1 - place, place)
        ahead, _ = self.forward_lstm(self.embedding(tokens))
        back, _ = self.backward_lstm(self.embedding(tokens.gather(1, reversed_)))
        context = torch.cat([ahead, back.gather(1, reversed_.unsqueeze(-1).expand_as(back))], dim=-1)
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        row = torch.arange(len(tokens), device=tokens.device)
        last = length.squeeze(-1) - 1
        ends = torch.cat([ahead[row, last], back[row, last]], dim=-1)
        return Instructions(
            context=context if dropout is None else context * _mask_per_word(dropout, tokens.shape[1]),
            mask=mask,
            hidden=torch.tanh(self.initial_hidden(strongest)),
            cell=self.initial_cell(ends),
            tokens=tokens,
        )


def _mask_per_word(mask: Tensor, words: int) -> Tensor:
    """Another mask for every word from one per text: the mask, shifted a prime number of columns further.

    A fraction of the random numbers, and words near each other lose different columns.

    mask: (B, H)  ->  (B, L, H)
    """
    width = mask.shape[1]
    rounds = 1 + -(-(words - 1) * _SHIFT // width)
    return mask.repeat(1, rounds).unfold(1, width, _SHIFT)[:, :words]


@dataclass(frozen=True)
class State:
    """What an agent carries from observation to observation: tensors with one row per episode.

    Subclasses add fields; all of them are selected, remembered and restored row by row.
    """

    hidden: Tensor  # (B, H) queries everything an agent decides on

    def select(self, rows: Tensor) -> Self:
        """The states of the given rows.  rows: (M,)"""
        return select_rows(self, rows)

    def with_rows(self, rows: Tensor, new: Self) -> Self:
        """These states with some rows replaced.  rows: (M,)  new: M states"""
        return type(self)(
            *(getattr(self, item.name).index_copy(0, rows, getattr(new, item.name)) for item in fields(self))
        )

    @property
    def attention(self) -> dict[str, Tensor]:
        """What the last update attended to, for viewers: name -> (B, L) weights of the words."""
        return {}


@dataclass(frozen=True)
class LSTMState(State):
    """The state of ``LSTMUpdater``; ``hidden`` is h~, the LSTM's output joined with the attended words."""

    cell: Tensor  # (B, H)
    word_attention: Tensor  # (B, L) the words the last update attended to

    @property
    def attention(self) -> dict[str, Tensor]:
        """The attention of the recurrent navigator over the words."""
        return {"navigator": self.word_attention}


@dataclass(frozen=True)
class DropoutMasks:
    """Dropout masks drawn once per rollout: an episode is walked by one network.

    Each is already scaled by 1 / (1 - p); ones when nothing is dropped. Angles are never dropped.
    """

    feature: Tensor  # (D,) environment dropout: one mask for all views, viewpoints and steps
    rows: Mapping[str, Tensor]  # name -> (B, W), one mask per episode for all its steps

    def __getitem__(self, name: str) -> Tensor:
        """(B, W) the masks of that name"""
        return self.rows[name]

    def select(self, episodes: Tensor) -> DropoutMasks:
        """The masks of the given episodes."""
        return DropoutMasks(
            self.feature, {name: mask.index_select(0, episodes) for name, mask in self.rows.items()}
        )


@dataclass(eq=False)
class RolloutInputs:
    """What a rollout begins with: a world to see, instructions and dropout masks of B episodes."""

    environment: Environment  # what can be seen
    instructions: Instructions  # one per episode
    masks: DropoutMasks
    selected: tuple[Tensor, Instructions, DropoutMasks] | None = field(default=None, init=False)
    """the last observing episodes that were not all, their instructions and masks"""
    _cache: dict[Any, Tensor] = field(default_factory=dict, init=False)

    def cached(self, compute: Callable[[Instructions], Tensor]) -> Tensor:
        """What ``compute`` gives for all instructions, computed once per rollout."""
        if compute not in self._cache:
            self._cache[compute] = compute(self.instructions)
        return self._cache[compute]


@dataclass(frozen=True, eq=False)
class Observation:
    """What M agents see where they have arrived."""

    inputs: RolloutInputs
    episode: Tensor  # (M,) rows of the rollout
    viewpoint: Tensor  # (M,) where the agents stand
    previous: Tensor  # (M,) where they stood one step before; -1 at the start
    view: Tensor  # (M,) the view they face
    instructions: Instructions  # of these episodes
    masks: DropoutMasks  # of these episodes

    @classmethod
    def of(
        cls, inputs: RolloutInputs, episode: Tensor, viewpoint: Tensor, previous: Tensor, view: Tensor
    ) -> Self:
        """Of some episodes, in rising order, (M,) each.

        Indices are told apart by identity: comparing them would wait for the device.
        """
        instructions, masks = inputs.instructions, inputs.masks
        if len(episode) < len(instructions.hidden):
            if inputs.selected is None or inputs.selected[0] is not episode:
                inputs.selected = episode, select_rows(instructions, episode), masks.select(episode)
            _, instructions, masks = inputs.selected
        return cls(inputs, episode, viewpoint, previous, view, instructions, masks)

    @property
    def environment(self) -> Environment:
        """Where they are."""
        return self.inputs.environment

    @property
    def panorama(self) -> Tensor:
        """(M, 36, D) visual features of all views, looked up at every access"""
        return self.inputs.environment.panorama(self.viewpoint)

    def per_instruction(self, compute: Callable[[Instructions], Tensor]) -> Tensor:
        """What ``compute`` gives for instructions, computed once per rollout  ->  M rows of it"""
        return self.inputs.cached(compute).index_select(0, self.episode)


class StateUpdater(nn.Module, ABC):
    """How a state begins and how an observation changes it; subclass it for another recurrent core."""

    width: int
    """H of the states."""

    def mask_widths(self) -> dict[str, int]:
        """Name and width of the dropout masks an update needs, one row per episode."""
        return {}

    @abstractmethod
    def initial_state(self, instructions: Instructions) -> State:
        """The states before the first observation."""

    @abstractmethod
    def forward(self, state: Any, observation: Observation) -> State:
        """The states after an observation."""


class PanoramaQuery(nn.Module):
    """How the state attends to all 36 views, by visual and orientation features together."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.visual = nn.Linear(width, visual, bias=False)
        self.angle = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, state: Tensor, feature_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The query about views, and that about directions.  (M, H), (D,)  ->  (M, D), (M, 4)"""
        return self.visual(state) * feature_mask, fold_angles(self.angle(state))


class LSTMUpdater(StateUpdater):
    """h_t = LSTM([X, O_t], h_{t-1}) (Eq. 1).

    The previous state attends to the views, the LSTM reads the attended view and where the agent faces, and
    attention over the words gives the new state h~ = tanh(W [sum_l a_l x_l, h]).

    Args:
        visual: columns D of the view features.
        width: H of the state.
        view_query: how the state attends to the views; without it only the view ahead is seen, as by the
            sequence-to-sequence baseline of R2R.
    """

    def __init__(self, visual: int, width: int, view_query: PanoramaQuery | None) -> None:
        super().__init__()
        self.visual = visual
        self.width = width
        self.view_query = view_query
        self.pose = nn.Linear(ANGLE_WIDTH, POSE_WIDTH)
        self.lstm = nn.LSTMCell(POSE_WIDTH + visual + ANGLE_WIDTH, width)
        self.word_query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        views = torch.arange(VIEWS)
        relative = view_heading(views) - (torch.arange(HEADINGS) * STEP).unsqueeze(-1)
        elevation = view_elevation(views)
        # (12, 36, 4) directions of the views for each step an agent can face; (36, 128) where it looks
        angles = angle_feature(relative, elevation.expand_as(relative), width=4)
        self.register_buffer("view_angles", angles, persistent=False)
        self.register_buffer("pose_angles", angle_feature(view_heading(views), elevation), persistent=False)

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

    def forward(self, state: LSTMState, observation: Observation) -> LSTMState:
        """Attend to the views, update the LSTM, attend to the words."""
        masks = observation.masks.rows
        seen = partial(self.seen, observation=observation)
        numbers = len(state.hidden) * VIEWS * self.visual
        view, angle = recomputed(seen, state.hidden * masks["view_query"], numbers=numbers)
        pose = torch.tanh(self.pose(self.pose_angles))[observation.view]
        entered = torch.cat([pose, view * observation.masks.feature], dim=1) * masks["lstm_input"]
        output, cell = self.lstm(torch.cat([entered, tiled(angle)], dim=1), (state.hidden, state.cell))
        output = output * masks["word_query"]
        words, attention = observation.instructions.attend(self.word_query(output))
        hidden = torch.tanh(self.join(torch.cat([words, output], dim=1)))
        return LSTMState(hidden, cell, attention)

    def seen(self, state: Tensor, observation: Observation) -> tuple[Tensor, Tensor]:
        """The view attended to, and its direction relative to that faced.  (M, H)  ->  (M, D), (M, 4)"""
        panorama = observation.inputs.environment.panorama(observation.viewpoint)
        angles = self.view_angles[observation.view % HEADINGS]
        if self.view_query is None:
            row = torch.arange(len(state), device=state.device)
            return panorama[row, observation.view], angles[row, observation.view]
        visual, angle = self.view_query(state, observation.masks.feature)
        weights = (dots(panorama, visual) + dots(angles, angle)).softmax(dim=-1).unsqueeze(1)
        return torch.bmm(weights, panorama).squeeze(1), torch.bmm(weights, angles).squeeze(1)


class CandidateScore(nn.Module):
    """p(o_k) = softmax_k(o_k^T W h) over the candidates of here (Eq. 2); the stop option is a zero row."""

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, state: Tensor, visual: Tensor, orientation: Tensor, feature_mask: Tensor) -> Tensor:
        """state: (M, H)  visual: (M, K, D)  orientation: (M, K, 4)  ->  logits (M, K + 1), stop last"""
        by_view = dots(visual, self.query_visual(state) * feature_mask)
        by_direction = dots(orientation, fold_angles(self.query_orientation(state)))
        return nn.functional.pad(by_view + by_direction, (0, 1))


class Critic(nn.Module):
    """What an agent still expects to earn: V(h) = W_2 relu(W_1 h)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> Tensor:
        """state: (..., H)  ->  (...)"""
        value: Tensor = self.layers(state)
        return value.squeeze(-1)
