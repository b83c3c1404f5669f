"""Replays of chosen episodes, their traces beside them, and what links them: a page or part of a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from scenemem.agents.trained import TrainedAgent
from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Trace, write_trace
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.replay import filled, policy, static_text, write_replay
from scenemem.viewer.report import Section, note
from scenemem.viewer.scenery import Sceneries
from scenemem.viewer.stories import Chosen, headline, instructive, summary, went_on
from scenemem.viewer.thumbnails import draw_thumbnail
from scenemem.viewer.tracing import trace_episodes

_MARKS = re.compile(r"[^\w.-]+")
_LOOKED_AT = 8  # returns that are traced to find one to show
_KEY = (
    "Each page plays one episode round by round: the map the agent remembers, the words it listens to, and "
    "what it weighed up before it decided. On the little maps the star is the goal, the dotted line the "
    "described way, the full line the way it went from the ring to the dot, and the dashed line going back."
)


@dataclass(frozen=True, eq=False)
class Walker:
    """An agent and the split it walks."""

    name: str
    agent: TrainedAgent
    episodes: EpisodeSet

    def rows(self, instruction_ids: Sequence[str]) -> list[int]:
        """Where the instructions stand in the split.

        Raises:
            UserError: the split has no such instruction.
        """
        row = {name: number for number, name in enumerate(self.episodes.instruction_ids)}
        unknown = [name for name in instruction_ids if name not in row]
        if unknown:
            raise UserError(
                f"'{self.episodes.name}' has no instruction '{unknown[0]}'; "
                f"its ids look like '{self.episodes.instruction_ids[0]}'"
            )
        return [row[name] for name in instruction_ids]


@dataclass(frozen=True)
class Told:
    """One agent's part of a replay, for whoever links it."""

    agent: str
    headline: str  # how it came out
    summary: str  # what happened, one sentence
    thumbnail: str  # SVG


@dataclass(frozen=True)
class Replay:
    """A page that was written, and what it shows."""

    file: Path
    traces: tuple[Trace, ...]  # one per agent
    told: tuple[Told, ...]  # one per agent
    size: int  # bytes

    @property
    def title(self) -> str:
        """How the episode came out."""
        if len(self.told) == 1:
            return self.told[0].headline
        return "; ".join(f"{part.agent}: {part.headline.lower()}" for part in self.told)


def telling(
    walker: Walker, results: Sequence[EpisodeResult], count: int, rival: Sequence[EpisodeResult] = ()
) -> list[Chosen]:
    """The most instructive episodes of an agent; of returns those from where it took another way come first.

    Args:
        walker: whose results these are.
        results: what came out of every episode.
        count: how many to choose.
        rival: what came out for another agent.
    """
    ranked = instructive(results, len(results), rival)
    fixed = [chosen.instruction_id for chosen in ranked if chosen.story == "fixed"][:_LOOKED_AT]
    rows = walker.episodes.select(walker.rows(fixed))
    traces = trace_episodes(walker.agent, rows) if fixed else []
    favoured = {trace.task.instruction_id for trace in traces if went_on(trace)}
    return instructive(results, count, rival, favoured)


def write_replays(
    walkers: Sequence[Walker],
    instruction_ids: Sequence[str],
    sceneries: Sceneries,
    file_of: Callable[[str], Path],
    progress: Callable[[int, int], None] | None = None,
) -> list[Replay]:
    """Trace the given instructions with every walker and write one page for each, traces beside it.

    Args:
        walkers: one agent, or several to show side by side.
        instruction_ids: which episodes.
        sceneries: what the buildings look like.
        file_of: the page of an instruction.
        progress: called with (places looked at, places in all).

    Raises:
        UserError: a walker's split lacks an instruction.
    """
    traced = [
        trace_episodes(walker.agent, walker.episodes.select(walker.rows(instruction_ids)), name=walker.name)
        for walker in walkers
    ]
    together = list(zip(*traced, strict=True))
    looked_at = [{place for trace in traces for place in _shown_places(trace)} for traces in together]
    total, replays = sum(map(len, looked_at)), list[Replay]()
    for number, (name, traces) in enumerate(zip(instruction_ids, together, strict=True)):
        file, before = file_of(name), sum(map(len, looked_at[:number]))
        for trace in traces:
            write_trace(file.with_name(f"{file.stem}.{plain(trace.agent)}.trace.json"), trace)
        looked = None if progress is None else partial(_later, progress, before, total)
        scenery = sceneries.of(traces[0].scene, looked_at[number], looked)
        size = write_replay(file, traces, scenery)
        told = tuple(
            Told(
                trace.agent, headline(trace), summary(trace, scenery.room_of), draw_thumbnail(trace, scenery)
            )
            for trace in traces
        )
        replays.append(Replay(file, traces, told, size))
    return replays


def _shown_places(trace: Trace) -> set[int]:
    """The places a replay shows the surroundings of: where it decides, where it returns to, where it ends."""
    begun = {turn.walk[0] for turn in trace.moves}
    return begun | {turn.back_to for turn in trace.moves if turn.back_to is not None} | {trace.path[-1]}


def _later(progress: Callable[[int, int], None], before: int, total: int, done: int, _of_these: int) -> None:
    """Progress of one page among several."""
    progress(before + done, total)


def write_index(file: Path, title: str, replays: Sequence[Replay]) -> None:
    """Write a page that links replays in the same folder."""
    style = static_text("replay.css") + static_text("cards.css")
    page = filled(
        static_text("index.html"),
        title=escape(title),
        policy=policy("", style),
        style=style,
        lead=escape(_KEY),
        cards=_cards(replays, file.parent, level=2),
    )
    with atomic_file(file) as unfinished:
        unfinished.write_text(page, encoding="utf-8")


def replays_section(replays: Sequence[Replay], split: str, folder: Path) -> Section:
    """The part of a report in ``folder`` that links replays of a split."""
    return Section(f"Replays of {split}", note(_KEY) + "\n" + _cards(replays, folder, level=3))


def plain(name: str) -> str:
    """A name that can be part of a file name."""
    return _MARKS.sub("_", name)


def _cards(replays: Sequence[Replay], folder: Path, *, level: int) -> str:
    return f'<ul class="replays">\n{"".join(_card(replay, folder, level) for replay in replays)}</ul>'


def _card(replay: Replay, folder: Path, level: int) -> str:
    alone = len(replay.told) == 1
    parts = "".join(
        f"<div>{part.thumbnail}<p>{'' if alone else f'<b>{escape(part.agent)}</b>: '}"
        f"{escape(part.summary)}</p></div>"
        for part in replay.told
    )
    link = replay.file.relative_to(folder).as_posix()
    return (
        f'<li><h{level}><a href="{escape(link)}">{escape(replay.title)}</a></h{level}>'
        f'<div class="{"one" if alone else "side"}">{parts}</div>'
        f"<blockquote>{escape(replay.traces[0].task.text)}</blockquote></li>\n"
    )
