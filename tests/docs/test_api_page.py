"""The code of docs/api.md runs from top to bottom, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scenemem.presets import PRESETS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
BLOCK = re.compile(r"(?P<mark><!-- not run: (?P<why>.+?) -->\n)?^```python\n(?P<code>.+?)^```$", re.M | re.S)


def _blocks() -> list[tuple[int, str, str | None]]:
    """Line number, code, and why it is not run."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        (text[: found.start("code")].count("\n"), found["code"], found["why"])
        for found in BLOCK.finditer(text)
    ]


def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PRESETS, "_objects", dict(PRESETS._objects))
    blocks = _blocks()
    assert len([why for *_, why in blocks if why is None]) > 10
    assert [why for *_, why in blocks if why] == ["needs the R2R data folder"]
    names: dict[str, Any] = {}
    for line, code, why in blocks:
        compiled = compile("\n" * line + code, str(PAGE), "exec")  # errors name the line of the page
        if why is None:
            exec(compiled, names)
    assert (tmp_path / "replay.html").is_file()
    assert (tmp_path / "runs" / "first" / "metrics.jsonl").is_file()
    assert names["found"].n == len(names["episodes"]) == 1080
    assert "ssm-small" in PRESETS
