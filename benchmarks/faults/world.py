"""A tiny world for faults: three buildings of a dozen viewpoints, a feature store, and a file to convert."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from scenemem.formats.connectivity import Scan, Viewpoint, write_scan
from scenemem.formats.features import VIEWS, write_store

COLUMNS, ROWS = 4, 3
"""Viewpoints of a building, one every two metres."""

WIDTH = 8
"""Numbers per view."""

_SPLITS = {"train": ("east", "west"), "val_seen": ("east",), "val_unseen": ("north",), "test": ("north",)}


def write_world(folder: Path) -> Path:
    """Write the data folder, features as a store and as text (``features.tsv``)  ->  the folder"""
    scans = sorted({scan for scans in _SPLITS.values() for scan in scans})
    for scan in scans:
        write_scan(folder / "connectivity", _scan(scan))
    (folder / "r2r").mkdir()
    for split in _SPLITS:
        (folder / "r2r" / f"R2R_{split}.json").write_text(json.dumps(_episodes(split)), encoding="utf-8")
    keys = [(scan, f"{scan}{x}{y}") for scan in scans for x in range(COLUMNS) for y in range(ROWS)]
    values = np.random.default_rng(0).normal(size=(len(keys), VIEWS, WIDTH)).astype(np.float32)
    names = [f"{scan}_{viewpoint}" for scan, viewpoint in keys]
    store = folder / "features" / "tiny.npy"
    write_store(store, names, values, width=WIDTH, source="test", encoder="random numbers")
    lines = (
        f"{scan}\t{viewpoint}\t640\t480\t60\t{base64.b64encode(row.tobytes()).decode()}\n"
        for (scan, viewpoint), row in zip(keys, values, strict=True)
    )
    (folder / "features.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def _scan(name: str) -> Scan:
    places = [(x, y) for x in range(COLUMNS) for y in range(ROWS)]
    return Scan(
        name,
        tuple(
            Viewpoint(
                image_id=f"{name}{x}{y}",
                pose=(1, 0, 0, 2.0 * x + 0.1 * y, 0, 1, 0, 1.9 * y, 0, 0, 1, 1.5, 0, 0, 0, 1),
                included=True,
                visible=tuple(other != (x, y) for other in places),
                unobstructed=tuple(abs(x - u) + abs(y - v) == 1 for u, v in places),
                height=1.5,
            )
            for x, y in places
        ),
    )


def _episodes(split: str) -> list[dict[str, object]]:
    """Ways of four moves or more, first along a row and then along a column, in every building."""
    found: list[dict[str, object]] = []
    places = [(x, y) for x in range(COLUMNS) for y in range(ROWS)]
    for scan in _SPLITS[split]:
        for start in places:
            for end in places:
                path = [f"{scan}{x}{y}" for x, y in _way(start, end)]
                if len(path) < 5:
                    continue
                metres = sum(2.0 if a[-1] == b[-1] else 1.9 for a, b in pairwise(path))
                told = [f"Walk to {path[-1]}.", f"Pass {path[1]}, stop at {path[-1]}!", f"Leave {path[0]}."]
                facts = {"scan": scan, "path_id": len(found), "heading": 0.5, "instructions": told}
                shown = {"path": path[:1]} if split == "test" else {"path": path, "distance": metres}
                found.append({**facts, **shown})
    return found


def _way(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    (x, y), (u, v) = start, end
    along = [(step, y) for step in range(x, u, 1 if u > x else -1)]
    return [*along, *((u, step) for step in range(y, v, 1 if v > y else -1)), end]
