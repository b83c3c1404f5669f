"""Which episodes are shown, and what is said about them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Ending, Scores, Trace
from scenemem.viewer.stories import Chosen, headline, instructive, summary, went_on


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


def test_each_kind_of_story_gets_its_turn() -> None:
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


def _ending(trace: Trace, to_goal: float | None, *, stopped: bool = True) -> Trace:
    near = to_goal is not None and to_goal < 3
    scores = None if to_goal is None else Scores(6.0, to_goal, near, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    return msgspec.structs.replace(trace, ending=Ending(stopped, 4, None, to_goal, scores))


def _without_return(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, moves=trace.moves[:2])


@pytest.mark.parametrize(
    ("returns", "to_goal", "stopped", "told"),
    [
        (
            True,
            0.0,
            True,
            "In round 3 it turned back to place 2 (hall) on its map; in round 5 it stopped at the goal.",
        ),
        (False, 1.2, True, "It never turned back and stopped 1.2 m from the goal."),
        (
            True,
            7.0,
            True,
            "It came within 0.0 m of the goal in round 4, walked on and stopped 7.0 m from the goal.",
        ),
        (False, 9.0, True, "It never came nearer than 5.6 m and stopped 9.0 m from the goal."),
        (
            False,
            9.0,
            False,
            "It never came nearer than 5.6 m and was cut off after 2 rounds 9.0 m from the goal.",
        ),
        (False, None, True, "It never turned back and stopped."),
        (
            True,
            None,
            False,
            "In round 3 it turned back to place 2 (hall) on its map; it was cut off after 5 rounds.",
        ),
    ],
)
def test_an_episode_is_one_sentence(
    returns: bool, to_goal: float | None, stopped: bool, told: str, turning_back: Trace
) -> None:
    trace = turning_back if returns else _without_return(turning_back)
    assert summary(_ending(trace, to_goal, stopped=stopped), {1: "hall"}) == told


def test_several_returns_are_counted(turning_back: Trace) -> None:
    there = msgspec.structs.replace(turning_back.moves[1], walk=(3, 1, 2))
    again = msgspec.structs.replace(turning_back.moves[2], walk=(2, 1, 3))
    rounds = (*turning_back.moves[:3], there, again)
    trace = _ending(msgspec.structs.replace(turning_back, moves=rounds), 3.6)
    turned = "It turned back 2 times (in rounds 3 and 5)"
    assert summary(trace, {}) == f"{turned}, never came nearer than 3.6 m and stopped 3.6 m from the goal."
    assert summary(msgspec.structs.replace(trace, ending=None), {}) == "", "it is not over"


def test_taking_another_way_is_told_from_stopping(turning_back: Trace) -> None:
    assert went_on(turning_back)
    assert not went_on(_without_return(turning_back))
    back, north = turning_back.moves[2].decisions
    stop = msgspec.structs.replace(north, choice=1)
    stops = msgspec.structs.replace(turning_back.moves[2], walk=(2, 1), decisions=(back, stop))
    assert not went_on(msgspec.structs.replace(turning_back, moves=(*turning_back.moves[:2], stops)))


def test_a_straight_way_has_its_headline(turning_back: Trace) -> None:
    assert headline(_ending(_without_return(turning_back), 1.0)) == "Went straight there"
