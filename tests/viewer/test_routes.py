"""Routes of result files: what is drawn, told and chosen, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.viewer.routes import RouteFile, choose_routes, write_routes
from scenemem.viewer.scenery import Sceneries, Scenery
from scenemem.world.build import load_world
from scenemem.world.graph import World


@pytest.fixture(scope="module")
def split(tiny_data: Path) -> tuple[World, EpisodeSet]:
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


def _read(
    folder: Path, split: tuple[World, EpisodeSet], name: str, routes: dict[str, list[str]]
) -> RouteFile:
    return RouteFile.read(_file(folder, name, routes), name, *split)


def test_a_route_is_played_step_by_step(split: tuple[World, EpisodeSet], tmp_path: Path) -> None:
    routes = _references(*split)
    name, way = next(iter(routes.items()))
    route = _read(tmp_path, split, "mine", {name: [*way, way[-2]]}).route(name)
    assert [route.scene.places[place].id for place in route.path] == [*way, way[-2]], "turns are no steps"
    assert route.path[:-1] == route.task.reference
    shown = route.replayed(Scenery(room_of={route.path[1]: "hall"}))
    assert [step.walk for step in shown.moves] == list(zip(route.path, route.path[1:], strict=False))
    assert shown.captions[0].startswith("Move 1: it goes ")
    assert " to place 2 (hall), " in shown.captions[0]
    assert f" back to place {len(way) - 1}" in shown.captions[-2]
    assert shown.captions[-1].startswith(f"The end: it stops {route.ending.to_goal:.1f} m from the goal, a ")
    assert shown.story.startswith("It walked ")
    assert f" in {len(way)} steps and stopped " in shown.story


def test_a_step_without_an_edge_is_shown_as_one(split: tuple[World, EpisodeSet], tmp_path: Path) -> None:
    name, way = next(iter(_references(*split).items()))
    route = _read(tmp_path, split, "mine", {name: [way[0], *way[2:]]}).route(name)
    assert route.broken == {route.path[:2]}
    assert route.drawn().dashed == route.broken
    assert ", where no edge leads." in route.replayed(Scenery()).captions[0]
    assert "(1 without an edge)" in route.story


def test_where_two_files_differ_comes_first(split: tuple[World, EpisodeSet], tmp_path: Path) -> None:
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
    route = file.route(hidden.instruction_ids[0])
    assert (route.task.goal, route.scores, route.ending.to_goal) == (None, None, None)
    assert route.replayed(Scenery()).captions == ["The end: it stops here. The goal is not public."]
    assert choose_routes([file], 1) == [hidden.instruction_ids[0]]


def test_a_page_or_a_figure_is_written_for_each(
    split: tuple[World, EpisodeSet], tiny_data: Path, tmp_path: Path
) -> None:
    routes = _references(*split)
    files = [_read(tmp_path, split, name, routes) for name in ("a", "b")]
    told: list[Any] = []
    written = write_routes(
        files,
        list(routes)[:2],
        Sceneries(DataFolder(tiny_data)),
        lambda name: tmp_path / f"{name}.html",
        lambda *done: told.append(done),
    )
    assert told == [(1, 2), (2, 2)]
    for replay in written:
        page = replay.file.read_text(encoding="utf-8")
        assert replay.size == len(page.encode())
        assert [part.agent for part in replay.agents] == ["a", "b"]
        assert replay.task.text.split()[0] in page
    (figure,) = write_routes(
        files, list(routes)[:1], Sceneries(DataFolder(tiny_data)), lambda _: tmp_path / "f.svg"
    )
    assert figure.file.read_text(encoding="utf-8").count("<text") > 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda routes: {"nope": next(iter(routes.values()))}, "has no such instruction; is the split right"),
        (lambda routes: {next(iter(routes)): ["nowhere"]}, "nowhere"),
        (
            lambda routes: {next(iter(routes)): next(iter(routes.values()))[1:]},
            "expected the start viewpoint",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    change: Any, message: str, split: tuple[World, EpisodeSet], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        _read(tmp_path, split, "mine", change(_references(*split)))


def test_one_instruction_of_a_file_is_enough(split: tuple[World, EpisodeSet], tmp_path: Path) -> None:
    routes = _references(*split)
    name, file = list(routes)[2], _file(tmp_path, "mine", routes)
    one = RouteFile.read(file, "mine", *split, only=name)
    assert list(one.trajectories) == [name]
    assert one.route(name).task == _read(tmp_path, split, "mine", routes).route(name).task
    with pytest.raises(UserError, match=f"has no instruction 'x'; its ids look like '{next(iter(routes))}'"):
        RouteFile.read(file, "mine", *split, only="x")
