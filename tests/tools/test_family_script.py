"""runs/family.sh trains every run once, goes on with what was interrupted, and stops at what fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenemem.presets import PRESETS
from scenemem.zoo import rows, systems

REPOSITORY = Path(__file__).resolve().parents[2]
TASK = "r4r-captions"
SYSTEMS = 11
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
