"""Replays of chosen episodes, their traces beside them, and a page that links them all."""

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
from scenemem.formats.traces import Trace, write_trace
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.replay import filled, policy, static_text, write_replay
from scenemem.viewer.scenery import Sceneries
from scenemem.viewer.stories import headline
from scenemem.viewer.tracing import trace_episodes

_MARKS = re.compile(r"[^\w.-]+")


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
class Replay:
    """A page that was written, and what it shows."""

    file: Path
    traces: tuple[Trace, ...]  # one per agent
    size: int  # bytes

    @property
    def title(self) -> str:
        """How the episode came out."""
        if len(self.traces) == 1:
            return headline(self.traces[0])
        return "; ".join(f"{trace.agent}: {headline(trace).lower()}" for trace in self.traces)


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
    visited = [{place for trace in traces for place in trace.path} for traces in together]
    total, replays = sum(map(len, visited)), list[Replay]()
    for number, (name, traces) in enumerate(zip(instruction_ids, together, strict=True)):
        file, before = file_of(name), sum(map(len, visited[:number]))
        for trace in traces:
            write_trace(file.with_name(f"{file.stem}.{plain(trace.agent)}.trace.json"), trace)
        looked = None if progress is None else partial(_later, progress, before, total)
        size = write_replay(file, traces, sceneries.of(traces[0].scene, visited[number], looked))
        replays.append(Replay(file, traces, size))
    return replays


def _later(progress: Callable[[int, int], None], before: int, total: int, done: int, _of_these: int) -> None:
    """Progress of one page among several."""
    progress(before + done, total)


def write_index(file: Path, title: str, replays: Sequence[Replay]) -> None:
    """Write a page that links replays in the same folder."""
    style = static_text("replay.css")
    page = filled(
        static_text("index.html"),
        title=escape(title),
        policy=policy("", style),
        style=style,
        cards="\n".join(_card(replay) for replay in replays),
    )
    with atomic_file(file) as unfinished:
        unfinished.write_text(page, encoding="utf-8")


def plain(name: str) -> str:
    """A name that can be part of a file name."""
    return _MARKS.sub("_", name)


def _card(replay: Replay) -> str:
    task = replay.traces[0].task
    facts = "".join(f"<p>{escape(_fact(trace))}</p>" for trace in replay.traces)
    return (
        f'<li class="card"><h2><a href="{escape(replay.file.name)}">{escape(replay.title)}</a></h2>'
        f"<blockquote>{escape(task.text)}</blockquote>{facts}</li>"
    )


def _fact(trace: Trace) -> str:
    ending, rounds = trace.ending, len(trace.rounds)
    end = "" if ending is None or ending.to_goal is None else f", ends {ending.to_goal:.1f} m from the goal"
    returns = sum(turn.back_to is not None for turn in trace.rounds)
    return f"{trace.agent}: {rounds} rounds, {returns} of them going back{end}"
