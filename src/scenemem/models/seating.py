"""Where the observations of a batch of walks stand: rows without gaps, or a table with a row per lane.

Layers work on the rows, so that nothing is computed for walks that are over; what compares all observations
of a lane at once needs the table. Shape letters: B lanes, T ticks, X observations, W any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scenemem.models.attention import rows_of


@dataclass(frozen=True, eq=False)
class Seating:
    """The lane and tick of every observation."""

    lane: Tensor  # (X,)
    tick: Tensor  # (X,)
    lanes: int  # B
    ticks: int  # T

    @cached_property
    def seat(self) -> Tensor:
        """(X,) places in the table, lane after lane"""
        return self.lane * self.ticks + self.tick

    @cached_property
    def row(self) -> Tensor:
        """(B, T) the row of every place in the table, 0 where nobody observes"""
        rows = torch.arange(len(self.lane), device=self.lane.device)
        table = torch.zeros(self.lanes * self.ticks, dtype=torch.long, device=self.lane.device)
        return table.index_copy_(0, self.seat, rows).view(self.lanes, self.ticks)

    def table(self, rows: Tensor) -> Tensor:
        """(X, W)  ->  (B, T, W), 0 where nobody observes"""
        empty = rows.new_zeros(self.lanes * self.ticks, rows.shape[1])
        return empty.index_copy(0, self.seat, rows).view(self.lanes, self.ticks, -1)

    def rows(self, table: Tensor) -> Tensor:
        """(B, T, W)  ->  (X, W)"""
        return rows_of(table.flatten(0, 1), self.seat)

    def at(self, rows: Tensor, lane: Tensor, tick: Tensor) -> Tensor:
        """The rows of the given lanes and ticks.  rows: (X, W)  lane, tick: (...), broadcast  ->  (..., W)"""
        return rows_of(rows, self.row[lane, tick])


def alone(rows: int, device: torch.device) -> Seating:
    """Rows that have nothing to do with each other: every one is a lane with one observation."""
    lane = torch.arange(rows, device=device)
    return Seating(lane, torch.zeros_like(lane), rows, 1)
