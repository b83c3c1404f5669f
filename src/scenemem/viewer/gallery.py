"""Episodes worth watching: which to choose, their replays, and cards with a small map that link them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise, zip_longest
from pathlib import Path

from markupsafe import Markup

from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Move, Trace, write_trace
from scenemem.viewer.narration import FAULTLESS, TITLES, summary
from scenemem.viewer.pages import Section, content_policy, render, render_macro, section, styles, write_page
from scenemem.viewer.replay import BackLink, outcome, write_replay
from scenemem.viewer.scenery import Sceneries, Scenery
from scenemem.viewer.traces import TracedAgent
from scenemem.world.build import Progress

Spot = tuple[float, float]

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_RETRACED = 8  # returns that are traced to find one to show
_LEAD = (
    "Each page plays one episode move by move: the map the agent remembers, the words it attends to, and how "
    "it rated its options. On the small maps the star is the goal, the dotted line the described path, the "
    "full line the path walked from the ring to the dot, and the dashed line going back."
)

_DETOUR = 6.0  # metres; a longer one makes a mistake no plainer
_FAR = 10.0  # metres; more tell nothing more
_PER_JUMP, _PER_HOP = 3.0, 0.5  # metres that one more return and one more hop cost in plainness
_PLAINNESS: dict[str, Callable[[EpisodeResult], float]] = {
    "fixed": lambda result: min(_DETOUR, result.tl * (1 - result.spl)) - _PER_JUMP * result.jumps,
    "wrong stop": lambda result: min(_FAR, result.ne) - _PER_HOP * result.hops,
    "lost": lambda result: result.ne,
    "straight": lambda result: min(_FAR, result.tl),
}


@dataclass(frozen=True)
class Chosen:
    """An episode to show."""

    instruction_id: str
    story: str  # a key of TITLES


def instructive(
    results: Sequence[EpisodeResult],
    count: int,
    rival: Sequence[EpisodeResult] = (),
    favoured: Collection[str] = (),
) -> list[Chosen]:
    """Up to ``count`` telling episodes: mended by turning back, stopped in the wrong place, lost, faultless.

    The four kinds take turns, each with its plainest case first: a detour one can see and a single return,
    a short walk that ends far from a goal it had reached, the farthest end, a long way without a fault.
    With a ``rival`` on the same episodes those come first where the two came out differently, then those
    whose instruction is ``favoured``. No route is shown twice.
    """
    theirs = {result.instr_id: result.sr for result in rival}

    def ranked(story: str) -> list[Chosen]:
        def rank(result: EpisodeResult) -> tuple[bool, bool, float]:
            differs = theirs.get(result.instr_id, result.sr) != result.sr
            return differs, result.instr_id in favoured, _PLAINNESS[story](result)

        kind = sorted((one for one in results if _story(one) == story), key=rank, reverse=True)
        return [Chosen(result.instr_id, story) for result in kind]

    routes: dict[str, Chosen] = {}
    for chosen in chain(*zip_longest(*(ranked(story) for story in TITLES))):
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


def telling(
    agent: TracedAgent, results: Sequence[EpisodeResult], count: int, rival: Sequence[EpisodeResult] = ()
) -> list[Chosen]:
    """The most instructive episodes of an agent; returns from where it took another way come first."""
    every = instructive(results, len(results), rival)
    fixed = [chosen.instruction_id for chosen in every if chosen.story == "fixed"][:_RETRACED]
    favoured = {trace.task.instruction_id for trace in agent.trace(fixed) if went_on(trace)}
    return instructive(results, count, rival, favoured)


def went_on(trace: Trace) -> bool:
    """Whether the agent turned back and took another way from there, rather than stopping."""
    return any(move.back_to is not None and not move.stops for move in trace.moves)


@dataclass(frozen=True)
class AgentCard:
    """One agent's part of a replay, for whoever links it."""

    agent: str
    headline: str  # how it came out
    summary: str  # what happened, one sentence
    thumbnail: Markup

    @classmethod
    def of(cls, trace: Trace, scenery: Scenery) -> AgentCard:
        """What a card says of a trace."""
        words = outcome(trace), summary(trace, scenery.room_of)
        return cls(trace.agent, *words, draw_thumbnail(trace, scenery))


@dataclass(frozen=True)
class Replay:
    """A page that was written, and what it shows."""

    file: Path
    traces: tuple[Trace, ...]  # one per agent
    agents: tuple[AgentCard, ...]
    size: int  # bytes

    @property
    def title(self) -> str:
        """How the episode came out."""
        if len(self.agents) == 1:
            return self.agents[0].headline
        return "; ".join(f"{part.agent}: {part.headline.lower()}" for part in self.agents)

    @property
    def instruction(self) -> str:
        """What the agents were told."""
        return self.traces[0].task.text

    def link(self, folder: Path) -> str:
        """The address of the page, seen from a page in ``folder``."""
        return self.file.relative_to(folder).as_posix()


def write_replays(
    agents: Sequence[TracedAgent],
    instruction_ids: Sequence[str],
    sceneries: Sceneries,
    file_of: Callable[[str], Path],
    progress: Progress | None = None,
    back: BackLink | None = None,
) -> list[Replay]:
    """Trace the given instructions with every agent and write one page for each, traces beside it.

    ``file_of`` gives the page of an instruction; ``progress`` is called with (panoramas drawn, panoramas in
    all); ``back`` is the page that links them.

    Raises:
        UserError: a split lacks an instruction.
    """
    together = list(zip(*(agent.trace(instruction_ids) for agent in agents), strict=True))
    shown = [{place for trace in traces for place in _shown_places(trace)} for traces in together]
    total, done, replays = sum(map(len, shown)), count(1), list[Replay]()

    def count_picture() -> None:
        if progress is not None:
            progress(next(done), total)

    for name, traces, places in zip(instruction_ids, together, shown, strict=True):
        file = file_of(name)
        for trace in traces:
            write_trace(file.with_name(f"{file.stem}.{plain(trace.agent)}.trace.json"), trace)
        scenery = sceneries.of(traces[0].scene, places, count_picture)
        size = write_replay(file, traces, scenery, back)
        replays.append(Replay(file, traces, tuple(AgentCard.of(trace, scenery) for trace in traces), size))
    return replays


def _shown_places(trace: Trace) -> set[int]:
    """The places a replay shows the surroundings of: where it decides, where it returns to, where it ends."""
    begun = {move.walk[0] for move in trace.moves}
    return begun | {move.back_to for move in trace.moves if move.back_to is not None} | {trace.path[-1]}


def write_index(file: Path, title: str, replays: Sequence[Replay]) -> None:
    """Write a page that links replays in the same folder."""
    style = styles("replay", "cards")
    words = {"title": title, "lead": _LEAD, "style": style, "policy": content_policy(style)}
    write_page(file, render("index.html", replays=replays, folder=file.parent, **words))


def replays_section(replays: Sequence[Replay], split: str, folder: Path) -> Section:
    """The part of a report in ``folder`` that links replays of a split."""
    return section(f"Replays of {split}", "replays", _LEAD, replays, folder)


def plain(name: str) -> str:
    """A name that can be part of a file name."""
    return _NOT_IN_NAMES.sub("_", name)


@dataclass
class _Thumbnail:
    """A walk as one small drawing, in pixels: the floor on which most of it happens."""

    trace: Trace
    scenery: Scenery
    width: int = 300
    height: int = 190
    rooms: list[tuple[float, float, float, float]] = field(default_factory=list)  # x, y, width, height
    lines: list[tuple[str, Spot, Spot]] = field(default_factory=list)  # kind, begin, end

    def __post_init__(self) -> None:
        trace, places = self.trace, self.trace.scene.places
        route = [*trace.task.reference, *trace.path]
        self._floor = Counter(places[number].floor for number in route).most_common(1)[0][0]
        here = [places[number] for number in route if self._here(number)]
        west, east = _span(place.x for place in here)
        south, north = _span(place.y for place in here)
        self._scale = min(self.width / (east - west), self.height / (north - south))
        self._left = (west + east) / 2 - self.width / self._scale / 2
        self._top = (south + north) / 2 + self.height / self._scale / 2
        returns = dict.fromkeys(step for move in trace.moves for step in _returning(move))
        self._add_building()
        self._add_lines("path", trace.scene.edges)
        self._add_lines("reference", pairwise(trace.task.reference))
        self._add_lines("walked", (step for step in pairwise(trace.path) if step not in returns))
        self._add_lines("jumped", returns, aside=6.0)  # beside the edge, so that it does not hide having come
        turned = ", turning back on the way" if returns else ""
        self.label = f"Map: the path {trace.agent} walked{turned}"
        self.begin, self.finish = self._spot_of(trace.task.start), self._spot_of(trace.path[-1])
        self.star = _star(self._spot_of(trace.task.goal))

    def _here(self, place: int) -> bool:
        return self.trace.scene.places[place].floor == self._floor

    def _spot(self, x: float, y: float) -> Spot:
        return round((x - self._left) * self._scale, 1), round((self._top - y) * self._scale, 1)

    def _spot_of(self, place: int | None) -> Spot | None:
        """Where a place is drawn; None when it is not on this floor."""
        if place is None or not self._here(place):
            return None
        return self._spot(self.trace.scene.places[place].x, self.trace.scene.places[place].y)

    def _add_building(self) -> None:
        for room in self.scenery.rooms:
            if room.rect and room.floor == self._floor:
                west, south, east, north = room.rect
                size = round((east - west) * self._scale, 1), round((north - south) * self._scale, 1)
                self.rooms.append((*self._spot(west, north), *size))
        for door in self.scenery.doorways:
            if door.floor == self._floor:
                self.lines.append(("gap", self._spot(*door.ends[:2]), self._spot(*door.ends[2:])))

    def _add_lines(self, kind: str, steps: Iterable[tuple[int, int]], aside: float = 0.0) -> None:
        """Steps on this floor, each once, ``aside`` pixels to the right of the edge."""
        for a, b in dict.fromkeys(steps):
            begin, end = self._spot_of(a), self._spot_of(b)
            if begin and end:
                across, down = end[0] - begin[0], end[1] - begin[1]
                length = math.hypot(across, down) or 1.0
                dx, dy = -aside * down / length, aside * across / length
                moved = [(round(x + dx, 1), round(y + dy, 1)) for x, y in (begin, end)]
                self.lines.append((kind, moved[0], moved[1]))


def draw_thumbnail(trace: Trace, scenery: Scenery) -> Markup:
    """A small map (SVG) of a walk; it is styled by the page it stands in."""
    return render_macro("cards.html", "thumbnail", _Thumbnail(trace, scenery))


def _span(values: Iterable[float], margin: float = 1.2, least: float = 6.0) -> tuple[float, float]:
    """From the lowest to the highest value with a margin, at least so far; metres."""
    known = list(values)
    low, high = min(known) - margin, max(known) + margin
    more = max(0.0, least - (high - low)) / 2
    return low - more, high + more


def _star(spot: Spot | None) -> str:
    """The corners of a star; nothing without a spot."""
    if spot is None:
        return ""
    corners = [(number * math.pi / 5, 6.5 if number % 2 else 15.0) for number in range(10)]
    return " ".join(f"{spot[0] + r * math.sin(a):.1f},{spot[1] - r * math.cos(a):.1f}" for a, r in corners)


def _returning(move: Move) -> Iterable[tuple[int, int]]:
    """The steps of a move that lead back to a remembered place."""
    if move.back_to is None:
        return ()
    # a walk that was cut off on its way back is all return
    end = move.walk.index(move.back_to) + 1 if move.back_to in move.walk else len(move.walk)
    return pairwise(move.walk[:end])
