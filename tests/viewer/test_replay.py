"""Replays of traces and of result files: small and safe pages, what they show, and what links them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from scenemem.agents.rollout import DECISION_TYPES
from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Origin, Trace, Word
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.viewer.drawing import draw_thumbnails
from scenemem.viewer.narration import DrawnWalk
from scenemem.viewer.pages import embedded, render, static_text
from scenemem.viewer.replay import (
    DRAWING,
    Chosen,
    Replay,
    RouteFile,
    choose_routes,
    instructive,
    plain,
    replay_frame,
    replay_page,
    replays_section,
    write_index,
    write_replay,
)
from scenemem.viewer.scenery import Look, SceneLabel, Scenery
from scenemem.world.build import load_world
from scenemem.world.graph import World
from scenemem.zoo.exploring import EXPLORE, GATE
from tests.viewer.html import Html

change = msgspec.structs.replace

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 {{script}}"


def _renamed(trace: Trace, text: str) -> Trace:
    words = (Word(text), *trace.task.words[1:])
    return change(trace, task=change(trace.task, text=text, words=words), agent=text)


def _page(*traces: Trace, scenery: Scenery | None = None) -> str:
    scenery = scenery or Scenery()
    return replay_page([DrawnWalk.of(trace, scenery.room_of) for trace in traces], scenery)


def _data(page: str) -> Any:
    return json.loads(Html(page).scripts[0])


def test_a_page_tells_what_it_was_made_from(turning_back: Trace) -> None:
    sums: dict[str, Any] = {"weights": "a" * 64, "graphs": "b" * 64, "features": "c" * 64}
    origin = Origin(versions={"scenemem": "0.1.0", "torch": "<2>"}, **sums)
    page = _page(change(turning_back, origin=origin), turning_back)
    assert "What this page was made from" in page
    for told in ("<dt>scenemem</dt><dd>0.1.0</dd>", "<dt>torch</dt><dd>&lt;2&gt;</dd>"):
        assert told in page
    for name, value in sums.items():
        assert f"<dt>{name}, sha256</dt><dd>{value}</dd>" in page
    assert "episodes, sha256" not in page, "nobody knows them"
    stored = [agent["origin"] for agent in _data(page)["agents"]]
    assert msgspec.convert(stored, list[Origin | None]) == [origin, None]
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
    look = Look(labels=(SceneLabel(NASTY, 0.0, 0.0),), captions={1: NASTY})
    scenery = Scenery(room_of={1: NASTY}, looks={0: look})
    page = _page(_renamed(turning_back, NASTY), scenery=scenery)
    harmless, nasty = Html(_page(turning_back)), Html(page)
    assert nasty.tags == harmless.tags
    assert nasty.scripts[1] == harmless.scripts[1]
    data = _data(page)
    assert data["task"]["text"] == NASTY
    assert data["scenery"] == json.loads(msgspec.json.encode(scenery))


@given(st.text())
def test_any_text_survives_embedding_and_never_closes_the_script(text: str) -> None:
    if not text.isprintable() and any(0xD800 <= ord(sign) < 0xE000 for sign in text):
        return  # half characters are no text in JSON
    inside = embedded({"text": text})
    assert json.loads(inside) == {"text": text}
    assert "<" not in inside
    assert "\u2028" not in inside


def test_agents_stand_side_by_side_on_the_same_episode_only(turning_back: Trace) -> None:
    cut = change(turning_back.task, words=turning_back.task.words[:2])
    rival = change(turning_back, agent="basic", task=cut, moves=())
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
    with pytest.raises(UndefinedError, match="'policy' is undefined"):
        render("replay.html")


def test_scripts_only_ever_write_text_and_know_every_kind_of_decision() -> None:
    script = "".join(static_text(f"{name}.js") for name in DRAWING)
    dangers = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|import\("
    assert re.findall(dangers, script + static_text("replay.js")) == []
    kinds = {kind.name for kind in (*DECISION_TYPES, GATE, EXPLORE)}
    assert {kind for kind in kinds if f'"{kind}"' in script} == kinds
    assert {*re.findall(r'kind === "([a-z]+)"', script)} <= kinds, "what it compares with"


def _episode(name: str, **changes: Any) -> EpisodeResult:
    """One that went straight there, unless told otherwise."""
    facts: dict[str, Any] = dict.fromkeys(("sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"), 1.0)
    facts |= {"words": 9, "reference": 8.0, "hops": 4, "jumps": 0, "tl": 8.0, "ne": 0.0}
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
    assert instructive([], 3) == []


def test_where_two_agents_differ_comes_first_and_a_route_is_shown_once() -> None:
    results = [_episode("0_0", jumps=1, spl=0.5), _episode("1_0", jumps=3, spl=0.9)]
    rival = [_episode("0_0"), _episode("1_0", **LOST)]
    assert instructive(results, 1) == [Chosen("0_0", "fixed")]
    assert instructive(results, 1, rival) == [Chosen("1_0", "fixed")]
    results = [_episode(f"{route}_{number}", **LOST) for route in ("7", "a_b") for number in range(3)]
    assert [chosen.instruction_id for chosen in instructive(results, 9)] == ["7_0", "a_b_0"]
    assert len(instructive([_episode("x"), _episode("y")], 9)) == 2, "names without a number are routes"


def _replay(file: Path, *traces: Trace) -> Replay:
    walks = [DrawnWalk.of(trace, {1: "hall"}) for trace in traces]
    return Replay(file, list(zip(walks, draw_thumbnails(walks, Scenery()), strict=True)), 1)


def test_the_index_and_the_report_link_every_page(turning_back: Trace, tmp_path: Path) -> None:
    nasty = _renamed(turning_back, NASTY)
    one = _replay(tmp_path / "one.html", turning_back)
    two = _replay(tmp_path / "two.html", nasty, turning_back)
    write_index(tmp_path / "index.html", "ssm <b>", [one, two])
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
    assert plain("../7 0/é?") == ".._7_0_é_"
    assert plain("house-1_2.x") == "house-1_2.x", "a name of a file"


Split = tuple[World, EpisodeSet]


@pytest.fixture(scope="module")
def split(tiny_data: Path) -> Split:
    world = load_world(DataFolder(tiny_data).connectivity)
    return world, load_split(DataFolder(tiny_data), world, "r2r", "val_unseen")


def _references(world: World, episodes: EpisodeSet) -> dict[str, list[str]]:
    return {
        name: [world.viewpoints[int(place)] for place in episodes.path[row] if int(place) >= 0]
        for row, name in enumerate(episodes.instruction_ids)
    }


def _read(
    folder: Path, split: Split, name: str, routes: dict[str, list[str]], only: str | None = None
) -> RouteFile:
    """A result file in the official format, a turn in place at every viewpoint."""
    walked = [
        {"instr_id": key, "trajectory": [[one, angle, 0.0] for one in route for angle in (0.1, 0.2)]}
        for key, route in routes.items()
    ]
    file = folder / f"{name}.json"
    file.write_text(json.dumps(walked))
    return RouteFile.read(file, name, *split, only=only)


def _walk(file: RouteFile, name: str, rooms: dict[int, str] | None = None) -> DrawnWalk:
    (walk,) = file.walks([name], lambda _: rooms or {})
    return walk


def test_a_route_is_played_step_by_step(split: Split, tmp_path: Path) -> None:
    routes = _references(*split)
    name, way = next(iter(routes.items()))
    file = _read(tmp_path, split, "mine", {name: [*way, way[-2]]})
    walk = _walk(file, name)
    assert [walk.scene.places[place].id for place in walk.path] == [*way, way[-2]], "turns are no steps"
    assert tuple(walk.path[:-1]) == walk.task.reference
    walk = _walk(file, name, {walk.path[1]: "hall"})
    assert [step.walk for step in walk.moves] == list(pairwise(walk.path))
    assert walk.captions[0].startswith("Move 1: it goes ")
    assert " to place 2 (hall), " in walk.captions[0]
    assert f" back to place {len(way) - 1}" in walk.captions[-2]
    assert walk.ending is not None
    assert walk.ending.scores is not None
    end = f"The end: it stopped {walk.ending.to_goal:.1f} m from the goal: a "
    assert walk.captions[-1].startswith(end)
    assert walk.captions[-1].endswith(f"It walked {walk.ending.scores.tl:.1f} m."), "a file says no why"
    assert walk.story.startswith(f"It took {len(way)} steps and stopped ")
    assert walk.shown == {*walk.path}
    broken = _walk(_read(tmp_path, split, "mine", {name: [way[0], *way[2:]]}), name)
    assert broken.dashed == {tuple(broken.path[:2])}
    assert ", where no edge leads." in broken.captions[0]
    assert "(1 without an edge)" in broken.story
    assert broken.headline == "Went where no edge leads"


def test_where_two_files_differ_comes_first(split: Split, tmp_path: Path) -> None:
    routes = _references(*split)
    first, *_, last = routes
    worse = _read(tmp_path, split, "b", {**routes, last: routes[last][:1]})
    right = _read(tmp_path, split, "a", routes)
    assert choose_routes([right, worse], 1) == [last]
    assert len(choose_routes([right], 2)) == 2
    alone = _read(tmp_path, split, "c", {first: routes[first]})
    rest = _read(tmp_path, split, "d", {last: routes[last]})
    with pytest.raises(UserError, match="c and d have no instruction in common"):
        choose_routes([alone, rest], 1)


def test_secret_goals_stay_secret(tiny_data: Path, tmp_path: Path) -> None:
    world = load_world(DataFolder(tiny_data).connectivity)
    hidden = load_split(DataFolder(tiny_data), world, "r2r", "test")
    start = world.viewpoints[int(hidden.start[0])]
    file = _read(tmp_path, (world, hidden), "mine", {hidden.instruction_ids[0]: [start]})
    walk = _walk(file, hidden.instruction_ids[0])
    assert (walk.task.goal, walk.scores) == (None, None)
    assert walk.captions == ["The end: it stopped. Without a known goal it is not scored."]
    assert choose_routes([file], 1) == [hidden.instruction_ids[0]]


def test_files_that_do_not_fit_are_refused(split: Split, tmp_path: Path) -> None:
    routes = _references(*split)
    name, way = next(iter(routes.items()))
    for wrong, message in (
        ({"nope": way}, "has no such instruction; is the split right"),
        ({name: ["nowhere"]}, "nowhere"),
        ({name: way[1:]}, "expected the start viewpoint"),
    ):
        with pytest.raises(DataError, match=message):
            _read(tmp_path, split, "mine", wrong)


def test_one_instruction_of_a_file_is_enough(split: Split, tmp_path: Path) -> None:
    routes = _references(*split)
    name = list(routes)[2]
    one = _read(tmp_path, split, "mine", routes, only=name)
    assert list(one.trajectories) == [name]
    assert _walk(one, name).task == _walk(_read(tmp_path, split, "mine", routes), name).task
    with pytest.raises(UserError, match=f"has no instruction 'x'; its ids look like '{next(iter(routes))}'"):
        _read(tmp_path, split, "mine", routes, only="x")
