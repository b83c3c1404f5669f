"""The report on runs: every number in it is the number of the runs, and what is missing is said."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.formats.results import EpisodeResult, Outcome
from scenemem.formats.traces import Origin
from scenemem.viewer.pages import note_section
from scenemem.viewer.report import ReportRun, contenders, curves, grouped, write_run_report
from tests.viewer.html import Html

METRICS = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw")


def _episode(number: int, seed: int, outcome: Outcome = "reached", **changes: Any) -> EpisodeResult:
    value = ((37 * number + 11 * seed) % 97) / 97
    success = float(outcome == "reached")
    facts: dict[str, Any] = {
        "words": 10 + number % 30,
        "reference": 5 + number % 9,
        "hops": 3 + number % 5,
        "jumps": number % 4,
        "tl": 5 + 10 * value,
        "ne": 0.5 if success else 4 + 12 * value,
        "sr": success,
        "osr": float(outcome in ("reached", "passed")),
        "spl": 0.9 * success,
        "spl_ref": 0.9 * success,
        "cls": value,
        "ndtw": value / 2,
        "sdtw": value / 2 * success,
    }
    return EpisodeResult(f"{number}_0", "last", 200, outcome, **{**facts, **changes})


SETTINGS = {"agent": "ssm", "selection": {"split": "dev_unseen"}, "learning": {"iterations": 200}}
OUTCOMES: tuple[Outcome, ...] = ("reached", "passed", "cut", "early", "astray")


def _run(name: str, seed: int, splits: Sequence[str] = ("val_unseen",), **settings: Any) -> ReportRun:
    jumps = {"jumps": 0} if settings.get("agent") == "basic" else {}  # who has no memory never jumps
    return ReportRun(
        name=name,
        seed=seed,
        folder=f"{name}-{seed}",
        settings={**SETTINGS, **settings},
        features="random numbers",
        versions={"torch": "2"},
        log=[
            {
                "iteration": iteration,
                "losses": {"teacher": 3.0 / iteration + seed},
                "validation": {"sr": 0.001 * iteration + 0.01 * seed, "spl": 0.1},
            }
            for iteration in (100, 200)
        ],
        results={
            split: [
                _episode(number, seed, OUTCOMES[(number * 7 + seed) % 5], **jumps) for number in range(60)
            ]
            for split in splits
        },
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


def test_a_curve_ends_where_one_of_its_runs_does() -> None:
    longer = _run("ssm", 1)
    cut = replace(_run("ssm", 0), log=longer.log[:1])
    points = curves(grouped([cut, longer]), "validation", "sr")["ssm"]
    assert [point.x for point in points] == [100]


def test_ways_to_fail_are_shares_of_all_episodes(tmp_path: Path) -> None:
    results = [_episode(number, 0, outcome) for number, outcome in enumerate(OUTCOMES[:4])]
    results += [_episode(4, 0, "astray", ne=metres) for metres in (5.9, 6.0, 11.9, 12.0)]
    run = replace(_run("ssm", 0), results={"val_unseen": results})
    _, tables = _page(tmp_path / "r.html", [run])
    head, row = tables["How the episodes of val_unseen end"]
    assert dict(zip(head, row, strict=True)) == {
        "agent": "ssm",
        "stopped at the goal": "12.5%",
        "passed the goal": "12.5%",
        "stopped too early": "12.5%",
        "cut off": "12.5%",
        "stopped 3 to 6 m away": "12.5%",
        "stopped 6 to 12 m away": "25.0%",
        "stopped 12 m or more away": "12.5%",
    }


def test_histograms_and_success_by_length_count_every_episode(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    for title in ("Length walked", "Hops", "Distance to the goal at the end"):
        _, *rows = tables[f"{title}, share of the episodes of val_unseen"]
        for column in (1, 2):
            assert sum(float(row[column].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.5)
    _, *rows = tables["SR by length of the instruction (episodes)"]
    rates = [cell.replace(")", "").split(" (") for cell in (row[1] for row in rows)]
    assert sum(int(count) for _, count in rates) == 180, "three runs together"
    successes = sum(float(rate) * int(count) for rate, count in rates)
    assert successes == pytest.approx(
        sum(r.sr for run in RUNS[:3] for r in run.results["val_unseen"]), abs=0.1
    )


def test_jumps_are_those_of_agents_that_jumped(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    _, row = tables["Jumps and success"]
    assert row[:5] == ["ssm", "25.0%", "25.0%", "25.0%", "25.0%"]
    without = [r.sr for run in RUNS[:3] for r in run.results["val_unseen"] if not r.jumps]
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
    runs = [_run("ssm-r2r-captions", 0), _run("ssm-r2r-oracle-augmented", 0)]
    _, tables = _page(tmp_path / "r.html", runs)
    names = [row[0] for row in tables["Ablations in the layout of the paper's table 3"][2:]]
    full = names.index("Full model (paper)")
    assert names[full + 1 : full + 3] == ["ssm-r2r-captions (ours)", "ssm-r2r-oracle-augmented (ours)"]
    assert len(names) == 13


@pytest.mark.parametrize(("task", "caption"), [("r2r", "R2R, table 1"), ("r4r", "R4R, table 2")])
def test_published_rows_are_whole(tmp_path: Path, task: str, caption: str) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS, task=task)
    spans, head, *rows = tables[f"{caption} of the paper (a selection)"]
    assert len(spans) == (4 if task == "r2r" else 3)
    assert {len(row) for row in rows} == {len(head)}


def test_runs_with_other_settings_are_not_averaged(tmp_path: Path) -> None:
    other = _run("ssm", 1, learning={"iterations": 400, "stages": [{"share": 2}]})
    groups = grouped([_run("ssm", 0), other])
    assert list(groups) == [
        "ssm (learning.iterations 200)",
        "ssm (learning.iterations 400, learning.stages.0.share 2)",
    ]
    assert list(grouped([_run("ssm", 0), _run("ssm", 1)])) == ["ssm"]
    assert list(grouped([_run("ssm", 0), replace(other, name="basic")])) == ["ssm", "basic"]


def test_agents_that_were_trained_for_different_lengths_are_told_apart(tmp_path: Path) -> None:
    shorter = _run("basic", 0)
    page, _ = _page(tmp_path / "r.html", [_run("ssm", 0), replace(shorter, log=shorter.log[:1])])
    assert "Not trained for the same number of iterations: ssm 200, basic 100." in page
    page, _ = _page(tmp_path / "r.html", RUNS)
    assert "Not trained" not in page


def test_the_best_and_the_worst_agent_are_the_contenders() -> None:
    def sure(name: str, rate: float) -> ReportRun:
        results = [_episode(number, 0, sr=float(number < rate)) for number in range(10)]
        return replace(_run(name, 0), results={"val_unseen": results})

    runs = [sure("basic", 3), sure("ssm", 8), sure("ssm-local", 6), _run("ssm-flat", 0, splits=())]
    assert contenders(grouped(runs), "val_unseen") == [runs[1], runs[0]]
    assert contenders(grouped(runs[:1]), "val_unseen") == [runs[0]], "one agent has nobody beside it"


def test_names_from_outside_are_only_ever_text(tmp_path: Path) -> None:
    nasty = "<script>alert('\"&1')</script>"
    run = _run(nasty, 0, splits=(nasty,), selection={"split": nasty}, agent="ssm")
    references = {nasty: {nasty: dict.fromkeys(METRICS, 0.5)}}
    page, tables = _page(tmp_path / "r.html", [run], world=nasty, remarks=[nasty], references=references)
    assert "script" not in Html(page).tags
    assert f"{nasty}: 60 instructions; mean ± standard deviation over runs" in tables


def test_replays_references_remarks_and_further_sections_are_shown(tmp_path: Path) -> None:
    page, tables = _page(
        tmp_path / "r.html",
        RUNS,
        replays=note_section("Replays", "linked"),
        remarks=["val_seen is missing"],
        references={"val_unseen": {"expert": dict.fromkeys(METRICS, 1.0)}},
        more=[note_section("A route", "drawn")],
    )
    assert page.index("Scores</h2>") < page.index("<p>linked</p>") < page.index("Learning curves</h2>")
    assert "<p>val_seen is missing</p>" in page
    expert = tables["val_unseen: 60 instructions; mean ± standard deviation over runs"][1]
    assert expert == ["expert", "-", *["1.000"] * 3, "1.00", "1.00", *["1.000"] * 3, "-"]
    assert page.index("A route</h2>") < page.index("Ablations, beside the paper&#39;s</h2>")


def test_a_run_that_has_walked_nothing_still_has_its_curves(tmp_path: Path) -> None:
    page, tables = _page(tmp_path / "r.html", [_run("ssm", 0, splits=())])
    assert "No split has been evaluated yet" in page
    assert tables["SR on dev_unseen"][1] == ["100", "0.100"]
    assert tables["The runs in this report"][1][:5] == ["ssm-0", "ssm", "0", "200", "-"]
    empty = replace(_run("ssm", 0, splits=()), log=[])
    page, _ = _page(tmp_path / "r.html", [empty])
    assert "Nothing has been logged yet." in page


def test_the_runs_are_listed_with_what_was_measured_and_how_far_they_are(tmp_path: Path) -> None:
    _, tables = _page(tmp_path / "r.html", RUNS)
    head, first, *_ = tables["The runs in this report"]
    assert head == ["folder", "agent", "seed", "iterations", "weights measured", "features", "versions"]
    assert first == ["ssm-0", "ssm", "0", "200", "last at 200", "random numbers", "torch 2"]
    _, tables = _page(tmp_path / "r.html", [_run("ssm", 0, learning={"iterations": 5000})])
    assert tables["The runs in this report"][1][3] == "200 of 5,000"


def test_the_files_behind_the_numbers_are_told(tmp_path: Path) -> None:
    sums = {name: letter * 64 for name, letter in zip(("weights", "episodes", "graphs"), "abc", strict=True)}
    named = {"versions": {"scenemem": "1", "torch": "2"}, "features": "d" * 64, **sums}
    origin = msgspec.convert(named, Origin)
    _, tables = _page(tmp_path / "r.html", [replace(_run("ssm", 0), origins={"val_unseen": origin})])
    caption = "Versions, and the first 16 digits of the sha256 of the files the scores come from"
    head, row = tables[caption]
    assert dict(zip(head, row, strict=True)) == {
        "folder": "ssm-0",
        "split": "val_unseen",
        "walked with": "scenemem 1, torch 2",
        **{name: value[:16] for name, value in sums.items()},
        "features": "d" * 16,
    }
    assert caption not in _page(tmp_path / "r.html", RUNS)[1], "nobody knows it"


def test_the_houses_never_stand_beside_published_numbers(tmp_path: Path) -> None:
    page, _ = _page(tmp_path / "r.html", [_run("ssm", 0)], task=None)
    assert "(paper)" not in page
    assert "Published results" not in page
    assert "Later results" not in page


def test_later_results_name_their_papers_and_can_be_filtered_by_what_they_see(tmp_path: Path) -> None:
    page, tables = _page(tmp_path / "r.html", [_run("ssm", 0)], task="r2r")
    head, *rows = tables["R2R, val_unseen and test, as published"]
    found = {row[0].split(" ")[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert {"HAMT", "DUET", "ScaleVLN", "SRDF", "LangNav", "NavGPT"} <= found.keys()
    for row in found.values():
        assert re.search(
            r", (CVPR|ICCV|NeurIPS|AAAI|ECCV|ICLR|Findings of NAACL) 20\d\d, arXiv \d{4}\.\d{5}$",
            row["source"],
        )
    assert page.count('href="https://arxiv.org/abs/') >= len(rows)
    assert "A question mark: the number was read elsewhere and not checked in that paper" in page
    for kind in ("text", "resnet", "vit", "vlm"):
        assert f'<input type="radio" name="sees" value="{kind}">' in page
        assert f'<tr data-sees="{kind}">' in page


def test_packed_weights_show_their_card(tmp_path: Path) -> None:
    card = {"val_unseen": {"sr": 0.6234, "spl": 0.5, "osr": 0.7, "ne": 4.1}}
    packed = replace(_run("ssm", 1), log=[], packed=1000, card=card)
    page, tables = _page(tmp_path / "r.html", [packed])
    assert "Nothing has been logged yet" not in page
    cells = ["ssm, seed 1", "val_unseen", "0.623", "0.500", "0.700", "4.100"]
    assert tables["What these weights reached when they were packed"][1] == cells
    assert "1,000, packed weights" in page
    assert "0 of 1,000" not in page
