"""Thumbnails: the floor of the walk, everything inside the frame, and nothing from outside but text."""

from __future__ import annotations

from xml.etree import ElementTree

import msgspec
import pytest

from scenemem.formats.traces import Trace
from scenemem.viewer.scenery import Doorway, RoomOutline, Scenery
from scenemem.viewer.thumbnails import draw_thumbnail

ROOMS = Scenery(
    rooms=(RoomOutline("hall", 0, 2.0, 1.0, (-1.0, -1.0, 5.0, 3.0)), RoomOutline("attic", 1, 2.0, 4.0)),
    doorways=(Doorway(0, (2.0, 3.0, 3.0, 3.0)), Doorway(1, (2.0, 3.0, 3.0, 3.0))),
)


def _kinds(trace: Trace) -> dict[str, list[dict[str, str]]]:
    """What is drawn, by kind."""
    kinds: dict[str, list[dict[str, str]]] = {}
    for element in ElementTree.fromstring(draw_thumbnail(trace, ROOMS)):
        kinds.setdefault(element.attrib["class"], []).append(element.attrib)
    return kinds


def test_the_floor_of_the_walk_is_drawn(turning_back: Trace) -> None:
    kinds = {name: len(elements) for name, elements in _kinds(turning_back).items()}
    assert kinds == {"wall": 1, "gap": 1, "path": 3, "reference": 2, "walked": 3, "jumped": 1, "begin": 1}, (
        "goal and end are upstairs"
    )
    label = ElementTree.fromstring(draw_thumbnail(turning_back, ROOMS)).get("aria-label")
    assert label == "Map: the way ssm went, turning back on the way"


def test_goal_and_end_are_marked_where_they_are_on_that_floor(turning_back: Trace) -> None:
    flat = [msgspec.structs.replace(place, floor=0) for place in turning_back.scene.places]
    scene = msgspec.structs.replace(turning_back.scene, places=tuple(flat))
    kinds = _kinds(msgspec.structs.replace(turning_back, scene=scene))
    assert len(kinds["goal"]) == len(kinds["finish"]) == 1
    secret = msgspec.structs.replace(turning_back.task, goal=None, reference=())
    assert "goal" not in _kinds(msgspec.structs.replace(turning_back, scene=scene, task=secret))


def test_the_walk_is_inside_the_frame_and_north_is_up(turning_back: Trace) -> None:
    lines = [line for kind in ("walked", "reference") for line in _kinds(turning_back)[kind]]
    assert all(0 <= float(line[name]) <= 300 for line in lines for name in ("x1", "x2"))
    assert all(0 <= float(line[name]) <= 190 for line in lines for name in ("y1", "y2"))
    north = _kinds(turning_back)["reference"][-1]  # from place 1 to 3
    assert float(north["y2"]) < float(north["y1"])
    assert north["x1"] == north["x2"]


def test_going_back_is_drawn_beside_having_come(turning_back: Trace) -> None:
    kinds = _kinds(turning_back)
    came, back = kinds["walked"][1], kinds["jumped"][0]  # 1 to 2, and 2 to 1
    assert (back["x1"], back["x2"]) == (came["x2"], came["x1"])
    assert abs(float(back["y1"]) - float(came["y2"])) == pytest.approx(6.0, abs=0.11)


def test_names_are_only_text(turning_back: Trace) -> None:
    nasty = msgspec.structs.replace(turning_back, agent='"><script>')
    assert "<script" not in draw_thumbnail(nasty, Scenery())
