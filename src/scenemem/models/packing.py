"""Packing: observations of a batch of walks as rows without gaps, or as a table with a line per episode.

Layers work on rows, so nothing is computed for walks that are over; what compares all observations of an
episode at once needs the table. Shape letters: B episodes, T steps, X rows, W any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scenemem.models.attention import rows_of


@dataclass(frozen=True, eq=False)
class Packing:
    """The episode and the step of every row."""

    episode: Tensor  # (X,)
    step: Tensor  # (X,)
    episodes: int  # B
    steps: int  # T

    @cached_property
    def position(self) -> Tensor:
        """(X,) where each row stands in the flattened table"""
        return self.episode * self.steps + self.step

    @cached_property
    def row(self) -> Tensor:
        """(B, T) the row at every place of the table, 0 where there is none"""
        rows = torch.arange(len(self.episode), device=self.episode.device)
        table = torch.zeros(self.episodes * self.steps, dtype=torch.long, device=rows.device)
        return table.index_copy_(0, self.position, rows).view(self.episodes, self.steps)

    def table(self, rows: Tensor) -> Tensor:
        """(X, W)  ->  (B, T, W), 0 where there is no row"""
        empty = rows.new_zeros(self.episodes * self.steps, rows.shape[1])
        return empty.index_copy(0, self.position, rows).view(self.episodes, self.steps, -1)

    def rows(self, table: Tensor) -> Tensor:
        """(B, T, W)  ->  (X, W)"""
        return rows_of(table.flatten(0, 1), self.position)


def one_per_episode(rows: int, device: torch.device) -> Packing:
    """Rows that have nothing to do with each other: every one is an episode with a single step."""
    episode = torch.arange(rows, device=device)
    return Packing(episode, torch.zeros_like(episode), rows, 1)
