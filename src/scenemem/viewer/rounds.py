"""One round of a trace, from the tensors of a question to plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from scenemem.agents.rollout import Question
from scenemem.agents.spaces import ActionSpace
from scenemem.formats.traces import Attention, Decision, Memory, Move, Option, Way
from scenemem.viewer.insight import Heard, Insight, Weighed
from scenemem.viewer.openings import compass
from scenemem.world.graph import World


@dataclass
class RoundInProgress:
    """A round that is not over yet."""

    heading: float
    memory: Memory | None
    to_goal: float | None
    walk: list[int]
    decisions: list[Decision] = field(default_factory=list)

    def waits_for(self, kind: str) -> bool:
        """Whether a question of this kind belongs to the round: a frontier's neighbours, and nothing else."""
        return kind == "action" and [decision.kind for decision in self.decisions] == ["frontier"]

    def finished(self) -> Move:
        """The round as a record."""
        return Move(
            heading=round(self.heading, 4),
            walk=tuple(self.walk),
            decisions=tuple(self.decisions),
            memory=self.memory,
            to_goal=self.to_goal,
        )


def memory_of(space: ActionSpace, lane: int) -> Memory | None:
    """What a lane remembers now; None in a space without a memory."""
    if space.memory is None:
        return None
    plain, world = space.memory.to_json(lane), space.world
    scan = world.scans[int(world.scan_of[space.memory.node[lane, 0]])]

    def place(viewpoint: str) -> int:
        return int(world.local[world.index_of(scan, viewpoint)])

    return Memory(
        here=plain["here"],
        nodes=tuple(place(viewpoint) for viewpoint in plain["nodes"]),
        frontier=tuple(plain["frontier"]),
        edges=tuple((a, b) for a, b in plain["edges"]),
        ways=tuple(
            Way(
                node=way["node"],
                place=place(way["viewpoint"]),
                heading=round(way["heading"], 4),
                elevation=round(way["elevation"], 4),
                compass=compass(way["heading"]),
            )
            for way in plain["subnodes"]
        ),
    )


def decision_of(
    question: Question,
    row: int,
    logits: Tensor,
    choice: int,
    space: ActionSpace,
    insight: Insight,
    words: int,
) -> Decision:
    """One answer as plain numbers.

    Args:
        question: what was asked.
        row: which lane of the question.
        logits: (O,) its scores, -inf where there is no option.
        choice: the option taken.
        space: what could be chosen.
        insight: how the scores came about.
        words: how many words the instruction has.
    """
    lane = int(question.lanes[row])
    numbers = question.options[row].nonzero().squeeze(1).tolist()
    weighed = insight.weighed.get((question.kind, lane))
    probability = logits.softmax(dim=-1).tolist()
    options = []
    for number in numbers:
        visual, geometric = _confidence(weighed, number)
        goal = _destination(question, row, number, space)
        options.append(
            Option(
                place=int(space.world.local[question.place[row, number]]),
                probability=round(probability[number], 5),
                logit=round(float(logits[number]), 4),
                stop=number == question.stop,
                node=goal.node,
                walk=None if goal.walk is None else round(goal.walk, 2),
                heading=None if goal.heading is None else round(goal.heading, 4),
                compass=None if goal.heading is None else compass(goal.heading),
                visual=visual,
                geometric=geometric,
            )
        )
    return Decision(
        kind={"anywhere": "global", "last": "final"}.get(question.kind, question.kind),
        options=tuple(options),
        choice=numbers.index(choice),
        weights=None if weighed is None else _pair(weighed.weights),
        attention=_attention(insight.heard.get(lane), words),
    )


@dataclass(frozen=True)
class _Destination:
    """How one gets to what an option offers."""

    node: int | None = None  # the remembered place it belongs to
    walk: float | None = 0.0  # metres; None when the agent counts hops
    heading: float | None = None  # of the last hop


def _destination(question: Question, row: int, number: int, space: ActionSpace) -> _Destination:
    memory, lane = space.memory, int(question.lanes[row])
    if memory is None:
        here = int(question.place[row, -1])  # the last option is to stop here
        return _Destination() if number == question.stop else _hop(space.world, here, number)
    stands = int(memory.here[lane])
    if number == question.stop:
        return _Destination(stands)
    slots = space.world.neighbour.shape[1]
    node, slot = {
        "frontier": (number, None),
        "last": (number, None),
        "action": (stands, number),
        "anywhere": divmod(number, slots),
    }[question.kind]
    before = float(memory.walk[lane, stands, node])
    if slot is None:
        return _Destination(node, before if memory.weights == "metres" else None)
    hop = _hop(space.world, int(memory.node[lane, node]), slot)
    known = hop.walk is not None and (memory.weights == "metres" or node == stands)
    return _Destination(node, before + (hop.walk or 0.0) if known else None, hop.heading)


def _hop(world: World, viewpoint: int, slot: int) -> _Destination:
    length, heading = world.neighbour_length[viewpoint, slot], world.neighbour_heading[viewpoint, slot]
    return _Destination(None, float(length), float(heading))


def _confidence(weighed: Weighed | None, number: int) -> tuple[float | None, float | None]:
    if weighed is None or number >= len(weighed.confidence):
        return None, None
    return _pair(weighed.confidence[number])


def _attention(heard: Heard | None, words: int) -> Attention | None:
    """The words between the begin and the end mark."""
    if heard is None:
        return None
    perception, action = (
        tuple(round(float(share), 4) for share in row[1 : words + 1])
        for row in (heard.perception, heard.action)
    )
    return Attention(perception, action)


def _pair(values: Tensor) -> tuple[float, float]:
    first, second = values.tolist()
    return round(first, 4), round(second, 4)
