"""Angles and the grid of 36 views every panorama is cut into.

Headings are radians, clockwise from +y, in [0, 2 pi); elevations are radians, positive upwards.
A view index is ``heading step + 12 * elevation row``; row 0 looks down, 1 at the horizon, 2 up.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HEADINGS = 12
ROWS = 3
VIEWS = HEADINGS * ROWS
STEP = math.pi / 6  # between neighbouring headings and between rows
ANGLE_WIDTH = 128  # the four sines and cosines are tiled to this width, as in the paper's section 3.4
FULL_TURN = 2 * math.pi


def direction(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Heading and elevation of the way from ``source`` to ``target``.

    source, target: (..., 3) metres  ->  heading (...), elevation (...)
    """
    east, north, up = (target - source).unbind(-1)
    heading = torch.atan2(east, north).remainder(FULL_TURN)
    return heading, torch.atan2(up, torch.hypot(east, north))


def reverse(heading: Tensor, elevation: Tensor) -> tuple[Tensor, Tensor]:
    """The opposite direction: half a turn round and the other slope."""
    return (heading + math.pi).remainder(FULL_TURN), -elevation


def wrap(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi]; angles that need no turn keep their exact value."""
    turned = angle - FULL_TURN * torch.round(angle / FULL_TURN)
    return turned.clamp(-math.pi, math.pi)  # rounding can leave it a hair outside


def view_heading(view: Tensor) -> Tensor:
    """view: (...) index  ->  heading of its centre (...)"""
    return (view % HEADINGS) * STEP


def view_elevation(view: Tensor) -> Tensor:
    """view: (...) index  ->  elevation of its centre (...)"""
    return (view.div(HEADINGS, rounding_mode="floor") - 1) * STEP


def nearest_view(heading: Tensor, elevation: Tensor) -> Tensor:
    """The view whose centre lies closest, by sqrt(dheading^2 + delevation^2).

    The two terms are independent, so the nearest heading step and the nearest row can be taken apart.

    heading, elevation: (...)  ->  view index (...)
    """
    row = torch.round(elevation / STEP).clamp(-1, 1).long() + 1
    return nearest_heading_step(heading) + HEADINGS * row


def nearest_heading_step(heading: Tensor) -> Tensor:
    """heading: (...)  ->  step 0..11 whose direction lies closest (...)"""
    return torch.round(heading / STEP).long() % HEADINGS


def angle_feature(heading: Tensor, elevation: Tensor, width: int = ANGLE_WIDTH) -> Tensor:
    """The orientation feature r = (cos heading, sin heading, cos elevation, sin elevation), tiled.

    heading, elevation: (...)  ->  (..., width)
    """
    if width % 4:
        raise ValueError(f"the width of an angle feature must be a multiple of 4, got {width}")
    feature = torch.stack([heading.cos(), heading.sin(), elevation.cos(), elevation.sin()], dim=-1)
    return feature.repeat(*[1] * heading.dim(), width // 4)
