"""Attention: masked softmax, and attention over the panoramas of many viewpoints.

Panoramas are the largest thing an agent looks at. All at once they do not fit into the caches of a processor,
and every product waits for memory; a few viewpoints at a time they do. For the gradient they are gathered
again, so that they are never all in memory.

Shape letters: S queries, each about one viewpoint; D visual columns; C viewpoints at a time; Q queries per
viewpoint; M, n, W any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scenemem.features.store import PanoramaLookup
from scenemem.world.graph import VIEWS

_NUMBERS_AT_A_TIME = 2**19
"""Numbers in the panoramas that are looked at together, 2 MB; half and twice as many are slower."""

_QUERIES_TOGETHER = 4
"""Queries of a viewpoint are padded to multiples of this, so that viewpoints share a product."""


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


def attend_panoramas(query: Tensor, viewpoint: Tensor | None, lookup: PanoramaLookup) -> Tensor:
    """sum_k softmax_k(<f_k, q>) f_k, over the views f_k of the viewpoint that each query is about.

    query: (S, D)  viewpoint: (S,); None where query s is about viewpoint s  ->  (S, D)
    """
    if viewpoint is None:
        viewpoint = torch.arange(len(query), device=query.device)
        if not (query.requires_grad and torch.is_grad_enabled()):
            return _attended_in_order(query, viewpoint, lookup)
    attended: Tensor = _PanoramaAttention.apply(query, viewpoint, lookup)  # type: ignore[no-untyped-call]
    return attended


def _attended_in_order(query: Tensor, viewpoint: Tensor, lookup: PanoramaLookup) -> Tensor:
    """One query per viewpoint and no gradient, as when acting.  (S, D), (S,)  ->  (S, D)"""
    attended = torch.empty_like(query)
    sizes = _sizes(len(query), _viewpoints_at_a_time(query))
    tables = (viewpoint, query.unsqueeze(1), attended.unsqueeze(1))
    for part, asked, answer in zip(*(rows.split_with_sizes(sizes) for rows in tables), strict=True):
        views = lookup(part)
        weights = torch.bmm(asked, views.transpose(1, 2)).softmax(dim=-1)
        torch.bmm(weights, views, out=answer)
    return attended


def score_panoramas(query: Tensor, viewpoint: Tensor, lookup: PanoramaLookup) -> Tensor:
    """<f_k, q> of all views f_k of the viewpoint that each query is about.

    query: (S, D)  viewpoint: (S,)  ->  (S, 36)
    """
    scores: Tensor = _PanoramaScores.apply(query, viewpoint, lookup)  # type: ignore[no-untyped-call]
    return scores


class _PanoramaAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, viewpoint: Tensor, lookup: PanoramaLookup) -> Tensor:
        attended = torch.empty_like(query)
        saved = []
        for group in _groups(viewpoint, _viewpoints_at_a_time(query)):
            views = lookup(group.viewpoint)
            weights = torch.bmm(group.take(query), views.transpose(1, 2)).softmax(dim=-1)
            group.put(torch.bmm(weights, views), attended)
            saved.append((group, weights))
        ctx.lookup, ctx.saved = lookup, saved
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        query = torch.empty_like(gradients[0])
        for group, weights in ctx.saved:
            views = ctx.lookup(group.viewpoint)
            of_weights = torch.bmm(group.take(gradients[0]), views.transpose(1, 2))
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            group.put(torch.bmm(of_scores, views), query)
        return query, None, None


class _PanoramaScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, viewpoint: Tensor, lookup: PanoramaLookup) -> Tensor:
        scores = query.new_empty(len(query), VIEWS)
        every_row = torch.arange(len(viewpoint), device=viewpoint.device)
        ctx.lookup, ctx.viewpoint, ctx.shape = lookup, viewpoint, query.shape
        ctx.parts = list(_parts(every_row, _viewpoints_at_a_time(query)))
        for part in ctx.parts:
            scores[part] = dots(lookup(viewpoint[part]), query[part])
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        query = gradients[0].new_empty(ctx.shape)
        for part in ctx.parts:
            views = ctx.lookup(ctx.viewpoint[part])
            query[part] = torch.bmm(gradients[0][part].unsqueeze(1), views).squeeze(1)
        return query, None, None


@dataclass(frozen=True)
class _Group:
    """Some viewpoints, and the queries about them."""

    viewpoint: Tensor  # (C,)
    query: Tensor  # (C * Q,) the queries, viewpoint after viewpoint; in the padding the last one again
    real: Tensor  # (<= C * Q,) where there is no padding

    def take(self, rows: Tensor) -> Tensor:
        """(S, D)  ->  (C, Q, D)"""
        return rows.index_select(0, self.query).view(len(self.viewpoint), -1, rows.shape[1])

    def put(self, values: Tensor, rows: Tensor) -> None:
        """Into the rows of the queries.  values: (C, Q, D)  rows: (S, D)"""
        values = values.flatten(0, 1)
        if len(self.real) < len(self.query):
            rows.index_copy_(0, self.query[self.real], values.index_select(0, self.real))
        else:
            rows.index_copy_(0, self.query, values)


def _groups(viewpoint: Tensor, at_a_time: int) -> Iterator[_Group]:
    """All queries, by the viewpoint they are about.  viewpoint: (S,)"""
    if not len(viewpoint):
        return
    by_viewpoint, many = viewpoint.argsort(stable=True), viewpoint.bincount()
    last = many.cumsum(0) - 1
    padded = (-(-many // _QUERIES_TOGETHER) * _QUERIES_TOGETHER).clamp_max(many.max())
    for queries in padded[padded > 0].bincount().nonzero().flatten().tolist():
        turn = torch.arange(queries, device=viewpoint.device)
        for part in _parts((padded == queries).nonzero().squeeze(1), at_a_time):
            end = last[part].unsqueeze(1)
            position = end - many[part].unsqueeze(1) + 1 + turn
            real = (position <= end).flatten().nonzero().squeeze(1)
            yield _Group(part, by_viewpoint[position.minimum(end).flatten()], real)


def _viewpoints_at_a_time(query: Tensor) -> int:
    """A multiple of 16, so that rows lie in memory as if there were one part, and products round alike."""
    return max(1, _NUMBERS_AT_A_TIME // (VIEWS * query.shape[1] * 16)) * 16


def _parts(rows: Tensor, size: int) -> Iterator[Tensor]:
    """(n,)  ->  parts of ``_sizes`` rows"""
    return iter(rows.split_with_sizes(_sizes(len(rows), size)))


def _sizes(rows: int, size: int) -> list[int]:
    """About ``size`` each, ``rows`` together; never a single row, which would be another kind of product."""
    ends = [*range(size, rows - 1, size), rows] if rows else []
    return [end - first for first, end in zip([0, *ends], ends, strict=False)]
