"""Pages, and the report on runs: complete, harmless, accessible; every number is the number of the runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scenemem.formats.results import EpisodeResult, Outcome
from scenemem.formats.traces import Origin
from scenemem.viewer.charts import SERIES
from scenemem.viewer.pages import (
    Section,
    Table,
    note_section,
    render_macro,
    section,
    static_text,
    write_report,
)
from scenemem.viewer.report import ReportRun, contenders, curves, grouped, write_run_report
from tests.viewer.html import Html

METRICS = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw")


def _episode(number: int, seed: int, outcome: Outcome = "reached", **changes: Any) -> EpisodeResult:
    value = ((37 * number + 11 * seed) % 97) / 97
    success = float(outcome == "reached")
    facts: dict[str, Any] = {"jumps": number % 4, "sr": success, "spl": 0.9 * success, "spl_ref": 0.0}
    facts |= {"words": 10 + number % 30, "reference": 5 + number % 9, "hops": 3 + number % 5}
    facts |= {"tl": 5 + 10 * value, "ne": 0.5 if success else 4 + 12 * value}
    facts |= {"cls": value, "ndtw": value / 2, "sdtw": value / 2 * success}
    facts["osr"] = float(outcome in ("reached", "passed"))
    return EpisodeResult(f"{number}_0", "last", 200, outcome, **(facts | changes))


SETTINGS = {"agent": "ssm", "selection": {"split": "dev_unseen"}, "learning": {"iterations": 200}}
OUTCOMES: tuple[Outcome, ...] = ("reached", "passed", "cut", "early", "astray")


def _run(name: str, seed: int, splits: Sequence[str] = ("val_unseen",), **settings: Any) -> ReportRun:
    jumps = {"jumps": 0} if settings.get("agent") == "basic" else {}  # no memory, no jump
    ends = [OUTCOMES[(number * 7 + seed) % 5] for number in range(60)]
    episodes = [_episode(number, seed, outcome, **jumps) for number, outcome in enumerate(ends)]
    validation = [{"sr": 0.001 * done + 0.01 * seed, "spl": 0.1} for done in (100, 200)]
    losses = [{"teacher": 3.0 / done + seed} for done in (100, 200)]
    return ReportRun(
        name=name,
        seed=seed,
        folder=f"{name}-{seed}",
        settings={**SETTINGS, **settings},
        features="random numbers",
        versions={"torch": "2"},
        log=[
            {"iteration": 100 * (number + 1), "losses": losses[number], "validation": validation[number]}
            for number in range(2)
        ],
        results=dict.fromkeys(splits, episodes),
    )


def _page(file: Path, runs: Sequence[ReportRun], **options: Any) -> tuple[str, dict[str, list[list[str]]]]:
    write_run_report(file, "Report", runs, **{"world": "Nowhere", "task": "r2r", **options})
    page = file.read_text(encoding="utf-8")
    return page, Html(page).tables


RUNS = (_run("ssm", 0), _run("ssm", 1), _run("ssm", 2), _run("basic", 0, agent="basic"))


def test_the_scores_are_mean_and_deviation_of_the_episodes(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    head, ssm, basic = tables["val_unseen: 60 instructions; mean ± standard deviation over runs"]
    assert head == ["agent", "runs", "SR", "SPL", "OSR", "NE", "TL", "CLS", "nDTW", "SDTW", "jumps"]
    assert (ssm[:2], basic[:2]) == (["ssm", "3"], ["basic", "1"])
    for column, metric in enumerate((*METRICS, "jumps"), start=2):
        digits = 2 if metric in ("ne", "tl", "jumps") else 3
        means = [statistics.fmean(getattr(r, metric) for r in run.results["val_unseen"]) for run in RUNS]
        spread = f"{statistics.fmean(means[:3]):.{digits}f} ± {statistics.stdev(means[:3]):.{digits}f}"
        assert ssm[column] == spread
        assert basic[column] == f"{means[3]:.{digits}f}", "one run has no deviation"


def test_the_curves_are_the_log(tmp_path: Path) -> None:
    page, tables = _page(tmp_path / "r.html", RUNS)
    assert tables["SR on dev_unseen"] == [
        ["iterations", "ssm", "basic"],
        ["100", "0.110 ± 0.010", "0.100"],
        ["200", "0.210 ± 0.010", "0.200"],
    ]
    assert tables["teacher loss"][1] == ["100", "1.030 ± 1.000", "0.030"]
    assert "bands one standard deviation to each side" in page
    assert "Not trained" not in page
    cut = replace(_run("basic", 0), log=RUNS[0].log[:1])
    page, _ = _page(tmp_path / "r.html", [_run("ssm", 0), cut])
    assert "Not trained for the same number of iterations: ssm 200, basic 100." in page
    points = curves(grouped([cut, _run("basic", 1)]), "validation", "sr")["basic"]
    assert [point.x for point in points] == [100], "a curve ends where one of its runs does"


def test_ways_to_fail_are_shares_of_all_episodes(tmp_path: Path) -> None:
    results = [_episode(0, 0, outcome) for outcome in OUTCOMES[:4]]
    results += [_episode(4, 0, "astray", ne=metres) for metres in (5.9, 6.0, 11.9, 12.0)]
    run = replace(_run("ssm", 0), results={"val_unseen": results})
    _, tables = _page(tmp_path / "r.html", [run])
    head, row = tables["How the episodes of val_unseen end"]
    ends = ["stopped at the goal", "passed the goal", "stopped too early", "cut off"]
    away = ["stopped 3 to 6 m away", "stopped 6 to 12 m away", "stopped 12 m or more away"]
    assert head == ["agent", *ends, *away]
    assert row == ["ssm", *["12.5%"] * 5, "25.0%", "12.5%"]


def test_success_by_length_and_jumps_count_every_episode(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    _, *rows = tables["SR by length of the instruction (episodes)"]
    rates = [cell.replace(")", "").split(" (") for cell in (row[1] for row in rows)]
    assert sum(int(count) for _, count in rates) == 180, "three runs together"
    assert [row[0] for row in rows][:2] == ["below 14", "14 to 19"]
    assert len(rows) == 6
    assert all(20 <= int(count) <= 40 for _, count in rates), "groups are about as large"
    walked = [result for run in RUNS[:3] for result in run.results["val_unseen"]]
    successes = sum(float(rate) * int(count) for rate, count in rates)
    assert successes == pytest.approx(sum(result.sr for result in walked), abs=0.1)
    _, row = tables["Jumps and success"]
    assert row[:5] == ["ssm", "25.0%", "25.0%", "25.0%", "25.0%"]
    without = [result.sr for result in walked if not result.jumps]
    assert row[5] == f"{statistics.fmean(without):.3f} ({len(without)})"
    page, _ = _page(tmp_path / "r.html", RUNS[3:])
    assert "Jumps and success" not in page


def test_the_ablation_table_has_the_papers_numbers_and_ours_where_there_are_any(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    spans, head, *rows = tables["Ablations in the layout of the paper's table 3"]
    assert spans == ["", "val_seen", "val_unseen"]
    assert head[1:6] == ["SR ↑", "NE ↓", "TL ↓", "OSR ↑", "SPL ↑"]
    by_name = {row[0]: row[1:] for row in rows}
    numbers = ["0.71", "3.10", "14.7", "0.80", "0.62", "0.62", "4.32", "20.7", "0.73", "0.45"]
    assert by_name["Full model (paper)"] == numbers
    assert by_name["without iterative reasoning (paper)"][5] == "0.57"
    scores = tables["val_unseen: 60 instructions; mean ± standard deviation over runs"][1]
    assert by_name["ssm (ours)"] == ["-"] * 5 + [scores[2], scores[5], scores[6], scores[4], scores[3]]
    assert by_name["ssm-local (ours)"] == ["-"] * 10
    assert len(rows) == 12
    ours = ["ssm-r2r-captions", "ssm-r2r-oracle-augmented"]
    _, tables = _page(tmp_path / "r.html", [_run(name, 0) for name in ours])
    names = [row[0] for row in tables["Ablations in the layout of the paper's table 3"][2:]]
    full = names.index("Full model (paper)")
    assert names[full + 1 : full + 3] == [f"{name} (ours)" for name in ours]
    assert len(names) == 13


def test_numbers_of_the_paper_never_stand_beside_the_houses(tmp_path: Path) -> None:
    page, _ = _page(tmp_path / "r.html", [_run("ssm", 0)], task=None)
    assert "(paper)" not in page


def test_runs_with_other_settings_are_not_averaged(tmp_path: Path) -> None:
    other = _run("ssm", 1, learning={"iterations": 400, "stages": [{"share": 2}]})
    groups = grouped([_run("ssm", 0), other])
    assert list(groups) == [
        "ssm (learning.iterations 200)",
        "ssm (learning.iterations 400, learning.stages.0.share 2)",
    ]
    assert list(grouped([_run("ssm", 0), _run("ssm", 1)])) == ["ssm"]
    assert list(grouped([_run("ssm", 0), replace(other, name="basic")])) == ["ssm", "basic"]


def test_the_best_and_the_worst_agent_are_the_contenders() -> None:
    def sure(name: str, rate: float) -> ReportRun:
        results = [_episode(number, 0, sr=float(number < rate)) for number in range(10)]
        return replace(_run(name, 0), results={"val_unseen": results})

    runs = [sure("basic", 3), sure("ssm", 8), sure("ssm-local", 6), _run("ssm-flat", 0, splits=())]
    assert contenders(grouped(runs), "val_unseen") == [runs[1], runs[0]]
    assert contenders(grouped(runs[:1]), "val_unseen") == [runs[0]], "one agent has nobody beside it"


def test_names_from_outside_are_only_ever_text(tmp_path: Path) -> None:
    run = _run(NASTY, 0, splits=(NASTY,), selection={"split": NASTY}, agent="ssm")
    references = {NASTY: {NASTY: dict.fromkeys(METRICS, 0.5)}}
    page, tables = _page(tmp_path / "r.html", [run], world=NASTY, references=references)
    assert "script" not in Html(page).tags
    assert f"{NASTY}: 60 instructions; mean ± standard deviation over runs" in tables


def test_replays_and_references_are_shown(tmp_path: Path) -> None:
    page, tables = _page(
        tmp_path / "r.html",
        RUNS,
        replays=note_section("Replays", "linked"),
        references={"val_unseen": {"expert": dict.fromkeys(METRICS, 1.0)}},
    )
    assert page.index("Scores</h2>") < page.index("<p>linked</p>") < page.index("Learning curves</h2>")
    expert = tables["val_unseen: 60 instructions; mean ± standard deviation over runs"][1]
    assert expert == ["expert", "-", *["1.000"] * 3, "1.00", "1.00", *["1.000"] * 3, "-"]


def test_a_run_that_has_walked_nothing_still_has_its_curves(tmp_path: Path) -> None:
    walked_nothing = _run("ssm", 0, splits=())
    page, tables = _page(tmp_path / "r.html", [walked_nothing])
    assert "No split has been evaluated yet" in page
    assert tables["SR on dev_unseen"][1] == ["100", "0.100"]
    assert tables["The runs in this report"][1][:5] == ["ssm-0", "ssm", "0", "200", "-"]
    page, _ = _page(tmp_path / "r.html", [replace(walked_nothing, log=[])])
    assert "Nothing has been logged yet." in page


def test_the_runs_and_the_files_behind_the_numbers_are_told(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    head, first, *_ = tables["The runs in this report"]
    assert head == ["folder", "agent", "seed", "iterations", "weights measured", "features", "versions"]
    assert first == ["ssm-0", "ssm", "0", "200", "last at 200", "random numbers", "torch 2"]
    caption = "Versions, and the first 16 digits of the sha256 of the files the scores come from"
    assert caption not in tables, "nothing is known of them"
    _, tables = _page(tmp_path / "r.html", [_run("ssm", 0, learning={"iterations": 5000})])
    assert tables["The runs in this report"][1][3] == "200 of 5,000"
    sums: dict[str, Any] = {name: name[0] * 64 for name in ("weights", "episodes", "graphs", "features")}
    origin = Origin(versions={"scenemem": "1", "torch": "2"}, **sums)
    _, tables = _page(tmp_path / "r.html", [replace(RUNS[0], origins={"val_unseen": origin})])
    head, row = tables[caption]
    assert head == ["folder", "split", "walked with", *sums]
    assert row == ["ssm-0", "val_unseen", "scenemem 1, torch 2", *(one[:16] for one in sums.values())]


def test_packed_weights_have_no_curves(tmp_path: Path) -> None:
    page, _ = _page(tmp_path / "r.html", [replace(_run("ssm", 1), log=[], packed=1000)])
    assert "Packed weights come without a training log." in page
    assert "1,000, packed weights" in page
    assert "0 of 1,000" not in page


NASTY = "<script>alert('\"&1')</script>"


def _written(folder: Path, sections: Sequence[Section], title: str = "t", lead: str = "") -> str:
    write_report(folder / "r.html", title, sections, lead=lead)
    return (folder / "r.html").read_text(encoding="utf-8")


def test_a_report_is_one_complete_page_in_the_order_of_its_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = [note_section(title, title) for title in ("One", "Two", "Three", "Four")]
    page = _written(tmp_path, sections, "My report", "What it is about")
    assert page.startswith("<!doctype html>")
    assert "<title>My report</title>" in page
    assert "<p>What it is about</p>" in page
    headlines = re.findall(r'<h2 id="(part-\d)">(\w+)</h2>', page)
    assert headlines == [("part-1", "One"), ("part-2", "Two"), ("part-3", "Three"), ("part-4", "Four")]
    assert Html(page).values("href", "src") == ["#part-1", "#part-2", "#part-3", "#part-4"]
    short = _written(tmp_path, [section("One", "table", Table("One", ("a", "b"), [("1", "2")]))], "old")
    assert "<nav" not in short, "short pages have no contents"

    def fail(*_args: object, **_kwargs: object) -> int:
        raise RuntimeError("power cut")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(RuntimeError):
        write_report(tmp_path / "r.html", "new", [])
    assert "old" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_text_from_outside_is_only_ever_text(tmp_path: Path) -> None:
    sections = [
        note_section(NASTY, NASTY),
        Section("plain text is no markup", NASTY),  # type: ignore[arg-type]
        section(NASTY, "table", Table(NASTY, (NASTY, NASTY), [(NASTY, NASTY)])),
        section("f", "figures", [NASTY], [(NASTY, NASTY, Table(NASTY, [NASTY], [], [(NASTY, 1)]))], NASTY),
        section("s", "scores", [NASTY], [(NASTY, NASTY, NASTY)], NASTY, [Table(NASTY, [NASTY], [])]),
        section("j", "jumps", NASTY, NASTY, Table(NASTY, [NASTY], [[NASTY]])),
    ]
    page = _written(tmp_path, sections, NASTY, NASTY)
    assert "script" not in Html(page).tags
    assert "<?xml" not in page


def test_drawings_are_told_in_words_and_nothing_comes_from_anywhere(tmp_path: Path) -> None:
    page, _ = _page(tmp_path / "r.html", RUNS)
    parsed = Html(page)
    drawings = [found for tag, found in parsed.elements if tag == "svg"]
    assert all(found.get("aria-hidden") or found.get("aria-label") for found in drawings)
    assert drawings
    assert not any(parsed.values("src"))
    assert not re.search(r"@import|url\(|<link|<script", page)
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
