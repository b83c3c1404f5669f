"""Replays: one self-contained HTML page per episode, for one agent or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec
from markupsafe import Markup

from scenemem.formats.atomic import StrPath
from scenemem.formats.traces import Decision, Ending, Memory, Move, Origin, Scene, Task, Trace
from scenemem.viewer.narration import TITLES, Marks, captions, headline, letters, marks, summary
from scenemem.viewer.pages import content_policy, embedded, render, scripts, styles, write_page
from scenemem.viewer.scenery import Scenery

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
    """A page without its data, for whoever has it: ``{{data}}`` stands where it belongs."""
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
