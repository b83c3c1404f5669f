"""Maps of walks: every floor that matters, the goal among them, inside the frame; and figures for papers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from PIL import Image

from scenemem.errors import UserError
from scenemem.formats.traces import Trace
from scenemem.viewer.drawing import FIGURES, draw_figure, draw_thumbnail, write_figure
from scenemem.viewer.narration import Walk
from scenemem.viewer.scenery import Doorway, RoomOutline, Scenery

SVG = "{http://www.w3.org/2000/svg}"
ROOMS = Scenery(
    rooms=(
        RoomOutline("hall", 0, 2.0, 1.0, (-1.0, -20.0, 5.0, 3.0)),
        RoomOutline("attic", 1, 2.0, 4.0),
        RoomOutline("shed", 0, 50.0, 50.0, (49.0, 49.0, 51.0, 51.0)),
    ),
    doorways=(Doorway(0, (2.0, 3.0, 3.0, 3.0)), Doorway(2, (2.0, 3.0, 3.0, 3.0))),
)


def _kinds(trace: Trace) -> dict[str, list[dict[str, str]]]:
    """What is drawn, by kind."""
    kinds: dict[str, list[dict[str, str]]] = {}
    for element in ElementTree.fromstring(draw_thumbnail(Walk.of(trace, {}), ROOMS)):
        kinds.setdefault(element.attrib["class"], []).append(element.attrib)
    return kinds


def _on_one_floor(trace: Trace) -> Trace:
    flat = tuple(msgspec.structs.replace(place, floor=0) for place in trace.scene.places)
    return msgspec.structs.replace(trace, scene=msgspec.structs.replace(trace.scene, places=flat))


def test_every_floor_of_the_walk_is_drawn_and_the_goal_with_it(turning_back: Trace) -> None:
    kinds = {name: len(elements) for name, elements in _kinds(turning_back).items()}
    # a step between floors is drawn on both, the shed is out of sight, nobody was on the third floor
    building = {"wall": 1, "gap": 1, "path": 3}
    walk = {"reference": 4, "walked": 5, "jumped": 1, "begin": 1, "goal": 1, "finish": 1}
    assert kinds == {**building, **walk, "name": 2}
    picture = ElementTree.fromstring(draw_thumbnail(Walk.of(turning_back, {}), ROOMS))
    assert [text.text for text in picture.findall(f"{SVG}text")] == ["Floor 1", "Floor 2"]
    assert picture.get("aria-label") == "Map: the path ssm walked, going back on the way"


def test_one_floor_needs_no_name_and_a_secret_goal_is_not_drawn(turning_back: Trace) -> None:
    flat = _on_one_floor(turning_back)
    assert "name" not in _kinds(flat)
    secret = msgspec.structs.replace(flat.task, goal=None, reference=())
    assert "goal" not in _kinds(msgspec.structs.replace(flat, task=secret))


def test_everything_is_inside_the_frame_and_north_is_up_and_returns_are_beside(turning_back: Trace) -> None:
    kinds = _kinds(_on_one_floor(turning_back))
    lines = [line for kind in ("walked", "reference", "path", "gap") for line in kinds[kind]]
    assert all(0 <= float(line[name]) <= 300 for line in lines for name in ("x1", "x2"))
    assert all(0 <= float(line[name]) <= 190 for line in lines for name in ("y1", "y2"))
    (wall,) = kinds["wall"]
    assert float(wall["y"]) + float(wall["height"]) == pytest.approx(190), "cut off at the frame"
    north = kinds["reference"][1]  # from place 1 to 3
    assert float(north["y2"]) < float(north["y1"])
    assert north["x1"] == north["x2"]
    came, back = kinds["walked"][1], kinds["jumped"][0]  # 1 to 2, and 2 to 1
    assert (back["x1"], back["x2"]) == (came["x2"], came["x1"])
    assert abs(float(back["y1"]) - float(came["y2"])) == pytest.approx(6.0, abs=0.11)


def test_names_are_only_text(turning_back: Trace) -> None:
    nasty = Walk.of(msgspec.structs.replace(turning_back, agent='"><script>'), {})
    assert "<script" not in draw_thumbnail(nasty, Scenery())


def test_a_figure_has_a_map_per_walk_and_explains_its_signs(turning_back: Trace, tmp_path: Path) -> None:
    first = Walk.of(turning_back, {})
    second = replace(first, name="other", path=(0, 1), headline="Stopped 5.6 m from the goal")
    figure = draw_figure([first, second], ROOMS)
    size = write_figure(tmp_path / "f.svg", figure)
    assert size == (tmp_path / "f.svg").stat().st_size
    picture = ElementTree.parse(tmp_path / "f.svg").getroot()
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert texts[0] == "ssm: turned back and reached the goal"
    assert "other: stopped 5.6 m from the goal" in texts
    assert texts[-6:] == ["described path", "path walked", "start", "end", "goal", "going back"]
    walked = [line.attrib for line in picture.findall(f"{SVG}line[@class='walked']")]
    assert all(line["stroke"] == "#0072b2" for line in walked), "it needs no style sheet"
    assert float(walked[-2]["x1"]) - float(walked[0]["x1"]) == pytest.approx(436), "beside it, to one scale"


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_are_written_as_pictures_too(kind: str, turning_back: Trace, tmp_path: Path) -> None:
    figure = draw_figure([Walk.of(turning_back, {})], ROOMS)
    write_figure(tmp_path / f"f{kind}", figure)
    content = (tmp_path / f"f{kind}").read_bytes()
    begin = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert content.lstrip().startswith(begin[kind])
    if kind == ".png":
        with Image.open(tmp_path / "f.png") as picture:
            assert picture.size == (4 * figure.width, 4 * figure.height)
            assert (0, 114, 178) in {colour for _, colour in picture.getcolors(1 << 20) or ()}, "walked"


def test_an_unknown_kind_of_figure_is_named(turning_back: Trace, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"f\.gif: unknown kind of figure; expected a name ending in \.svg, \.png"
    ):
        write_figure(tmp_path / "f.gif", draw_figure([Walk.of(turning_back, {})], ROOMS))
