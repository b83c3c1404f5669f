"""Replays: self-contained, small and safe pages, the episodes that are shown, and what links them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from scenemem.agents.rollout import DECISION_TYPES
from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Origin, Trace, Word
from scenemem.viewer.drawing import draw_thumbnail
from scenemem.viewer.narration import Walk
from scenemem.viewer.pages import embedded, render, static_text
from scenemem.viewer.replay import (
    DRAWING,
    Chosen,
    Replay,
    instructive,
    plain,
    replay_frame,
    replay_page,
    replays_section,
    went_on,
    write_index,
    write_replay,
)
from scenemem.viewer.scenery import Label, Look, Scenery
from scenemem.zoo.exploring import EXPLORE, GATE
from tests.viewer.html import Html

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 {{script}}"


def _renamed(trace: Trace, text: str) -> Trace:
    words = (Word(text), *trace.task.words[1:])
    task = msgspec.structs.replace(trace.task, text=text, words=words)
    return msgspec.structs.replace(trace, task=task, agent=text)


def _page(*traces: Trace, scenery: Scenery | None = None) -> str:
    scenery = scenery or Scenery()
    return replay_page([Walk.of(trace, scenery.room_of) for trace in traces], scenery)


def _data(page: str) -> Any:
    return json.loads(Html(page).scripts[0])


_ORIGIN = Origin(
    versions={"scenemem": "0.1.0", "torch": "<2>"}, weights="a" * 64, graphs="b" * 64, features="c" * 64
)


def test_a_page_tells_what_it_was_made_from(turning_back: Trace) -> None:
    stamped = msgspec.structs.replace(turning_back, origin=_ORIGIN)
    page = _page(stamped, turning_back)
    assert "What this page was made from" in page
    for told in ("<dt>scenemem</dt><dd>0.1.0</dd>", "<dt>torch</dt><dd>&lt;2&gt;</dd>"):
        assert told in page
    for name, letter in (("weights", "a"), ("graphs", "b"), ("features", "c")):
        assert f"<dt>{name}, sha256</dt><dd>{letter * 64}</dd>" in page
    assert "episodes, sha256" not in page, "nobody knows them"
    stored = [agent["origin"] for agent in _data(page)["agents"]]
    assert msgspec.convert(stored, list[Origin | None]) == [_ORIGIN, None]
    assert "What this page was made from" not in _page(turning_back)


def test_a_page_holds_the_whole_trace_and_nothing_from_elsewhere(turning_back: Trace, tmp_path: Path) -> None:
    size = write_replay(tmp_path / "r.html", [turning_back], Scenery())
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert size == len(page.encode()) < 100_000
    data = _data(page)
    assert msgspec.convert(data["task"], type(turning_back.task)) == turning_back.task
    assert len(data["agents"][0]["captions"]) == len(turning_back.moves) + 1
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page), "no address but the name of SVG"
    assert Html(page).values("src", "href") == []
    assert "{{" not in page


def test_untrusted_text_stays_text(turning_back: Trace) -> None:
    look = Look(labels=(Label(NASTY, 0.0, 0.0),), captions={1: NASTY})
    scenery = Scenery(room_of={1: NASTY}, looks={0: look})
    harmless, nasty = _page(turning_back), _page(_renamed(turning_back, NASTY), scenery=scenery)
    assert Html(nasty).tags == Html(harmless).tags
    data = _data(nasty)
    assert data["task"]["text"] == NASTY
    assert data["scenery"]["looks"]["0"]["labels"][0]["text"] == NASTY
    assert data["scenery"]["looks"]["0"]["captions"] == {"1": NASTY}
    assert Html(nasty).scripts[1] == Html(harmless).scripts[1]


@given(st.text())
def test_any_text_survives_embedding_and_never_closes_the_script(text: str) -> None:
    if not text.isprintable() and any(0xD800 <= ord(sign) < 0xE000 for sign in text):
        return  # half characters are no text in JSON
    inside = embedded({"text": text})
    assert json.loads(inside) == {"text": text}
    assert "<" not in inside
    assert "\u2028" not in inside


def test_agents_stand_side_by_side_on_the_same_episode_only(turning_back: Trace) -> None:
    cut = msgspec.structs.replace(turning_back.task, words=turning_back.task.words[:2])
    rival = msgspec.structs.replace(turning_back, agent="basic", task=cut, moves=())
    data = _data(_page(turning_back, rival))
    assert [agent["name"] for agent in data["agents"]] == ["ssm", "basic"]
    assert [len(agent["task"]["words"]) for agent in data["agents"]] == [5, 2], "each has read its own words"
    with pytest.raises(ValueError, match="at least one trace, and all of them of the same episode"):
        _page(turning_back, _renamed(turning_back, "Other"))
    with pytest.raises(ValueError, match="at least one trace"):
        _page()


def test_a_page_can_be_filled_elsewhere(turning_back: Trace) -> None:
    whole, frame = _page(turning_back), replay_frame()
    assert frame.count("{{data}}") == frame.count("{{") == 1
    data = embedded(_data(whole))
    assert _data(frame.replace("{{data}}", data)) == _data(whole)
    assert Html(frame).scripts[1] == Html(whole).scripts[1]


def test_values_are_escaped_and_filled_once() -> None:
    names = ("title", "policy", "style", "script", "data", "back", "origins")
    values = {**dict.fromkeys(names, ""), "title": "<b>{{ policy }}</b>", "policy": "'"}
    page = render("replay.html", **values)
    assert "<title>&lt;b&gt;{{ policy }}&lt;/b&gt;</title>" in page
    assert 'content="&#39;"' in page
    with pytest.raises(UndefinedError, match="'data' is undefined"):
        render("replay.html", **{name: value for name, value in values.items() if name != "data"})


def test_scripts_only_ever_write_text() -> None:
    dangers = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|import\("
    for name in (*DRAWING, "replay"):
        assert re.findall(dangers, static_text(f"{name}.js")) == [], name


def test_the_page_knows_every_kind_of_decision() -> None:
    script = "".join(static_text(f"{name}.js") for name in DRAWING)
    kinds = {kind.name for kind in (*DECISION_TYPES, GATE, EXPLORE)}
    assert {kind for kind in kinds if f'"{kind}"' in script} == kinds
    compared = re.findall(r'kind === "([a-z]+)"', script)
    assert set(compared) <= kinds


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
    assert [one.story for one in chosen] == ["fixed", "wrong stop", "lost", "straight"] * 2
    ids = [one.instruction_id for one in chosen]
    plainest = "the plainest of each kind: one return, a short walk, far away, a long way"
    assert ids[:4] == ["1_0", "2_0", "5_0", "7_0"], plainest
    assert ids[4:] == ["0_0", "3_0", "4_0", "6_0"], "a detour without turning back is no story"
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
    walks = [Walk.of(trace, {1: "hall"}) for trace in traces]
    return Replay(file, [(walk, draw_thumbnail(walk, Scenery())) for walk in walks], 1)


def test_the_index_and_the_report_link_every_page(turning_back: Trace, tmp_path: Path) -> None:
    nasty = _renamed(turning_back, NASTY)
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
    beside = _replay(tmp_path / "replays" / "a&b.html", nasty, turning_back)
    section = replays_section([beside], "dev", tmp_path)
    below = Html(section.body)
    assert section.title == "Replays of dev"
    assert below.values("href") == ["replays/a&b.html"]
    assert below.tags.count("svg") == 2
    assert "script" not in below.tags


def test_file_names_are_plain() -> None:
    assert plain("../7 0/é?") == ".._7_0_é_"
    assert plain("house-1_2.x") == "house-1_2.x"
