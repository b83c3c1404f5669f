"""Replay pages as text: self-contained, small, and safe whatever the instruction says."""

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

from scenemem.agents.exploring import EXPLORE, GATE
from scenemem.agents.rollout import DECISION_TYPES
from scenemem.formats.traces import Origin, Trace, Word
from scenemem.viewer.pages import embedded, render, static_text
from scenemem.viewer.replay import DRAWING, replay_frame, replay_page, write_replay
from scenemem.viewer.scenery import Label, Look, Scenery
from tests.viewer.html import Html

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 {{script}}"


def _renamed(trace: Trace, text: str) -> Trace:
    words = (Word(text), *trace.task.words[1:])
    task = msgspec.structs.replace(trace.task, text=text, words=words)
    return msgspec.structs.replace(trace, task=task, agent=text)


def _data(page: str) -> Any:
    return json.loads(Html(page).scripts[0])


_ORIGIN = Origin(
    versions={"scenemem": "0.1.0", "torch": "<2>"}, weights="a" * 64, graphs="b" * 64, features="c" * 64
)


def test_a_page_tells_what_it_was_made_from(turning_back: Trace) -> None:
    stamped = msgspec.structs.replace(turning_back, origin=_ORIGIN)
    page = replay_page([stamped, turning_back], Scenery())
    assert "What this page was made from" in page
    for told in ("<dt>scenemem</dt><dd>0.1.0</dd>", "<dt>torch</dt><dd>&lt;2&gt;</dd>"):
        assert told in page
    for name, letter in (("weights", "a"), ("graphs", "b"), ("features", "c")):
        assert f"<dt>{name}, sha256</dt><dd>{letter * 64}</dd>" in page
    assert "episodes, sha256" not in page, "nobody knows them"
    stored = [agent["origin"] for agent in _data(page)["agents"]]
    assert msgspec.convert(stored, list[Origin | None]) == [_ORIGIN, None]
    assert "What this page was made from" not in replay_page([turning_back], Scenery())


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
    harmless, nasty = (
        replay_page([turning_back], Scenery()),
        replay_page([_renamed(turning_back, NASTY)], scenery),
    )
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
    data = _data(replay_page([turning_back, rival], Scenery()))
    assert [agent["name"] for agent in data["agents"]] == ["ssm", "basic"]
    assert [len(agent["task"]["words"]) for agent in data["agents"]] == [5, 2], "each has read its own words"
    with pytest.raises(ValueError, match="at least one trace, and all of them of the same episode"):
        replay_page([turning_back, _renamed(turning_back, "Other")], Scenery())
    with pytest.raises(ValueError, match="at least one trace"):
        replay_page([], Scenery())


def test_a_page_can_be_filled_elsewhere(turning_back: Trace) -> None:
    whole, frame = replay_page([turning_back], Scenery()), replay_frame()
    assert frame.count("{{data}}") == frame.count("{{") == 1
    data = embedded(_data(whole))
    assert _data(frame.replace("{{data}}", data)) == _data(whole)
    assert Html(frame).scripts[1] == Html(whole).scripts[1]


def test_values_are_escaped_and_filled_once() -> None:
    values = {
        "title": "<b>{{ policy }}</b>",
        "policy": "'",
        "style": "",
        "script": "",
        "data": "",
        "back": "",
        "origins": [],
    }
    page = render("replay.html", **values)
    assert "<title>&lt;b&gt;{{ policy }}&lt;/b&gt;</title>" in page
    assert 'content="&#39;"' in page
    with pytest.raises(UndefinedError, match="'data' is undefined"):
        render("replay.html", **{name: value for name, value in values.items() if name != "data"})


def test_scripts_only_ever_write_text() -> None:
    for name in (*DRAWING, "replay"):
        script = static_text(f"{name}.js")
        for danger in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "fetch(",
            "import(",
        ):
            assert danger not in script, f"{name}.js uses {danger}"


def test_the_page_knows_every_kind_of_decision() -> None:
    script = "".join(static_text(f"{name}.js") for name in DRAWING)
    kinds = {kind.name for kind in (*DECISION_TYPES, GATE, EXPLORE)}
    assert {kind for kind in kinds if f'"{kind}"' in script} == kinds
    compared = re.findall(r'kind === "([a-z]+)"', script)
    assert set(compared) <= kinds
