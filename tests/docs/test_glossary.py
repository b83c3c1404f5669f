"""The glossary names files that exist, and translates old names as the code does."""

from __future__ import annotations

import re
from pathlib import Path

from scenemem import presets

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")


def test_files_of_the_glossary_exist() -> None:
    files = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(files) > 10
    assert [file for file in files if not (REPOSITORY / "src" / "scenemem" / file).is_file()] == []


def test_old_settings_are_translated_as_the_code_translates_them() -> None:
    for old, new in presets._MEMORY_V1.items():
        assert f"| `memory.{old}` | `model.{new}` |" in PAGE
    for old, new in presets._LOSSES_V1.items():
        assert f"| `learning.stages.0.{old}` | `learning.stages.0.losses.{new}` |" in PAGE
    for old, new in presets._LIMITS_V1.items():
        assert re.search(rf"\| `walk\.{old}`.* \| `walk\.{new}`", PAGE)
    assert ", ".join(f"`{name}`" for name in list(presets._AGENTS_V1)[1:]) in PAGE
