"""A hand-made building: three viewpoints on a line going north, a wall behind the second, objects around."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scenemem.errors import DataError, UserError
from scenemem.features.objects import (
    SPACE,
    VIEW_DIRECTIONS,
    WORD_COLUMNS,
    Building,
    build_object_features,
    centredness,
    doors,
    load_annotations,
    nearness,
    rooms_ahead,
    rooms_next,
    seen_labels,
    space,
    ways,
)
from scenemem.features.words import FloatArray
from scenemem.formats.connectivity import Scan, Viewpoint, connectivity_files, read_scan, write_scan
from scenemem.formats.features import read_store, verify_store
from scenemem.formats.folder import DataFolder
from scenemem.world.graph import direction, nearest_view

NORTH, EAST, SOUTH, UP_NORTH, DOWN_SOUTH = 12, 15, 18, 24, 6

# name -> position; "c" stands two metres higher, "x" is not part of the graph
PLACES = {"a": (0.0, 0.0, 1.5), "b": (0.0, 4.0, 1.5), "c": (0.0, 8.0, 3.5), "x": (9.0, 9.0, 1.5)}
SEES = {"a": "b", "b": "ac", "c": "b", "x": ""}
# object -> (position, label, coarse class, viewpoints that list it, views there, boxes there)
LAMP = {"id": 3, "name": "floor lamp", "category": "lamp", "mpcat40": "lighting"}
BED = {"id": 5, "name": "bed", "category": "bed", "mpcat40": "bed"}
POSITIONS = {3: (0.0, 5.0, 1.5), 5: (1.0, 8.0, 3.5)}
SHOWN = {"views": [12, 13], "boxes": [[0, 0, 640, 480], [0, 0, 64, 48]]}
HIDDEN: dict[str, Any] = {"views": [], "boxes": []}
LISTS = {"a": [], "b": [{**LAMP, **SHOWN}], "c": [{**BED, **HIDDEN}], "x": []}


def _scan() -> Scan:
    return Scan(
        "house",
        tuple(
            Viewpoint(
                image_id=name,
                pose=(1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1),
                included=name != "x",
                visible=(flags := tuple(other in SEES[name] for other in PLACES)),
                unobstructed=flags,
                height=1.5,
            )
            for name, (x, y, z) in PLACES.items()
        ),
    )


def _write_compact(root: Path, lists: dict[str, Any] = LISTS) -> None:
    lines = [json.dumps({"scan": "house", "viewpoint": name, "objects": lists[name]}) for name in lists]
    lines.append(json.dumps({"scan": "elsewhere", "viewpoint": "q", "objects": []}))
    (root / "objects" / "view_objects.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    root = tmp_path / "data"
    write_scan(root / "connectivity", _scan())
    (root / "objects").mkdir()
    _write_compact(root)
    header = "scan\tobject_id\tx\ty\tz\tname\tcategory\tmpcat40\n"
    rows = [
        f"house\t{thing['id']}\t{x}\t{y}\t{z}\t{thing['name']}\t{thing['category']}\t{thing['mpcat40']}\n"
        for thing, (x, y, z) in ((LAMP, POSITIONS[3]), (BED, POSITIONS[5]))
    ]
    (root / "objects" / "object_positions.tsv").write_text(header + "".join(rows))
    (root / "rooms").mkdir()
    (root / "rooms" / "room_codes.tsv").write_text("room_code\troom\nh\thallway\nk\tkitchen\nz\tother\n")
    (root / "rooms" / "viewpoint_rooms.tsv").write_text(
        "scan\tviewpoint\troom_code\troom\nhouse\ta\th\thallway\nhouse\tb\tk\tkitchen\nhouse\tx\tz\tother\n"
    )
    return DataFolder(root)


@pytest.fixture
def building(data: DataFolder) -> Building:
    return load_annotations(data).buildings[0]


def _weights(data: DataFolder) -> FloatArray:
    """What the views show, hidden objects included (n, 36, labels)."""
    (building,) = load_annotations(data).buildings
    return seen_labels(building, building.listed)[1]


def test_view_axes_agree_with_the_grid_of_the_world() -> None:
    heading, elevation = direction(torch.zeros(36, 3, dtype=torch.float64), torch.tensor(VIEW_DIRECTIONS))
    assert torch.equal(nearest_view(heading, elevation), torch.arange(36))
    np.testing.assert_allclose(np.linalg.norm(VIEW_DIRECTIONS, axis=1), 1)


@settings(max_examples=30)
@given(st.tuples(*[st.floats(-20, 20)] * 3))
@example((0.0, 5.0, 0.0))
@example((0.0, 0.0, 0.0))
def test_the_angle_decides_not_the_distance(offset: tuple[float, float, float]) -> None:
    way = np.array(offset)
    length = np.linalg.norm(way)
    weight = centredness(way)
    if length == 0:
        assert weight.max() == 0
    elif length > 1e-3:
        np.testing.assert_allclose(weight, centredness(3 * way), atol=1e-9)
        angle = np.arccos(np.clip(VIEW_DIRECTIONS @ way / length, -1, 1))
        expected = np.where(angle < math.pi / 4, np.cos(2 * angle), 0)
        np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_nearness_fades_over_four_metres() -> None:
    offsets = np.array([[0, 0, 0], [0, 4, 0], [0, 0, -8.0]])
    np.testing.assert_allclose(nearness(offsets), [1, math.exp(-1), math.exp(-2)])


def test_objects_count_by_their_box_and_far_ones_where_they_can_be_seen(building: Building) -> None:
    present, weight = seen_labels(building, building.listed)
    assert present.tolist() == [0, 1]
    bed, lamp = weight.transpose(2, 0, 1)
    assert lamp[1, NORTH] == 1
    assert lamp[1, NORTH + 1] == pytest.approx(0.01**0.25, abs=1e-3)
    assert np.count_nonzero(lamp[1]) == 2, "where boxes are known the position adds nothing"
    assert lamp[0, NORTH] == pytest.approx(math.exp(-5 / 4), abs=1e-3), "five metres straight ahead"
    assert lamp[0, NORTH + 1] == pytest.approx(lamp[0, NORTH] / 2, abs=1e-3)
    assert lamp[0, SOUTH] == 0
    assert (bed[0] == 0).all(), "the only viewpoint that lists the bed is not visible from a"
    assert (bed[2] == 0).all(), "c lists the bed but has no box of it: hidden"
    distance = np.linalg.norm(np.subtract(POSITIONS[5], PLACES["b"]))
    assert 0 < bed[1].max() <= math.exp(-distance / 4)
    _, seen = seen_labels(building)
    assert (seen[..., 0] == 0).all(), "no viewpoint has a box of the bed, so no detector finds it"
    np.testing.assert_array_equal(seen[..., 1], weight[..., 1])


def test_of_several_objects_of_a_kind_the_best_counts(data: DataFolder) -> None:
    alone = _weights(data)
    positions = data.objects / "object_positions.tsv"
    positions.write_text(positions.read_text() + "house\t4\t0\t6\t1.5\tlamp\tlamp\tlighting\n")
    _write_compact(data.root, {**LISTS, "b": [*LISTS["b"], {**LAMP, **HIDDEN, "id": 4}]})
    two = _weights(data)
    np.testing.assert_array_equal(two[0], alone[0], "the second lamp is further away in the same direction")
    assert two[2].sum() > alone[2].sum(), "but it is nearer to c"


def test_space_tells_open_directions_ways_and_slopes(building: Building) -> None:
    table = dict(zip(SPACE, space(building).transpose(2, 0, 1), strict=True))
    assert table["sight"][0, NORTH] == pytest.approx(0.4, abs=1e-3), "four of ten metres"
    assert table["place"][0, NORTH] == pytest.approx(math.exp(-1), abs=1e-3)
    assert table["way"][0].argmax() == NORTH
    assert table["way"][0, SOUTH] == 0
    assert table["rise"][0].max() == table["fall"][0].max() == 0
    assert table["rise"][1, UP_NORTH] > 0.7, "two metres up"
    assert table["fall"][1].max() == 0
    assert table["fall"][2, DOWN_SOUTH] == table["rise"][1, UP_NORTH]
    np.testing.assert_array_equal(table["rise in sight"], table["rise"])
    np.testing.assert_array_equal(table["fall in sight"], table["fall"])


def test_rooms_are_those_of_the_visible_viewpoints_and_of_the_next_place(building: Building) -> None:
    ahead, following = rooms_ahead(building, 3), rooms_next(building, 3)
    near = pytest.approx(math.exp(-1), abs=1e-3)
    assert (ahead[0, NORTH].tolist(), following[0, NORTH].tolist()) == ([0, near, 0], [0, 1, 0])
    assert (ahead[1, SOUTH].tolist(), following[1, SOUTH].tolist()) == ([near, 0, 0], [1, 0, 0])
    assert not ahead[1, UP_NORTH].any(), "the room of c is not known"
    assert not following[1, UP_NORTH].any()


def test_ways_tell_what_they_lead_to(building: Building) -> None:
    end, crossing, near = ways(building).transpose(2, 0, 1)
    assert end[1, SOUTH] == 1, "nothing leads on from a"
    assert end[1, SOUTH + 1] == pytest.approx(0.25, abs=1e-3), "one view step aside"
    assert end[0].max() == 0, "from b one can go on"
    assert crossing[0, NORTH] == pytest.approx(2 / 6, abs=1e-3)
    assert near[0, NORTH] == pytest.approx(math.exp(-1), abs=1e-3)
    assert (near[0, [SOUTH, EAST]] == 0).all()


def test_doors_tell_rooms_of_one_kind_apart(data: DataFolder, building: Building) -> None:
    assert not doors(building).any(), "the table does not say which room is which"
    (data.rooms / "viewpoint_rooms.tsv").write_text(
        "scan\tviewpoint\tregion_index\troom_code\troom\n"
        "house\ta\t0\th\thallway\nhouse\tb\t1\th\thallway\nhouse\tc\t1\th\thallway\n"
    )
    stays, leaves = doors(load_annotations(data).buildings[0]).transpose(2, 0, 1)
    assert leaves[0, NORTH] == leaves[1, SOUTH] == 1
    assert stays[0].max() == 0
    assert stays[1, UP_NORTH] > 0.5
    assert leaves[2].max() == 0


def test_two_stores_are_written_and_described(data: DataFolder, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    stores = build_object_features(data, tmp_path / "out", progress=lambda *done: seen.append(done))
    assert list(stores) == ["objects", "oracle"]
    assert seen == [(1, 2), (2, 2)]
    plain, rooms = stores.values()
    assert (plain.track, rooms.track) == ("objects", "oracle")
    assert plain.sensor == "a perfect object detector, and a depth sensor"
    assert rooms.sensor == "no sensor: annotations, an upper bound"
    groups = [(column.name, column.stop - column.start) for column in rooms.columns]
    assert groups == [
        *(("words", 128), ("classes", 2), ("space", 7), ("ways", 3)),
        *(("room ahead", 3), ("room here", 3), ("room next", 3), ("doors", 2)),
    ]
    assert rooms.columns[1].description.endswith("bed, lighting")
    assert rooms.columns[4].description.endswith("hallway, kitchen, other")
    assert plain.columns[:3] == rooms.columns[:3]
    assert plain.columns[3].description.endswith("leads to: near"), "degrees are not a detector's business"
    assert rooms.columns[3].description.endswith("leads to: end, crossing, near")
    assert (plain.width, rooms.width) == (138, 151)
    assert plain.keys == rooms.keys == ("house_a", "house_b", "house_c")
    assert plain.source.startswith("objects/view_objects.jsonl.gz; objects/object_positions.tsv")
    assert "viewpoint_rooms" in rooms.source
    assert "hashed words" in rooms.encoder
    _, values = read_store(tmp_path / "out" / "oracle.npy")
    clean = read_store(tmp_path / "out" / "objects.npy")[1]
    np.testing.assert_array_equal(values[..., 130:137], clean[..., 130:137], "free space")
    np.testing.assert_array_equal(values[..., 139], clean[..., 137], "near")
    here = values[..., 143:146]
    assert (here[0] == [1, 0, 0]).all()
    assert (here[2] == 0).all(), "no room label"


def test_word_columns_add_up_label_vectors_and_class_columns_hold_the_largest_weight(
    data: DataFolder, building: Building, tmp_path: Path
) -> None:
    (data.root / "glove").mkdir()
    words, vectors = np.array(["bed", "lamp"]), np.array([[1, 0, 0], [0, 2, 0]], np.float16)
    np.savez(data.root / "glove" / "glove_300d.npz", words=words, vectors=vectors)
    stores = build_object_features(data, tmp_path, oracle=False)
    assert stores["objects"].encoder == "annotations, glove/glove_300d.npz reduced to 128"
    values = read_store(tmp_path / "objects.npy")[1].astype(float)
    _, weight = seen_labels(building)
    np.testing.assert_array_equal(values[..., WORD_COLUMNS:130], weight.astype(np.float16))
    length = np.linalg.norm(values[..., :WORD_COLUMNS], axis=-1)
    np.testing.assert_allclose(length, np.minimum(np.sqrt((weight**2).sum(-1)), 1), atol=2e-3)


def test_bbox_files_give_the_same_features_as_the_compact_file(data: DataFolder, tmp_path: Path) -> None:
    compact = build_object_features(data, tmp_path / "1")
    assert build_object_features(data, tmp_path / "again") == compact
    (data.objects / "view_objects.jsonl.gz").unlink()
    (data.objects / "BBox").mkdir()
    for name, things in LISTS.items():
        boxes = {
            thing["id"]: {"name": thing["name"], "visible_pos": thing["views"], "bbox2d": thing["boxes"]}
            for thing in things
        }
        (data.objects / "BBox" / f"house_{name}.json").write_text(json.dumps({name: boxes}))
    raw = build_object_features(data, tmp_path / "2")
    for name, info in raw.items():
        verify_store(tmp_path / "2" / f"{name}.npy")
        assert info.sha256 == compact[name].sha256
    assert raw["objects"].source.startswith("objects/BBox;")
    (data.objects / "object_positions.tsv").unlink()
    alone = build_object_features(data, tmp_path / "3", oracle=False)["objects"]
    assert [column.name for column in alone.columns] == ["words", "space", "ways"], "no coarse class is known"
    assert "no object positions, so only boxed objects" in alone.source
    weight = _weights(data)
    assert (weight[0] == 0).all()
    assert weight[1].any()


def test_rooms_may_lack_their_names_or_everything(data: DataFolder, tmp_path: Path) -> None:
    (data.rooms / "room_codes.tsv").unlink()
    annotations = load_annotations(data)
    names = {kind.room_code: kind.room for kind in annotations.rooms}
    assert names == {"h": "hallway", "k": "kitchen", "z": "other"}, "those of the viewpoints"
    assert annotations.buildings[0].room.tolist() == [0, 1, -1]
    shutil.rmtree(data.rooms)
    stores = build_object_features(data, tmp_path)
    assert list(stores) == ["objects"]
    assert stores["objects"].source.endswith("no room labels")
    assert sorted(file.name for file in tmp_path.glob("o*")) == ["objects.json", "objects.npy"]


def test_a_building_without_any_object_still_tells_its_space(data: DataFolder, tmp_path: Path) -> None:
    _write_compact(data.root, {"a": []})
    info = build_object_features(data, tmp_path, oracle=False)["objects"]
    groups = [(column.name, column.start, column.stop) for column in info.columns]
    assert groups == [("words", 0, 128), ("space", 128, 135), ("ways", 135, 136)]
    _, values = read_store(tmp_path / "objects.npy")
    assert (values[..., :128] == 0).all()
    assert (values[..., 128:] > 0).any()


def test_annotations_that_are_missing_or_not_known_are_named(data: DataFolder, tmp_path: Path) -> None:
    (data.rooms / "room_codes.tsv").write_text("room_code\troom\nh\thallway\nz\tother\n")
    with pytest.raises(DataError, match=r"viewpoint_rooms\.tsv: line 3, field 'room_code': 'k' is not in"):
        load_annotations(data)
    _write_compact(data.root, {"ghost": []})
    with pytest.raises(DataError, match=r"scan 'house': names the viewpoint 'ghost', which the connectivity"):
        load_annotations(data)
    shutil.rmtree(data.objects)
    with pytest.raises(UserError, match=r"objects: no object annotations; put view_objects\.jsonl\.gz or"):
        build_object_features(data, tmp_path)


@pytest.mark.real_data
def test_the_real_annotations_cover_every_included_viewpoint(real_data: Path, tmp_path: Path) -> None:
    data = DataFolder(real_data)
    stores = build_object_features(data, tmp_path)
    assert {name: (len(info.keys), info.width) for name, info in stores.items()} == {
        "objects": (10_567, 177),
        "oracle": (10_567, 274),
    }
    scans = [read_scan(file) for file in connectivity_files(data.connectivity)]
    expected = [f"{scan.name}_{v.image_id}" for scan in scans for v in scan.viewpoints if v.included]
    assert list(stores["objects"].keys) == expected
    some = read_store(tmp_path / "oracle.npy")[1][::20].astype(np.float32)
    assert some[..., 128:].min() == 0
    assert some[..., 128:].max() == 1
    shown = (some[..., 128:169] > 0).any(axis=(1, 2))
    assert shown.mean() > 0.85, "most viewpoints have an object in sight"
    clean = read_store(tmp_path / "objects.npy")[1][::20]
    np.testing.assert_array_equal(some[..., 169:176], clean[..., 169:176], "free space is the same")
    credited = [int((table[..., 128:169] > 0).sum()) for table in (some, clean)]
    assert 0.8 * credited[0] < credited[1] < credited[0], "hidden objects are no longer seen from afar"
