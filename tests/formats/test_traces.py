from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.formats.traces import (
    VERSION,
    Attention,
    Decision,
    Ending,
    Memory,
    Move,
    Option,
    Origin,
    Place,
    Scene,
    Task,
    Trace,
    Word,
    read_trace,
    write_trace,
)
from tests.formats.helpers import put, refused


@pytest.fixture
def trace() -> Trace:
    """One move that leads from place 0 to place 1, and one that stops there."""
    words = (Word("Go"), Word("on", " "))
    attention = Attention((0.5, 0.25), (0.0, 0.9))
    go = Decision(
        "action", (Option(1, 0.75, 1.0, node=0), Option(0, 0.25, -0.1, stop=True)), 0, None, attention
    )
    stop = Decision("action", (Option(1, 1.0, 0.0, stop=True),), 0)
    return Trace(
        agent="ssm",
        task=Task("tiny", "1_0", "Go on", words, start=0, goal=1, reference=(0, 1)),
        scene=Scene(
            "scan", (1.5,), (Place("a", 0, 0, 1.5, 0, 2.0), Place("b", 0, 2, 1.5, 0, 0.0)), ((0, 1),)
        ),
        moves=(
            Move(0.0, (0, 1), (go,), Memory(0, (0,), (True,), (), ()), 2.0),
            Move(0.0, (1,), (stop,), Memory(1, (0, 1), (False, False), ((0, 1),), ()), 0.0),
        ),
        ending=Ending(True, 1),
    )


def test_a_trace_survives_being_written_and_read(trace: Trace, tmp_path: Path) -> None:
    origin = Origin(versions={"torch": "2"}, weights="a", episodes="b", graphs="c", features="d")
    for written in (trace, msgspec.structs.replace(trace, origin=origin)):
        write_trace(tmp_path / "t.json", written)
        assert read_trace(tmp_path / "t.json") == written
    assert trace.path == [0, 1]
    assert trace.moves[1].stops
    assert not trace.moves[0].stops
    assert trace.moves[0].back_to is None


def _set(*path: Any) -> Callable[[Any], None]:
    *way, last, value = path

    def change(content: Any) -> None:
        for step in way:
            content = content[step]
        content[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("moves", 0, "walk", 1, 7), "moves[0].walk names place 7, but there are 2"),
        (_set("task", "reference", [0, 9]), "task.reference names place 9, but there are 2"),
        (_set("ending", "place", 5), "ending.place names place 5, but there are 2"),
        (
            _set("moves", 1, "memory", "nodes", [0, 4]),
            "moves[1].memory.nodes names place 4, but there are 2",
        ),
        (_set("moves", 0, "decisions", 0, "options", 0, "place", 3), "moves[0].decisions names place 3"),
        (_set("scene", "places", 1, "floor", 1), "scene.places[1] lies on floor 1, which there is not"),
        (_set("moves", 1, "walk", [0]), "moves[1] begins at place 0, the move before ended at 1"),
        (
            _set("moves", 0, "decisions", 0, "attention", "action", [0.1]),
            "attends to other words than the 2",
        ),
        (_set("moves", 0, "decisions", 0, "choice", 2), "choice is 2, but there are 2 options"),
        (_set("moves", 0, "decisions", 0, "kind", "guess"), "matching regex '^(frontier|action|global|final"),
        (_set("moves", 1, "decisions", 0, "options", 0, "probability", 0.5), "probabilities sum to 0.500"),
        (_set("moves", 1, "decisions", 0, "options", 0, "probability", 1.5), "expected `float` <= 1.0"),
        (_set("moves", 0, "decisions", []), "field 'moves[0].decisions': expected `array` of length >= 1"),
        (_set("moves", 0, "walk", []), "field 'moves[0].walk': expected `array` of length >= 1"),
        (_set("moves", 0, "memory", "frontier", []), "frontier has 0 entries for 1 nodes"),
        (_set("moves", 1, "memory", "edges", [[0, 2]]), "names node 2, but there are 2 nodes"),
    ],
)
def test_what_does_not_hold_together_is_refused(
    change: Callable[[Any], None], message: str, trace: Trace, tmp_path: Path
) -> None:
    write_trace(tmp_path / "t.json", trace)
    content = json.loads((tmp_path / "t.json").read_text())
    change(content)
    assert message in refused(read_trace, put(tmp_path / "t.json", content))


@pytest.mark.parametrize("version", [1, VERSION + 1, None])
def test_a_trace_of_a_version_that_is_not_known_is_refused(version: int | None, tmp_path: Path) -> None:
    file = put(tmp_path / "t.json", {"version": version, "moves": "told another way"})
    seen = f"is a trace of version {version}, this program reads version {VERSION}"
    assert refused(read_trace, file) == f"field 'version': {seen}; write it again with 'scenemem view'"
