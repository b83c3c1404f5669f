"""Walks in words: a caption per move, a headline, a story, and the words of the instruction to mark."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, pairwise, product
from typing import ClassVar

import msgspec

from scenemem.formats.traces import (
    Decision,
    Ending,
    Memory,
    Move,
    Option,
    Origin,
    Scene,
    Scores,
    Task,
    Trace,
    Word,
)
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.world.graph import FULL_TURN

FAULTLESS = 0.99
"""SPL from which a walk counts as straight."""

QUOTED = 3
"""The strongest level of a mark: exactly the words that are quoted."""

_MANY = 4  # moves listed in a sentence
_THERE = 0.05  # metres; nearer is at the goal
_NOTICEABLE = 0.05  # a cue that rounds to nothing in the table is no reason
_CLOSE = 0.1  # chances that differ less are a close call
_CUES = ("of the view", "of the direction")
_HINTS = "of the hints"  # how near and how recent a remembered place is, and how well its open ways scored
_ON = "its memory speaks against stopping here"
_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")

_LEVELS = (0.2, 0.4, 0.7)  # shares of the strongest word from which a word is marked 1, 2, 3
_LEAST_ATTENTION = 0.25  # on words with a meaning; below it no word stands out
_MOST_QUOTED = 4  # words
_LITTLE = (  # words without a meaning of their own
    "a after also an and are as at be been before but by can do for from has have i if in is it its just my "
    "of on once one or our should so than that the their them then there these they this those to until we "
    "when where which while who will with would you your"
)


@dataclass(frozen=True)
class Marks:
    """How strongly every word is marked, 0 to 3; all 0 when no word stands out."""

    view: tuple[int, ...]  # what to look for
    direction: tuple[int, ...]  # where to go


Hop = tuple[int, int]
"""Two places, walked from the first to the second."""


class Step(msgspec.Struct, frozen=True):
    """A move of which nothing is known but where it led."""

    heading: float
    walk: Hop
    decisions: tuple[Decision, ...] = ()
    memory: Memory | None = None
    back_to: ClassVar[None] = None


Rooms = Callable[[Scene], Mapping[int, str]]
"""Gives the names of the rooms of a building, by place."""


@dataclass(frozen=True, eq=False)
class DrawnWalk:
    """What pages show of one agent or system in one episode, and say about it."""

    name: str
    task: Task  # vocabularies differ
    scene: Scene
    moves: Sequence[Move | Step]
    ending: Ending | None
    room_of: Mapping[int, str]  # names of rooms, by place
    broken: frozenset[Hop] = frozenset()  # steps without an edge
    origin: Origin | None = None
    trace: Trace | None = None  # None for a route that was read

    @classmethod
    def of(cls, trace: Trace, room_of: Mapping[int, str]) -> DrawnWalk:
        """A walk of which everything is known."""
        walk = cls(trace.agent, trace.task, trace.scene, trace.moves, trace.ending, room_of)
        return replace(walk, origin=trace.origin, trace=trace)

    @classmethod
    def of_route(
        cls, name: str, task: Task, scene: Scene, path: Sequence[int], heading: float, ending: Ending
    ) -> DrawnWalk:
        """A path of which nothing else is known; ``heading`` is that at its start."""
        steps = list(pairwise(path))
        facing = [heading, *(_bearing(scene, step) for step in steps)]
        moves = [Step(facing[number], step) for number, step in enumerate(steps)]
        return cls(name, task, scene, moves, ending, {})

    @cached_property
    def path(self) -> Sequence[int]:
        """All places stood at, the start first."""
        return [self.task.start, *(place for move in self.moves for place in move.walk[1:])]

    @property
    def dashed(self) -> frozenset[Hop]:
        """Steps drawn as dashes."""
        returns = (_returning(move) for move in self.moves if isinstance(move, Move))
        return self.broken or frozenset(chain.from_iterable(returns))

    @property
    def meaning(self) -> str:
        """Of dashes."""
        return "no edge" if self.broken else "going back"

    @property
    def scores(self) -> Scores | None:
        """None when the goal is secret."""
        return None if self.ending is None else self.ending.scores

    @property
    def shown(self) -> set[int]:
        """The places whose surroundings a page shows: of decisions, of returns, of the end."""
        return {move.walk[0] for move in self.moves} | {*self._turns.values(), self.path[-1]}

    @property
    def marks(self) -> Sequence[Sequence[Marks | None]]:
        """Per move and decision: the words it marks."""
        return [[marks(self.task.words, one) for one in move.decisions] for move in self.moves]

    @cached_property
    def letters(self) -> Sequence[Mapping[int, str]]:
        """Per move, letters for the unvisited places that could be chosen, clockwise from north."""
        visited, lettered = {self.task.start}, []
        for move in self.moves:
            options = move.decisions[-1].options if move.decisions else ()
            ways = [option for option in options if option.place not in visited]
            ways.sort(key=lambda option: option.heading or 0.0)
            lettered.append(dict(zip(dict.fromkeys(way.place for way in ways), _letters(), strict=False)))
            visited.update(move.walk)
        return lettered

    @property
    def captions(self) -> Sequence[str]:
        """One per move, a line for each decision it explains, and one for the end."""
        texts = [self._move(number) for number in range(len(self.moves))]
        return texts if self.ending is None else [*texts, self._ended(self.ending)]

    @property
    def headline(self) -> str:
        """How it came out, in a few words."""
        ending = self.ending
        if self.broken:
            return "Went where no edge leads"
        if ending is None:
            return "Walking"
        if ending.to_goal is None or ending.scores is None:  # the goal is not known
            return "Stopped" if ending.stopped else "Cut off before it stopped"
        if ending.to_goal < SUCCESS_METRES:
            straight = "Went straight to the goal" if ending.scores.spl >= FAULTLESS else "Reached the goal"
            return "Turned back and reached the goal" if self._turns else straight
        if ending.scores.osr > 0:
            return "Passed the goal without stopping"
        away = f"{ending.to_goal:.1f} m from the goal"
        return f"Stopped {away}" if ending.stopped else "Cut off before it stopped"

    @property
    def story(self) -> str:
        """What happened in an episode, in one sentence; empty while it goes on."""
        ending = self.ending
        if ending is None:
            return ""
        ended, returned = self._how_it_ended(ending), self._returned()
        if ending.to_goal is not None:
            ended += " at the goal" if ending.to_goal < _THERE else f" {ending.to_goal:.1f} m from the goal"
        if ending.to_goal is None or ending.to_goal < SUCCESS_METRES:
            last = len(self.moves)
            when = "it" if not ending.stopped else "then it" if last in self._turns else f"at move {last} it"
            jumps = f" ({len(self.broken)} without an edge)" if self.broken else ""
            straight = "never turned back" if self._decides else f"took {last} step{'s' * (last != 1)}{jumps}"
            return f"{returned}; {when} {ended}." if returned else f"It {straight} and {ended}."
        nearest, number = self._nearest()
        if nearest < SUCCESS_METRES:
            return f"It came within {nearest:.1f} m of the goal at move {number}, walked on and {ended}."
        begin = returned or self._left_path()
        if ending.to_goal - nearest < _THERE:
            return f"{begin + ' and' if begin else 'It'} {ended}."
        return f"{begin + ', ' if begin else 'It '}never came nearer than {nearest:.1f} m and {ended}."

    @cached_property
    def _turns(self) -> Mapping[int, int]:
        """The moves that turn back, from 1 -> the place they return to."""
        moves = enumerate(self.moves, start=1)
        return {number: move.back_to for number, move in moves if move.back_to is not None}

    @cached_property
    def _number(self) -> Mapping[int, int]:
        """Places -> what pages call them: the order of their first visit, from 1."""
        return {place: number for number, place in enumerate(dict.fromkeys(self.path), start=1)}

    @property
    def _decides(self) -> bool:
        """False for a result file, which only says where it went."""
        return not self.moves or bool(self.moves[0].decisions)

    def _move(self, number: int) -> str:
        """What happens in a move; when it has two decisions, a line for each."""
        move = self.moves[number]
        if isinstance(move, Step):
            return f"Move {number + 1}: it {self._walks(number, move.walk)}"
        last, back = move.decisions[-1], move.back_to
        if last.kind == "final":
            return f"Move {number + 1}: no decisions are left; it {self._ends(move, back)}"
        parts = [] if back is None else [self._returns(number, move, back)]
        if last.kind == "frontier":  # cut off before it could go on
            parts = parts or ["stays where it is."]
        elif last.chosen.stop:
            parts.append(self._stops(number, move))
        else:
            parts.append(self._goes_on(number, move))
        between = "\n" if len(move.decisions) > 1 else " "
        return f"Move {number + 1}: it {between.join(parts)}"

    def _walks(self, number: int, step: Hop) -> str:
        here, there = (self.scene.places[place] for place in step)
        metres = math.dist((here.x, here.y, here.z), (there.x, there.y, there.z))
        back = "back " if step[1] in self.path[: number + 1] else ""
        edge = ", where no edge leads" if step in self.broken else ""
        way = compass(_bearing(self.scene, step))
        return f"goes {way} {back}to {self._place(step[1])}, {metres:.1f} m{edge}."

    def _ends(self, move: Move, back: int | None) -> str:
        arrives = "and stops there" if move.stops else "but is cut off on the way"
        where = "stops where it is" if back is None else f"goes back to {self._place(back)} {arrives}"
        return f"{where}, the place it rates best for stopping."

    def _returns(self, number: int, move: Move, back: int) -> str:
        decision, walk = move.decisions[0], move.decisions[0].chosen.walk
        dead_end = "is in a dead end (no unvisited neighbour) and " if _dead_end(move) else ""
        turns = f"{dead_end}turns back to {self._place(back)}"
        if decision.kind == "global":
            return f"{turns}."
        distance = "" if walk is None else f", {walk:.1f} m back on its map"
        return f"{turns}{distance}, {self._sure(number, move, decision, _HINTS)}"

    def _goes_on(self, number: int, move: Move) -> str:
        decision, option = move.decisions[-1], move.decisions[-1].chosen
        goal = self._called(number, move, option) + self._room(option.place)
        verb = "goes" if move.back_to is None else "From there it goes"
        way = f"{option.compass} " if option.compass else ""
        return f"{verb} {way}to {goal}, {self._sure(number, move, decision, _ON)}"

    def _stops(self, number: int, move: Move) -> str:
        verb, last = ("stops" if move.back_to is None else "There it stops"), move.decisions[-1]
        if len(last.options) > 1:
            return f"{verb}, {self._sure(number, move, last)}"
        return f"{verb}, the only option: it has no unvisited neighbour.{self._attention(last)}"

    def _sure(self, number: int, move: Move, decision: Decision, rest: str | None = None) -> str:
        """How likely a choice was, the cue that counts most for it, and the words that are marked.

        ``rest`` names what its score is made of besides view and direction; None leaves the cues out.
        """
        chosen, chance = decision.chosen, _percent(decision.chosen)
        others = [option for option in decision.options if option is not chosen]
        rival = max(others, key=lambda option: option.probability, default=None)
        told = "the only option" if rival is None else f"{chance} sure"
        if rival is not None and abs(chosen.probability - rival.probability) < _CLOSE:
            against = f"{_percent(rival)} for {self._called(number, move, rival)}"
            told = f"a close call ({chance} against {against})"
        shares = None if rest is None else compared(decision)
        if shares is not None and max(shares) >= _NOTICEABLE:
            told += f", mainly because {(*_CUES, rest)[shares.index(max(shares))]}"
        return f"{told}.{self._attention(decision)}"

    def _attention(self, decision: Decision) -> str:
        """The words that are marked strongest for a decision."""
        words = self.task.words
        found = marks(words, decision)
        if found is None:
            return ""
        view, direction = quoted(words, found.view), quoted(words, found.direction)
        if view is None and direction is None:
            return " No word stands out."
        return f" View words: {view or 'none'}; direction words: {direction or 'none'}."

    def _called(self, number: int, move: Move, option: Option) -> str:
        """What an option is called in a move."""
        names = self.letters[number]
        if option.stop:
            return "stopping"
        if option.place in names:
            return f"new place {names[option.place]}"
        if option.place == move.walk[0]:
            return "staying here" if _dead_end(move) else "going on from here"
        return f"place {self._number[option.place]}"

    def _place(self, place: int) -> str:
        return f"place {self._number[place]}{self._room(place)}"

    def _room(self, place: int) -> str:
        return f" ({self.room_of[place]})" if self.room_of.get(place) else ""

    def _ended(self, ending: Ending) -> str:
        how = self._how_it_ended(ending)
        if ending.to_goal is None or ending.scores is None:
            return f"The end: it {how}. Without a known goal it is not scored."
        near = ending.to_goal < SUCCESS_METRES
        verdict = f"a {'success' if near else 'failure'} (less than {SUCCESS_METRES:.0f} m is needed)"
        count = len(self._turns)
        times = {0: "never turned back", 1: "turned back once"}.get(count, f"turned back {count} times")
        return (
            f"The end: it {how} {ending.to_goal:.1f} m from the goal: {verdict}. "
            f"It walked {ending.scores.tl:.1f} m{f' and {times}' if self._decides else ''}."
        )

    def _how_it_ended(self, ending: Ending) -> str:
        return "stopped" if ending.stopped else f"was cut off after {len(self.moves)} moves"

    def _left_path(self) -> str:
        """When the first move led to a place that the described path does not pass; empty when none did."""
        described = {*self.task.reference}
        for number, move in enumerate(self.moves, start=1):
            if described and not described.issuperset(move.walk):
                return f"It left the described path at move {number}"
        return ""

    def _returned(self) -> str:
        """When and where to it turned back; empty when it never did."""
        if not self._turns:
            return ""
        (number, place), *others = self._turns.items()
        if not others:
            return f"At move {number} it turned back to {self._place(place)}"
        moves = f"at moves {_listed(list(map(str, self._turns)))}"
        when = moves if len(self._turns) <= _MANY else f"first at move {number}"
        return f"It turned back {len(self._turns)} times ({when})"

    def _nearest(self) -> tuple[float, int]:
        """The least distance to the goal and the number of the move, from 1, that led there."""
        moves = enumerate(self.moves, start=1)
        stood = [(self.task.start, 1), *((place, n) for n, move in moves for place in move.walk[1:])]
        distances = [(self.scene.places[place].to_goal, number) for place, number in stood]
        return min((metres, number) for metres, number in distances if metres is not None)


def _returning(move: Move) -> Iterable[Hop]:
    """The steps of a move that lead back to a remembered place."""
    if move.back_to is None:
        return ()
    # a walk that was cut off on its way back is all return
    end = move.walk.index(move.back_to) + 1 if move.back_to in move.walk else len(move.walk)
    return pairwise(move.walk[:end])


def compass(heading: float) -> str:
    """A heading in words; radians clockwise from north."""
    return _WINDS[round(heading / (FULL_TURN / len(_WINDS))) % len(_WINDS)]


def _bearing(scene: Scene, step: Hop) -> float:
    """The heading from one place to another, radians clockwise from north."""
    here, there = (scene.places[number] for number in step)
    return math.atan2(there.x - here.x, there.y - here.y) % FULL_TURN


def marks(words: Sequence[Word], decision: Decision) -> Marks | None:
    """The marks of a decision; None for an agent without attention."""
    shares = decision.attention
    return None if shares is None else Marks(levels(words, shares.perception), levels(words, shares.action))


def levels(words: Sequence[Word], shares: Sequence[float]) -> tuple[int, ...]:
    """How strongly to mark every word; punctuation and little words such as "the" never are."""
    meant = [number for number, word in enumerate(words) if _means_something(word.text)]
    if sum(shares[number] for number in meant) < _LEAST_ATTENTION:
        return (0,) * len(words)
    meant.sort(key=lambda number: -shares[number])
    strongest, found = shares[meant[0]], [0] * len(words)
    for rank, number in enumerate(meant):
        level = sum(shares[number] >= least * strongest for least in _LEVELS)
        found[number] = level if rank < _MOST_QUOTED else min(level, QUOTED - 1)
    return tuple(found)


def quoted(words: Sequence[Word], levels: Sequence[int]) -> str | None:
    """The words marked strongest, neighbours together, in the order of the instruction; None without any."""
    phrases: list[str] = []
    for number, word in enumerate(words):
        if levels[number] != QUOTED:
            continue
        if number and levels[number - 1] == QUOTED:
            phrases[-1] += (" " if word.before else "") + word.text
        else:
            phrases.append(word.text)
    once = {phrase.lower(): f"“{phrase}”" for phrase in phrases[::-1]}
    return _listed(list(once.values())[::-1]) if once else None


def _means_something(text: str) -> bool:
    return text.lower() not in _LITTLE.split() and not set(text) <= set(string.punctuation)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _letters() -> Iterator[str]:
    """A to Z, then AA, AB and so on."""
    for length in count(1):
        yield from map("".join, product(string.ascii_uppercase, repeat=length))


def compared(decision: Decision) -> tuple[float, float, float] | None:
    """What the choice's logit is made of, against the average option: view, direction and the rest.

    The rest are hints about a frontier; for a way it is the judgement of the memory. None when unknown.
    """
    if decision.weights is None:
        return None
    found = []
    for option in decision.options:
        if option.visual is None or option.geometric is None:
            return None
        view, direction = decision.weights[0] * option.visual, decision.weights[1] * option.geometric
        found.append((view, direction, option.logit - view - direction))
    view, direction, rest = (cue[decision.choice] - sum(cue) / len(cue) for cue in zip(*found, strict=True))
    return view, direction, rest


def _dead_end(move: Move) -> bool:
    """Whether no unvisited place is next to where the agent stands."""
    return move.memory is not None and not move.memory.frontier[move.memory.here]


def _percent(option: Option) -> str:
    return f"{100 * option.probability:.0f} %"
