"""Commands as a user types them, inside the process of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from scenemem.cli import main

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 4),
    *("--selection.every", 2, "--selection.save-every", 2),
)
"""Flags of a training that takes a second."""


def typed(*words: object) -> int:
    """Run ``scenemem WORDS...``  ->  its exit code"""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def printed_json(capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command printed with ``--json``."""
    return json.loads(capsys.readouterr().out)


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What the command said on standard error, however it was wrapped."""
    return capsys.readouterr().err.replace("\n", " ")


class Shell:
    """Types commands on a data folder and reads what they print."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._data, self._capsys = data, capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        """Run ``scenemem WORDS...``  ->  what it printed on both outputs, however it was wrapped"""
        printed = self._run(words, code)
        return " ".join((printed.out + printed.err).split())

    def json(self, *words: object) -> Any:
        """What ``scenemem WORDS... --json`` prints."""
        return json.loads(self._run((*words, "--json"), 0).out)

    def refused(self, *words: object) -> str:
        """The message with which ``scenemem WORDS...`` refuses a mistake."""
        return self(*words, code=2)

    def _run(self, words: tuple[object, ...], code: int) -> CaptureResult[str]:
        self._capsys.readouterr()  # of commands before
        named = "--data" in words or words == ("weights",) or words == ("weights", "--json")
        assert typed(*words, *(() if named else ("--data", self._data))) == code
        return self._capsys.readouterr()
