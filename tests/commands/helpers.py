"""Commands as a user types them, inside the process of the test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scenemem.cli import main


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
