"""Charts and maps of walks: everything is drawn where it belongs, axes are round, and described in words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate
from scenemem.formats.traces import Ending, Trace
from scenemem.viewer.charts import (
    SERIES,
    ChartPoint,
    Frame,
    draw_curves,
    draw_intervals,
    draw_shares,
    round_axis,
    round_step,
)
from scenemem.viewer.drawing import FIGURES, draw_figure, draw_thumbnails, write_figure
from scenemem.viewer.narration import DrawnWalk
from scenemem.viewer.pages import render_macro
from scenemem.viewer.scenery import Doorway, RoomOutline, Scenery

NUMBERS = st.lists(st.integers(0, 10**7).map(lambda number: number / 100), min_size=1, max_size=40)


def _places(path: str) -> list[tuple[float, float]]:
    """The corners of a path made of absolute moves and lines."""
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


@given(NUMBERS)
def test_a_round_axis_holds_all_values(values: list[float]) -> None:
    axis = round_axis("metres", values)
    assert axis.low <= min(*values, 0.0)
    assert axis.high >= max(values) * (1 - 1e-6)
    assert 2 <= len(axis.ticks) <= 8
    assert all(-1e-6 <= axis.share(value) <= 1 + 1e-6 for value in values)


def test_steps_are_round() -> None:
    steps = {1.0: 0.2, 500: 100, 12: 2.5, 0: 1.0, 0.037: 0.01}
    assert [round_step(span, 5) for span in steps] == pytest.approx([*steps.values()])


def test_every_point_of_a_curve_has_a_mark_in_its_place() -> None:
    curves = {
        "ssm": [ChartPoint(0, 0.1), ChartPoint(100, 0.47, 0.05)],
        "basic": [ChartPoint(0, 0.2), ChartPoint(50, 0.3), ChartPoint(100, 0.35)],
        "none": [],
    }
    picture = ElementTree.fromstring(draw_curves(curves, across="iterations", up="SR"))
    groups = picture.findall("g")
    assert [group.attrib["class"] for group in groups] == ["s0", "s1"]
    frame = Frame(round_axis("", [0, 100]), round_axis("", [0, 0.52]))
    for group, points in zip(groups, curves.values(), strict=False):
        marks = [mark.attrib["d"].split("m")[0] for mark in group.findall("path[@class='mark']")]
        assert [_places(mark)[0] for mark in marks] == [(frame.x(x), frame.y(y)) for x, y, _ in points]
        assert all(0 < frame.x(x) < 380 and 0 < frame.y(y) < 250 for x, y, _ in points)
    assert frame.y(0.4) < frame.y(0.1), "more is higher up"
    bands = [len(group.findall("path[@class='band']")) for group in groups]
    assert bands == [1, 0], "only means over several runs have a band"


def test_a_band_reaches_as_far_as_the_spread_and_stays_above_the_axis() -> None:
    curve = [ChartPoint(0, 0.5, 0.2), ChartPoint(10, 0.1, 0.4)]
    chart = draw_curves({"a": curve}, across="x", up="y", limits=round_axis("", [0.0, 1.0]))
    (band,) = ElementTree.fromstring(chart).findall("g/path[@class='band']")
    frame = Frame(round_axis("", [0, 10]), round_axis("", [0.0, 1.0]))
    heights = [y for _, y in _places(band.attrib["d"])]
    assert heights == [frame.y(0.7), frame.y(0.5), frame.y(0.0), frame.y(0.3)]


def test_curves_are_told_in_words_and_differ_without_colour() -> None:
    chart = draw_curves(
        {"<b>": [ChartPoint(100, 0.25), ChartPoint(500, 0.5)]}, across="iterations", up="a & b"
    )
    label = ElementTree.fromstring(chart).attrib["aria-label"]
    assert label == "a & b over iterations: <b> from 0.25 at 100 to 0.5 at 500"
    assert "nothing yet" in draw_curves({"a": []}, across="x", up="y")
    keys = [render_macro("charts.html", "key", number) for number in range(SERIES + 1)]
    marks = [re.findall(r'class="mark" d="M17 7([^"]+)"', key)[0] for key in keys]
    assert len(set(marks)) == SERIES
    assert marks[SERIES] == marks[0], "more series begin again"


def test_bars_are_cut_into_their_shares_and_told_in_words() -> None:
    chart = draw_shares({"<a>": {"good": 0.75, "bad": 0.25, "none": 0.0}}, tones="ends")
    assert re.findall(r"flex-basis:([\d.]+)%", chart) == ["75.000", "25.000"], "nothing is drawn for nothing"
    assert 'aria-label="&lt;a&gt;: good 75.0%, bad 25.0%, none 0.0%"' in chart
    assert ">75%</span>" in chart
    assert chart.count("<li>") == 3, "the legend names every part"


SVG = "{http://www.w3.org/2000/svg}"
DIFFERENCES = {
    "better": Estimate(0.2, 0.1, 0.3),
    "the <same>": Estimate(0.01, -0.05, 0.05),
    "worse": Estimate(-0.1, -0.25, -0.02),
}


def test_intervals_reach_from_end_to_end_with_a_mark_at_their_value() -> None:
    picture = ElementTree.fromstring(draw_intervals(DIFFERENCES, across="SR"))
    words = "SR: better +0.200 [+0.100, +0.300]; the <same> +0.010 ["
    assert picture.attrib["aria-label"].startswith(words)
    ticks = {text.text: float(text.attrib["x"]) for text in picture.findall(f"{SVG}text[@class='tick']")}
    scale = (ticks["+0.3"] - ticks["0"]) / 0.3  # pixels
    heights = []
    for row, told in zip(picture.findall(f"{SVG}g"), DIFFERENCES.values(), strict=True):
        line, mark = row.findall(f"{SVG}path")
        low, y, high = map(float, re.findall(r"[\d.]+", line.attrib["d"]))
        value = float(mark.attrib["d"].split()[0].removeprefix("M"))
        for x, expected in ((low, told.low), (value, told.value), (high, told.high)):
            assert (x - ticks["0"]) / scale == pytest.approx(expected, abs=0.002)
        heights.append(y)
    assert heights == [20.0, 44.0, 68.0]
    (zero,) = picture.findall(f"{SVG}path[@class='upright']")
    assert zero.attrib["d"] == f"M{ticks['0']} 8V80"
    assert picture.find(f"{SVG}style") is None, "a page has it already"
    alone = ElementTree.fromstring(draw_intervals(DIFFERENCES, across="SR", alone=True))
    assert ".above" in str(alone.findtext(f"{SVG}style"))


def test_intervals_that_leave_out_zero_differ_without_colour() -> None:
    picture = ElementTree.fromstring(draw_intervals(DIFFERENCES, across="SR"))
    rows = picture.findall(f"{SVG}g")
    assert [row.attrib["class"] for row in rows] == ["above", "unsure", "below"]
    shapes = [row.findall(f"{SVG}path")[1].attrib["d"].split("m", 1)[1] for row in rows]
    assert len(set(shapes)) == 3
    assert rows[0].findall(f"{SVG}text")[1].text == "+0.200 [+0.100, +0.300]"
    touching = draw_intervals({"a": Estimate(0.1, 0.0, 0.2), "b": Estimate(-0.1, -0.2, 0.0)}, across="SR")
    groups = ElementTree.fromstring(touching).findall(f"{SVG}g")
    assert [row.attrib["class"] for row in groups] == ["unsure", "unsure"], "zero is possible"


change = msgspec.structs.replace

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
    for element in ElementTree.fromstring(draw_thumbnails([DrawnWalk.of(trace, {})], ROOMS)[0]):
        kinds.setdefault(element.attrib["class"], []).append(element.attrib)
    return kinds


def test_every_floor_of_the_walk_is_drawn_and_the_goal_with_it(turning_back: Trace) -> None:
    kinds = {name: len(elements) for name, elements in _kinds(turning_back).items()}
    # a step between floors is drawn on both, the shed is out of sight, nobody was on the third floor
    building = {"wall": 1, "gap": 1, "path": 3}
    walk = {"reference": 4, "walked": 5, "jumped": 1, "begin": 1, "goal": 1, "finish": 1}
    assert kinds == {**building, **walk, "name": 2}
    picture = ElementTree.fromstring(draw_thumbnails([DrawnWalk.of(turning_back, {})], ROOMS)[0])
    assert [text.text for text in picture.findall(f"{SVG}text")] == ["Floor 1", "Floor 2"]
    assert picture.get("aria-label") == "Map: the path ssm walked, going back on the way"
    nasty = change(turning_back, agent='"><script>')
    assert "<script" not in draw_thumbnails([DrawnWalk.of(nasty, {})], Scenery())[0]


def test_everything_is_inside_the_frame_and_north_is_up_and_returns_are_beside(turning_back: Trace) -> None:
    places = tuple(change(place, floor=0) for place in turning_back.scene.places)
    flat = change(turning_back, scene=change(turning_back.scene, places=places))
    kinds = _kinds(flat)
    assert "name" not in kinds, "there is one floor"
    secret = change(flat, task=change(flat.task, goal=None, reference=()))
    assert "goal" not in _kinds(secret)
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


def test_a_figure_has_a_map_per_walk_and_explains_its_signs(turning_back: Trace, tmp_path: Path) -> None:
    first = DrawnWalk.of(turning_back, {})
    assert first.scores is not None
    ending = Ending(True, 1, to_goal=5.6, scores=change(first.scores, osr=0.0))
    second = DrawnWalk.of_route("other", first.task, first.scene, (0, 1), 0.0, ending)
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


def test_walks_of_one_episode_have_one_scale_and_dashes_say_what_they_are(turning_back: Trace) -> None:
    walk = DrawnWalk.of(turning_back, {})
    assert walk.ending is not None
    short, far = (
        DrawnWalk.of_route(name, walk.task, walk.scene, path, 0.0, walk.ending)
        for name, path in (("short", (0, 1)), ("far", (0, 2)))
    )
    far = replace(far, broken=frozenset({(0, 2)}))
    starts = [
        [sign.attrib["cx"] for sign in ElementTree.fromstring(one).findall(f"{SVG}circle[@class='begin']")]
        for one in (*draw_thumbnails([short, far], ROOMS), draw_thumbnails([short], ROOMS)[0])
    ]
    assert starts[0] == starts[1] != starts[2], "the second needs more space"
    shapes = draw_figure([short, far], ROOMS).shapes
    assert [one.text for one in shapes if one.kind == "name"][-1] == "no edge"
    assert [one.text for one in draw_figure([walk], ROOMS).shapes][-1] == "going back"


def test_figures_are_written_as_pictures_too(turning_back: Trace, tmp_path: Path) -> None:
    figure = draw_figure([DrawnWalk.of(turning_back, {})], ROOMS)
    begins = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    for kind in FIGURES:
        write_figure(tmp_path / f"f{kind}", figure)
        assert (tmp_path / f"f{kind}").read_bytes().lstrip().startswith(begins[kind])
    with Image.open(tmp_path / "f.png") as picture:
        assert picture.size == (4 * figure.width, 4 * figure.height)
        assert (0, 114, 178) in {colour for _, colour in picture.getcolors(1 << 20) or ()}, "walked"
    refused = r"f\.gif: unknown kind of figure; expected a name ending in \.svg, \.png"
    with pytest.raises(UserError, match=refused):
        write_figure(tmp_path / "f.gif", figure)
