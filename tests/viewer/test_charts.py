"""Charts: everything is drawn where it belongs, axes are round, and described in words."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenemem.evaluation.bootstrap import Estimate
from scenemem.viewer.charts import (
    SERIES,
    Bins,
    Frame,
    Point,
    draw_curves,
    draw_histogram,
    draw_intervals,
    draw_shares,
    round_axis,
    round_bins,
    round_step,
)
from scenemem.viewer.pages import render_macro

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


@pytest.mark.parametrize(("span", "step"), [(1.0, 0.2), (500, 100), (12, 2.5), (0, 1.0), (0.037, 0.01)])
def test_steps_are_round(span: float, step: float) -> None:
    assert round_step(span, 5) == pytest.approx(step)


def test_every_point_of_a_curve_has_a_mark_in_its_place() -> None:
    curves = {
        "ssm": [Point(0, 0.1), Point(100, 0.47, 0.05)],
        "basic": [Point(0, 0.2), Point(50, 0.3), Point(100, 0.35)],
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
    curve = [Point(0, 0.5, 0.2), Point(10, 0.1, 0.4)]
    chart = draw_curves({"a": curve}, across="x", up="y", limits=round_axis("", [0.0, 1.0]))
    band = ElementTree.fromstring(chart).find("g/path[@class='band']")
    assert band is not None
    frame = Frame(round_axis("", [0, 10]), round_axis("", [0.0, 1.0]))
    heights = [y for _, y in _places(band.attrib["d"])]
    assert heights == [frame.y(0.7), frame.y(0.5), frame.y(0.0), frame.y(0.3)]


def test_curves_are_told_in_words_and_names_are_escaped() -> None:
    chart = draw_curves({"<b>": [Point(100, 0.25), Point(500, 0.5)]}, across="iterations", up="a & b")
    label = ElementTree.fromstring(chart).attrib["aria-label"]
    assert label == "a & b over iterations: <b> from 0.25 at 100 to 0.5 at 500"
    assert "nothing yet" in draw_curves({"a": []}, across="x", up="y")


def test_series_differ_without_colour() -> None:
    keys = [render_macro("charts.html", "key", number) for number in range(SERIES + 1)]
    marks = [re.findall(r'class="mark" d="M17 7([^"]+)"', key)[0] for key in keys]
    assert len(set(marks)) == SERIES
    assert marks[SERIES] == marks[0], "more series begin again"


@given(NUMBERS, st.booleans())
def test_every_value_falls_into_one_bin(values: list[float], whole: bool) -> None:
    if whole:
        values = [float(round(value)) for value in values]
    bins = round_bins(values, whole=whole)
    assert sum(bins.shares(values)) == pytest.approx(1.0)
    assert len(bins.names()) == len(bins) == len(set(bins.names()))
    assert len(bins) <= 16
    for value in values:
        number = bins.number(value)
        assert bins.edges[number] <= value * (1 + 1e-6) + 1e-9
        assert value <= bins.edges[number + 1] * (1 + 1e-6) or number == len(bins) - 1


def test_whole_numbers_have_a_bin_each() -> None:
    bins = round_bins([3.0, 4, 4, 5, 6], whole=True)
    assert list(bins.edges) == [3, 4, 5, 6, 7]
    assert bins.names() == ["3", "4", "5", "6"]
    assert bins.shares([4.0, 4, 6]) == [0, 2 / 3, 0, 1 / 3]
    axis = bins.axis("hops")
    assert axis.ticks == {3.5: "3", 4.5: "4", 5.5: "5", 6.5: "6"}
    assert Bins((0, 2, 4), open_ended=True, whole=True).names() == ["0 to 1", "2 or more"]


def test_the_far_end_of_a_distribution_shares_one_bin() -> None:
    bins = round_bins([float(value % 10) for value in range(1000)] + [500.0])
    assert bins.open_ended
    assert bins.number(500.0) == len(bins) - 1
    assert bins.names()[-1].endswith("or more")


def test_a_histogram_is_as_high_as_its_shares() -> None:
    bins = Bins((0, 1, 2), open_ended=False)
    chart = draw_histogram(
        {"a": [0.5, 0.6, 0.7, 1.5]}, bins, title="Length", across="metres", line=(1.0, "1 m")
    )
    picture = ElementTree.fromstring(chart)
    outline = picture.find("g/path[@class='line']")
    assert outline is not None
    frame = Frame(round_axis("", [0, 2]), round_axis("", [0, 75.0]))
    corners = _places(outline.attrib["d"])
    heights = [0, 75, 75, 25, 25, 0]
    assert [y for _, y in corners] == [frame.y(height) for height in heights]
    assert picture.findtext("text[@class='tick'][last()]") == "1 m"
    assert picture.attrib["aria-label"] == "Length in metres: a most often 0 to 1"


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
        line, mark = (row.find(f"{SVG}path[@class='{name}']") for name in ("line", "mark"))
        assert line is not None
        assert mark is not None
        low, y, high = map(float, re.findall(r"[\d.]+", line.attrib["d"]))
        value = float(mark.attrib["d"].split()[0].removeprefix("M"))
        for x, expected in ((low, told.low), (value, told.value), (high, told.high)):
            assert (x - ticks["0"]) / scale == pytest.approx(expected, abs=0.002)
        heights.append(y)
    assert heights == [20.0, 44.0, 68.0]
    (zero,) = picture.findall(f"{SVG}path[@class='upright']")
    assert zero.attrib["d"] == f"M{ticks['0']} 8V80"


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


def test_a_picture_alone_brings_its_style() -> None:
    picture = ElementTree.fromstring(draw_intervals(DIFFERENCES, across="SR", alone=True))
    style = picture.find(f"{SVG}style")
    assert style is not None
    assert ".above" in (style.text or "")
    inside = ElementTree.fromstring(draw_intervals(DIFFERENCES, across="SR"))
    assert inside.find(f"{SVG}style") is None, "a page has it already"
