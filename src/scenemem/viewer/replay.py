"""Replays: one self-contained page per episode, which episodes to show, and the cards that link them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count, zip_longest
from pathlib import Path

import msgspec
from markupsafe import Markup

from scenemem.formats.atomic import StrPath
from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import (
    Decision,
    Ending,
    Memory,
    Move,
    Origin,
    Scene,
    Scores,
    Task,
    Trace,
    write_trace,
)
from scenemem.viewer.drawing import FIGURES, DrawnWalk, draw_figure, draw_thumbnail, write_figure
from scenemem.viewer.narration import FAULTLESS, TITLES, Marks, captions, headline, letters, marks, summary
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
from scenemem.viewer.traces import TracedAgent
from scenemem.world.build import Progress

DRAWING = ("model", "dom", "words", "said", "look", "decision", "labels", "map", "legend", "player")
"""The scripts that draw a walk."""


class Step(msgspec.Struct, frozen=True):
    """A move of which nothing is known but where it led."""

    heading: float
    walk: tuple[int, ...]
    decisions: tuple[Decision, ...] = ()
    memory: Memory | None = None


@dataclass(frozen=True)
class ReplayedWalk:
    """What a page shows of one agent."""

    name: str
    task: Task  # agents may know different words
    headline: str
    story: str  # what happens in all, one sentence
    captions: Sequence[str]  # one per move, a line for each decision it explains, and one for the end
    letters: Sequence[Mapping[int, str]]  # per move: names of the unvisited places that could be chosen
    marks: Sequence[Sequence[Marks | None]]  # per move and decision: the words it marks
    moves: Sequence[Move | Step]
    ending: Ending | None
    origin: Origin | None = None

    @classmethod
    def of(cls, trace: Trace, scenery: Scenery) -> ReplayedWalk:
        """A trace and what is said about it."""
        return cls(
            name=trace.agent,
            task=trace.task,
            headline=outcome(trace),
            story=summary(trace, scenery.room_of),
            captions=captions(trace, scenery.room_of),
            letters=letters(trace),
            marks=marks(trace),
            moves=trace.moves,
            ending=trace.ending,
            origin=trace.origin,
        )


@dataclass(frozen=True)
class BackLink:
    """The page a replay belongs to."""

    address: str  # relative to the replay
    text: str


def outcome(trace: Trace) -> str:
    """How an episode came out, in a few words; a miss is told in metres."""
    words, ending = headline(trace), trace.ending
    if words == TITLES["lost"] and ending is not None and ending.to_goal is not None:
        return f"Stopped {ending.to_goal:.1f} m from the goal"
    return words


def write_replay(
    file: StrPath, traces: Sequence[Trace], scenery: Scenery, back: BackLink | None = None
) -> int:
    """Write the replay of one episode, one trace per agent, and return the size of the page in bytes."""
    return write_page(file, replay_page(traces, scenery, back))


def replay_page(traces: Sequence[Trace], scenery: Scenery, back: BackLink | None = None) -> str:
    """The page as text, with a link to the page it belongs to.

    Raises:
        ValueError: there is no trace, or they are not of the same episode.
    """
    if len({(trace.scene.scan, trace.task.instruction_id, trace.task.text) for trace in traces}) != 1:
        raise ValueError("a replay needs at least one trace, and all of them of the same episode")
    walks = [ReplayedWalk.of(trace, scenery) for trace in traces]
    return page_of_walks(walks, traces[0].scene, scenery, back)


def page_of_walks(
    walks: Sequence[ReplayedWalk], scene: Scene, scenery: Scenery, back: BackLink | None = None
) -> str:
    """The page that replays some walks of one episode side by side."""
    task = walks[0].task
    titles = " / ".join(walk.headline for walk in walks)
    data = embedded({"task": task, "scene": scene, "scenery": scenery, "agents": walks})
    origins = [(walk.name, _origin_lines(walk.origin)) for walk in walks if walk.origin is not None]
    return _page(f"{titles} - instruction {task.instruction_id}", data, back, origins)


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
_RETRACED = 8  # returns that are traced to find one to show
REPLAYS = (
    "Each page plays one episode move by move: the map the agent remembers, the words it attends to, and how "
    "it rated its options. On the small maps the star is the goal, the dotted line the described path, the "
    "full line the path walked from the ring to the dot, and the dashed line going back. "
    "Floors stand side by side."
)
"""What an index of replays begins with."""

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
    """One agent's part of a card that links a replay."""

    agent: str
    headline: str  # how it came out
    summary: str  # what happened, one sentence
    thumbnail: Markup
    scores: Scores | None = None  # None when the goal is secret

    @classmethod
    def of(cls, trace: Trace, scenery: Scenery) -> AgentCard:
        """What a card says of a trace."""
        words = outcome(trace), summary(trace, scenery.room_of)
        scores = None if trace.ending is None else trace.ending.scores
        return cls(trace.agent, *words, draw_thumbnail(DrawnWalk.of(trace), scenery), scores)


@dataclass(frozen=True)
class Replay:
    """A page that was written, and what it shows."""

    file: Path
    task: Task
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
        return self.task.text

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

    ``file_of`` gives the page of an instruction, or a figure (.svg, .png, .pdf); ``progress`` is called with
    (panoramas drawn, panoramas in all); ``back`` is the page that links them.

    Raises:
        UserError: a split lacks an instruction.
    """
    together = list(zip(*(agent.trace(instruction_ids) for agent in agents), strict=True))
    shown = [
        set() if file_of(name).suffix in FIGURES else set(chain(*map(_shown_places, traces)))
        for name, traces in zip(instruction_ids, together, strict=True)
    ]
    total, done, replays = sum(map(len, shown)), count(1), list[Replay]()

    def count_picture() -> None:
        if progress is not None:
            progress(next(done), total)

    for name, traces, places in zip(instruction_ids, together, shown, strict=True):
        file = file_of(name)
        for trace in traces:
            write_trace(file.with_name(f"{file.stem}.{plain(trace.agent)}.trace.json"), trace)
        scenery = sceneries.of(traces[0].scene, places, count_picture)
        if file.suffix in FIGURES:
            drawn = [DrawnWalk.of(trace, outcome(trace)) for trace in traces]
            size = write_figure(file, draw_figure(drawn, scenery))
        else:
            size = write_replay(file, traces, scenery, back)
        cards = tuple(AgentCard.of(trace, scenery) for trace in traces)
        replays.append(Replay(file, traces[0].task, cards, size))
    return replays


def _shown_places(trace: Trace) -> set[int]:
    """The places a replay shows the surroundings of: where it decides, where it returns to, where it ends."""
    begun = {move.walk[0] for move in trace.moves}
    return begun | {move.back_to for move in trace.moves if move.back_to is not None} | {trace.path[-1]}


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
