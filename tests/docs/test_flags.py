"""Flags that the documentation tells people to type exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenemem.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
DOTTED = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*\.[a-z0-9.-]*[a-z0-9]")


def test_every_setting_a_page_names_is_a_flag_of_train(capsys: pytest.CaptureFixture[str]) -> None:
    files = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("runs/*")]
    files += REPOSITORY.glob("src/scenemem/ssm/*.py")
    files = [file for file in files if file.name != "log.md"]  # history: the flags of its day
    named = {
        flag: file.name
        for file in files
        if file.is_file()
        for flag in DOTTED.findall(file.read_text("utf-8"))
    }
    assert len(named) > 10
    for preset in ("ssm", "ssm-plus"):
        with pytest.raises(SystemExit, match="0"):
            main(["train", preset, "--help"])
    known = set(DOTTED.findall(capsys.readouterr().out))
    assert {flag: page for flag, page in named.items() if flag not in known} == {}
