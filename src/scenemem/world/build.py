"""Connectivity records -> the tensors of a World, cached by the content of the files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.connectivity import SUFFIX, Scan, connectivity_files, read_scan
from scenemem.formats.decoding import read_bytes
from scenemem.formats.folder import cache_folder
from scenemem.formats.tensors import CHECKSUM, read_tensor_file, write_tensor_file
from scenemem.world.graph import NONE, World, direction, nearest_view

Positions = Literal["pose", "centre"]
Progress = Callable[[int, int], None]  # called with (done, in all)
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

# Centre of a panorama in the camera frame of its pose, metres; the same in all Matterport scans.
CENTRE_OFFSET = (0.01286174, -0.03317282, 0.01070163)

_CACHE_VERSION = "3"  # raise when the tables change


def load_world(
    connectivity: StrPath,
    *,
    scans: Collection[str] | None = None,
    positions: Positions = "pose",
    cache: bool = True,
    progress: Progress | None = None,
) -> World:
    """The world of a folder of connectivity files.

    Args:
        connectivity: folder with ``<scan>_connectivity.json`` files.
        scans: only these; all when left out.
        positions: ``pose`` measures distances between the pose translations, as the official evaluation does;
            ``centre`` between panorama centres, as the published R4R files do.
        cache: keep the finished tables in the cache folder, keyed by the content of the files.
        progress: called with (scans done, scans in all) while tables are computed.

    Raises:
        DataError: a file is missing or is not a navigation graph.
    """
    files = connectivity_files(connectivity)
    if scans is not None:
        files = [file for file in files if file.name.removesuffix(SUFFIX) in scans]

    def build() -> World:
        return build_world(map(read_scan, files), positions=positions, progress=progress, total=len(files))

    if not cache:
        return build()
    key = _content_digest(files, f"{_CACHE_VERSION} {positions}")
    stored = cache_folder() / "worlds" / f"{key[:32]}.safetensors"
    world = _read_cached(stored)
    if world is None:
        world = build()
        with suppress(UserError):  # a cache that cannot be written only costs time
            _write_cached(stored, world)
    return world


@dataclass(frozen=True)
class _ScanTables:
    """The tables of one scan; v viewpoints, k largest number of neighbours in this scan."""

    name: str
    viewpoints: list[str]
    position: FloatArray  # (v, 3)
    neighbour: IntArray  # (v, k), numbers within the scan, padded with -1
    length: FloatArray  # (v, k), inf at pads
    distance: FloatArray  # (v, v)
    first_slot: npt.NDArray[np.int16]  # (v, v)


def build_world(
    scans: Iterable[Scan],
    *,
    positions: Positions = "pose",
    progress: Progress | None = None,
    total: int | None = None,
) -> World:
    """The tensors of ``scans``, taken one at a time so that records of only one scan are in memory.

    See ``load_world``; ``total`` is only passed on to ``progress``.
    """
    tables = []
    for scan in scans:
        tables.append(_scan_tables(scan, positions))
        if progress is not None:
            progress(len(tables), total or len(tables))
    return _joined(tables)


def _scan_tables(scan: Scan, positions: Positions) -> _ScanTables:
    rows = [i for i, viewpoint in enumerate(scan.viewpoints) if viewpoint.included]
    links = np.array([scan.viewpoints[row].unobstructed for row in rows], dtype=bool)
    links = links.reshape(len(rows), -1)[:, rows]
    position = _positions(scan, rows, positions)
    edge_length = np.where(links, np.linalg.norm(position[:, None] - position[None], axis=-1), np.inf)
    neighbour = _neighbour_rows(links)
    length = np.take_along_axis(edge_length, np.maximum(neighbour, 0), axis=1)
    length = np.where(neighbour == NONE, np.inf, length)
    distance = _all_pairs(edge_length)
    first_slot = _first_slots(neighbour, length, distance)
    names = [scan.viewpoints[row].image_id for row in rows]
    return _ScanTables(scan.name, names, position, neighbour, length, distance, first_slot)


def _joined(tables: Sequence[_ScanTables]) -> World:
    """Lay the tables of all scans end to end under one global index."""
    sizes = np.array([len(table.viewpoints) for table in tables])
    slots = max(table.neighbour.shape[1] for table in tables)
    neighbour = np.concatenate([_padded(table.neighbour, slots, NONE) for table in tables])
    first_of_scan = np.repeat(np.cumsum(sizes) - sizes, sizes)
    neighbour = np.where(neighbour == NONE, NONE, neighbour + first_of_scan[:, None])
    position = _joined_tables([table.position for table in tables])
    view, heading, elevation = _neighbour_directions(position, torch.from_numpy(neighbour))
    row_length = np.repeat(sizes, sizes)
    return World(
        scans=tuple(table.name for table in tables),
        viewpoints=tuple(viewpoint for table in tables for viewpoint in table.viewpoints),
        scan_of=torch.from_numpy(np.repeat(np.arange(len(tables)), sizes)),
        position=position,
        neighbour=torch.from_numpy(neighbour),
        neighbour_view=view,
        neighbour_heading=heading,
        neighbour_elevation=elevation,
        neighbour_length=_joined_tables([_padded(table.length, slots, np.inf) for table in tables]),
        row_start=torch.from_numpy(np.cumsum(row_length) - row_length),
        local=torch.from_numpy(np.arange(len(row_length)) - first_of_scan),
        pair_distance=_joined_tables([table.distance.ravel() for table in tables]),
        pair_slot=_joined_tables([table.first_slot.ravel() for table in tables]),
    )


def _joined_tables(tables: Sequence[npt.NDArray[Number]]) -> Tensor:
    return torch.from_numpy(np.concatenate(tables))


def _padded(rows: npt.NDArray[Number], width: int, filler: float) -> npt.NDArray[Number]:
    """rows: (v, k)  ->  (v, width)"""
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=filler)


def _positions(scan: Scan, rows: list[int], positions: Positions) -> FloatArray:
    poses = np.array([scan.viewpoints[row].pose for row in rows], dtype=np.float64).reshape(-1, 4, 4)
    translation = poses[:, :3, 3]
    if positions == "pose":
        return translation
    centre: FloatArray = translation - poses[:, :3, :3] @ np.array(CENTRE_OFFSET)
    return centre


def _neighbour_rows(links: npt.NDArray[np.bool_]) -> IntArray:
    """links: (v, v)  ->  neighbours in ascending order (v, k), padded with -1"""
    slots = max(1, int(links.sum(axis=1).max(initial=0)))
    rows = np.full((len(links), slots), NONE, dtype=np.int64)
    here, there = np.nonzero(links)
    slot = np.arange(len(here)) - np.searchsorted(here, here)
    rows[here, slot] = there
    return rows


def _all_pairs(edge_length: FloatArray) -> FloatArray:
    """Floyd-Warshall, vectorised over pairs.  edge_length: (v, v), inf where no edge  ->  (v, v)"""
    distance = edge_length.copy()
    np.fill_diagonal(distance, 0.0)
    through = np.empty_like(distance)
    for middle in range(len(distance)):
        np.add(distance[:, middle, None], distance[None, middle], out=through)
        np.minimum(distance, through, out=distance)
    return distance


def _first_slots(neighbour: IntArray, length: FloatArray, distance: FloatArray) -> npt.NDArray[np.int16]:
    """The neighbour slot that starts the shortest path.  (v, k), (v, k), (v, v)  ->  (v, v), -1 where none"""
    via = length[:, :, None] + distance[np.maximum(neighbour, 0)]
    slot: npt.NDArray[np.int16] = via.argmin(axis=1).astype(np.int16)
    slot[np.isinf(distance)] = NONE
    np.fill_diagonal(slot, NONE)
    return slot


def _neighbour_directions(position: Tensor, neighbour: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """position: (V, 3)  neighbour: (V, K)  ->  view, heading, elevation (V, K), 0 at pads"""
    pads = neighbour == NONE
    heading, elevation = direction(position[:, None], position[neighbour.clamp_min(0)])
    view = nearest_view(heading, elevation).masked_fill(pads, 0)
    return view, heading.float().masked_fill(pads, 0.0), elevation.float().masked_fill(pads, 0.0)


def graph_digest(connectivity: StrPath) -> str:
    """The sha256 of all connectivity files of a folder, names and contents: which graphs they are."""
    return _content_digest(connectivity_files(connectivity), "")


def _content_digest(files: Sequence[Path], start: str) -> str:
    digest = hashlib.sha256(start.encode())
    for file in files:
        content = read_bytes(file)
        digest.update(f" {file.name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _write_cached(stored: Path, world: World) -> None:
    tensors = {f.name: value for f in fields(world) if isinstance(value := getattr(world, f.name), Tensor)}
    names = {"scans": json.dumps(world.scans), "viewpoints": json.dumps(world.viewpoints)}
    write_tensor_file(stored, tensors, {**names, "key": stored.stem})


def _read_cached(stored: Path) -> World | None:
    """The world in a cache file; None when there is none, when it is damaged or that of other graphs."""
    try:
        tensors, texts = read_tensor_file(stored)
        if CHECKSUM not in texts or texts["key"] != stored.stem:
            return None
        scans, viewpoints = (tuple(json.loads(texts[key])) for key in ("scans", "viewpoints"))
        return World(scans=scans, viewpoints=viewpoints, **tensors)
    except (DataError, TypeError, ValueError, KeyError):
        return None
