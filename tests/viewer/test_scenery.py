from __future__ import annotations

import base64
import gzip
import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder
from scenemem.formats.traces import Scene
from scenemem.houses.build import HousesConfig, build_houses
from scenemem.houses.house import read_plan
from scenemem.viewer.scenery import Look, Sceneries, Scenery
from scenemem.viewer.traces import open_scene
from scenemem.world.build import load_world
from scenemem.world.graph import NONE
from tests.features.caption_houses import write_captions

CAPTIONS = Path("captions", "r2r_blip_DETR_vis2text")


def _scene(folder: Path, scan: str) -> Scene:
    world = load_world(folder / "connectivity")
    return open_scene(world, world.scans.index(scan), NONE)


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("houses") / "data"
    routes = {"train_routes": 1, "val_seen_routes": 1, "val_unseen_routes": 1}
    build_houses(folder, HousesConfig(houses=2, **routes), jobs=1)
    return folder


def test_houses_have_rooms_doors_and_pictures(houses: Path) -> None:
    scan = min((houses / "plans").glob("*.json")).stem
    scene, sceneries = _scene(houses, scan), Sceneries(DataFolder(houses))
    scenery = sceneries.of(scene, {0, 3})
    plan = read_plan(houses, scan)
    assert sceneries.rooms(scene) == scenery.room_of
    assert [room.name for room in scenery.rooms] == [room.kind for room in plan.rooms]
    assert {room.floor for room in scenery.rooms} == set(range(len(scene.floors)))
    assert len(scenery.doorways) == len(plan.doors)
    assert scenery.room_of[3] == plan.rooms[plan.stands[3].room].kind
    assert set(scenery.looks) == {0, 3}
    picture = str(scenery.looks[3].picture)
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
    line = json.dumps({"scan": "grid", "viewpoint": "g00", "objects": [seen]}) + "\n"
    (folder / "objects" / "view_objects.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    (folder / "rooms").mkdir()
    places = [place.id for place in _scene(folder, "grid").places]
    kinds = {place: ("k", "kitchen") if place[1] in "01" else ("h", "hallway") for place in places}
    rows = [f"grid\t{place}\t{code}\t{room}\n" for place, (code, room) in kinds.items()]
    table = "".join(["scan\tviewpoint\troom_code\troom\n", *rows])
    (folder / "rooms" / "viewpoint_rooms.tsv").write_text(table)
    return folder


def test_annotations_name_things_and_rooms_around(annotated: Path, tiny_data: Path) -> None:
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
    nothing = Sceneries(DataFolder(tiny_data)).of(_scene(tiny_data, "grid"), {0})
    assert nothing == Scenery(), "a folder without anything to show"


@pytest.fixture
def captioned(tiny_data: Path, tmp_path: Path) -> Path:
    """The tiny world with made-up captions."""
    folder = Path(shutil.copytree(tiny_data, tmp_path / "captioned"))
    write_captions(folder)
    return folder


@pytest.mark.parametrize("scan", ["grid", "spiral"])
def test_captions_are_those_of_the_views_that_face_the_neighbours(captioned: Path, scan: str) -> None:
    world, scene = load_world(captioned / "connectivity"), _scene(captioned, scan)
    file = captioned / CAPTIONS / f"{scan}.json"
    said = json.loads(file.read_bytes())  # viewpoint -> view -> what is said about it
    looks = Sceneries(DataFolder(captioned)).of(scene, range(len(scene.places))).looks
    for number, place in enumerate(scene.places):
        here = world.index_of(scan, place.id)
        expected = {}
        for slot in world.neighbour_mask[here].nonzero().flatten().tolist():
            there, view = world.local[world.neighbour[here, slot]], world.neighbour_view[here, slot]
            expected[int(there)] = said[place.id][str(int(view))]["global_cap"]
        assert looks[number] == Look(captions=expected)
    del said[scene.places[0].id]
    file.write_text(json.dumps(said))
    assert set(Sceneries(DataFolder(captioned)).of(scene, {0, 1}).looks) == {1}, "it says nothing of 0"


def test_captions_stand_beside_labels(annotated: Path) -> None:
    scene = _scene(annotated, "grid")
    plain = Sceneries(DataFolder(annotated)).of(scene, {0})
    write_captions(annotated)
    told = Sceneries(DataFolder(annotated)).of(scene, {0})
    assert told.looks[0].captions
    assert not plain.looks[0].captions
    assert replace(told.looks[0], captions={}) == plain.looks[0]
    assert replace(told, looks=plain.looks) == plain


def test_only_buildings_that_are_shown_are_read_and_few_are_kept(
    captioned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.viewer.scenery._BUILDINGS", 1)
    (captioned / CAPTIONS / "yard.json").write_text("broken")
    grid, yard, spiral = (_scene(captioned, name) for name in ("grid", "yard", "spiral"))
    sceneries = Sceneries(DataFolder(captioned))
    first = sceneries.of(grid, {0})
    (captioned / CAPTIONS / "grid.json").unlink()
    assert sceneries.of(grid, {0}) == first, "read once"
    assert sceneries.of(yard, ()) == Scenery(), "nothing is read for a map alone"
    with pytest.raises(DataError, match=r"yard\.json"):
        sceneries.of(yard, {0})
    sceneries.of(spiral, {0})
    assert sceneries.of(grid, {0}) == Scenery(), "given up for the next building, and gone now"


@pytest.mark.real_data
def test_real_buildings_have_labels(real_data: Path) -> None:
    scan = sorted((real_data / "connectivity").glob("*_connectivity.json"))[0].name.split("_")[0]
    scene = _scene(real_data, scan)
    scenery = Sceneries(DataFolder(real_data)).of(scene, range(len(scene.places)))
    labels = [len(look.labels) for look in scenery.looks.values()]
    assert sum(labels) / len(labels) > 3
    assert len(scenery.room_of) > len(scene.places) / 2
    reached = {place for pair in scene.edges for place in pair}
    assert all(scenery.looks[place].captions for place in reached)
