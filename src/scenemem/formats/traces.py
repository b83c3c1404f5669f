"""Traces: what an agent knew, attended to, decided and did in one episode, move by move, as one JSON file.

Numbers of *places* count the viewpoints of the scan (``Scene.places``), numbers of *nodes* the places an
agent remembers, in the order of their first visit. Angles are radians, headings clockwise from +y (north).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import check_version, fitted, read_json

VERSION = 2
"""Of the schema below; a change that old readers cannot read makes it one more."""

Number = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Metres = Annotated[float, msgspec.Meta(ge=0.0)]

# frontier, action (a neighbour or stop), global (any sub-node or stop), final (where to end), low_level,
# gate (explore first, or go on), explore (a neighbour, or come back)
Kind = Annotated[str, msgspec.Meta(pattern=r"^(frontier|action|global|final|low_level|gate|explore)\Z")]

_ROUNDING = 0.02  # probabilities are rounded when written, so their sum is not exactly 1


class Place(msgspec.Struct, frozen=True):
    """A viewpoint of the scan, known to the agent or not."""

    id: str
    x: float  # metres east
    y: float  # metres north
    z: float  # metres up, of the camera
    floor: Number  # index into Scene.floors
    to_goal: Metres | None = None  # along the graph; None when the goal is secret or no way leads there


class Scene(msgspec.Struct, frozen=True):
    """The building as a graph: enough to draw it."""

    scan: str
    floors: tuple[float, ...]  # height of every floor, lowest first, metres
    places: tuple[Place, ...]
    edges: tuple[tuple[Number, Number], ...]  # pairs of places one can walk between


class Word(msgspec.Struct, frozen=True):
    """A word of the instruction as it was written, and what stands before it."""

    text: str
    before: str = ""
    known: bool = True  # False when the agent's vocabulary lacks it


class Task(msgspec.Struct, frozen=True):
    """The instruction, its start and its goal."""

    split: str
    instruction_id: str
    text: str
    words: tuple[Word, ...]  # what the agent read; a long instruction is cut
    start: Number  # place
    goal: Number | None = None  # place; None when it is secret
    reference: tuple[Number, ...] = ()  # places of the path the instruction describes


class Way(msgspec.Struct, frozen=True):
    """A sub-node: a place that was seen from a node but not visited."""

    node: Number
    place: Number
    heading: float
    elevation: float
    compass: str  # the heading in words, "north-east"


class Memory(msgspec.Struct, frozen=True):
    """The scene memory at one moment."""

    here: Number  # node the agent stands at
    nodes: tuple[Number, ...]  # place of every node
    frontier: tuple[bool, ...]  # whether the node has sub-nodes
    edges: tuple[tuple[Number, Number], ...]  # pairs of nodes
    ways: tuple[Way, ...]

    def __post_init__(self) -> None:
        count = len(self.nodes)
        if len(self.frontier) != count:
            raise ValueError(f"frontier has {len(self.frontier)} entries for {count} nodes")
        used = [self.here, *(way.node for way in self.ways), *(node for pair in self.edges for node in pair)]
        if max(used) >= count:
            raise ValueError(f"names node {max(used)}, but there are {count} nodes")


class Option(msgspec.Struct, frozen=True):
    """Something the agent could choose."""

    place: Number  # where it leads
    probability: Share
    logit: float
    stop: bool = False
    node: Number | None = None  # the remembered place it belongs to
    walk: Metres | None = None  # over known edges
    heading: float | None = None  # of the way, seen from its node
    compass: str | None = None
    visual: float | None = None  # perception-aware confidence: how well what is seen fits the words
    name: str | None = None  # of an option that is no place, for example a turn
    geometric: float | None = None  # action-aware confidence: how well where it lies fits the words


class Attention(msgspec.Struct, frozen=True):
    """The agent's attention on each word; what is missing to 1 went to the begin and end marks."""

    perception: tuple[Share, ...]  # for what it looks for
    action: tuple[Share, ...]  # for how it moves


class Decision(msgspec.Struct, frozen=True):
    """One choice among some options."""

    kind: Kind
    options: tuple[Option, ...]
    choice: Number  # index into options
    weights: tuple[float, float] | None = None  # of the visual and the geometric confidence in the logit
    attention: Attention | None = None
    numbers: dict[str, float] = {}  # further outputs of the agent, for example its progress

    def __post_init__(self) -> None:
        if self.choice >= len(self.options):
            raise ValueError(f"choice is {self.choice}, but there are {len(self.options)} options")
        total = sum(option.probability for option in self.options)
        if abs(total - 1.0) > _ROUNDING:
            raise ValueError(f"the probabilities sum to {total:.3f}, expected 1")

    @property
    def chosen(self) -> Option:
        """The option taken."""
        return self.options[self.choice]


class Move(msgspec.Struct, frozen=True):
    """One move: what was known, what was decided, where it led."""

    heading: float  # the agent faces when it decides
    # every place stood at, from where it decided to where that led
    walk: Annotated[tuple[Number, ...], msgspec.Meta(min_length=1)]
    # one, or a frontier and then a neighbour of it
    decisions: Annotated[tuple[Decision, ...], msgspec.Meta(min_length=1)]
    memory: Memory | None = None  # when the move began; None for agents without a memory
    to_goal: Metres | None = None  # when the move began

    @property
    def stops(self) -> bool:
        """Whether the move ends the episode by the agent's own choice."""
        last = self.decisions[-1]
        return last.chosen.stop or (last.kind == "final" and last.chosen.place == self.walk[-1])

    @property
    def back_to(self) -> int | None:
        """The remembered place the agent returned to before it went on; None when it went on from here."""
        node = self.decisions[0].chosen.node
        if self.memory is None or node is None or node == self.memory.here:
            return None
        return self.memory.nodes[node]


class Scores(msgspec.Struct, frozen=True):
    """The metrics of the whole walk."""

    tl: Metres  # metres walked
    ne: Metres  # metres from the end to the goal
    sr: Share
    osr: Share
    spl: Share
    spl_ref: Share
    cls: Share
    ndtw: Share
    sdtw: Share


class Ending(msgspec.Struct, frozen=True):
    """How it came out."""

    stopped: bool  # by its own choice; False when it was cut off
    place: Number
    memory: Memory | None = None
    to_goal: Metres | None = None
    scores: Scores | None = None  # None when the goal is secret


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What repeats a walk: versions, and the sha256 of every file behind it."""

    versions: dict[str, str]  # of scenemem and torch
    weights: str  # sum of the checkpoint
    episodes: str = ""  # sum of the episode file; empty for an instruction that stands in none
    graphs: str  # sum of the connectivity files
    features: str  # sum of the feature store
    reranking: dict[str, str | int | float] | None = None  # sum of a speaker that helped to choose, and how


class Trace(msgspec.Struct, frozen=True):
    """One episode of one agent; ``ending`` is None while it is still walking."""

    agent: str
    task: Task
    scene: Scene
    moves: tuple[Move, ...] = ()
    ending: Ending | None = None
    version: int = VERSION
    origin: Origin | None = None  # None when it is not known

    def __post_init__(self) -> None:
        for field, number in self._named_places():
            if number >= len(self.scene.places):
                raise ValueError(f"{field} names place {number}, but there are {len(self.scene.places)}")
        for number, place in enumerate(self.scene.places):
            if place.floor >= len(self.scene.floors):
                raise ValueError(f"scene.places[{number}] lies on floor {place.floor}, which there is not")
        for number, move in enumerate(self.moves):
            _check_move(number, move, self.moves[number - 1] if number else None, len(self.task.words))

    @property
    def path(self) -> list[int]:
        """Every place stood at, in order."""
        return [self.task.start, *(place for move in self.moves for place in move.walk[1:])]

    def _named_places(self) -> Iterator[tuple[str, int]]:
        yield "task.start", self.task.start
        yield "task.goal", self.task.goal or 0
        yield from (("task.reference", place) for place in self.task.reference)
        yield from (("scene.edges", place) for pair in self.scene.edges for place in pair)
        for number, move in enumerate(self.moves):
            yield from ((f"moves[{number}].walk", place) for place in move.walk)
            options = (option for decision in move.decisions for option in decision.options)
            yield from ((f"moves[{number}].decisions", option.place) for option in options)
            yield from _remembered(f"moves[{number}].memory", move.memory)
        if self.ending is not None:
            yield "ending.place", self.ending.place
            yield from _remembered("ending.memory", self.ending.memory)


def write_trace(file: StrPath, trace: Trace) -> None:
    """Write a trace as JSON; the file appears complete or not at all."""
    with atomic_file(file) as partial:
        partial.write_bytes(msgspec.json.encode(trace) + b"\n")


def read_trace(file: StrPath) -> Trace:
    """Read a trace, plain or ``.gz``."""
    content = read_json(file, dict[str, Any])
    check_version(content, VERSION, "a trace", file, "write it again with 'scenemem view'")
    return fitted(content, Trace, file)


def _remembered(field: str, memory: Memory | None) -> Iterator[tuple[str, int]]:
    if memory is not None:
        yield from ((f"{field}.nodes", place) for place in memory.nodes)
        yield from ((f"{field}.ways", way.place) for way in memory.ways)


def _check_move(number: int, move: Move, before: Move | None, words: int) -> None:
    if before is not None and move.walk[0] != before.walk[-1]:
        raise ValueError(
            f"moves[{number}] begins at place {move.walk[0]}, the move before ended at {before.walk[-1]}"
        )
    for decision in move.decisions:
        attention = decision.attention
        if attention is not None and not len(attention.perception) == len(attention.action) == words:
            raise ValueError(f"moves[{number}] attends to other words than the {words} of the instruction")
