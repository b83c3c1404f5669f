"""The page itself: complete, accessible, harmless and without a single reference to the network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenemem.viewer.charts import SERIES
from scenemem.viewer.pages import (
    Section,
    Table,
    note_section,
    picture_section,
    render_macro,
    section,
    static_text,
    table_section,
    write_report,
)
from tests.viewer.html import Html

NASTY = "<script>alert('\"&1')</script>"


def test_a_report_is_one_complete_page_in_the_order_of_its_sections(tmp_path: Path) -> None:
    sections = [note_section(title, title) for title in ("One", "Two", "Three", "Four")]
    write_report(tmp_path / "r.html", "My report", sections, lead="What it is about")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>My report</title>" in page
    assert "<p>What it is about</p>" in page
    headlines = re.findall(r'<h2 id="(part-\d)">(\w+)</h2>', page)
    assert headlines == [("part-1", "One"), ("part-2", "Two"), ("part-3", "Three"), ("part-4", "Four")]
    assert Html(page).values("href", "src") == ["#part-1", "#part-2", "#part-3", "#part-4"]
    write_report(tmp_path / "r.html", "t", [table_section("One", ("a", "b"), [("1", "2")])])
    assert "<nav" not in (tmp_path / "r.html").read_text(encoding="utf-8"), "short pages have no contents"


def test_text_from_outside_is_only_ever_text(tmp_path: Path) -> None:
    sections = [
        note_section(NASTY, NASTY),
        Section("plain text is no markup", NASTY),  # type: ignore[arg-type]
        table_section(NASTY, (NASTY, NASTY), [(NASTY, NASTY)]),
        section("f", "figures", [NASTY], [(NASTY, NASTY, Table(NASTY, [NASTY], [], [(NASTY, 1)]))], NASTY),
        section("s", "scores", [NASTY], [(NASTY, NASTY, NASTY)], NASTY, [Table(NASTY, [NASTY], [])]),
        section("j", "jumps", NASTY, NASTY, Table(NASTY, [NASTY], [[NASTY]])),
        picture_section(NASTY, NASTY, "<?xml?><svg aria-label='map'></svg>", b"png"),
    ]
    write_report(tmp_path / "r.html", NASTY, sections, lead=NASTY)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "script" not in Html(page).tags
    assert "<?xml" not in page


def test_pictures_are_told_in_words_and_nothing_comes_from_anywhere(tmp_path: Path) -> None:
    section = picture_section("p", "t", "<svg aria-label='map'></svg>", b"\x89PNG")
    write_report(tmp_path / "r.html", "t", [section])
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    parsed = Html(page)
    assert all(found.get("alt") for tag, found in parsed.elements if tag == "img")
    drawings = [found for tag, found in parsed.elements if tag == "svg"]
    assert all(found.get("aria-hidden") or found.get("aria-label") for found in drawings)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in parsed.values("href", "src"))
    assert not re.search(r"https?:|@import|url\(|<link|<script", page)
    assert "default-src 'none'" in page, "a browser would refuse, too"


def test_a_table_says_what_it_is_and_what_its_cells_belong_to() -> None:
    rows, spans = [("ssm", "0.5"), ("paper", "0.6")], [("", 1), ("x", 1)]
    page = render_macro("sections.html", "table", Table("Scores", ("agent", "SR"), rows, spans, quiet=[1]))
    assert "<caption><span>Scores</span></caption>" in page
    assert page.count('scope="col"') == 2
    assert page.count('scope="row"') == 2
    assert '<th scope="colgroup" colspan="1">x</th>' in page
    assert page.index('<tr class="quiet">') > page.index("ssm"), "only the second row is quiet"
    assert 'tabindex="0" role="region" aria-label="Scores"' in page, "wide tables scroll by keyboard, too"


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path / "r.html", "old", [])

    def fail(*_args: object, **_kwargs: object) -> int:
        raise RuntimeError("power cut")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(RuntimeError):
        write_report(tmp_path / "r.html", "new", [])
    assert "old" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def _palettes() -> list[dict[str, str]]:
    """The colours of the style sheets: light and dark, with those of bars that count laid over each."""
    style = "".join(static_text(name) for name in ("charts.css", "report.css"))
    blocks = [
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r"(?::root|\.counts) \{([^}]*)\}", style)
    ]
    light, dark, light_counts, dark_counts = blocks
    return [light, {**light, **dark}, {**light, **light_counts}, {**light, **dark, **dark_counts}]


def _contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    levels = []
    for colour in (one, other):
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(levels) + 0.05) / (min(levels) + 0.05)


@pytest.mark.parametrize("palette", _palettes(), ids=["light", "dark", "light counts", "dark counts"])
def test_everything_can_be_read_and_told_from_the_ground(palette: dict[str, str]) -> None:
    for ground in ("--page", "--card"):
        for text in ("--text", "--soft", "--link"):
            assert _contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    for number in range(SERIES):
        assert _contrast(palette[f"--series-{number}"], palette["--card"]) >= 3, number
    for name in palette:
        if name.startswith("--part-"):
            assert _contrast(palette[name], palette[name.replace("part", "on")]) >= 4.5, name
