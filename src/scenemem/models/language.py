"""The instruction encoder: a one-layer bidirectional LSTM over word embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


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
    """Words -> X, and the first state of the navigator: h_0 = tanh(W max_l x_l), c_0 = the final cells.

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
        self.lstm = nn.LSTM(word_width, width // 2, batch_first=True, bidirectional=True)
        self.begin = nn.Linear(width, width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Instructions:
        """tokens: (B, L) int64  lengths: (B,) int64"""
        words = self.drop(self.embedding(tokens))
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        encoded, (_, cell) = self.lstm(packed)
        context, _ = pad_packed_sequence(encoded, batch_first=True, total_length=tokens.shape[1])
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(-1)
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        hidden = torch.tanh(self.begin(strongest))
        return Instructions(self.drop(context), mask, hidden, cell.transpose(0, 1).flatten(1))
