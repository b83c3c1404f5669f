"""The instruction encoder: a one-layer bidirectional LSTM over word embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import rows_of
from scenemem.models.recurrence import gate_order, run_lstms

_TURN = 37  # columns a dropout mask is turned by from word to word; a prime


@dataclass(frozen=True)
class Instructions:
    """Encoded instructions; B of them, L words in the longest, H wide."""

    context: Tensor  # (B, L, H) the textual embeddings X = {x_l}
    mask: Tensor  # (B, L) bool, true at words
    hidden: Tensor  # (B, H) first hidden state of the navigator
    cell: Tensor  # (B, H) first cell state of the navigator

    def detached(self) -> Instructions:
        """The same values without their history, for acting."""
        return Instructions(self.context.detach(), self.mask, self.hidden.detach(), self.cell.detach())

    def select(self, rows: Tensor) -> Instructions:
        """The instructions of the given rows, in their order."""
        return Instructions(
            *(part.index_select(0, rows) for part in (self.context, self.mask, self.hidden, self.cell))
        )

    def repeat(self, times: int) -> Instructions:
        """All instructions, ``times`` times over."""
        return Instructions(
            self.context.repeat(times, 1, 1),
            self.mask.repeat(times, 1),
            self.hidden.repeat(times, 1),
            self.cell.repeat(times, 1),
        )


class InstructionEncoder(nn.Module):
    """Words -> X, and the first state of the navigator: h_0 = tanh(W max_l x_l), c_0 = W [ends of X].

    Both directions run side by side over the padded batch, the backward one over every instruction turned
    round within its own length, so padding always comes last and touches nothing. What a word brings into the
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
        self.begin_hidden = nn.Linear(width, width)
        self.begin_cell = nn.Linear(width, width)

    @torch.no_grad()
    def begin_with(self, words: Tensor, vectors: Tensor) -> None:
        """Let the embeddings of some words begin with these numbers.

        words: (n,) token numbers  vectors: (n, <= word_width), further columns stay as they are
        """
        self.embedding.weight[words, : vectors.shape[1]] = vectors.to(self.embedding.weight)

    def noise(self, texts: int) -> Tensor:
        """Dropout masks for the encoding of a batch of texts; ones in evaluation mode  ->  (B, H)"""
        ones = self.embedding.weight.new_ones(texts, self.begin_hidden.in_features)
        return nn.functional.dropout(ones, self.dropout, self.training)

    def forward(self, tokens: Tensor, lengths: Tensor, noise: Tensor | None = None) -> Instructions:
        """tokens: (B, L) int64  lengths: (B,) int64  noise: (B, H); nothing is dropped without it"""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        length = lengths.to(tokens.device).unsqueeze(-1)
        mask = place < length
        turned = torch.where(mask, length - 1 - place, place)
        states = self._both_ways(tokens, turned)
        context = _rearranged(states, place.expand_as(turned), turned)
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        ends = _rearranged(states, length - 1, length - 1).squeeze(1)
        return Instructions(
            context=context if noise is None else context * _turned_on(noise, tokens.shape[1]),
            mask=mask,
            hidden=torch.tanh(self.begin_hidden(strongest)),
            cell=self.begin_cell(ends),
        )

    def _both_ways(self, tokens: Tensor, turned: Tensor) -> Tensor:
        """The states over the words and over the turned words.

        tokens, turned: (B, L)  ->  (2, L, B, H / 2)
        """
        lstms = (self.forward_lstm, self.backward_lstm)
        different, word = torch.unique(tokens, return_inverse=True)
        entered = self.embedding(different)
        which = torch.stack([word.t(), word.gather(1, turned).t() + len(different)])
        recurrent = torch.stack([gate_order(lstm.get_parameter("weight_hh_l0")) for lstm in lstms])
        return run_lstms(torch.cat([_gates(lstm, entered) for lstm in lstms]), which, recurrent)


def _turned_on(mask: Tensor, words: int) -> Tensor:
    """Another mask for every word from one per text: the mask, turned a prime number of columns further.

    A fraction of the random numbers, and words near each other lose different columns.

    mask: (B, H)  ->  (B, L, H)
    """
    width = mask.shape[1]
    rounds = 1 + -(-(words - 1) * _TURN // width)
    return mask.repeat(1, rounds).unfold(1, width, _TURN)[:, :words]


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
    return rows_of(states.view(-1, width), row).flatten(2)
