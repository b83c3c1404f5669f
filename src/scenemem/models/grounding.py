"""Perception- and action-aware textual grounding (paper, Eqs. 5 and 6).

Shape letters: X rows, L words, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from scenemem.models.attention import rows_of
from scenemem.models.language import PackedInstructions


@dataclass(frozen=True)
class Grounded:
    """The two states that every read and every score queries with."""

    perception: Tensor  # (X, H) h^p, asks about things
    action: Tensor  # (X, H) h^a, asks about directions

    def select(self, rows: Tensor) -> Grounded:
        """The states of some rows.  rows: (R,)"""
        return Grounded(rows_of(self.perception, rows), rows_of(self.action, rows))


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
