from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.errors import DataError
from scenemem.formats.connectivity import Viewpoint, connectivity_files, read_scan, write_scan


def _records(tiny_data: Path) -> Any:
    return json.loads((tiny_data / "connectivity" / "yard_connectivity.json").read_text())


def _write(folder: Path, records: Any) -> Path:
    file = folder / "yard_connectivity.json"
    file.write_text(json.dumps(records))
    return file


def test_what_is_written_reads_back_and_gives_the_same_bytes(tiny_data: Path, tmp_path: Path) -> None:
    source = tiny_data / "connectivity" / "spiral_connectivity.json"
    scan = read_scan(source)
    assert scan.name == "spiral"
    assert scan.viewpoints[3].position[2] == pytest.approx(1.5 + 0.6 * 3)
    assert write_scan(tmp_path, scan).read_bytes() == source.read_bytes()


def test_the_position_is_the_translation_of_the_pose() -> None:
    pose: Any = tuple(float(number) for number in range(16))
    assert Viewpoint("a", pose, True, (), (), 1.5).position == (3.0, 7.0, 11.0)


def test_files_are_listed_by_scan_name(tiny_data: Path) -> None:
    names = [file.name.split("_")[0] for file in connectivity_files(tiny_data / "connectivity")]
    assert names == ["grid", "spiral", "yard"]


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        connectivity_files(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no <scan>_connectivity.json file"):
        connectivity_files(tmp_path)


def _cut(records: Any) -> None:
    """Two pairs that see each other but not the rest: a graph in two parts."""
    for record in records:
        record["unobstructed"] = [False] * len(records)
    for a, b in ((0, 1), (2, 3)):
        records[a]["unobstructed"][b] = records[b]["unobstructed"][a] = True


def _one_way(records: Any) -> None:
    records[1]["unobstructed"][0] = False


def _same_id(records: Any) -> None:
    records[4]["image_id"] = records[2]["image_id"]


def _same_place(records: Any) -> None:
    records[1]["pose"] = records[0]["pose"]


def _loop(records: Any) -> None:
    records[3]["unobstructed"][3] = True


def _short_flags(records: Any) -> None:
    records[5]["visible"].pop()


def _short_pose(records: Any) -> None:
    records[2]["pose"].pop()


def _no_id(records: Any) -> None:
    records[2]["image_id"] = ""


def _infinite(records: Any) -> None:
    records[6]["pose"][3] = 1e999


def _missing_field(records: Any) -> None:
    del records[1]["included"]


def _wrong_type(records: Any) -> None:
    records[1]["included"] = "yes"


def _nothing(records: Any) -> None:
    records.clear()


def _none_included(records: Any) -> None:
    for record in records:
        record["included"] = False


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            _cut,
            "record 2: the graph is in several parts: no way leads from 'g00' to 'g02'; connect the parts",
        ),
        (
            _one_way,
            "record 0, field 'unobstructed[1]': the edge between 'g00' and 'g01' exists in one direction",
        ),
        (_same_id, "record 4, field 'image_id': 'g02' already stands in record 2; ids must be unique"),
        (_same_place, "'g00' and 'g01' are connected but stand at the same place"),
        (_loop, "record 3, field 'unobstructed[3]': 'g10' is connected to itself"),
        (_short_flags, "record 5, field 'visible': holds 10 flags, expected 11"),
        (_short_pose, "record 2, field 'pose': expected `array` of length"),
        (_no_id, "record 2: image_id is empty"),
        (_infinite, "record 6, field 'pose[3]': holds NaN or Infinity, expected finite numbers"),
        (_missing_field, "record 1: object missing required field `included`"),
        (_wrong_type, "record 1, field 'included': expected `bool`, got `str`"),
        (_nothing, "holds no viewpoint"),
        (_none_included, "holds no included viewpoint, expected at least one; set included to true"),
    ],
)
def test_a_spoilt_graph_is_refused_with_its_place(
    tiny_data: Path, tmp_path: Path, spoil: Callable[[Any], None], message: str
) -> None:
    records = _records(tiny_data)
    spoil(records)
    file = _write(tmp_path, records)
    with pytest.raises(DataError) as caught:
        read_scan(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_single_cut_off_viewpoints_are_allowed(tiny_data: Path) -> None:
    scan = read_scan(tiny_data / "connectivity" / "yard_connectivity.json")
    alone = [viewpoint for viewpoint in scan.viewpoints if not any(viewpoint.unobstructed)]
    assert [viewpoint.image_id for viewpoint in alone] == ["g-alone"]


@pytest.mark.real_data
def test_every_real_scan_reads(real_data: Path) -> None:
    scans = [read_scan(file) for file in connectivity_files(real_data / "connectivity")]
    assert len(scans) == 90
    assert sum(len(scan.viewpoints) for scan in scans) == 10_800
    assert sum(viewpoint.included for scan in scans for viewpoint in scan.viewpoints) == 10_567


def test_a_pose_is_finite_wherever_it_comes_from(tiny_data: Path) -> None:
    viewpoint = read_scan(connectivity_files(tiny_data / "connectivity")[0]).viewpoints[0]
    pose = (math.inf, *viewpoint.pose[1:])
    with pytest.raises(ValueError, match=f"pose of '{viewpoint.image_id}' holds a number that is not finite"):
        msgspec.structs.replace(viewpoint, pose=pose)
