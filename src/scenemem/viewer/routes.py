"""Routes of result files, of any system, as pages and figures: no agent is needed, only where it went."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from scenemem.errors import UserError
from scenemem.evaluation.metrics import Metrics, measure
from scenemem.evaluation.score import CheckedWalks, check_walks
from scenemem.formats.atomic import StrPath
from scenemem.formats.results import EpisodeResult, Trajectory, read_trajectories
from scenemem.formats.traces import Ending, Scene, Scores, Task, Trace, Word
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet
from scenemem.viewer.drawing import FIGURES, DrawnWalk, draw_figure, draw_thumbnail, write_figure
from scenemem.viewer.pages import write_page
from scenemem.viewer.replay import (
    AgentCard,
    BackLink,
    Replay,
    ReplayedWalk,
    Step,
    instructive,
    outcome,
    page_of_walks,
)
from scenemem.viewer.scenery import Sceneries, Scenery
from scenemem.viewer.traces import compass, open_scene
from scenemem.world.build import Progress
from scenemem.world.graph import FULL_TURN, NONE, World


@dataclass(frozen=True, eq=False)
class RouteFile:
    """The routes of one system through the episodes of a split."""

    name: str
    trajectories: Mapping[str, Trajectory]  # by instruction
    walks: CheckedWalks  # in the same order
    metrics: Metrics | None  # None for a split whose goals are secret
    world: World
    episodes: EpisodeSet

    @classmethod
    def read(
        cls, file: StrPath, name: str, world: World, episodes: EpisodeSet, only: str | None = None
    ) -> RouteFile:
        """A result file, or one instruction of it; steps without an edge are allowed, so that they are seen.

        Raises:
            DataError: the file is no result file, or does not fit the split.
            UserError: the file has no route for the instruction.
        """
        trajectories = read_trajectories(file)
        if only is not None:
            known = trajectories[0].instruction_id if trajectories else "none"
            trajectories = [one for one in trajectories if one.instruction_id == only]
            if not trajectories:
                raise UserError(f"{file} has no instruction '{only}'; its ids look like '{known}'")
        walks = check_walks(world, episodes, trajectories, partial=True, allow_jumps=True, source=file)
        metrics = None
        if episodes.has_goals:
            metrics = measure(world, walks.viewpoint, episodes.path[walks.row])
        return cls(name, {one.instruction_id: one for one in trajectories}, walks, metrics, world, episodes)

    def results(self) -> list[EpisodeResult]:
        """The outcome of every route, as far as choosing among them needs it."""
        if self.metrics is None:
            return []
        names = ("tl", "ne", "sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw")
        columns = zip(*(getattr(self.metrics, name).tolist() for name in names), strict=True)
        found = []
        for one, hops, values in zip(self.trajectories, self._hops(), columns, strict=True):
            metrics: dict[str, Any] = dict(zip(names, values, strict=True))
            found.append(EpisodeResult(one, "last", 0, "astray", 0, 0.0, hops, 0, **metrics))
        return found

    def _hops(self) -> list[int]:
        """Per trajectory."""
        counts: list[int] = (self.walks.viewpoint != NONE).sum(1).sub(1).tolist()
        return counts

    def route(self, instruction_id: str) -> Route:
        """Where it went for one instruction of the file."""
        number = list(self.trajectories).index(instruction_id)
        row, world = int(self.walks.row[number]), self.world
        task = _task(world, self.episodes, row)
        scene = open_scene(world, int(self.episodes.scan[row]), int(self.episodes.goal[row]))
        walked = self.walks.viewpoint[number]
        walked = walked[walked != NONE]
        moved = torch.cat([torch.ones(1, dtype=torch.bool), walked[1:] != walked[:-1]])
        path = walked[moved]
        places: list[int] = world.local[path].tolist()
        edges: list[bool] = (world.slot_of(path[:-1], path[1:]) != NONE).tolist()
        broken = frozenset(step for step, edge in zip(pairwise(places), edges, strict=True) if not edge)
        scores = None
        if self.metrics is not None:
            values = {name: float(getattr(self.metrics, name)[number]) for name in Scores.__struct_fields__}
            scores = Scores(**{name: round(value, 4) for name, value in values.items()})
        begin = float(self.episodes.heading[row])
        return Route(self.name, scene, task, tuple(places), broken, begin, scores)


def _task(world: World, episodes: EpisodeSet, row: int) -> Task:
    """The task of an episode; the vocabulary of the system is not known."""
    goal, text = int(episodes.goal[row]), episodes.texts[row]
    reference = episodes.path[row, : int(episodes.path_length[row])]
    return Task(
        split=episodes.name,
        instruction_id=episodes.instruction_ids[row],
        text=text,
        words=tuple(Word(word, before) for before, word in re.findall(r"(\s*)(\S+)", text)),
        start=int(world.local[episodes.start[row]]),
        goal=None if goal == NONE else int(world.local[goal]),
        reference=() if goal == NONE else tuple(world.local[reference].tolist()),
    )


@dataclass(frozen=True)
class Route:
    """Where a system went, and how it came out."""

    name: str
    scene: Scene
    task: Task
    path: tuple[int, ...]  # places, without turns in place
    broken: frozenset[tuple[int, int]]  # steps between places without an edge
    heading: float  # at the start
    scores: Scores | None

    @property
    def ending(self) -> Ending:
        """How it came out."""
        end = self.path[-1]
        return Ending(True, end, to_goal=self.scene.places[end].to_goal, scores=self.scores)

    @property
    def headline(self) -> str:
        """How it came out, in a few words."""
        return outcome(Trace(self.name, self.task, self.scene, (), self.ending))

    @property
    def story(self) -> str:
        """What happens in all, one sentence."""
        count = len(self.path) - 1
        walked = "" if self.scores is None else f"{self.scores.tl:.1f} m in "
        left = self.ending.to_goal
        away = "" if left is None else f" {left:.1f} m from the goal"
        jumps = f" ({len(self.broken)} without an edge)" if self.broken else ""
        return f"It walked {walked}{count} step{'s' * (count != 1)}{jumps} and stopped{away}."

    def drawn(self) -> DrawnWalk:
        """For figures and cards."""
        place = self.name, self.scene, self.task, self.path
        return DrawnWalk(*place, self.broken, "no edge", self.headline)

    def replayed(self, scenery: Scenery) -> ReplayedWalk:
        """For a page that plays it step by step."""
        headings = [self.heading, *(self._heading(step) for step in pairwise(self.path))]
        moves = [Step(heading, step) for heading, step in zip(headings, pairwise(self.path), strict=False)]
        captions = [
            self._caption(number, step, scenery) for number, step in enumerate(pairwise(self.path), 1)
        ]
        return ReplayedWalk(
            name=self.name,
            task=self.task,
            headline=self.headline,
            story=self.story,
            captions=[*captions, self._end()],
            letters=[{}] * len(moves),
            marks=[[]] * len(moves),
            moves=moves,
            ending=self.ending,
        )

    def _heading(self, step: tuple[int, int]) -> float:
        here, there = (self.scene.places[number] for number in step)
        return math.atan2(there.x - here.x, there.y - here.y) % FULL_TURN

    def _caption(self, number: int, step: tuple[int, int], scenery: Scenery) -> str:
        here, there = (self.scene.places[place] for place in step)
        metres = math.dist((here.x, here.y, here.z), (there.x, there.y, there.z))
        place = list(dict.fromkeys(self.path)).index(step[1]) + 1
        room = f" ({scenery.room_of[step[1]]})" if step[1] in scenery.room_of else ""
        back = "back " if step[1] in self.path[:number] else ""
        edge = ", where no edge leads" if step in self.broken else ""
        way = f"{compass(self._heading(step))} {back}to place {place}{room}, {metres:.1f} m"
        return f"Move {number}: it goes {way}{edge}."

    def _end(self) -> str:
        left = self.ending.to_goal
        if left is None or self.scores is None:
            return "The end: it stops here. The goal is not public."
        verdict = "a success" if left < SUCCESS_METRES else "a failure"
        told = f"It walked {self.scores.tl:.1f} m; SPL {self.scores.spl:.2f}, nDTW {self.scores.ndtw:.2f}."
        return f"The end: it stops {left:.1f} m from the goal, {verdict}. {told}"


ROUTES = (
    "Each page plays the routes of one instruction step by step. On the small maps the star is the goal, the "
    "dotted line the described path, the full line the path walked from the ring to the dot; dashes join "
    "places without an edge. Floors stand side by side."
)
"""What an index of such pages begins with."""


def choose_routes(files: Sequence[RouteFile], count: int) -> list[str]:
    """Instructions to show: those on which the files differ first, then failures and successes in turn."""
    first, *others = files
    common = [name for name in first.trajectories if all(name in other.trajectories for other in others)]
    if not common:
        raise UserError(f"{first.name} and {others[0].name} have no instruction in common")
    results = [result for result in first.results() if result.instr_id in set(common)]
    rival = others[0].results() if others else []
    return [one.instruction_id for one in instructive(results, count, rival)] or common[:count]


def write_routes(
    files: Sequence[RouteFile],
    instruction_ids: Sequence[str],
    sceneries: Sceneries,
    file_of: Callable[[str], Path],
    progress: Progress | None = None,
    back: BackLink | None = None,
) -> list[Replay]:
    """Write a page or a figure (.svg, .png, .pdf) for every instruction, as ``write_replays`` does."""
    replays = []
    for done, instruction_id in enumerate(instruction_ids, start=1):
        routes = [one.route(instruction_id) for one in files]
        file, scene = file_of(instruction_id), routes[0].scene
        if file.suffix in FIGURES:
            scenery = sceneries.of(scene, ())
            size = write_figure(file, draw_figure([route.drawn() for route in routes], scenery))
        else:
            scenery = sceneries.of(scene, {place for route in routes for place in route.path})
            walks = [route.replayed(scenery) for route in routes]
            size = write_page(file, page_of_walks(walks, scene, scenery, back))
        cards = tuple(
            AgentCard(
                route.name, route.headline, route.story, draw_thumbnail(route.drawn(), scenery), route.scores
            )
            for route in routes
        )
        replays.append(Replay(file, routes[0].task, cards, size))
        if progress is not None:
            progress(done, len(instruction_ids))
    return replays
