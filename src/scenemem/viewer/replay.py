"""Replays: one self-contained HTML page per episode, for one agent or several side by side."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

import msgspec

from scenemem.formats.atomic import atomic_file
from scenemem.formats.traces import Ending, Move, Scene, Task, Trace
from scenemem.viewer.captions import captions, letters
from scenemem.viewer.marks import Marks, marks
from scenemem.viewer.scenery import Scenery
from scenemem.viewer.stories import headline, summary

_SCRIPTS = ("model", "dom", "words", "look", "decision", "labels", "map", "legend", "player", "replay")


@dataclass(frozen=True)
class _AgentPage:
    """What the page knows of one agent."""

    name: str
    task: Task  # agents may know different words
    headline: str
    story: str  # what happens in all, one sentence
    captions: list[str]  # one per round, a line for each decision it explains, and one for the end
    letters: list[dict[int, str]]  # per round: names of the unvisited places that could be chosen
    marks: list[list[Marks | None]]  # per round and decision: the words it marks
    rounds: tuple[Move, ...]
    ending: Ending | None


@dataclass(frozen=True)
class _Page:
    """What is handed to the script of the page."""

    task: Task
    scene: Scene
    scenery: Scenery
    agents: list[_AgentPage]


def write_replay(file: str | os.PathLike[str], traces: Sequence[Trace], scenery: Scenery) -> int:
    """Write the replay of one episode; it appears complete or not at all.

    Args:
        file: the page to write.
        traces: of the same episode, one per agent.
        scenery: what the building looks like.

    Returns:
        the size of the page, bytes.
    """
    page = replay_page(traces, scenery).encode()
    with atomic_file(file) as partial:
        partial.write_bytes(page)
    return len(page)


def replay_page(traces: Sequence[Trace], scenery: Scenery) -> str:
    """The page as text.

    Raises:
        ValueError: there is no trace, or they are not of the same episode.
    """
    if len({(trace.scene.scan, trace.task.instruction_id, trace.task.text) for trace in traces}) != 1:
        raise ValueError("a replay needs at least one trace, and all of them of the same episode")
    page = _Page(traces[0].task, traces[0].scene, scenery, [_agent_page(trace, scenery) for trace in traces])
    titles = [agent.headline for agent in page.agents]
    return _filled_page(f"{' / '.join(titles)} - instruction {page.task.instruction_id}", embedded(page))


@cache
def replay_frame() -> str:
    """A page without its data, for whoever has it: ``{{data}}`` stands where it belongs."""
    return _filled_page("SceneMem replay", "{{data}}")


def _filled_page(title: str, data: str) -> str:
    script, style = _script(), static_text("replay.css")
    return filled(
        static_text("replay.html"),
        title=escape(title),
        policy=policy(script, style),
        style=style,
        script=script,
        data=data,
    )


def embedded(value: object) -> str:
    """JSON that can stand inside a script element, whatever text it holds."""
    text = msgspec.json.encode(value).decode()
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(script: str, style: str) -> str:
    """A content security policy that allows this page nothing but itself: no network, no other script."""
    hashes = {
        kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for kind, text in (("script", script), ("style", style))
    }
    return (
        f"default-src 'none'; img-src data:; script-src 'sha256-{hashes['script']}'; "
        f"style-src 'sha256-{hashes['style']}'; base-uri 'none'; form-action 'none'"
    )


def filled(template: str, **parts: str) -> str:
    """Put texts in the places ``{{name}}`` of a template; the texts themselves are not looked at."""
    pieces = template.split("{{")
    page = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        page += [parts[name], rest]
    return "".join(page)


def _agent_page(trace: Trace, scenery: Scenery) -> _AgentPage:
    return _AgentPage(
        name=trace.agent,
        task=trace.task,
        headline=headline(trace),
        story=summary(trace, scenery.room_of),
        captions=captions(trace, scenery.room_of),
        letters=letters(trace),
        marks=marks(trace),
        rounds=trace.moves,
        ending=trace.ending,
    )


@cache
def _script() -> str:
    body = "\n".join(static_text(f"{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


@cache
def static_text(name: str) -> str:
    """A file of the pages, as text."""
    return (files("scenemem.viewer") / "static" / name).read_text(encoding="utf-8")
