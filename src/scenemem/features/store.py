"""View features: tracks, stores opened and converted, and the environment agents perceive.

Shape letters: R rows of a store, V viewpoints of a world, M requested viewpoints, K candidate slots, D visual
columns.
"""

from __future__ import annotations

import base64
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.features import (
    Column,
    FeatureRow,
    StoreInfo,
    count_feature_hdf5,
    estimate_feature_tsv,
    read_feature_hdf5,
    read_feature_tsv,
    read_store,
    read_store_info,
    stream_store,
)
from scenemem.formats.folder import DataFolder
from scenemem.houses import house as houses
from scenemem.registry import listed
from scenemem.world.build import Progress, load_world
from scenemem.world.graph import HEADINGS, VIEWS, World, angle_feature, rotated, view_heading

IN_MEMORY = 512 * 2**20  # bytes a store may take as float32 to be read into memory
PROJECTIONS = 4  # numbers per panorama that are kept with weights, to recognise other features

_LAST_BITS = 0.01  # of the root mean square: two roundings of the same features differ less, others more
_AT_ONCE = 256  # panoramas
_KINDS = {  # ending of a published file -> reader, number of rows
    ".tsv": (read_feature_tsv, estimate_feature_tsv),
    ".tsv.gz": (read_feature_tsv, estimate_feature_tsv),
    ".hdf5": (read_feature_hdf5, count_feature_hdf5),
    ".h5": (read_feature_hdf5, count_feature_hdf5),
}


@dataclass(frozen=True)
class Track:
    """A kind of view features; results are compared within one track only."""

    name: str  # of the track and of the store that its command builds
    sensor: str  # what an agent would have to carry to perceive as much
    command: str  # builds the store
    privileged: bool = False  # holds what no sensor measures from where the agent stands

    @property
    def about(self) -> dict[str, Any]:
        """What a store says about its track."""
        return {"track": self.name, "sensor": self.sensor}


CAPTIONS = Track("captions", "a camera with a captioner, and a depth sensor", "scenemem data captions")
OBJECTS = Track("objects", "a perfect object detector, and a depth sensor", "scenemem data objects")
IMAGES = Track("images", "a camera with an image encoder", "scenemem data images --images DIR")
ORACLE = Track("oracle", "no sensor: annotations, an upper bound", "scenemem data objects", privileged=True)
HOUSES = Track(houses.TRACK, houses.SENSOR, "scenemem data houses")

TRACKS = {track.name: track for track in (CAPTIONS, OBJECTS, IMAGES, ORACLE, HOUSES)}
"""Tracks by name: those of real buildings from strict to privileged, then that of the embedded houses."""


# What agents perceive


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """The view features of every viewpoint of a world; those of large stores stay on disk until gathered."""

    info: StoreInfo
    values: Tensor  # (R, 36, D) float16 and memory-mapped, or float32 when small
    row: Tensor  # (V,) int64, the row of every viewpoint of the world
    half: bool = False  # gather float16 as stored; float32 otherwise
    stored: NDArray[np.float16] | None = None  # (R, 36, D) all rows of the file, on disk

    @property
    def width(self) -> int:
        """Columns per view."""
        return self.info.width

    @cached_property
    def _rows(self) -> Tensor:
        """(R, 36 * D) a view of the values"""
        return self.values.flatten(1)

    @cached_property
    def _views(self) -> Tensor:
        """(R * 36, D) a view of the values"""
        return self.values.flatten(0, 1)

    # an embedding look-up copies whole rows, indexing with [] copies number by number

    def gather(self, viewpoints: Tensor) -> Tensor:
        """viewpoints: (...) int64 global index  ->  (..., 36, D)"""
        picked = functional.embedding(self.row[viewpoints], self._rows)
        picked = picked.view(*viewpoints.shape, VIEWS, self.info.width)
        return picked if self.half else picked.float()

    def gather_views(self, viewpoints: Tensor, views: Tensor) -> Tensor:
        """viewpoints, views: (...) int64, broadcast together  ->  the features of single views (..., D)"""
        picked = functional.embedding(self.row[viewpoints] * VIEWS + views, self._views)
        return picked if self.half else picked.float()

    def to(self, device: torch.device | str) -> FeatureStore:
        """The same store with all its values loaded on ``device``; rows follow the world's index."""
        values = self.values[self.row].to(device)
        return replace(self, values=values, row=torch.arange(len(self.row), device=device))


@dataclass(frozen=True, eq=False)
class CandidateFeatures:
    """How the neighbours of where agents stand look to them."""

    visual: Tensor  # (M, K, D) of the view that looks at the neighbour
    orientation: Tensor  # (M, K, 4) relative to the agent's heading
    mask: Tensor  # (M, K) bool, true at real neighbours


class Environment:
    """A world together with the features of its views."""

    def __init__(self, world: World, store: FeatureStore) -> None:
        self.world = world
        self.store = store
        # (V, K, 4) absolute directions of the neighbours; 0 at pads
        directions = angle_feature(world.neighbour_heading, world.neighbour_elevation, width=4)
        self.directions = directions * world.neighbour_mask.unsqueeze(-1)

    @property
    def width(self) -> int:
        """Visual columns D."""
        return self.store.info.width

    def panorama(self, viewpoint: Tensor) -> Tensor:
        """viewpoint: (...)  ->  (..., 36, D)"""
        return self.store.gather(viewpoint)

    def candidates(self, viewpoint: Tensor, view: Tensor) -> CandidateFeatures:
        """The neighbours as agents see them that stand at ``viewpoint`` (M,) and face ``view`` (M,)."""
        visual = self.store.gather_views(viewpoint.unsqueeze(-1), self.world.neighbour_view[viewpoint])
        orientation = self._relative[view % HEADINGS, viewpoint]
        return CandidateFeatures(visual, orientation, self.world.neighbour_mask[viewpoint])

    @cached_property
    def _relative(self) -> Tensor:
        """(12, V, K, 4) the directions of the neighbours for each of the 12 steps an agent can face"""
        steps = torch.arange(HEADINGS, device=self.world.device)
        return rotated(self.directions.unsqueeze(0), view_heading(steps).view(-1, 1, 1))


# Opening a store


def open_store(target: StrPath, world: World, *, half: bool = False) -> FeatureStore:
    """Open the store ``target`` (``.../<name>.npy``) for the viewpoints of ``world``; others are ignored.

    Raises:
        DataError: the store is broken or lacks a viewpoint of the world.
    """
    info, mapped = read_store(target)
    rows = {key: row for row, key in enumerate(info.keys)}
    if missing := [name for name in world.names if name not in rows]:
        lacks = f"{len(missing)} of the {len(world.names)} viewpoints of the world, first '{missing[0]}'"
        advice = "build it from features of all viewpoints of a building or more"
        raise DataError(target, f"lacks {lacks}; {advice}")
    row = torch.tensor([rows[name] for name in world.names], dtype=torch.long)
    values = torch.from_numpy(mapped)
    if not half and values.numel() * 4 <= IN_MEMORY:
        values = values.float()  # converted once instead of at every lookup
    return FeatureStore(info, values, row, half, mapped)


def covered_scans(info: StoreInfo, world: World) -> tuple[list[str], str]:
    """The scans of which a store has every viewpoint, and in words what it lacks; empty without a lack."""
    scans, keys = [world.scans[scan] for scan in world.scan_of.tolist()], set(info.keys)
    sizes = Counter(scans)
    found = Counter(scan for name, scan in zip(world.names, scans, strict=True) if name in keys)
    whole = [scan for scan in world.scans if found[scan] == sizes[scan]]
    if len(whole) == len(world.scans):
        return whole, ""
    cut = [scan for scan in world.scans if 0 < found[scan] < sizes[scan]]
    partial = [f"{scan} ({found[scan]} of {sizes[scan]})" for scan in cut]
    lacks = f"lacks {sizes.total() - found.total():,} of {sizes.total():,} viewpoints"
    there = f"it has all of {len(whole)} of {len(world.scans)} buildings ({listed(whole)})"
    parts = f", and parts of {listed(partial)}" if partial else ""
    return whole, f"{lacks}; {there if whole else 'it has no building whole'}{parts}"


def complete_stores(folder: DataFolder) -> Iterator[tuple[Path, StoreInfo]]:
    """The stores that can be read, with what they hold; unreadable ones are skipped."""
    for store in folder.feature_files():
        with suppress(DataError):
            yield store, read_store_info(store)


def choose_store(folder: DataFolder, name: str | None, advice: str = "name one with `features`") -> Path:
    """The feature store of a name, or the only one there is; ``advice`` ends the message about several."""
    if name is not None:
        return folder.feature_file(name)
    stores = [store for store, _ in complete_stores(folder)] or folder.feature_files()
    if len(stores) > 1:
        names = ", ".join(file.stem for file in stores)
        raise UserError(f"{folder.root} has several feature stores ({names}); {advice}")
    return stores[0] if stores else folder.feature_file("objects")  # which says how to build one


def open_environment(store: Path, folder: DataFolder, device: str = "cpu") -> Environment:
    """The world and the features of a store; buildings it does not cover are left out, with a warning."""
    world = load_world(folder.connectivity)
    scans, lacks = covered_scans(read_store_info(store), world)
    if lacks and not scans:
        raise DataError(store, f"{lacks}; convert features of all viewpoints of a building or more")
    if lacks:
        warnings.warn(f"{store}: {lacks}; instructions elsewhere are left out", stacklevel=2)
        world = load_world(folder.connectivity, scans=scans)
    features = open_store(store, world)
    if device != "cpu":
        world, features = world.to(device), features.to(device)
    return Environment(world, features)


def projections(values: NDArray[np.float16]) -> NDArray[np.float16]:
    """Random projections of every panorama, into which each of its views enters with signs of its own.

    They are of the size of the features, and small changes change them little: about 0.05 % when every number
    is rounded to the other side.

    values: (R, 36, D)  ->  (R, 4)
    """
    size = math.prod(values.shape[1:])
    digest = hashlib.shake_128(b"scenemem").digest(-(-size * PROJECTIONS // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[: size * PROJECTIONS]
    signs = (bits.reshape(size, PROJECTIONS) * np.float32(2) - 1) / np.float32(math.sqrt(size))
    found = np.empty((len(values), PROJECTIONS), dtype=np.float16)
    for start in range(0, len(values), _AT_ONCE):
        rows = values[start : start + _AT_ONCE]
        with np.errstate(over="ignore", invalid="ignore"):  # the result shows what is not finite
            found[start : start + _AT_ONCE] = rows.reshape(len(rows), size).astype(np.float32) @ signs
    return found


def identity(store: FeatureStore) -> dict[str, Any]:
    """What weights keep about the features they were trained on, for ``check_identity``."""
    assert store.stored is not None, "features of a file"
    info = {name: getattr(store.info, name) for name in ("width", "encoder", "sha256", "track", "layout")}
    text = base64.b64encode(projections(store.stored).astype("<f2").tobytes()).decode()
    return {**info, "projections": text}


def check_identity(trained: Mapping[str, Any], store: FeatureStore, file: StrPath) -> None:
    """Refuse a store of another track, layout or content; warn about one that differs in last bits only.

    A store that was built elsewhere from the same files has the same track, encoder, columns and viewpoints,
    but a number here and there may have been rounded to the other side.

    Raises:
        DataError: the weights in ``file`` were trained on other features.
    """
    info, advice = store.info, "build the store it was trained on again"
    if trained.get("sha256") == info.sha256:
        return
    for name in ("width", "track"):
        before, found = trained.get(name), getattr(info, name)
        if before != found:
            reason = f"was trained on features with {name} {before}, this store has {found or 'none'}"
            raise DataError(file, f"{reason}; {advice}")
    seen = f"was trained on features with sha256 {trained.get('sha256')}, this store has {info.sha256}"
    if not info.track or trained.get("layout") != info.layout or store.stored is None:
        raise DataError(file, f"{seen}; {advice}")
    now = projections(store.stored).astype(np.float64)
    try:
        kept = np.frombuffer(base64.b64decode(trained["projections"], validate=True), "<f2")
        before = kept.reshape(now.shape).astype(np.float64)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"does not hold the projections of {len(now):,} panoramas ({error}); get the file again"
        raise DataError(file, reason, field="features.projections") from error
    same = np.abs(before - now) <= _LAST_BITS * math.sqrt(float(np.square(before).mean()))
    if others := int((~same).any(axis=1).sum()):  # NaN is neither smaller nor larger
        differs = f"{others:,} of {len(now):,} panoramas differ more than rounding can explain"
        raise DataError(file, f"{seen}; {differs}; {advice}")
    warnings.warn(
        f"{file}: {seen}; all {len(now):,} panoramas agree but for rounding, so it is taken for the same "
        "store built elsewhere, and scores may differ a little",
        stacklevel=2,
    )


# Writing stores


def _ending(file: StrPath) -> str | None:
    return next((ending for ending in _KINDS if Path(file).name.endswith(ending)), None)


def store_name(file: StrPath) -> str:
    """The name of a feature file without the ending of its kind."""
    return Path(file).name.removesuffix(_ending(file) or "")


def convert_features(
    file: StrPath,
    target: StrPath,
    *,
    columns: int | None = None,
    encoder: str = "",
    progress: Progress | None = None,
) -> StoreInfo:
    """Convert a TSV or HDF5 file, told apart by its name, to the store ``target``, row by row.

    The rows of a TSV keep their order, those of HDF5 are sorted by name. ``columns`` keeps only the first
    columns of every view; ``progress`` is called with (viewpoints done, in all, which a TSV estimates).

    Raises:
        UserError: the name ends in neither kind, or no column would be kept.
        DataError: the file is broken or its rows do not fit the store; see the readers and ``stream_store``.
    """
    if columns is not None and columns < 1:
        raise UserError(f"columns must be 1 or more, got {columns}; leave it out to keep all")
    if (ending := _ending(file)) is None:
        raise UserError(
            f"{file}: unknown kind of feature file; expected a name ending in {', '.join(_KINDS)}"
        )
    read, count = _KINDS[ending]
    rows = read(file, columns)
    kept = f", first {columns} columns" if columns is not None else ""
    return stream_store(
        target,
        rows if progress is None else _with_progress(rows, count(file), progress),
        origin=file,
        source=f"{Path(file).name}{kept}",
        encoder=encoder,
        width=columns,
        **IMAGES.about,
    )


def _with_progress(rows: Iterable[FeatureRow], total: int, progress: Progress) -> Iterator[FeatureRow]:
    for done, row in enumerate(rows, start=1):
        yield row
        progress(done, max(done, total))


def converted_once(name: str, folder: Path, bar: Callable[[str], AbstractContextManager[Progress]]) -> str:
    """The name of a store in ``folder``; a published file that is named instead is converted if need be."""
    if _ending(name) is None or not Path(name).is_file():
        return name
    store = store_name(name)
    if not (folder / f"{store}.npy").is_file():
        with bar(f"converting {Path(name).name}") as progress:
            convert_features(name, folder / f"{store}.npy", progress=progress)
    return store


def column_groups(groups: Sequence[tuple[str, int, str]]) -> tuple[Column, ...]:
    """Name, width and description of neighbouring groups  ->  their columns; empty groups are left out."""
    columns, start = [], 0
    for name, width, description in groups:
        if width:
            columns.append(Column(name, start, start + width, description))
        start += width
    return tuple(columns)
