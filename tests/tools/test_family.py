"""runs/family.sh trains every run once and goes on with them; its tables are made of what compare printed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scenemem.presets import PRESETS
from scenemem.zoo import rows, systems
from tools.family_table import LONGER, PUBLISHED, agreement, difference, matched, ranks, table

REPOSITORY = Path(__file__).resolve().parents[2]
TASK = "r4r-captions"
SYSTEMS = 10
STANDS_IN = """#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(words) + "\\n")
if words[0] == "train":
    if words[1] == os.environ.get("FAILS"):
        sys.exit("no such luck")
    checkpoint = pathlib.Path(words[words.index("--out") + 1], "checkpoints", "last.safetensors")
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.touch()
    described = {{"name": words[1] + "-r4r-captions", "preset": {{"data": {{"task": "r4r"}}}}}}
    (checkpoint.parents[1] / "preset.json").write_text(json.dumps(described))
else:
    print(os.environ["COMPARED"])
"""


class Repository:
    """The script and the tool it calls, with a command that only records its words."""

    def __init__(self, folder: Path) -> None:
        for name in ("runs/family.sh", "tools/family_table.py", "tools/as_released.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
        self.folder = folder
        self.calls = folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        written = {
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            "scenemem": STANDS_IN.format(python=sys.executable),
        }
        for name, text in written.items():
            (programs / name).write_text(text, encoding="utf-8")
            (programs / name).chmod(0o755)
        one = {"mean": 0.5, "sd": None, "n": 1}
        row = dict.fromkeys(("sr", "cls", "ndtw", "sdtw", "tl"), one)
        base = f"basic-{TASK}"
        compared = {"rows": {base: row}, "cpu_seconds": {base: 1.0}, "against_by_building": {base: {}}}
        self.environment = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "SCENEMEM_DATA": "DIR",
            "CALLS": str(self.calls),
            "COMPARED": json.dumps(compared),
        }

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        return subprocess.run(
            [self.folder / "runs" / "family.sh", *words],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def called(self, command: str) -> list[list[str]]:
        """The words the command was called with."""
        lines = self.calls.read_text(encoding="utf-8").splitlines()
        return [words for words in map(json.loads, lines) if words[0] == command]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_every_system_is_trained_with_every_seed_and_compared_on_both_splits(repository: Repository) -> None:
    done = repository.run(TASK, "0", "1")
    assert done.returncode == 0, done.stderr
    trained = repository.called("train")
    assert len(trained) == len({tuple(words) for words in trained}) == 2 * SYSTEMS
    assert {words[1] for words in trained} <= {*PRESETS, *rows()}
    assert all(words[2:6] == ["--task", "r4r", "--features", "captions"] for words in trained)
    assert {words[words.index("--seed") + 1] for words in trained} == {"0", "1"}
    assert all("--resume" not in words for words in trained)
    for words, split in zip(repository.called("compare"), ("val_seen", "val_unseen"), strict=True):
        assert sum(Path(word).parent.name == TASK for word in words) == 2 * SYSTEMS
        assert words[words.index("--split") + 1] == split
        assert words[words.index("--against") + 1] == f"basic-{TASK}"
    assert "| `basic` | 1 | 0.500 |" in done.stdout
    repository.calls.unlink()
    assert repository.run(TASK, "0", JOBS="2").returncode == 0, "typed again it goes on with its runs"
    again = repository.called("train")
    assert len(again) == SYSTEMS
    assert all("--resume" in words and "--seed" not in words for words in again)


def test_what_fails_is_named_and_nothing_is_compared(repository: Repository) -> None:
    done = repository.run(TASK, "0", FAILS="rcm")
    assert done.returncode != 0
    assert f"family/{TASK}/rcm-0 was not trained; see" in done.stderr
    assert len(repository.called("train")) < SYSTEMS
    assert repository.called("compare") == []
    log = repository.folder / "runs/family" / TASK / "rcm-0.log"
    assert "no such luck" in log.read_text(encoding="utf-8")


def test_r2r_trains_the_whole_family_and_unknown_tasks_are_refused(repository: Repository) -> None:
    repository.run("r2r-oracle", "0", COMPARED="{}")
    names = {words[1] for words in repository.called("train")}
    assert names == {*systems(), "basic", "ssm", "ssm-plus"} - {"e-dropout"}  # which is basic
    done = repository.run("captions")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the task captions is unknown; use r2r-TRACK or r4r-TRACK")


METRICS = ("sr", "spl", "osr", "cls", "ndtw", "sdtw", "tl")


def _compared(task: str, **sr: float) -> dict[str, Any]:
    base, rows = sr["basic"], {f"{name}-{task}": value for name, value in sr.items()}
    apart = {
        name: {key: {"value": value - base, "low": 0.01, "high": 0.2} for key in METRICS}
        for name, value in rows.items()
        if not name.startswith("basic")
    }
    return {
        "rows": {n: {key: {"mean": v, "sd": 0.01, "n": 3} for key in METRICS} for n, v in rows.items()},
        "cpu_seconds": {name: 60.0 if name.startswith("basic") else 120.0 for name in rows},
        "against_by_building": {f"basic-{task}": apart},
    }


def test_what_stands_three_ranks_away_is_named() -> None:
    assert ranks([0.5, 0.7, 0.5, 0.1]) == [2.5, 1.0, 2.5, 4.0], "equal values share their ranks"
    published = {name: float(text.split()[0]) for name, text in PUBLISHED.items()}
    assert agreement(published).splitlines() == [
        "rank correlation over 13 rows 1.00",
        "without the low-level systems 1.00",
    ]
    said = agreement(published | {"rcm": 0.9})
    assert "rcm: rank 1 here, 10 published" in said
    assert "fast" not in said  # it fell by one only


@pytest.mark.parametrize(
    ("times", "told"),
    [(1.0, "0.300"), (1.5, "0.350"), (2.0, "0.400"), (3.0, "0.450"), (9, "0.500 (1,200 steps)")],
)
def test_basic_with_more_steps_is_read_between_its_rows(times: float, told: str) -> None:
    assert matched(0.3, times, {600: 0.4, 1200: 0.5}) == told
    assert matched(0.3, times, {}) == "-", "without longer rows nothing is said"


def test_an_interval_is_bold_where_it_leaves_out_0() -> None:
    assert difference({"value": 0.02, "low": 0.001, "high": 0.04}) == "**+0.020 [+0.001, +0.040]**"
    assert difference({"value": -0.02, "low": -0.04, "high": -0.001}) == "**-0.020 [-0.040, -0.001]**"
    assert difference({"value": 0.0, "low": -0.01, "high": 0.01}) == "+0.000 [-0.010, +0.010]"


def test_rows_of_r2r_stand_by_success_with_basic_at_equal_cpu_time() -> None:
    task = "r2r-captions"
    unseen, seen = _compared(task, basic=0.37, fast=0.39), _compared(task, basic=0.5, fast=0.6)
    head, _, first, second = table(task, unseen, seen, {}).splitlines()
    assert "release" not in head
    assert head.count("|") == first.count("|") == second.count("|")
    assert first == (
        "| `fast` | 3 | 0.390 ± 0.010 | 0.390 ± 0.010 | 0.390 ± 0.010 | 0.4 | 0.600 ± 0.010 | "
        "**+0.020 [+0.010, +0.200]** | **+0.020 [+0.010, +0.200]** | 2.0 | "
        f"{LONGER[task][600]:.3f} | .56 aug |"
    )
    assert second.endswith("|  |  | 1.0 |  | .47 |")


def test_rows_of_r4r_have_fidelity_and_its_published_numbers() -> None:
    task = "r4r-captions"
    compared = _compared(task, **{"basic": 0.3, "rcm": 0.2, "rcm-fidelity": 0.4})
    lines = table(task, compared, compared, {}).splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == ["rcm-fidelity", "basic", "rcm"]
    assert lines[2].endswith("| 2.0 | .26 / .35 / .30 / .13 |")


def test_what_a_release_counts_stands_beside_what_was_walked() -> None:
    task = "r2r-captions"
    compared = _compared(task, **{"basic": 0.3, "active-perception": 0.4})
    less = {"tl": {"mean": 29.96, "sd": 1.0, "n": 3}, "spl": {"mean": 0.14, "sd": 0.004, "n": 3}}
    released = {f"active-perception-{task}": less}
    head, _, first, second = table(task, compared, compared, released).splitlines()
    assert head.count("|") == first.count("|") == second.count("|")
    column = head.split(" | ").index("TL / SPL as its release counts")
    assert first.split(" | ")[column] == "30.0 / 0.140 ± 0.004"
    assert second.split(" | ")[column] == ""
