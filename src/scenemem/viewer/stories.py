"""Which episodes are worth watching, and what happened in each in a few words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

from scenemem.formats.results import EpisodeResult
from scenemem.formats.traces import Trace
from scenemem.tasks.episode_set import SUCCESS_METRES

Story = Literal["fixed", "wrong stop", "lost", "straight"]

TITLES: dict[Story, str] = {
    "fixed": "Turned back and arrived",
    "wrong stop": "Was there and did not stop",
    "lost": "Got lost",
    "straight": "Went straight there",
}

_FAULTLESS = 0.99  # SPL from which a way counts as straight
_DETOUR = 6.0  # metres; a longer one makes a mistake no plainer
_THERE = 0.05  # metres; nearer is at the goal
_FAR = 10.0  # metres; more tell nothing more
_PER_JUMP, _PER_HOP = 3.0, 0.5  # metres that one more return and one more hop cost in plainness


@dataclass(frozen=True)
class Chosen:
    """An episode to show."""

    instruction_id: str
    story: Story


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

    def told(story: Story) -> list[Chosen]:
        def rank(result: EpisodeResult) -> tuple[bool, bool, float]:
            differs = theirs.get(result.instr_id, result.sr) != result.sr
            return differs, result.instr_id in favoured, _PLAINNESS[story](result)

        kind = sorted((one for one in results if _story(one) == story), key=rank, reverse=True)
        return [Chosen(result.instr_id, story) for result in kind]

    routes: dict[str, Chosen] = {}
    for chosen in chain(*zip_longest(*(told(story) for story in TITLES))):
        if chosen is not None:
            routes.setdefault(_route(chosen.instruction_id), chosen)
    return list(routes.values())[:count]


def _story(result: EpisodeResult) -> Story | None:
    """The kind of an episode; None for arriving by a detour without ever turning back."""
    if not result.sr > 0:
        return "wrong stop" if result.osr > 0 else "lost"
    if result.jumps:
        return "fixed"
    return "straight" if result.spl >= _FAULTLESS else None


_PLAINNESS: dict[Story, Callable[[EpisodeResult], float]] = {
    "fixed": lambda result: min(_DETOUR, result.tl * (1 - result.spl)) - _PER_JUMP * result.jumps,
    "wrong stop": lambda result: min(_FAR, result.ne) - _PER_HOP * result.hops,
    "lost": lambda result: result.ne,
    "straight": lambda result: min(_FAR, result.tl),
}


def _route(instruction_id: str) -> str:
    """Instructions of one route are numbered after their last underscore."""
    return instruction_id.rpartition("_")[0] or instruction_id


def went_on(trace: Trace) -> bool:
    """Whether the agent turned back and took another way from there, rather than stopping."""
    return any(turn.back_to is not None and not turn.stops for turn in trace.moves)


def headline(trace: Trace) -> str:
    """How an episode came out, in a few words."""
    ending = trace.ending
    if ending is None or ending.to_goal is None or ending.scores is None:
        return "On its way" if ending is None else "Walked to an unknown goal"
    if ending.to_goal < SUCCESS_METRES:
        straight = not _turns(trace) and ending.scores.spl >= _FAULTLESS
        return TITLES["straight"] if straight else TITLES["fixed"] if _turns(trace) else "Arrived"
    if ending.scores.osr > 0:
        return TITLES["wrong stop"]
    return TITLES["lost"] if ending.stopped else "Ran out of rounds"


def summary(trace: Trace, room_of: Mapping[int, str]) -> str:
    """What happened in an episode, in one sentence; empty while it goes on."""
    ending = trace.ending
    if ending is None:
        return ""
    ended = "stopped" if ending.stopped else f"was cut off after {len(trace.moves)} rounds"
    returned = _returned(trace, room_of)
    if ending.to_goal is not None:
        ended += " at the goal" if ending.to_goal < _THERE else f" {ending.to_goal:.1f} m from the goal"
    if ending.to_goal is None or ending.to_goal < SUCCESS_METRES:
        last = len(trace.moves)
        when = "it" if not ending.stopped else "then it" if last in _turns(trace) else f"in round {last} it"
        return f"{returned}; {when} {ended}." if returned else f"It never turned back and {ended}."
    nearest, number = _nearest(trace)
    if nearest < SUCCESS_METRES:
        return f"It came within {nearest:.1f} m of the goal in round {number}, walked on and {ended}."
    return f"{returned + ', ' if returned else 'It '}never came nearer than {nearest:.1f} m and {ended}."


def _returned(trace: Trace, room_of: Mapping[int, str]) -> str:
    """When and where to it turned back; empty when it never did."""
    turns = _turns(trace)
    if not turns:
        return ""
    if len(turns) > 1:
        rounds = [str(number) for number in turns]
        return f"It turned back {len(turns)} times (in rounds {', '.join(rounds[:-1])} and {rounds[-1]})"
    (number, place), *_ = turns.items()
    numbers = list(dict.fromkeys(trace.path))
    room = f" ({room_of[place]})" if place in room_of else ""
    return f"In round {number} it turned back to place {numbers.index(place) + 1}{room} on its map"


def _turns(trace: Trace) -> dict[int, int]:
    """Numbers, from 1, of the rounds that turn back, and the place each turned back to."""
    backs = ((number, turn.back_to) for number, turn in enumerate(trace.moves, start=1))
    return {number: place for number, place in backs if place is not None}


def _nearest(trace: Trace) -> tuple[float, int]:
    """The least distance to the goal and the number of the round, from 1, that led there."""
    stood = [(trace.task.start, 1)]
    stood += [(place, number) for number, turn in enumerate(trace.moves, start=1) for place in turn.walk[1:]]
    distances = [(trace.scene.places[place].to_goal, number) for place, number in stood]
    return min((metres, number) for metres, number in distances if metres is not None)
