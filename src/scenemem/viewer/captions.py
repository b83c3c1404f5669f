"""One plain sentence or two per round: what the agent does and why, from the numbers of its trace."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from scenemem.formats.traces import Attention, Decision, Ending, Option, Round, Trace
from scenemem.tasks.episode_set import SUCCESS_METRES

_LOUD = 0.4  # neighbours of the loudest word that reach this share of it are quoted with it
_LONGEST = 4  # words quoted
_HEARD = 0.3  # attention on words below which an agent has listened to the marks instead


def captions(trace: Trace, room_of: Mapping[int, str]) -> list[str]:
    """A caption for every round, and one for the end."""
    narrator = _Narrator(trace, room_of)
    texts = [narrator.round(number) for number in range(len(trace.rounds))]
    return texts if trace.ending is None else [*texts, _ended(trace, trace.ending)]


def letters(trace: Trace) -> list[dict[int, str]]:
    """Per round, letters for the unvisited places that could be chosen, clockwise from north."""
    visited, names = {trace.task.start}, []
    for turn in trace.rounds:
        ways = [option for option in turn.decisions[-1].options if option.place not in visited]
        ways.sort(key=lambda option: option.heading or 0.0)
        places = dict.fromkeys(option.place for option in ways)
        names.append({place: _letter(number) for number, place in enumerate(places)})
        visited.update(turn.walk)
    return names


def _letter(number: int) -> str:
    """A to Z, then AA, AB and so on."""
    alphabet = string.ascii_uppercase
    before = "" if number < len(alphabet) else _letter(number // len(alphabet) - 1)
    return before + alphabet[number % len(alphabet)]


def quoted(trace: Trace, shares: Sequence[float]) -> str | None:
    """The words listened to most, as they stand in the instruction; None when none was heard."""
    words = trace.task.words
    spoken = [number for number, word in enumerate(words) if not set(word.text) <= set(string.punctuation)]
    if not spoken or sum(shares) < _HEARD:
        return None
    loudest = max(spoken, key=lambda number: shares[number])
    first = last = loudest
    while last - first + 1 < _LONGEST:
        beside = [number for number in (first - 1, last + 1) if number in spoken]
        best = max(beside, key=lambda number: shares[number], default=None)
        if best is None or shares[best] < _LOUD * shares[loudest]:
            break
        first, last = min(first, best), max(last, best)
    text = "".join(word.before + word.text for word in words[first : last + 1])
    return f"“{' '.join(text.split())}”"


def cues(decision: Decision, option: Option) -> tuple[float, float, float] | None:
    """What an option's logit is made of: sight, direction and further facts; None when it is not known."""
    if decision.weights is None or option.visual is None or option.geometric is None:
        return None
    sight = decision.weights[0] * option.visual
    direction = decision.weights[1] * option.geometric
    return sight, direction, option.logit - sight - direction


class _Narrator:
    def __init__(self, trace: Trace, room_of: Mapping[int, str]) -> None:
        self._trace = trace
        self._room_of = room_of
        self._letters = letters(trace)
        self._number = {place: number for number, place in enumerate(dict.fromkeys(trace.path), start=1)}

    def round(self, number: int) -> str:
        turn = self._trace.rounds[number]
        last, back = turn.decisions[-1], turn.back_to
        parts = [] if back is None else [self._returns(turn, back)]
        if last.kind == "frontier":  # cut off before it could go on
            parts = parts or ["stays where it is."]
        elif last.chosen.stop:
            parts.append(self._stops(turn, last))
        else:
            parts.append(self._goes_on(turn, last, self._letters[number]))
        return f"Round {number + 1}: it {' '.join(parts)}"

    def _returns(self, turn: Round, back: int) -> str:
        decision = turn.decisions[0]
        here = next((option for option in decision.options if option.place == turn.walk[0]), None)
        if decision.kind == "anywhere" or here is None:
            return f"turns back to {self._place(back)}."
        walk = decision.chosen.walk
        distance = "" if walk is None else f", {walk:.1f} m back on its map"
        odds = f"{_percent(decision.chosen)} against {_percent(here)} for going on from here"
        return f"turns back to {self._place(back)}{distance}{self._reason(decision, here)} ({odds})."

    def _reason(self, decision: Decision, here: Option) -> str:
        """Which cue speaks most for going rather than staying."""
        for_going, for_staying = cues(decision, decision.chosen), cues(decision, here)
        if for_going is None or for_staying is None:
            return ""
        gain = [going - staying for going, staying in zip(for_going, for_staying, strict=True)]
        strongest = gain.index(max(gain))
        heard = decision.attention
        if strongest == 0:
            words = None if heard is None else quoted(self._trace, heard.perception)
            return f", because what it saw there fits {words or 'the instruction'} better than what is here"
        if strongest == 1:
            words = None if heard is None else quoted(self._trace, heard.action)
            return f", because the way it lies fits {words or 'the instruction'} better than what is here"
        return ", because a place it had left unvisited there looks more promising than what is here"

    def _goes_on(self, turn: Round, decision: Decision, names: Mapping[int, str]) -> str:
        option = decision.chosen
        room = self._room_of.get(option.place)
        goal = self._place(option.place)
        if option.place in names:
            goal = f"new place {names[option.place]}" + (f" ({room})" if room else "")
        verb = "goes" if turn.back_to is None else "From there it goes"
        way = f"{option.compass} " if option.compass else ""
        return f"{verb} {way}to {goal}, {_percent(option)} sure{self._listening(decision.attention)}."

    def _stops(self, turn: Round, decision: Decision) -> str:
        verb = "stops" if turn.back_to is None else "There it stops"
        return f"{verb}, {_percent(decision.chosen)} sure{self._listening(decision.attention)}."

    def _listening(self, attention: Attention | None) -> str:
        if attention is None:
            return ""
        things, moves = quoted(self._trace, attention.perception), quoted(self._trace, attention.action)
        if things is None and moves is None:
            return ", with no word left to follow"
        parts = [f"looking for {things}"] if things else []
        return ", " + " and ".join([*parts, *([f"told to move by {moves}"] if moves else [])])

    def _place(self, place: int) -> str:
        room = self._room_of.get(place)
        return f"place {self._number[place]}" + (f" ({room})" if room else "")


def _ended(trace: Trace, ending: Ending) -> str:
    how = "stopped" if ending.stopped else f"was cut off after {len(trace.rounds)} rounds"
    if ending.to_goal is None or ending.scores is None:
        return f"The end: it {how}. The goal is not public."
    near = ending.to_goal < SUCCESS_METRES
    verdict = "a success" if near else "a failure"
    limit = f"{'under' if near else 'not under'} {SUCCESS_METRES:.0f} m"
    turns = sum(turn.back_to is not None for turn in trace.rounds)
    times = {0: "never turned back", 1: "turned back once"}.get(turns, f"turned back {turns} times")
    return (
        f"The end: it {how} {ending.to_goal:.1f} m from the goal, {limit}, so this counts as {verdict}. "
        f"It walked {ending.scores.tl:.1f} m and {times}."
    )


def _percent(option: Option) -> str:
    return f"{100 * option.probability:.0f} %"
