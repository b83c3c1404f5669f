"""The events of a walk on the live page, as they are streamed, and who words them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scenemem.formats.traces import Ending, Move, Task, Trace
from scenemem.viewer.captions import captions, letters
from scenemem.viewer.marks import Marks, marks
from scenemem.viewer.stories import headline, summary


class WalkOpened(msgspec.Struct, frozen=True, tag="opened"):
    """An agent has read the instruction."""

    agent: int  # number in the list of agents
    name: str
    task: Task
    to_goal: tuple[float | None, ...]  # metres from every place; None without a goal or a way


class WalkRound(msgspec.Struct, frozen=True, tag="round"):
    """An agent has decided and walked."""

    agent: int
    number: int  # from 0
    round: Move
    caption: str
    letters: dict[int, str]  # names of the unvisited places that could be chosen
    marks: list[Marks | None]  # per decision: the words it marks


class WalkEnded(msgspec.Struct, frozen=True, tag="ended"):
    """An agent has stopped or was cut off."""

    agent: int
    ending: Ending
    caption: str
    headline: str
    story: str  # what happened in all, one sentence


class WalkFailed(msgspec.Struct, frozen=True, tag="failed"):
    """An agent could not finish."""

    agent: int
    detail: str


WalkEvent = WalkOpened | WalkRound | WalkEnded | WalkFailed


def encoded(event: WalkEvent) -> bytes:
    """An event as it goes over the wire: named by its type, its data one line of JSON."""
    name = type(event).__struct_config__.tag
    return f"event: {name}\n".encode() + b"data: " + msgspec.json.encode(event) + b"\n\n"


class Narration:
    """Words the events of one walk.

    Args:
        agent: its number.
        opened: its trace before the first round.
        room_of: names of rooms by the numbers of places.
    """

    def __init__(self, agent: int, opened: Trace, room_of: Mapping[int, str]) -> None:
        self._agent = agent
        self._trace = opened
        self._room_of = room_of

    @property
    def rounds(self) -> int:
        """How many were told."""
        return len(self._trace.moves)

    def opened(self) -> WalkOpened:
        """Before the first round."""
        to_goal = tuple(place.to_goal for place in self._trace.scene.places)
        return WalkOpened(self._agent, self._trace.agent, self._trace.task, to_goal)

    def round(self, turn: Move) -> WalkRound:
        """The next round."""
        before = self._trace
        self._trace = Trace(before.agent, before.task, before.scene, (*before.moves, turn))
        return WalkRound(
            agent=self._agent,
            number=len(before.moves),
            round=turn,
            caption=captions(self._trace, self._room_of)[-1],
            letters=letters(self._trace)[-1],
            marks=marks(self._trace)[-1],
        )

    def ended(self, trace: Trace) -> WalkEnded:
        """After the last round."""
        ending = trace.ending
        if ending is None:
            raise ValueError("the walk has not ended")
        if trace.task.goal is not None:
            caption = captions(trace, self._room_of)[-1]
            return WalkEnded(self._agent, ending, caption, headline(trace), summary(trace, self._room_of))
        story = summary(trace, self._room_of)
        how = "it stopped" if ending.stopped else "it was cut off"
        caption = f"The end: {how} after {len(trace.moves)} rounds. Was it right? You know best."
        return WalkEnded(self._agent, ending, caption, "Stopped" if ending.stopped else "Was cut off", story)
