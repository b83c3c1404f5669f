"""Attention over the views of many places, a few places at a time.

Panoramas are the largest thing an agent looks at. All at once they do not fit into the caches of a processor,
and every product waits for memory; a few at a time they do. For the gradient they are gathered again, so that
they are never all in memory.

Shape letters: S states that ask one place each, D visual columns, C places at a time, Q askers of a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scenemem.models.attention import dots
from scenemem.world.geometry import VIEWS

Look = Callable[[Tensor], Tensor]
"""places (C,), numbered as the one who looks likes  ->  the visual features of their views (C, 36, D)"""

_AT_A_TIME = 2**19
"""Numbers in the panoramas that are looked at together, 2 MB; half and twice as many are slower."""

_TOGETHER = 4
"""Askers of a place are padded to multiples of this, so that places with about as many share a product."""


def attend_to_places(asked: Tensor, place: Tensor, look: Look) -> Tensor:
    """sum_k softmax_k(<f_k, q>) f_k, over the views f_k of the place that each state asks.

    asked: (S, D)  place: (S,)  ->  (S, D)
    """
    attended: Tensor = _PlaceAttention.apply(asked, place, look)  # type: ignore[no-untyped-call]
    return attended


def score_places(asked: Tensor, place: Tensor, look: Look) -> Tensor:
    """<f_k, q> of all views f_k of the place that each state asks.

    asked: (S, D)  place: (S,)  ->  (S, 36)
    """
    scores: Tensor = _PlaceScores.apply(asked, place, look)  # type: ignore[no-untyped-call]
    return scores


class _PlaceAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Tensor, place: Tensor, look: Look) -> Tensor:
        attended = torch.empty_like(asked)
        kept = []
        for group in _groups(place, _places_at_a_time(asked)):
            views = look(group.place)
            weights = torch.bmm(group.take(asked), views.transpose(1, 2)).softmax(dim=-1)
            group.put(torch.bmm(weights, views), attended)
            kept.append((group, weights))
        ctx.look, ctx.kept = look, kept
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        asked = torch.empty_like(gradients[0])
        for group, weights in ctx.kept:
            views = ctx.look(group.place)
            of_weights = torch.bmm(group.take(gradients[0]), views.transpose(1, 2))
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            group.put(torch.bmm(of_scores, views), asked)
        return asked, None, None


class _PlaceScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Tensor, place: Tensor, look: Look) -> Tensor:
        scores = asked.new_empty(len(asked), VIEWS)
        everybody = torch.arange(len(place), device=place.device)
        ctx.look, ctx.place, ctx.shape = look, place, asked.shape
        ctx.parts = list(_parts(everybody, _places_at_a_time(asked)))
        for some in ctx.parts:
            scores[some] = dots(look(place[some]), asked[some])
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        asked = gradients[0].new_empty(ctx.shape)
        for some in ctx.parts:
            views = ctx.look(ctx.place[some])
            asked[some] = torch.bmm(gradients[0][some].unsqueeze(1), views).squeeze(1)
        return asked, None, None


@dataclass(frozen=True)
class _Group:
    """Some places, and who asks them."""

    place: Tensor  # (C,)
    state: Tensor  # (C * Q,) the askers, place after place; in the padding the last one again
    real: Tensor  # (<= C * Q,) where there is no padding

    def take(self, rows: Tensor) -> Tensor:
        """(S, D)  ->  (C, Q, D)"""
        return rows.index_select(0, self.state).view(len(self.place), -1, rows.shape[1])

    def put(self, values: Tensor, rows: Tensor) -> None:
        """Into the rows of those who ask.  values: (C, Q, D)  rows: (S, D)"""
        values = values.flatten(0, 1)
        if len(self.real) < len(self.state):
            rows.index_copy_(0, self.state[self.real], values.index_select(0, self.real))
        else:
            rows.index_copy_(0, self.state, values)


def _groups(place: Tensor, at_a_time: int) -> Iterator[_Group]:
    """Everybody who asks, by the place they ask.  place: (S,)"""
    everybody = torch.arange(len(place), device=place.device)
    if torch.equal(place, everybody):  # each asks a place of its own, as when acting
        yield from (_Group(some, some, some) for some in _parts(everybody, at_a_time))
        return
    by_place, many = place.argsort(stable=True), place.bincount()
    last = many.cumsum(0) - 1
    padded = (-(-many // _TOGETHER) * _TOGETHER).clamp_max(many.max())
    for askers in padded[padded > 0].bincount().nonzero().flatten().tolist():
        turn = torch.arange(askers, device=place.device)
        for some in _parts((padded == askers).nonzero().squeeze(1), at_a_time):
            end = last[some].unsqueeze(1)
            seat = end - many[some].unsqueeze(1) + 1 + turn
            real = (seat <= end).flatten().nonzero().squeeze(1)
            yield _Group(some, by_place[seat.minimum(end).flatten()], real)


def _places_at_a_time(asked: Tensor) -> int:
    """A multiple of 16, so that rows lie in memory as if there were one part, and products round alike."""
    return max(1, _AT_A_TIME // (VIEWS * asked.shape[1] * 16)) * 16


def _parts(rows: Tensor, size: int) -> Iterator[Tensor]:
    """(n,)  ->  (about ``size``,) each, never a single row, which would be another kind of product"""
    ends = [*range(size, len(rows) - 1, size), len(rows)] if len(rows) else []
    return (rows[first:end] for first, end in zip([0, *ends], ends, strict=False))
