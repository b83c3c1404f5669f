"""What larger groups can expect follows from the cost of a step, in the report and on the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "train-batches-2026-11-16.json"


def _scaling(result: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.scaling", str(result), *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _table(text: str) -> list[list[float]]:
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    return [[float(cell) for cell in row.strip("| ").split("|")] for row in rows]


def test_the_page_about_several_processes_says_what_was_computed() -> None:
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert _table(_scaling(MEASURED).stdout) == _table(page)


def test_a_group_gains_what_a_step_shares(tmp_path: Path) -> None:
    """0.5 s a step, 10 ms an episode, and 1 s to send a million parameters over 4 MB/s."""

    def case(batch: int) -> dict[str, object]:
        speed = {"episodes_per_second": 2 * batch / (0.5 + 0.01 * batch)}
        return {"preset": "ssm", "batch": batch, "parameters": 10**6, "modes": {"mixed": speed}}

    result = tmp_path / "result.json"
    result.write_text(json.dumps({"cases": [case(50), case(150)]}))
    shared = _table(_scaling(result, "--batch", "50", "--link", "0.004", "--processes", "1", "2").stdout)
    assert shared == [[1, 1.0, 1.0], [2, round(1 / 1.75, 1), 1.0]]


def test_one_batch_size_does_not_say_how_a_step_grows(tmp_path: Path) -> None:
    result = json.loads(MEASURED.read_text())
    result["cases"] = result["cases"][:1]
    (tmp_path / "one.json").write_text(json.dumps(result))
    done = _scaling(tmp_path / "one.json")
    assert done.returncode == 2
    assert "measure two or more" in done.stderr
