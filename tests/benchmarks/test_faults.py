"""Faults on purpose: what the tools measure is their own, and what they found before is kept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.faults import fuzz
from benchmarks.faults.readers import Reader
from scenemem.errors import UserError


def _reads(file: Path) -> object:
    return file.read_bytes()


def _hoards(_: Path) -> object:
    return b"x" * (100 << 20)


def _refuses(_: Path) -> object:
    raise UserError("no")


def _fails(_: Path) -> object:
    raise KeyError("a mistake")


def _crashes(_: Path) -> object:
    os._exit(3)


KNOWN = {
    read.__name__: Reader("file", b"good", read) for read in (_hoards, _reads, _refuses, _fails, _crashes)
}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_reader_has_a_peak_of_memory_of_its_own(tmp_path: Path) -> None:
    found = {name: fuzz.alone(name, 2, 0, tmp_path / "work", KNOWN) for name in KNOWN}
    assert found["_hoards"]["grown_megabytes"] >= 90
    assert found["_reads"]["grown_megabytes"] < 50, "the one before it does not count"
    assert found["_reads"]["read"] == found["_refuses"]["refused"] == found["_fails"]["failed"] == 2
    assert "a mistake" in found["_fails"]["failures"][0]
    assert found["_crashes"]["failed"] == 1
    assert found["_crashes"]["failures"][0].startswith("the process of the reader ended (")


def test_the_fuzzer_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def alone(name: str, inputs: int, *_: object) -> dict[str, object]:
        asked.append(name)
        return {"inputs": inputs, "failed": 0}

    monkeypatch.setattr(fuzz, "alone", alone)
    monkeypatch.setattr(fuzz, "readers", lambda _: KNOWN)
    out = tmp_path / "report.json"
    for words in (["--only", "_reads", "--inputs", "3"], ["--inputs", "3"], ["--inputs", "3"]):
        monkeypatch.setattr(sys, "argv", ["fuzz", "--out", str(out), *words])
        fuzz.main()
    assert asked == ["_reads", "_hoards", "_refuses", "_fails", "_crashes"]
    report = json.loads(out.read_bytes())
    assert (report["inputs"], report["failed"]) == (15, 0)
