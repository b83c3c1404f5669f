"""Replays: a self-contained page per episode, of traces or of routes in result files of any system.

Also which episodes to show, and the cards that link their pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, groupby, pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import torch
from markupsafe import Markup

from scenemem.errors import UserError
from scenemem.evaluation.metrics import Metrics, measure
from scenemem.evaluation.score import CheckedWalks, check_walks
from scenemem.formats.atomic import StrPath
from scenemem.formats.results import EpisodeResult, Trajectory, read_trajectories
from scenemem.formats.traces import Ending, Origin, Task, Trace, Word, write_trace
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.drawing import FIGURES, draw_figure, draw_thumbnails, write_figure
from scenemem.viewer.narration import FAULTLESS, DrawnWalk, Rooms
from scenemem.viewer.pages import (
    Section,
    content_policy,
    embedded,
    render,
    scripts,
    section,
    styles,
    write_page,
)
from scenemem.viewer.scenery import Sceneries, Scenery
from scenemem.viewer.traces import open_scene, open_task, scores_of
from scenemem.world.build import Progress
from scenemem.world.graph import NONE, World

DRAWING = ("model", "dom", "words", "said", "look", "decision", "labels", "map", "legend", "player")
"""The scripts that draw a walk."""

_SHOWN = ("name", "task", "headline", "story", "captions", "letters", "marks", "moves", "ending", "origin")


class BackLink(NamedTuple):
    """The page a replay belongs to."""

    address: str  # relative to the replay
    text: str


def write_replay(
    file: StrPath, traces: Sequence[Trace], scenery: Scenery, back: BackLink | None = None
) -> int:
    """Write the replay of one episode, one trace per agent, and return the size of the page in bytes.

    Raises:
        ValueError: there is no trace, or they are not of the same episode.
    """
    walks = [DrawnWalk.of(trace, scenery.room_of) for trace in traces]
    return write_page(file, replay_page(walks, scenery, back))


def replay_page(walks: Sequence[DrawnWalk], scenery: Scenery, back: BackLink | None = None) -> str:
    """The page that replays walks of one episode side by side, with a link to the page it belongs to."""
    if len({(walk.scene.scan, walk.task.instruction_id, walk.task.text) for walk in walks}) != 1:
        raise ValueError("a replay needs at least one trace, and all of them of the same episode")
    first = walks[0]
    shown = [{name: getattr(walk, name) for name in _SHOWN} for walk in walks]
    data = embedded({"task": first.task, "scene": first.scene, "scenery": scenery, "agents": shown})
    origins = [(walk.name, _origin_lines(walk.origin)) for walk in walks if walk.origin is not None]
    title = f"{' / '.join(walk.headline for walk in walks)} - instruction {first.task.instruction_id}"
    return _page(title, data, back, origins)


def _origin_lines(origin: Origin) -> list[tuple[str, str]]:
    """What an agent's walk comes from, as names and values."""
    sums = {name: getattr(origin, name) for name in ("weights", "episodes", "graphs", "features")}
    lines = [*origin.versions.items(), *((f"{name}, sha256", value) for name, value in sums.items() if value)]
    return lines + [(f"chosen by, {name}", str(value)) for name, value in (origin.reranking or {}).items()]


@cache
def replay_frame() -> str:
    """A page without its data: ``{{data}}`` stands where it belongs."""
    return _page("SceneMem replay", Markup("{{data}}"))


def _page(
    title: str,
    data: Markup,
    back: BackLink | None = None,
    origins: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
) -> str:
    script, style = scripts(*DRAWING, "replay"), styles("replay")
    policy = content_policy(style, script)
    parts = {"title": title, "policy": policy, "style": style, "script": script, "data": data}
    return render("replay.html", **parts, back=back, origins=origins)


_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_SIGNS = (
    "On the small maps the star is the goal, the dotted line the described path, the full line the path "
    "walked from the ring to the dot; dashes are {}. Floors stand side by side."
)
REPLAYS = (
    "Each page plays one episode move by move: the map the agent remembers, the words it attends to, and how "
    "it rated its options. " + _SIGNS.format("ways back")
)
"""What an index of replays begins with."""

_DETOUR = 6.0  # metres; a longer one makes a mistake no plainer
_FAR = 10.0  # metres; beyond, all are alike
_PER_JUMP, _PER_HOP = 3.0, 0.5  # metres that one more return and one more hop cost in plainness
_PLAINNESS: dict[str, Callable[[EpisodeResult], float]] = {  # by kind of episode
    "fixed": lambda result: min(_DETOUR, result.tl * (1 - result.spl)) - _PER_JUMP * result.jumps,
    "wrong stop": lambda result: min(_FAR, result.ne) - _PER_HOP * result.hops,
    "lost": lambda result: result.ne,
    "straight": lambda result: min(_FAR, result.tl),
}


class Chosen(NamedTuple):
    """An episode to show."""

    instruction_id: str
    story: str  # a key of _PLAINNESS


def instructive(
    results: Sequence[EpisodeResult],
    count: int,
    rival: Sequence[EpisodeResult] = (),
) -> list[Chosen]:
    """Up to ``count`` telling episodes: mended by turning back, stopped in the wrong place, lost, faultless.

    The four kinds take turns, each with its plainest case first: a detour one can see and a single return,
    a short walk that ends far from a goal it had reached, the farthest end, a long way without a fault.
    With a ``rival`` on the same episodes those come first where the two came out differently. No route is
    shown twice.
    """
    theirs = {result.instr_id: result.sr for result in rival}

    def ranked(story: str) -> list[Chosen]:
        def rank(result: EpisodeResult) -> tuple[bool, float]:
            return theirs.get(result.instr_id, result.sr) != result.sr, _PLAINNESS[story](result)

        kind = sorted((one for one in results if _story(one) == story), key=rank, reverse=True)
        return [Chosen(result.instr_id, story) for result in kind]

    routes: dict[str, Chosen] = {}
    for chosen in chain(*zip_longest(*map(ranked, _PLAINNESS))):
        if chosen is not None:  # instructions of one route are numbered after their last underscore
            name = chosen.instruction_id
            routes.setdefault(name.rpartition("_")[0] or name, chosen)
    return list(routes.values())[:count]


def _story(result: EpisodeResult) -> str | None:
    """The kind of an episode; None for arriving by a detour without ever turning back."""
    if not result.sr > 0:
        return "wrong stop" if result.osr > 0 else "lost"
    if result.jumps:
        return "fixed"
    return "straight" if result.spl >= FAULTLESS else None


@dataclass(frozen=True)
class Replay:
    """A page that was written, and what it shows."""

    file: Path
    walks: Sequence[tuple[DrawnWalk, Markup]]  # each with a small map
    size: int  # bytes

    @property
    def task(self) -> Task:
        """What was to be done."""
        return self.walks[0][0].task

    @property
    def title(self) -> str:
        """How the episode came out."""
        if len(self.walks) == 1:
            return self.walks[0][0].headline
        return "; ".join(f"{walk.name}: {walk.headline.lower()}" for walk, _ in self.walks)

    def link(self, folder: Path) -> str:
        """The address of the page, seen from a page in ``folder``."""
        return self.file.relative_to(folder).as_posix()


class WalkSource(Protocol):
    """Has walks of episodes: an agent that is traced, or a result file."""

    def walks(self, instruction_ids: Sequence[str], rooms: Rooms, /) -> list[DrawnWalk]:
        """The walks of some instructions."""


def write_replays(
    sources: Sequence[WalkSource],
    instruction_ids: Sequence[str],
    sceneries: Sceneries,
    file_of: Callable[[str], Path],
    progress: Progress | None = None,
    back: BackLink | None = None,
) -> list[Replay]:
    """Write one page for each instruction, which shows all sources, and the traces of agents beside it.

    ``file_of`` gives the page of an instruction, or a figure (.svg, .png, .pdf); ``progress`` is called with
    (pages written, pages in all); ``back`` is the page that links them.

    Raises:
        UserError: a split lacks an instruction.
    """
    together = zip(*(one.walks(instruction_ids, sceneries.rooms) for one in sources), strict=True)
    replays = []
    for done, (name, walks) in enumerate(zip(instruction_ids, together, strict=True), start=1):
        file = file_of(name)
        for walk in walks:
            if walk.trace is not None:
                write_trace(file.with_name(f"{file.stem}.{plain(walk.name)}.trace.json"), walk.trace)
        figure = file.suffix in FIGURES
        shown = set() if figure else {place for walk in walks for place in walk.shown}
        scenery = sceneries.of(walks[0].scene, shown)
        if figure:
            size = write_figure(file, draw_figure(walks, scenery))
        else:
            size = write_page(file, replay_page(walks, scenery, back))
        maps = draw_thumbnails(walks, scenery)
        replays.append(Replay(file, list(zip(walks, maps, strict=True)), size))
        if progress is not None:
            progress(done, len(instruction_ids))
    return replays


def write_index(file: Path, title: str, replays: Sequence[Replay], lead: str = REPLAYS) -> None:
    """Write a page that links replays in the same folder."""
    style = styles("replay", "cards")
    words = {"title": title, "lead": lead, "style": style, "policy": content_policy(style)}
    write_page(file, render("index.html", replays=replays, folder=file.parent, **words))


def replays_section(replays: Sequence[Replay], split: str, folder: Path) -> Section:
    """The part of a report in ``folder`` that links replays of a split."""
    return section(f"Replays of {split}", "replays", REPLAYS, replays, folder)


def plain(name: str) -> str:
    """A name that can be part of a file name."""
    return _NOT_IN_NAMES.sub("_", name)


@dataclass(frozen=True, eq=False)
class RouteFile:
    """The routes of one system through the episodes of a split."""

    name: str
    trajectories: Mapping[str, Trajectory]  # by instruction
    checked: CheckedWalks  # in the same order
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
        hops = (self.checked.viewpoint != NONE).sum(1).sub(1).tolist()
        scores = [msgspec.structs.asdict(scores_of(self.metrics, number)) for number in range(len(hops))]
        return [
            EpisodeResult(name, "last", 0, "astray", 0, 0.0, count, 0, **values)
            for name, count, values in zip(self.trajectories, hops, scores, strict=True)
        ]

    def walks(self, instruction_ids: Sequence[str], rooms: Rooms) -> list[DrawnWalk]:
        """Where the system went for instructions of the file, with the words of pages."""
        return [self._walk(list(self.trajectories).index(name), rooms) for name in instruction_ids]

    def _walk(self, number: int, rooms: Rooms) -> DrawnWalk:
        row, world, episodes = int(self.checked.row[number]), self.world, self.episodes
        words = (Word(word, before) for before, word in re.findall(r"(\s*)(\S+)", episodes.texts[row]))
        scene = open_scene(world, int(episodes.scan[row]), int(episodes.goal[row]))
        points = groupby(self.checked.viewpoint[number].tolist())  # without turns in place
        walked = torch.tensor([place for place, _ in points if place != NONE])
        path, edges = world.local[walked].tolist(), world.slot_of(walked[:-1], walked[1:]) != NONE
        steps = zip(pairwise(path), edges.tolist(), strict=True)
        scores = None if self.metrics is None else scores_of(self.metrics, number)
        ending = Ending(True, path[-1], to_goal=scene.places[path[-1]].to_goal, scores=scores)
        task, heading = open_task(world, episodes, row, tuple(words)), float(episodes.heading[row])
        walk = DrawnWalk.of_route(self.name, task, scene, path, heading, ending)
        broken = frozenset(step for step, edge in steps if not edge)
        return replace(walk, room_of=rooms(scene), broken=broken)


ROUTES = "Each page plays the routes of one instruction step by step. " + _SIGNS.format(
    "steps without an edge"
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
