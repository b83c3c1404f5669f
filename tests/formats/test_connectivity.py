from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.formats.connectivity import (
    Viewpoint,
    connectivity_files,
    plain_graph,
    read_graphs,
    read_scan,
    write_scan,
)
from tests.formats.helpers import put, refused


def test_what_is_written_reads_back_and_gives_the_same_bytes(tiny_data: Path, tmp_path: Path) -> None:
    files = connectivity_files(tiny_data / "connectivity")
    assert [file.name.split("_")[0] for file in files] == ["grid", "spiral", "yard"]
    grid, spiral, _ = scans = [read_scan(file) for file in files]
    assert [scan.name for scan in scans] == ["grid", "spiral", "yard"]
    assert spiral.viewpoints[3].position[2] == pytest.approx(1.5 + 0.6 * 3)
    alone = [viewpoint.image_id for viewpoint in grid.viewpoints if not any(viewpoint.unobstructed)]
    assert alone == ["g-alone"], "single cut-off viewpoints are allowed"
    for scan, file in zip(scans, files, strict=True):
        assert write_scan(tmp_path, scan).read_bytes() == file.read_bytes()
    pose: Any = tuple(float(number) for number in range(16))
    assert Viewpoint("a", pose, True, (), (), 1.5).position == (3.0, 7.0, 11.0)


PLAIN = {
    "scan": "flat",
    "viewpoints": [
        {"id": "hall", "position": [0, 0, 1.5]},
        {"id": "kitchen", "position": [0, 2.5, 1.5]},
        {"id": "bath", "position": [2, 0, 1.5]},
    ],
    "edges": [["hall", "kitchen"], ["bath", "hall"]],
}
FOUR = [{"id": name, "position": [x, 0, 1.5]} for x, name in enumerate("abcd")]


def test_plain_graphs_become_scans_and_scans_plain_graphs(tiny_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "graphs.json"
    file.write_text(
        json.dumps([PLAIN, PLAIN | {"scan": "loft", "sight": [["bath", "kitchen"]], "height": 1.2}])
    )
    flat, loft = read_graphs(file)
    assert (flat.viewpoints[1].image_id, flat.viewpoints[1].position) == ("kitchen", (0.0, 2.5, 1.5))
    walkable = [(False, True, True), (True, False, False), (True, False, False)]
    assert [[one.unobstructed for one in scan.viewpoints] for scan in (flat, loft)] == [walkable] * 2
    assert [one.visible for one in flat.viewpoints] == walkable
    assert loft.viewpoints[1].visible == (True, False, True)
    assert loft.viewpoints[0].height == 1.2 != flat.viewpoints[0].height == 1.5
    file.write_bytes(b"\n".join(msgspec.json.encode(plain_graph(scan)) for scan in (flat, loft)))
    assert read_graphs(file) == [flat, loft]
    grid = plain_graph(read_scan(tiny_data / "connectivity" / "grid_connectivity.json"))
    assert "g-excluded" not in {one.id for one in grid.viewpoints}
    assert len(grid.edges) == 3 * 3 + 4 * 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edges": [["hall", "attic"]]}, "'attic' is no viewpoint of 'flat'; list it among the viewpoints"),
        ({"edges": [["hall", "hall"]]}, "'hall' is connected to itself"),
        ({"viewpoints": PLAIN["viewpoints"] * 2}, "'hall' already stands in record 0; ids must be unique"),  # type: ignore[operator]
        ({"viewpoints": FOUR, "edges": [["a", "b"], ["c", "d"]]}, "the parts or leave out the smaller one"),
        ({"viewpoints": [], "edges": []}, "holds no included viewpoint, expected at least one"),
        ({"scan": "../flat"}, "expected `str` matching regex"),
    ],
)
def test_impossible_plain_graphs_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    file = tmp_path / "graphs.jsonl"
    file.write_text(json.dumps(PLAIN | changed))
    assert message in refused(read_graphs, file)


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    message = "no such folder, expected one with <scan>_connectivity.json files"
    assert refused(connectivity_files, tmp_path / "nowhere") == message
    assert refused(connectivity_files, tmp_path) == "holds no <scan>_connectivity.json file"


def _put(number: int, field: str, value: Any, *index: int) -> Callable[[Any], None]:
    """Change a field of a record, or one entry of it."""

    def spoil(records: Any) -> None:
        place: Any = records[number]
        key: Any = field
        for step in index:
            place, key = place[key], step
        place[key] = value

    return spoil


def _cut(records: Any) -> None:
    """Two pairs that see each other but not the rest: a graph in two parts."""
    for record in records:
        record["unobstructed"] = [False] * len(records)
    for a, b in ((0, 1), (2, 3)):
        records[a]["unobstructed"][b] = records[b]["unobstructed"][a] = True


def _same_place(records: Any) -> None:
    records[1]["pose"] = records[0]["pose"]


def _none_included(records: Any) -> None:
    for record in records:
        record["included"] = False


SPOILT: list[tuple[Callable[[Any], object], str]] = [
    (_cut, "record 2: the graph is in several parts: no way leads from 'g00' to 'g02'; connect"),
    (
        _put(1, "unobstructed", False, 0),
        "record 0, field 'unobstructed[1]': the edge between 'g00' and 'g01' exists in one direction",
    ),
    (_put(4, "image_id", "g02"), "record 4, field 'image_id': 'g02' already stands in record 2; ids"),
    (_same_place, "record 0, field 'unobstructed[1]': 'g00' and 'g01' are connected but stand at"),
    (_put(3, "unobstructed", True, 3), "record 3, field 'unobstructed[3]': 'g10' is connected to itself"),
    (_put(5, "visible", [True] * 10), "record 5, field 'visible': holds 10 flags, expected 11"),
    (_put(5, "unobstructed", []), "record 5, field 'unobstructed': holds 0 flags, expected 11"),
    (_put(2, "pose", [0.0] * 15), "record 2, field 'pose': expected `array` of length"),
    (_put(2, "image_id", ""), "record 2, field 'image_id': expected `str` of length >= 1"),
    (_put(6, "pose", 1e999, 3), "record 6, field 'pose[3]': holds NaN or Infinity, expected finite"),
    (lambda records: records[1].pop("included"), "record 1: object missing required field `included`"),
    (_put(1, "included", "yes"), "record 1, field 'included': expected `bool`, got `str`"),
    (lambda records: records.clear(), "holds no included viewpoint, expected at least one"),
    (_none_included, "holds no included viewpoint, expected at least one; set included to true"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_a_spoilt_graph_is_refused_with_its_place(
    tiny_data: Path, tmp_path: Path, spoil: Callable[[Any], None], message: str
) -> None:
    records = json.loads((tiny_data / "connectivity" / "yard_connectivity.json").read_text())
    spoil(records)
    assert refused(read_scan, put(tmp_path / "yard_connectivity.json", records)).startswith(message)
