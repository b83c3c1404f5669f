"""Language: the instruction encoder, attention over its words, and textual grounding (paper, Eqs. 5 and 6).

Shape letters: B instructions or episodes, T steps, L words of the longest text, H width; X rows that read
them, Q queries per row; D LSTMs side by side, W width of one LSTM, U different words of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from scenemem.models.attention import masked_softmax

_SHIFT = 37  # columns a dropout mask is shifted by from word to word; a prime


@dataclass(frozen=True)
class Instructions:
    """Encoded instructions; B of them, L words in the longest, H wide."""

    context: Tensor  # (B, L, H) the textual embeddings X = {x_l}
    mask: Tensor  # (B, L) bool, true at words
    hidden: Tensor  # (B, H) summary of the words, the first hidden state of an agent
    cell: Tensor  # (B, H) summary of the ends of the text, the first cell state of an LSTM

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
        )

    def repeat(self, times: int) -> Instructions:
        """All instructions, ``times`` times over."""
        return Instructions(
            self.context.repeat(times, 1, 1),
            self.mask.repeat(times, 1),
            self.hidden.repeat(times, 1),
            self.cell.repeat(times, 1),
        )


@dataclass(frozen=True, eq=False)
class Packing:
    """Rows of a batch of walks without gaps: the episode and the step of every row.

    Layers work on rows, so nothing is computed for walks that are over; what compares all rows of an episode
    at once needs a table with a line per episode.
    """

    episode: Tensor  # (X,)
    step: Tensor  # (X,)
    episodes: int  # B
    steps: int  # T

    @cached_property
    def position(self) -> Tensor:
        """(X,) where each row stands in the flattened table"""
        return self.episode * self.steps + self.step

    def table(self, rows: Tensor) -> Tensor:
        """(X, W)  ->  (B, T, W), 0 where there is no row"""
        empty = rows.new_zeros(self.episodes * self.steps, rows.shape[1])
        return empty.index_copy(0, self.position, rows).view(self.episodes, self.steps, -1)

    def rows(self, table: Tensor) -> Tensor:
        """(B, T, W)  ->  (X, W)"""
        return embedding(self.position, table.flatten(0, 1))


@dataclass(frozen=True, eq=False)
class OneEach(Packing):
    """Rows of different episodes: each is alone in its line of a table, so that a table is a view of them."""

    @classmethod
    def of(cls, rows: Tensor) -> OneEach:
        """As many as there are ``rows`` (X, ...)."""
        number = torch.arange(len(rows), device=rows.device)
        return cls(number, torch.zeros_like(number), len(number), 1)

    def table(self, rows: Tensor) -> Tensor:
        """(X, W)  ->  (X, 1, W)"""
        return rows.unsqueeze(1)

    def rows(self, table: Tensor) -> Tensor:
        """(X, 1, W)  ->  (X, W)"""
        return table.squeeze(1)


@dataclass(frozen=True, eq=False)
class PackedInstructions:
    """The instructions of a batch, read by rows that belong to its episodes."""

    lookup: Callable[[], Instructions]  # gives ``instructions`` when they are first read
    packing: Packing  # the episode of each of the X rows

    @cached_property
    def instructions(self) -> Instructions:
        """One per episode."""
        return self.lookup()

    def attend(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of every row over the words of its instruction.

        query: (X, H)  ->  sum_l a_l x_l (X, H), the weights a (X, L)
        """
        values, weights = self.attend_many(query)
        return values, self.packing.rows(weights)

    def attend_many(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Several queries per row at once, because reading the words is what an attention waits for.

        queries: (X, Q * H)  ->  (X, Q * H), the weights as a table (B, T * Q, L)
        """
        context, packing = self.instructions.context, self.packing
        table = packing.table(queries).view(packing.episodes, -1, context.shape[2])
        scores = torch.bmm(table, context.transpose(1, 2))
        weights = masked_softmax(scores, self.instructions.mask.unsqueeze(1))
        values = torch.bmm(weights, context).view(packing.episodes, packing.steps, -1)
        return packing.rows(values), weights


class InstructionEncoder(nn.Module):
    """Words -> X, and the first state of an agent: h_0 = tanh(W max_l x_l), c_0 = W [ends of X].

    Both directions run side by side over the padded batch, the backward one over every instruction reversed
    within its own length, so padding always comes last and touches nothing. What a word brings into the
    gates is computed once for every different word of the batch.

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
        states = self._both_ways(tokens, reversed_)
        context = _rearranged(states, place.expand_as(reversed_), reversed_)
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        ends = _rearranged(states, length - 1, length - 1).squeeze(1)
        return Instructions(
            context=context if dropout is None else context * _mask_per_word(dropout, tokens.shape[1]),
            mask=mask,
            hidden=torch.tanh(self.initial_hidden(strongest)),
            cell=self.initial_cell(ends),
        )

    def _both_ways(self, tokens: Tensor, reversed_: Tensor) -> Tensor:
        """The states over the words and over the reversed words.

        tokens, reversed_: (B, L)  ->  (2, L, B, H / 2)
        """
        lstms = (self.forward_lstm, self.backward_lstm)
        different, word = torch.unique(tokens, return_inverse=True)
        entered = self.embedding(different)
        index = torch.stack([word.t(), word.gather(1, reversed_).t() + len(different)])
        recurrent = torch.stack([gate_order(lstm.get_parameter("weight_hh_l0")) for lstm in lstms])
        return run_lstms(torch.cat([_gates(lstm, entered) for lstm in lstms]), index, recurrent)


def _mask_per_word(mask: Tensor, words: int) -> Tensor:
    """Another mask for every word from one per text: the mask, shifted a prime number of columns further.

    A fraction of the random numbers, and words near each other lose different columns.

    mask: (B, H)  ->  (B, L, H)
    """
    width = mask.shape[1]
    rounds = 1 + -(-(words - 1) * _SHIFT // width)
    return mask.repeat(1, rounds).unfold(1, width, _SHIFT)[:, :words]


def _gates(lstm: nn.LSTM, entered: Tensor) -> Tensor:
    """What the inputs bring into the gates.  entered: (U, W)  ->  (U, 2H)"""
    bias = lstm.get_parameter("bias_ih_l0") + lstm.get_parameter("bias_hh_l0")
    return torch.addmm(gate_order(bias), entered, gate_order(lstm.get_parameter("weight_ih_l0")).t())


def _rearranged(states: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
    """The states of both directions side by side, each at places of its own.

    states: (2, L, B, W)  ahead, back: (B, P)  ->  (B, P, 2W)
    """
    _, words, texts, width = states.shape
    text = torch.arange(texts, device=states.device).unsqueeze(1)
    row = torch.stack([ahead * texts + text, (words + back) * texts + text], dim=-1)
    return embedding(row, states.view(-1, width)).flatten(2)


def gate_order(rows: Tensor) -> Tensor:
    """From the order of ``nn.LSTM`` to input, forget, output, candidate.  (4W, ...)  ->  (4W, ...)"""
    input_gate, forget_gate, candidate, output_gate = rows.chunk(4)
    return torch.cat([input_gate, forget_gate, output_gate, candidate])


def run_lstms(gate_inputs: Tensor, word: Tensor, recurrent: Tensor) -> Tensor:
    """The states of D LSTMs that begin at 0; gates in the order input, forget, output, candidate.

    gate_inputs: (U, 4W) what the different inputs bring into the gates, biases included
    word: (D, L, B) the input of every step, a row of ``gate_inputs``
    recurrent: (D, 4W, W) the weights on the previous state  ->  (D, L, B, W)
    """
    if not torch.is_grad_enabled():
        return _states_alone(gate_inputs, word, recurrent)
    states: Tensor = _Lstms.apply(gate_inputs, word, recurrent)  # type: ignore[no-untyped-call]
    return states


def _states_alone(gate_inputs: Tensor, word: Tensor, recurrent: Tensor) -> Tensor:
    """What ``_Lstms`` computes, when nothing has to be kept for a gradient: a step stays in the cache."""
    width, weights = recurrent.shape[2], recurrent.transpose(1, 2)
    states = gate_inputs.new_empty(*word.shape, width)
    cell, before = None, None
    for entered, state in zip(word.unbind(1), states.unbind(1), strict=True):
        gates = embedding(entered, gate_inputs)
        if before is not None:
            gates.baddbmm_(before, weights)
        opened, candidate = gates.split_with_sizes([3 * width, width], dim=-1)
        input_gate, forget_gate, output_gate = opened.sigmoid_().chunk(3, dim=-1)
        new = input_gate * candidate.tanh_()
        cell = new if cell is None else new.addcmul_(forget_gate, cell)
        before = torch.mul(output_gate, cell.tanh(), out=state)
    return states


class _Lstms(torch.autograd.Function):
    """c = f * c' + i * g,  h = o * tanh(c)."""

    @staticmethod
    def forward(ctx: Any, gate_inputs: Tensor, word: Tensor, recurrent: Tensor) -> Tensor:
        width = recurrent.shape[2]
        # each LSTM's steps lie together: a step is one block, and all steps of an LSTM are one matrix
        gates = embedding(word, gate_inputs)
        cells, tanh_cells, states = (gates.new_empty(*gates.shape[:3], width) for _ in range(3))
        weights, before = recurrent.transpose(1, 2), None
        # all steps of every table at once, because a view of each costs as much as the arithmetic
        tables = (gates, gates[..., : 3 * width], *gates.chunk(4, dim=-1), cells, tanh_cells, states)
        for gate, open_gates, input_gate, forget_gate, output_gate, candidate, cell, tanh_cell, state in zip(
            *(table.unbind(1) for table in tables), strict=True
        ):
            if before is not None:
                gate.baddbmm_(before[1], weights)
            open_gates.sigmoid_()
            candidate.tanh_()
            torch.mul(input_gate, candidate, out=cell)
            if before is not None:
                cell.addcmul_(forget_gate, before[0])
            torch.tanh(cell, out=tanh_cell)
            torch.mul(output_gate, tanh_cell, out=state)
            before = cell, state
        ctx.save_for_backward(word, gates, cells, tanh_cells, states, recurrent)
        ctx.inputs = len(gate_inputs)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        word, gates, cells, tanh_cells, states, recurrent = ctx.saved_tensors
        width = recurrent.shape[2]
        input_gates, forget_gates, output_gates, candidates = gates.chunk(4, dim=-1)
        # what the gradients of a state and its cell are multiplied with, at all steps: the gates' slopes ...
        sums = torch.empty_like(gates)
        to_opened, to_candidates = sums.split_with_sizes([3 * width, width], dim=-1)
        opened = gates[..., : 3 * width]
        torch.mul(opened, 1 - opened, out=to_opened)
        torch.mul(input_gates, 1 - candidates.square(), out=to_candidates)
        # ... times what each gate lets through
        to_inputs, to_forgets, to_outputs = to_opened.chunk(3, dim=-1)
        to_inputs.mul_(candidates)
        to_forgets[:, 0] = 0.0
        to_forgets[:, 1:].mul_(cells[:, :-1])
        to_outputs.mul_(tanh_cells)
        to_cells = output_gates * (1 - tanh_cells.square())
        state, cell = torch.zeros_like(states[:, 0]), torch.zeros_like(states[:, 0])
        to_gates = (to_inputs, to_forgets, to_outputs, to_candidates)
        tables = (gradients[0], sums, *to_gates, to_cells, forget_gates)
        for gradient, total, to_input, to_forget, to_output, to_candidate, to_cell, forget_gate in zip(
            *(reversed(table.unbind(1)) for table in tables), strict=True
        ):
            state = state + gradient
            cell = torch.addcmul(cell, state, to_cell)
            to_output.mul_(state)
            for part in (to_input, to_forget, to_candidate):
                part.mul_(cell)
            cell = cell * forget_gate
            state = torch.bmm(total, recurrent)
        later = sums[:, 1:].flatten(1, 2)  # (D, (L - 1) * B, 4W)
        earlier = states[:, :-1].flatten(1, 2)
        return _summed_by(word, sums, ctx.inputs), None, torch.bmm(later.transpose(1, 2), earlier)


def _summed_by(word: Tensor, sums: Tensor, inputs: int) -> Tensor:
    """The gradient of what different inputs bring: where the same one entered, added up.

    word: (D, L, B)  sums: (D, L, B, 4W)  ->  (U, 4W)
    """
    # text after text: rounding then does not depend on how the steps lie in memory
    place = torch.arange(word.numel(), device=word.device).view_as(word).transpose(1, 2).flatten()
    by_input = place[word.transpose(1, 2).flatten().argsort(stable=True)]
    many = torch.bincount(word.flatten(), minlength=inputs)
    return nn.functional.embedding_bag(by_input, sums.flatten(0, 2), many.cumsum(0) - many, mode="sum")


@dataclass(frozen=True)
class Grounded:
    """The two states that every read and every score queries with."""

    perception: Tensor  # (X, H) h^p, asks about things
    action: Tensor  # (X, H) h^a, asks about directions


class TextualAttention(nn.Module):
    """One stream: alpha_l = softmax_l(x_l^T W_x h), x = sum_l alpha_l x_l, h' = W_h [h, x]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)


class FineGrainedGrounding(nn.Module):
    """h^p and h^a from two separate attentions over the words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.perception = TextualAttention(width)
        self.action = TextualAttention(width)

    def forward(self, state: Tensor, words: PackedInstructions) -> Grounded:
        """state: (X, H)"""
        streams = (self.perception, self.action)
        summaries, _ = words.attend_many(self._queries(state))
        of_state, of_words = zip(*(stream.join.weight.chunk(2, dim=1) for stream in streams), strict=True)
        from_state = linear(state, torch.cat(of_state)).chunk(2, dim=1)
        perception, action = (
            torch.addmm(own, summary, weight.t())
            for own, summary, weight in zip(from_state, summaries.chunk(2, dim=1), of_words, strict=True)
        )
        return Grounded(perception, action)

    def word_attention(self, state: Tensor, words: PackedInstructions) -> dict[str, Tensor]:
        """The weights alpha^p and alpha^a, for viewers.  state: (X, H)  ->  name: (X, L)"""
        _, weights = words.attend_many(self._queries(state))
        packing = words.packing
        table = weights.view(packing.episodes, packing.steps, -1)
        perception, action = packing.rows(table).chunk(2, dim=1)
        return {"perception": perception, "action": action}

    def _queries(self, state: Tensor) -> Tensor:
        """(X, 2H)"""
        return linear(state, torch.cat([self.perception.query.weight, self.action.query.weight]))


class SharedGrounding(nn.Module):
    """The ablation without fine-grained grounding: the state itself queries everything."""

    def forward(self, state: Tensor, words: PackedInstructions) -> Grounded:
        """state: (X, H)"""
        del words
        return Grounded(state, state)

    def word_attention(self, state: Tensor, words: PackedInstructions) -> dict[str, Tensor]:
        """Nothing is attended to."""
        del state, words
        return {}
