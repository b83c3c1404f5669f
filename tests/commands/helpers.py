"""Commands as a user types them, inside the process of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.capture import CaptureResult

from scenemem.cli import main
from scenemem.formats.features import write_store
from scenemem.world.build import load_world

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


def write_features(
    data: Path, name: str, width: int = 3, *, value: float = 0.0, keys: slice = slice(None), **facts: Any
) -> Path:
    """A feature store full of one number, for all viewpoints of a data folder or some of them."""
    names = load_world(data / "connectivity").names[keys]
    rows = np.full((len(names), 36, width), value, dtype=np.float16)
    file = data / "features" / f"{name}.npy"
    write_store(file, names, rows, width=width, **{"source": "test", "encoder": "one number", **facts})
    return file


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

    def split(self, *words: object, code: int = 0) -> CaptureResult[str]:
        """What ``scenemem WORDS...`` prints, without a data folder, on each output."""
        self._capsys.readouterr()  # of commands before
        assert typed(*words) == code
        return self._capsys.readouterr()

    def _run(self, words: tuple[object, ...], code: int) -> CaptureResult[str]:
        named = "--data" in words or words in (("weights",), ("weights", "--json"))
        return self.split(*words, *(() if named else ("--data", self._data)), code=code)
