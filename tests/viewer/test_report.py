from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from scenemem.learning.run_folder import RunFolder
from scenemem.viewer.curves import draw_curves
from scenemem.viewer.report import Section, curve_section, metric_section, write_report

SVG = "{http://www.w3.org/2000/svg}"


def test_every_point_of_a_curve_is_drawn_inside_the_picture() -> None:
    curves = {"ssm": [(0, 0.1), (100, 0.47)], "basic": [(0, 0.2), (50, 0.3), (100, 0.35)], "none": []}
    picture = ElementTree.fromstring(draw_curves(curves, title="SR", value="SR"))
    dots = picture.findall(f"{SVG}circle")
    assert len(dots) == 5
    assert all(0 < float(dot.attrib["cx"]) < 640 and 0 < float(dot.attrib["cy"]) < 300 for dot in dots)
    heights = [float(dot.attrib["cy"]) for dot in dots]
    assert heights[1] < heights[0], "more is higher up"


def test_names_are_escaped() -> None:
    picture = draw_curves({"<script>": [(0, 0.5)]}, title="a & b", value="SR")
    ElementTree.fromstring(picture)
    assert "<script>" not in picture
    section = metric_section("t", {"<b>": {"sr": 0.5}}, ("sr",))
    assert "&lt;b&gt;" in section.body


def test_a_report_is_one_complete_page(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.log({"iteration": 1})
    run.log({"iteration": 2, "validation": {"sr": 0.25}})
    write_report(
        tmp_path / "r.html", "My report", [Section("One", "<p>1</p>"), curve_section({"a": run}, "sr")]
    )
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.index("<h2>One</h2>") < page.index("<h2>Learning curves</h2>")
    assert "<circle" in page
