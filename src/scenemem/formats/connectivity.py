"""Navigation graphs: ``connectivity/<scan>_connectivity.json``, one file per building, and plain graphs.

A plain graph is JSON that is easy to write: viewpoints with a position, and the pairs that are connected.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Annotated

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import fitted, read_json, read_records

SUFFIX = "_connectivity.json"

Matrix = Annotated[tuple[float, ...], msgspec.Meta(min_length=16, max_length=16)]


class Viewpoint(msgspec.Struct, frozen=True):
    """One panorama of a building, as the public files store it."""

    image_id: Annotated[str, msgspec.Meta(min_length=1)]
    pose: Matrix  # row-major 4x4 camera-to-world; x, y, z in metres = pose[3], pose[7], pose[11]; z up
    included: bool  # whether the viewpoint belongs to the navigation graph
    visible: tuple[bool, ...]  # per viewpoint of the file: can it be seen from here
    unobstructed: tuple[bool, ...]  # per viewpoint of the file: can one walk there directly
    height: float  # of the camera above the floor, metres

    @property
    def position(self) -> tuple[float, float, float]:
        """x, y, z in metres: the translation of the pose."""
        return self.pose[3], self.pose[7], self.pose[11]


class Scan(msgspec.Struct, frozen=True):
    """The navigation graph of one building."""

    name: str
    viewpoints: tuple[Viewpoint, ...]  # in file order, excluded ones too


class PlainViewpoint(msgspec.Struct, frozen=True):
    """Where one can stand."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    position: tuple[float, float, float]  # x, y, z of the camera in metres; z up


class PlainGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """The navigation graph of a building as it is easiest to write."""

    scan: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+$")]
    viewpoints: tuple[PlainViewpoint, ...]
    edges: tuple[tuple[str, str], ...]  # where one can walk, each pair once
    sight: tuple[tuple[str, str], ...] = ()  # pairs without an edge that see each other
    height: float = 1.5  # of the camera above the floor, metres


def connectivity_files(folder: StrPath) -> list[Path]:
    """The connectivity files of a folder, sorted by scan name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(folder, f"no such folder, expected one with <scan>{SUFFIX} files")
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise DataError(folder, f"holds no <scan>{SUFFIX} file")
    return files


def read_scan(file: StrPath) -> Scan:
    """Read and check one connectivity file.

    Raises:
        DataError: the content is not a navigation graph: wrong schema, wrong list lengths, duplicate ids,
            no included viewpoint, a viewpoint connected to itself, an edge that exists in one direction only,
            two connected viewpoints at the same place, or a graph in several parts (single cut-off viewpoints
            are allowed).
    """
    viewpoints = read_json(file, tuple[Viewpoint, ...])
    _check_records(viewpoints, file)
    _check_edges(viewpoints, file)
    return Scan(name=Path(file).name.removesuffix(SUFFIX), viewpoints=viewpoints)


def write_scan(folder: StrPath, scan: Scan) -> Path:
    """Write ``<folder>/<scan>_connectivity.json``; the same scan always gives the same bytes."""
    target = Path(folder) / f"{scan.name}{SUFFIX}"
    with atomic_file(target) as partial:
        partial.write_bytes(msgspec.json.encode(scan.viewpoints))
    return target


def read_graphs(file: StrPath) -> list[Scan]:
    """The plain graphs of a JSON list, or of JSON lines.

    Raises:
        DataError: a graph names a viewpoint it does not list, or is none; see ``read_scan``.
    """
    return [
        _scan(fitted(record, PlainGraph, file, place), file, place) for place, record in read_records(file)
    ]


def _scan(graph: PlainGraph, file: StrPath, place: str) -> Scan:
    """A plain graph as its connectivity file has it."""
    ids = [viewpoint.id for viewpoint in graph.viewpoints]
    edges = {*graph.edges, *(pair[::-1] for pair in graph.edges)}
    seen = {*edges, *graph.sight, *(pair[::-1] for pair in graph.sight)}
    if unknown := sorted({name for pair in seen for name in pair} - set(ids)):
        reason = f"'{unknown[0]}' is no viewpoint of '{graph.scan}'; list it among the viewpoints"
        raise DataError(file, reason, record=place)
    viewpoints = tuple(
        Viewpoint(
            image_id=one,
            pose=(1.0, 0.0, 0.0, x, 0.0, 1.0, 0.0, y, 0.0, 0.0, 1.0, z, 0.0, 0.0, 0.0, 1.0),
            included=True,
            visible=tuple((one, other) in seen for other in ids),
            unobstructed=tuple((one, other) in edges for other in ids),
            height=graph.height,
        )
        for one, (x, y, z) in ((viewpoint.id, viewpoint.position) for viewpoint in graph.viewpoints)
    )
    _check_records(viewpoints, file)
    _check_edges(viewpoints, file)
    return Scan(graph.scan, viewpoints)


def plain_graph(scan: Scan) -> PlainGraph:
    """The included viewpoints of a scan and how they are connected."""
    kept = [(row, one) for row, one in enumerate(scan.viewpoints) if one.included]
    pairs = [(a, b, row) for (_, a), (row, b) in combinations(kept, 2)]
    return PlainGraph(
        scan=scan.name,
        viewpoints=tuple(PlainViewpoint(one.image_id, one.position) for _, one in kept),
        edges=tuple((a.image_id, b.image_id) for a, b, row in pairs if a.unobstructed[row]),
        sight=tuple(
            (a.image_id, b.image_id) for a, b, row in pairs if a.visible[row] and not a.unobstructed[row]
        ),
        height=kept[0][1].height,
    )


def _check_records(viewpoints: tuple[Viewpoint, ...], file: StrPath) -> None:
    if not any(viewpoint.included for viewpoint in viewpoints):
        reason = "holds no included viewpoint, expected at least one; set included to true or remove the file"
        raise DataError(file, reason)
    first_seen: dict[str, int] = {}
    for number, viewpoint in enumerate(viewpoints):
        for field in ("visible", "unobstructed"):
            flags = getattr(viewpoint, field)
            if len(flags) != len(viewpoints):
                reason = (
                    f"holds {len(flags)} flags, expected {len(viewpoints)}, one per viewpoint of the file"
                )
                raise DataError(file, reason, record=f"record {number}", field=field)
        earlier = first_seen.setdefault(viewpoint.image_id, number)
        if earlier != number:
            reason = f"'{viewpoint.image_id}' already stands in record {earlier}; ids must be unique"
            raise DataError(file, reason, record=f"record {number}", field="image_id")


def _check_edges(viewpoints: tuple[Viewpoint, ...], file: StrPath) -> None:
    included = [number for number, viewpoint in enumerate(viewpoints) if viewpoint.included]
    neighbours = {
        here: [there for there in included if viewpoints[here].unobstructed[there]] for here in included
    }
    for here, there in ((here, there) for here, row in neighbours.items() for there in row):
        one, other = viewpoints[here], viewpoints[there]
        names, reason = f"'{one.image_id}' and '{other.image_id}'", None
        if here == there:
            reason = f"'{one.image_id}' is connected to itself"
        elif not other.unobstructed[here]:
            reason = f"the edge between {names} exists in one direction only; set both flags or none"
        elif one.position == other.position:
            reason = f"{names} are connected but stand at the same place"
        if reason is not None:
            raise DataError(file, reason, record=f"record {here}", field=f"unobstructed[{there}]")
    linked = [here for here, row in neighbours.items() if row]
    reached: set[int] = set()
    waiting = linked[:1]
    while waiting:
        here = waiting.pop()
        waiting += [] if here in reached else neighbours[here]
        reached.add(here)
    cut_off = next((here for here in linked if here not in reached), None)
    if cut_off is not None:
        ends = f"'{viewpoints[linked[0]].image_id}' to '{viewpoints[cut_off].image_id}'"
        reason = f"the graph is in several parts: no way leads from {ends}"
        advice = "connect the parts or leave out the smaller one (a connectivity file: included is false)"
        raise DataError(file, f"{reason}; {advice}", record=f"record {cut_off}")
