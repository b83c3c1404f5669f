"""The glossary names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")


def test_files_of_the_glossary_exist() -> None:
    files = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(files) > 10
    assert [file for file in files if not (REPOSITORY / "src" / "scenemem" / file).is_file()] == []
