"""A feature store opened against a world: view features gathered by global viewpoint index."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from scenemem.errors import DataError
from scenemem.formats.feature_files import StoreInfo, read_store
from scenemem.world.geometry import VIEWS
from scenemem.world.graph import World

IN_MEMORY = 512 * 2**20
"""Bytes a store may take as float32 to be read into memory; larger ones stay on disk."""


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """The view features of every viewpoint of a world; those of large stores stay on disk until gathered.

    Shape letters: R rows of the store, V viewpoints of the world, D columns.
    """

    info: StoreInfo
    values: Tensor  # (R, 36, D) float16 and memory-mapped, or float32 when small
    row: Tensor  # (V,) int64, the row of every viewpoint of the world
    half: bool = False  # gather float16 as stored; float32 otherwise

    @property
    def width(self) -> int:
        """Columns per view."""
        return self.info.width

    def gather(self, viewpoints: Tensor) -> Tensor:
        """viewpoints: (...) int64 global index  ->  (..., 36, D)"""
        panoramas = self._picked(self.row[viewpoints], self.values.flatten(1))
        return panoramas.view(*viewpoints.shape, VIEWS, self.width)

    def gather_views(self, viewpoints: Tensor, views: Tensor) -> Tensor:
        """viewpoints, views: (...) int64, broadcast together  ->  the features of single views (..., D)"""
        return self._picked(self.row[viewpoints] * VIEWS + views, self.values.flatten(0, 1))

    def to(self, device: torch.device | str) -> FeatureStore:
        """The same store with all its values loaded on ``device``; rows follow the world's index."""
        values = self.values[self.row].to(device)
        return replace(self, values=values, row=torch.arange(len(self.row), device=device))

    def _picked(self, index: Tensor, table: Tensor) -> Tensor:
        """index: (...)  table: (N, W)  ->  (..., W)"""
        # an embedding look-up copies whole rows, indexing with [] copies number by number
        picked = functional.embedding(index, table)
        return picked if self.half else picked.float()


def open_store(target: str | os.PathLike[str], world: World, *, half: bool = False) -> FeatureStore:
    """Open the store ``target`` (``.../<name>.npy``) for the viewpoints of ``world``.

    Args:
        target: the ``.npy`` file.
        world: every viewpoint of it must be in the store; further rows are ignored.
        half: gather float16 as stored instead of float32.

    Raises:
        DataError: the store is broken or lacks a viewpoint of the world.
    """
    info, mapped = read_store(target)
    rows = {key: row for row, key in enumerate(info.keys)}
    missing = [name for name in world.names if name not in rows]
    if missing:
        raise DataError(
            target,
            f"lacks {len(missing)} of the {len(world.names)} viewpoints of the world, first '{missing[0]}'; "
            "build the store from features of all viewpoints or use connectivity files of fewer scans",
        )
    row = torch.tensor([rows[name] for name in world.names], dtype=torch.long)
    values = torch.from_numpy(mapped)
    if not half and values.numel() * 4 <= IN_MEMORY:
        values = values.float()  # converted once instead of at every look
    return FeatureStore(info, values, row, half)
