"""The files of the live page: the replay's drawing code and what the live page adds."""

from __future__ import annotations

from functools import cache

from scenemem.viewer.replay import filled, static_text

_SHARED = ("model", "dom", "words", "look", "decision", "labels", "map", "legend", "player")
_OWN = ("live_stream", "live_map", "live_player", "live_keep", "live")


@cache
def page() -> str:
    """The page itself."""
    replay = static_text("replay.html")
    return filled(
        static_text("live.html"),
        player=_between(replay, '<footer class="player"', "</footer>"),
        panel=_between(replay, '<template id="agent">', "</template>"),
    )


@cache
def script() -> str:
    """Everything the page runs."""
    body = "\n".join(static_text(f"{name}.js") for name in (*_SHARED, *_OWN))
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


@cache
def style() -> str:
    """How the page looks."""
    return static_text("replay.css") + static_text("live.css")


def _between(text: str, first: str, last: str) -> str:
    """The part of a page from one mark to another, both included."""
    begin = text.index(first)
    return text[begin : text.index(last, begin) + len(last)]
