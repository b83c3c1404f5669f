"""The worked example of docs/extending.md: its edits to a copy of the package give a trained agent."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
DIFF = re.compile(r'^```diff title="(.+?)"\n(.+?)^```$', re.MULTILINE | re.DOTALL)


def _apply(edit: str, file: Path) -> None:
    """Replace what an edit takes away, which has to stand in the file once, by what it puts there."""
    lines = edit.splitlines()
    before = "\n".join(line[1:] for line in lines if line[0] in " -")
    after = "\n".join(line[1:] for line in lines if line[0] in " +")
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file.name} has no single place for:\n{edit}"
    file.write_text(text.replace(before, after), encoding="utf-8")


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A copy of the package with all edits of the page."""
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(DOCS / "examples" / "explorer.py", tmp_path / "src" / "scenemem" / "agents" / "explorer.py")
    edits = DIFF.findall((DOCS / "extending.md").read_text(encoding="utf-8"))
    assert len(edits) == 4
    for file, edit in edits:
        _apply(edit, tmp_path / file)
    return tmp_path


def test_the_explorer_of_the_page_trains_and_walks(extended: Path, tiny_trainable: Path) -> None:
    run = extended / "runs" / "explorer-0"
    flags = ["--data", str(tiny_trainable), "--out", str(run), "--iterations", "2", "--json"]
    small = ["--data.min-count", "1", "--learning.batch", "8", "--selection.split", "val_unseen"]
    trained = subprocess.run(
        [sys.executable, "-m", "scenemem", "train", "explorer", *flags, *small],
        env={**os.environ, "PYTHONPATH": str(extended / "src"), "OMP_NUM_THREADS": "1"},
        cwd=extended,
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["iteration"] == 2

    results = json.loads((run / "results" / "val_unseen.json").read_text(encoding="utf-8"))
    walks = [[point[0] for point in item["trajectory"]] for item in results]
    assert any(len(walk) > 1 for walk in walks)
    assert all(len(set(walk)) == len(walk) for walk in walks), "an explorer never comes back"
