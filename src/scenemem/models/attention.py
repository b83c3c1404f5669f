"""Softmax attention with a mask, the one building block every read is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.world.geometry import ANGLE_WIDTH

TILES = ANGLE_WIDTH // 4


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension; masked entries get 0, a row without any entry is all 0.

    scores: (..., n)  mask: (..., n) bool, broadcast  ->  (..., n)
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


def untiled(query: Tensor) -> Tensor:
    """Fold a query for tiled orientation features, so that <tiled r, query> = <r, folded query> exactly.

    The paper tiles the four sines and cosines 32 times. Working with the four numbers and folding the
    learned query instead gives the same scores and gradients for a fraction of the arithmetic.

    query: (..., 128)  ->  (..., 4)
    """
    return query.view(*query.shape[:-1], TILES, 4).sum(dim=-2)


def tiled(orientation: Tensor) -> Tensor:
    """orientation: (..., 4)  ->  (..., 128)"""
    return orientation.repeat(*[1] * (orientation.dim() - 1), TILES)


def rotated(orientation: Tensor, heading: Tensor) -> Tensor:
    """Orientation features as seen after turning clockwise by ``heading``.

    (cos(t - h), sin(t - h), cos p, sin p) from (cos t, sin t, cos p, sin p). Reads use it on the query:
    <rotated(r, h), q> = <r, rotated(q, -h)>, so absolute angles are stored once and never copied.

    orientation: (..., 4)  heading: (...) radians, broadcast  ->  (..., 4)
    """
    cosine, sine = heading.cos(), heading.sin()
    ahead, aside, rise, slope = orientation.unbind(-1)
    turned_ahead = ahead * cosine + aside * sine
    turned_aside = aside * cosine - ahead * sine
    return torch.stack(
        [turned_ahead, turned_aside, rise.expand_as(turned_ahead), slope.expand_as(turned_ahead)], dim=-1
    )
