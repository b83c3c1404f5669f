from __future__ import annotations

import base64
import gzip
import io
import json
import math
import shutil
from pathlib import Path

import pytest
from PIL import Image

from scenemem.formats.folder import DataFolder
from scenemem.formats.traces import Scene
from scenemem.houses.build import HousesConfig, build_houses, read_plan
from scenemem.viewer.scenery import Sceneries, Scenery
from scenemem.viewer.traces import open_scene
from scenemem.world.build import load_world
from scenemem.world.graph import NONE


def _scene(folder: Path, scan: str) -> Scene:
    world = load_world(folder / "connectivity")
    return open_scene(world, world.scans.index(scan), NONE)


def test_a_folder_without_anything_to_show_shows_nothing(tiny_data: Path) -> None:
    assert Sceneries(DataFolder(tiny_data)).of(_scene(tiny_data, "grid"), {0}) == Scenery()


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("houses") / "data"
    routes = {"train_routes": 1, "val_seen_routes": 1, "val_unseen_routes": 1}
    build_houses(folder, HousesConfig(houses=2, **routes), jobs=1)
    return folder


def test_houses_have_rooms_doors_and_pictures(houses: Path) -> None:
    scan = next(iter(sorted((houses / "plans").glob("*.json")))).stem
    scene, pictures = _scene(houses, scan), list[str]()
    sceneries = Sceneries(DataFolder(houses))
    scenery = sceneries.of(scene, {0, 3}, lambda: pictures.append("drawn"))
    plan = read_plan(houses, scan)
    assert len(pictures) == 2, "each is told of"
    assert [room.name for room in scenery.rooms] == [room.kind for room in plan.rooms]
    assert {room.floor for room in scenery.rooms} == set(range(len(scene.floors)))
    assert len(scenery.doorways) == len(plan.doors)
    assert scenery.room_of[3] == plan.rooms[plan.stands[3].room].kind
    assert set(scenery.looks) == {0, 3}
    picture = scenery.looks[3].picture
    assert picture is not None
    kind, content = picture.split(",", 1)
    assert kind == "data:image/webp;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (576, 192)
    assert len(picture) < 40_000
    assert sceneries.of(scene, {3}).looks[3] is scenery.looks[3], "a picture is drawn once"


@pytest.fixture
def annotated(tiny_data: Path, tmp_path: Path) -> Path:
    """The tiny world with a lamp to the east of g00, rooms, and words about both."""
    folder = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    (folder / "objects").mkdir()
    seen = {"id": 1, "name": "lamp", "category": "lamp", "views": [15], "boxes": [[270, 190, 100, 100]]}
    records = [{"scan": "grid", "viewpoint": "g00", "objects": [seen]}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "objects" / "view_objects.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "rooms").mkdir()
    places = [place.id for place in _scene(folder, "grid").places]
    kinds = {place: ("k", "kitchen") if place[1] in "01" else ("h", "hallway") for place in places}
    rows = [f"grid\t{place}\t{code}\t{room}" for place, (code, room) in kinds.items()]
    (folder / "rooms" / "viewpoint_rooms.tsv").write_text(
        "\n".join(["scan\tviewpoint\troom_code\troom", *rows]) + "\n"
    )
    return folder


def test_annotations_name_things_and_rooms_around(annotated: Path) -> None:
    scene = _scene(annotated, "grid")
    number = {place.id: n for n, place in enumerate(scene.places)}
    here, edge = number["g00"], number["g10"]
    scenery = Sceneries(DataFolder(annotated)).of(scene, {here, edge})
    assert scenery.room_of[here] == "kitchen"
    assert scenery.room_of[number["g30"]] == "hallway"
    lamp = next(label for label in scenery.looks[here].labels if label.text == "lamp")
    assert lamp.heading == pytest.approx(math.pi / 2, abs=0.05)
    assert lamp.elevation == pytest.approx(0.0, abs=0.05)
    ahead = [label for label in scenery.looks[edge].labels if label.room]
    assert [label.text for label in ahead] == ["hallway"], "its own room is not ahead"
    assert {room.name for room in scenery.rooms if room.rect is None} == {"kitchen", "hallway"}
    assert sum(room.name == "kitchen" for room in scenery.rooms) == 1, "neighbouring places share their name"


@pytest.mark.real_data
def test_real_buildings_have_labels(real_data: Path) -> None:
    scan = sorted((real_data / "connectivity").glob("*_connectivity.json"))[0].name.split("_")[0]
    scene = _scene(real_data, scan)
    scenery = Sceneries(DataFolder(real_data)).of(scene, range(len(scene.places)))
    labels = [len(look.labels) for look in scenery.looks.values()]
    assert sum(labels) / len(labels) > 3
    assert len(scenery.room_of) > len(scene.places) / 2
