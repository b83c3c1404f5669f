"""Faults on purpose: what the tools measure is their own, and what they found before is kept."""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import fuzz, load
from benchmarks.faults.readers import Reader
from scenemem.errors import UserError


def _reads(file: Path) -> object:
    return file.read_bytes()


def _hoards(_: Path) -> object:
    """New pages: a process that has trained keeps memory, and bytes might find room in it."""
    pages = mmap.mmap(-1, 100 << 20)
    for start in range(0, len(pages), mmap.PAGESIZE):
        pages[start] = 1
    return pages


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


SOURCE = """
def half(a: int | None, *, by: int = 2) -> float | None:
    return None if a is None else a / by
"""


@pytest.fixture
def mutants() -> Any:
    return pytest.importorskip("benchmarks.faults.mutants", reason="needs cosmic-ray", exc_type=ImportError)


def test_mutants_change_what_is_executed(mutants: Any) -> None:
    found = mutants.sampled("half.py", SOURCE, 100, 0)
    assert found == mutants.sampled("half.py", SOURCE, 100, 0)
    changed = {mutant.after.removeprefix("return ") for mutant in found}
    assert "None if a is not None else a / by" in changed
    assert "None if a is None else a * by" in changed
    assert all(" & " not in code and ", /," not in code for code in found.values()), "annotations and names"
    assert {(mutant.file, mutant.line) for mutant in found} == {("half.py", 2), ("half.py", 3)}
    assert len(mutants.sampled("half.py", SOURCE, 2, 0)) == 2
    positional = mutants.sampled("half.py", "def half(a, /):\n    return a / 2\n", 100, 0)
    assert "return a * 2" in {mutant.after for mutant in positional}
    assert all(compile(code, "half.py", "exec") for code in positional.values()), (
        "invalid syntax is no mutant"
    )


def test_mutants_that_were_tried_are_not_tried_again(
    mutants: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src" / "scenemem").mkdir(parents=True)
    (tmp_path / "src" / "scenemem" / "half.py").write_text(SOURCE)
    monkeypatch.setattr(mutants, "_COPIED", ())
    monkeypatch.setattr(mutants.Copy, "outcome", lambda *_, **__: "survived")
    copy, known = mutants.Copy(tmp_path), dict[str, object]()
    first, more = (list(copy.attempts("half.py", ["test"], count, 0, known)) for count in (2, 3))
    assert [len(first), len(more)] == [2, 1]
    assert (copy.package / "half.py").read_text() == SOURCE, "it is as it was"
    (copy.package / "half.py").write_text(SOURCE + "\n")
    assert len(list(copy.attempts("half.py", ["test"], 2, 0, known))) == 2, "another file"
    monkeypatch.setattr(mutants.Copy, "outcome", lambda *_, **__: "killed")
    (copy.package / "half.py").write_text(SOURCE)
    with pytest.raises(SystemExit, match=r"^a, b fail without a change already$"):
        list(copy.attempts("half.py", ["a", "b"], 2, 0, known))


class _Walks(BaseHTTPRequestHandler):
    """Answers every second request with the end of a walk."""

    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        answer = b"event: ended\n" if self.asked % 2 else b"event: failed\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the name of the base class
        del format, args


def test_only_walks_that_end_are_answers() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Walks) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        page = load.Page(server.server_address[1], os.getpid())
        asked = page.ask([b"{}"] * 6, 1)
        server.shutdown()
    assert (asked.requests, len(asked.seconds)) == (6, 3)
    assert asked.failures == ["event: failed\n"] * 3
    assert page.ask([b"{}"] * 2, 2).failures == ["ConnectionRefusedError"] * 2, "nobody is there"
    assert page.megabytes() > 10
    told = load.Asked(4, [1.0, 2.0, 6.0], ["gone"]).summary(2.0)
    assert told == {
        "requests": 4,
        "answered": 3,
        "failures": {"gone": 1},
        "times_single": {"median": 1.0, "worst": 3.0},
    }
