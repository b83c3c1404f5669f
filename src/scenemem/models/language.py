"""The instruction encoder: a one-layer bidirectional LSTM over word embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


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

    def select(self, rows: Tensor | slice) -> Instructions:
        """The instructions of the given rows, in their order."""
        return Instructions(self.context[rows], self.mask[rows], self.hidden[rows], self.cell[rows])


class InstructionEncoder(nn.Module):
    """Words -> X, and the first state of the navigator: h_0 = tanh(W max_l x_l), c_0 = W [ends of X].

    Both directions run over the padded batch, the backward one over every instruction turned round within its
    own length, so padding always comes last and touches nothing. (A packed LSTM computes the same, but its
    gradient on a CPU clears the whole batch once per word.)

    Args:
        words: size of the vocabulary.
        word_width: width of the word embeddings.
        width: width H of the encoding, both directions together.
        dropout: share of embedding and encoding numbers dropped in training.
        padding: token number of the padding word.
    """

    def __init__(self, words: int, word_width: int, width: int, dropout: float, padding: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, word_width, padding_idx=padding)
        self.drop = nn.Dropout(dropout)
        self.forward_lstm = nn.LSTM(word_width, width // 2, batch_first=True)
        self.backward_lstm = nn.LSTM(word_width, width // 2, batch_first=True)
        self.begin_hidden = nn.Linear(width, width)
        self.begin_cell = nn.Linear(width, width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Instructions:
        """tokens: (B, L) int64  lengths: (B,) int64"""
        words = self.drop(self.embedding(tokens))
        place = torch.arange(tokens.shape[1], device=tokens.device)
        length = lengths.to(tokens.device).unsqueeze(-1)
        mask = place < length
        turned = torch.where(mask, length - 1 - place, place)
        ahead, _ = self.forward_lstm(words)
        back, _ = self.backward_lstm(_rearranged(words, turned))
        context = torch.cat([ahead, _rearranged(back, turned)], dim=-1)
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        last = _rearranged(ahead, length - 1).squeeze(1)
        first = _rearranged(back, length - 1).squeeze(1)
        return Instructions(
            context=self.drop(context),
            mask=mask,
            hidden=torch.tanh(self.begin_hidden(strongest)),
            cell=self.begin_cell(torch.cat([last, first], dim=-1)),
        )


def _rearranged(rows: Tensor, place: Tensor) -> Tensor:
    """rows: (B, L, W)  place: (B, P)  ->  (B, P, W)"""
    return rows.gather(1, place.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
