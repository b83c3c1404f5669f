"""Which episodes are shown, and the pages that link them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Trace
from scenemem.viewer.gallery import (
    AgentCard,
    Chosen,
    Replay,
    instructive,
    plain,
    replays_section,
    went_on,
    write_index,
)
from scenemem.viewer.scenery import Scenery
from tests.viewer.html import Html

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 {{script}}"


def _episode(name: str, **changes: Any) -> EpisodeResult:
    """One that went straight there, unless told otherwise."""
    facts: dict[str, Any] = {
        **dict.fromkeys(("sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"), 1.0),
        "words": 9,
        "reference": 8.0,
        "hops": 4,
        "jumps": 0,
        "tl": 8.0,
        "ne": 0.0,
    }
    return EpisodeResult(name, "last", 1, "reached", **{**facts, **changes})


PASSED = {"sr": 0.0, "spl": 0.0, "ne": 9.0}
LOST = {**PASSED, "osr": 0.0}


def test_each_kind_of_episode_gets_its_turn() -> None:
    results = [
        _episode("0_0", jumps=2, spl=0.5),
        _episode("1_0", jumps=1, spl=0.5),
        _episode("2_0", **PASSED),
        _episode("3_0", **PASSED, hops=20),
        _episode("4_0", **LOST),
        _episode("5_0", **{**LOST, "ne": 11.0}),
        _episode("6_0", tl=5.0),
        _episode("7_0"),
        _episode("8_0", spl=0.7),
    ]
    chosen = instructive(results, 10)
    assert chosen[:4] == [
        Chosen("1_0", "fixed"),
        Chosen("2_0", "wrong stop"),
        Chosen("5_0", "lost"),
        Chosen("7_0", "straight"),
    ], "the plainest of each kind: one return, a short walk, far away, a long way"
    assert chosen[4:] == [
        Chosen("0_0", "fixed"),
        Chosen("3_0", "wrong stop"),
        Chosen("4_0", "lost"),
        Chosen("6_0", "straight"),
    ], "a detour without turning back is no story"
    assert instructive(results, 2) == chosen[:2]
    assert instructive(results, 1, favoured={"0_0"}) == [Chosen("0_0", "fixed")]
    assert instructive([], 3) == []


def test_where_two_agents_differ_comes_first() -> None:
    results = [_episode("0_0", jumps=1, spl=0.5), _episode("1_0", jumps=3, spl=0.9)]
    rival = [_episode("0_0"), _episode("1_0", **LOST)]
    assert instructive(results, 1) == [Chosen("0_0", "fixed")]
    assert instructive(results, 1, rival) == [Chosen("1_0", "fixed")]
    assert instructive(results, 1, rival, favoured={"0_0"}) == [Chosen("1_0", "fixed")]


def test_a_route_is_shown_once() -> None:
    results = [_episode(f"{route}_{number}", **LOST) for route in ("7", "a_b") for number in range(3)]
    assert [chosen.instruction_id for chosen in instructive(results, 9)] == ["7_0", "a_b_0"]
    assert len(instructive([_episode("x"), _episode("y")], 9)) == 2, "names without a number are routes"


def test_taking_another_way_is_told_from_stopping(turning_back: Trace) -> None:
    assert went_on(turning_back)
    assert not went_on(msgspec.structs.replace(turning_back, moves=turning_back.moves[:2]))
    back, north = turning_back.moves[2].decisions
    stop = msgspec.structs.replace(north, choice=1)
    stops = msgspec.structs.replace(turning_back.moves[2], walk=(2, 1), decisions=(back, stop))
    assert not went_on(msgspec.structs.replace(turning_back, moves=(*turning_back.moves[:2], stops)))


def _replay(file: Path, *traces: Trace) -> Replay:
    scenery = Scenery(room_of={1: "hall"})
    return Replay(file, traces[0].task, tuple(AgentCard.of(trace, scenery) for trace in traces), 1)


def _nasty(trace: Trace) -> Trace:
    task = msgspec.structs.replace(trace.task, text=NASTY)
    return msgspec.structs.replace(trace, task=task, agent=NASTY)


def test_the_index_links_every_page(turning_back: Trace, tmp_path: Path) -> None:
    nasty = _nasty(turning_back)
    shown = [
        _replay(tmp_path / "one.html", turning_back),
        _replay(tmp_path / "two.html", nasty, turning_back),
    ]
    write_index(tmp_path / "index.html", "ssm <b>", shown)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert Html(page).values("href") == ["one.html", "two.html"]
    assert "Turned back and reached the goal" in page
    assert "At move 3 it turned back to place 2 (hall); at move 5 it stopped at the goal." in page
    assert not {"script", "img"} & {*Html(page).tags}
    assert "ssm <b>" not in page


def test_a_report_links_replays_below_it(turning_back: Trace, tmp_path: Path) -> None:
    nasty = _replay(tmp_path / "replays" / "a&b.html", _nasty(turning_back), turning_back)
    section = replays_section([nasty], "val_unseen", tmp_path)
    page = Html(section.body)
    assert section.title == "Replays of val_unseen"
    assert page.values("href") == ["replays/a&b.html"]
    assert page.tags.count("svg") == 2
    assert "script" not in page.tags


def test_file_names_are_plain() -> None:
    assert plain("../7 0/é?") == ".._7_0_é_"
    assert plain("house-1_2.x") == "house-1_2.x"
