"""Routes of result files: what is drawn, told and chosen, and which files are refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.viewer.narration import Walk
from scenemem.viewer.replay import RouteFile, choose_routes
from scenemem.world.build import load_world
from scenemem.world.graph import World

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


def _file(folder: Path, name: str, routes: dict[str, list[str]]) -> Path:
    """A result file in the official format, a turn in place at every viewpoint."""
    points = {
        key: [[one, angle, 0.0] for one in route for angle in (0.1, 0.2)] for key, route in routes.items()
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps([{"instr_id": key, "trajectory": value} for key, value in points.items()]))
    return file


def _read(folder: Path, split: Split, name: str, routes: dict[str, list[str]]) -> RouteFile:
    return RouteFile.read(_file(folder, name, routes), name, *split)


def _walk(file: RouteFile, name: str, rooms: dict[int, str] | None = None) -> Walk:
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
    assert walk.captions[-1].startswith(f"The end: it stops {walk.ending.to_goal:.1f} m from the goal, a ")
    assert walk.story.startswith("It walked ")
    assert f" in {len(way)} steps and stopped " in walk.story
    assert walk.shown == {*walk.path}
    broken = _walk(_read(tmp_path, split, "mine", {name: [way[0], *way[2:]]}), name)
    assert broken.dashed == {tuple(broken.path[:2])}
    assert ", where no edge leads." in broken.captions[0]
    assert "(1 without an edge)" in broken.story


def test_where_two_files_differ_comes_first(split: Split, tmp_path: Path) -> None:
    routes = _references(*split)
    worse = {name: way[:1] if name == list(routes)[3] else way for name, way in routes.items()}
    files = [_read(tmp_path, split, name, found) for name, found in (("a", routes), ("b", worse))]
    assert choose_routes(files, 1) == [list(routes)[3]]
    assert len(choose_routes(files[:1], 2)) == 2
    alone = _read(tmp_path, split, "c", dict(list(routes.items())[:1]))
    rest = _read(tmp_path, split, "d", dict(list(routes.items())[1:]))
    with pytest.raises(UserError, match="c and d have no instruction in common"):
        choose_routes([alone, rest], 1)


def test_secret_goals_stay_secret(tiny_data: Path, tmp_path: Path) -> None:
    world = load_world(DataFolder(tiny_data).connectivity)
    hidden = load_split(DataFolder(tiny_data), world, "r2r", "test")
    start = world.viewpoints[int(hidden.start[0])]
    file = _read(tmp_path, (world, hidden), "mine", {hidden.instruction_ids[0]: [start]})
    walk = _walk(file, hidden.instruction_ids[0])
    assert (walk.task.goal, walk.scores) == (None, None)
    assert walk.captions == ["The end: it stops here. Without a known goal it is not scored."]
    assert choose_routes([file], 1) == [hidden.instruction_ids[0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda routes: {"nope": next(iter(routes.values()))}, "has no such instruction; is the split right"),
        (lambda routes: {next(iter(routes)): ["nowhere"]}, "nowhere"),
        (lambda routes: {name: way[1:] for name, way in routes.items()}, "expected the start viewpoint"),
    ],
)
def test_files_that_do_not_fit_are_refused(change: Any, message: str, split: Split, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        _read(tmp_path, split, "mine", change(_references(*split)))


def test_one_instruction_of_a_file_is_enough(split: Split, tmp_path: Path) -> None:
    routes = _references(*split)
    name, file = list(routes)[2], _file(tmp_path, "mine", routes)
    one = RouteFile.read(file, "mine", *split, only=name)
    assert list(one.trajectories) == [name]
    assert _walk(one, name).task == _walk(_read(tmp_path, split, "mine", routes), name).task
    with pytest.raises(UserError, match=f"has no instruction 'x'; its ids look like '{next(iter(routes))}'"):
        RouteFile.read(file, "mine", *split, only="x")
