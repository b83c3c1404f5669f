"""One plain sentence or two per round: what the agent does and why, from the numbers of its trace."""

from __future__ import annotations

import string
from collections.abc import Mapping

from scenemem.formats.traces import Decision, Ending, Move, Option, Trace
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.viewer.marks import marks_of, quoted

_AUDIBLE = 0.05  # a cue that rounds to nothing in the table is no reason
_CLOSE = 0.1  # chances that differ less are a close call
_CUES = ("sight", "heading", "facts")  # of a frontier
_WAY_CUES = ("sight", "heading", "its memory of here")  # of a neighbour, or of stopping
_SEEN = "Sight speaks most for it: what it saw there fits the shaded words"
_LIES = "Heading speaks most for it: where it lies fits the underlined words"
_FACTS = "Facts speak most for it: how near and how new it is, and how good the way on looked"
_NOTHING = "no word in particular"


def captions(trace: Trace, room_of: Mapping[int, str]) -> list[str]:
    """A caption for every round, and one for the end."""
    narrator = _Narrator(trace, room_of)
    texts = [narrator.round(number) for number in range(len(trace.moves))]
    return texts if trace.ending is None else [*texts, _ended(trace, trace.ending)]


def letters(trace: Trace) -> list[dict[int, str]]:
    """Per round, letters for the unvisited places that could be chosen, clockwise from north."""
    visited, names = {trace.task.start}, []
    for turn in trace.moves:
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


def cues(decision: Decision, option: Option) -> tuple[float, float, float] | None:
    """What an option's logit is made of: sight, direction and the rest; None when it is not known.

    The rest are facts about a frontier; of the option to stop it is what the memory says about the place.
    """
    if decision.weights is None or option.visual is None or option.geometric is None:
        return None
    sight = decision.weights[0] * option.visual
    direction = decision.weights[1] * option.geometric
    return sight, direction, option.logit - sight - direction


def compared(decision: Decision) -> tuple[float, float, float] | None:
    """The cues of the choice against the average option, as the table of a replay shows them."""
    made_of = [cues(decision, option) for option in decision.options]
    known = [cue for cue in made_of if cue is not None]
    if len(known) < len(made_of):
        return None
    sight, direction, facts = (
        known[decision.choice][kind] - sum(cue[kind] for cue in known) / len(known) for kind in range(3)
    )
    return sight, direction, facts


class _Narrator:
    def __init__(self, trace: Trace, room_of: Mapping[int, str]) -> None:
        self._trace = trace
        self._room_of = room_of
        self._letters = letters(trace)
        self._number = {place: number for number, place in enumerate(dict.fromkeys(trace.path), start=1)}

    def round(self, number: int) -> str:
        """What happens in a round; when it has two decisions, a line for each."""
        turn = self._trace.moves[number]
        last, back = turn.decisions[-1], turn.back_to
        if last.kind == "final":
            return f"Round {number + 1}: {self._ends(turn, back)}"
        parts = [] if back is None else [self._returns(number, back)]
        if last.kind == "frontier":  # cut off before it could go on
            parts = parts or ["stays where it is."]
        elif last.chosen.stop:
            parts.append(self._stops(number))
        else:
            parts.append(self._goes_on(number))
        between = "\n" if len(turn.decisions) > 1 else " "
        return f"Round {number + 1}: it {between.join(parts)}"

    def _ends(self, turn: Move, back: int | None) -> str:
        where = "stops where it stands"
        if back is not None:
            arrives = "and stops there" if turn.stops else "but is cut off on the way"
            where = f"goes back to {self._place(back)} {arrives}"
        return f"its decisions are used up, and it {where}: no other place seemed as right to stop at."

    def _returns(self, number: int, back: int) -> str:
        turn = self._trace.moves[number]
        decision, walk = turn.decisions[0], turn.decisions[0].chosen.walk
        dead_end = "is in a dead end (no unvisited place next to it) and " if _dead_end(turn) else ""
        turns = f"{dead_end}turns back to {self._place(back)}"
        if decision.kind == "global":
            return f"{turns}."
        distance = "" if walk is None else f", {walk:.1f} m back on its map"
        odds = self._odds(number, decision)
        return f"{turns}{distance}{odds}.{self._reason(number, decision)}{self._listening(decision)}"

    def _odds(self, number: int, decision: Decision) -> str:
        """The chance of going back against that of staying, and against any other that came close."""
        here = [option for option in decision.options if option.place == self._trace.moves[number].walk[0]]
        close = _close_rival(decision)
        rivals = [*here, *([close] if close is not None and close not in here else [])]
        if not rivals:
            return ""
        against = " and ".join(f"{_percent(rival)} for {self._called(number, rival)}" for rival in rivals)
        tie = "" if close is None else "a close call, "
        return f" ({tie}{_percent(decision.chosen)} against {against})"

    def _reason(self, number: int, decision: Decision) -> str:
        """Which cue speaks most for going back, and which speak against it."""
        spoken, strongest = compared(decision), _strongest(decision)
        if spoken is None or strongest is None:
            return ""
        why = (_SEEN, _LIES, self._facts(number, decision.chosen))[strongest]
        against = [name for name, cue in zip(_CUES, spoken, strict=True) if cue < -_AUDIBLE]
        but = (
            f"; {' and '.join(against)} speak{'' if len(against) > 1 else 's'} against it" if against else ""
        )
        return f" {why}{but}."

    def _facts(self, number: int, option: Option) -> str:
        """What an agent knows of a place besides what it saw; the last chance of its open ways is told."""
        turn, names = self._trace.moves[number], self._letters[number]
        ways = () if turn.memory is None else turn.memory.ways
        open_places = {way.place for way in ways if way.node == option.node}
        for before in reversed(self._trace.moves[:number]):
            decision = before.decisions[-1]
            if decision.kind == "action" and decision.chosen.node == option.node:
                left = [way for way in decision.options if way.place in open_places and not way.stop]
                best = max(left, key=lambda way: way.probability, default=None)
                if best is not None:
                    name = names.get(best.place, "it")
                    return f"{_FACTS} ({_percent(best)} for {name} when it was last there)"
        return _FACTS

    def _goes_on(self, number: int) -> str:
        turn = self._trace.moves[number]
        decision, option = turn.decisions[-1], turn.decisions[-1].chosen
        room = self._room_of.get(option.place)
        goal = self._called(number, option) + (f" ({room})" if room else "")
        verb = "goes" if turn.back_to is None else "From there it goes"
        way = f"{option.compass} " if option.compass else ""
        strongest = _strongest(decision)
        cue = "" if strongest is None else f", mostly by {_WAY_CUES[strongest]}"
        return f"{verb} {way}to {goal}, {self._sure(number, decision)}{cue}.{self._listening(decision)}"

    def _stops(self, number: int) -> str:
        turn = self._trace.moves[number]
        verb, last = ("stops" if turn.back_to is None else "There it stops"), turn.decisions[-1]
        heard = self._listening(last)
        if len(last.options) > 1:
            return f"{verb}, {self._sure(number, last)}.{heard}"
        first = turn.decisions[0]
        others = [option for option in first.options if option is not first.chosen]
        rival = max(others, key=lambda option: option.probability, default=None)
        odds = ""
        if turn.back_to is None and first is not last and rival is not None:
            odds = f", and it does not turn back to {self._place(rival.place)}"
            odds += f" ({_percent(rival)} against {_percent(first.chosen)})"
        return f"{verb}, the only option here: no place next to it is unvisited{odds}.{heard}"

    def _sure(self, number: int, decision: Decision) -> str:
        if len(decision.options) == 1:
            return "the only option"
        rival = _close_rival(decision)
        if rival is None:
            return f"{_percent(decision.chosen)} sure"
        against = f"{_percent(rival)} for {self._called(number, rival)}"
        return f"a close call ({_percent(decision.chosen)} against {against})"

    def _listening(self, decision: Decision) -> str:
        """The words marked for a decision; when it stops, only those it looked for."""
        words = self._trace.task.words
        marks = marks_of(words, decision)
        if marks is None:
            return ""
        things, moves = quoted(words, marks.looks), quoted(words, marks.moves)
        if decision.chosen.stop:
            return f" It looked for {things or _NOTHING}."
        if things is None and moves is None:
            return f" It follows {_NOTHING}."
        return f" It looks for {things or _NOTHING}; it moves by {moves or _NOTHING}."

    def _called(self, number: int, option: Option) -> str:
        """What an option is called in a round."""
        turn, names = self._trace.moves[number], self._letters[number]
        if option.stop:
            return "stopping"
        if option.place in names:
            return f"new place {names[option.place]}"
        if option.place == turn.walk[0]:
            return "staying here" if _dead_end(turn) else "going on from here"
        return f"place {self._number[option.place]}"

    def _place(self, place: int) -> str:
        room = self._room_of.get(place)
        return f"place {self._number[place]}" + (f" ({room})" if room else "")


def _dead_end(turn: Move) -> bool:
    """Whether no unvisited place is next to where the agent stands."""
    return turn.memory is not None and not turn.memory.frontier[turn.memory.here]


def _strongest(decision: Decision) -> int | None:
    """The cue that speaks most for the choice; None when nothing is known to speak for it."""
    spoken = compared(decision)
    return None if spoken is None or max(spoken) < _AUDIBLE else spoken.index(max(spoken))


def _close_rival(decision: Decision) -> Option | None:
    """The best other option, when there was little between the two."""
    others = [option for option in decision.options if option is not decision.chosen]
    rival = max(others, key=lambda option: option.probability, default=None)
    if rival is None or abs(decision.chosen.probability - rival.probability) >= _CLOSE:
        return None
    return rival


def _ended(trace: Trace, ending: Ending) -> str:
    how = "stopped" if ending.stopped else f"was cut off after {len(trace.moves)} rounds"
    if ending.to_goal is None or ending.scores is None:
        return f"The end: it {how}. The goal is not public."
    near = ending.to_goal < SUCCESS_METRES
    verdict = "a success" if near else "a failure"
    limit = f"{'under' if near else 'not under'} {SUCCESS_METRES:.0f} m"
    turns = sum(turn.back_to is not None for turn in trace.moves)
    times = {0: "never turned back", 1: "turned back once"}.get(turns, f"turned back {turns} times")
    return (
        f"The end: it {how} {ending.to_goal:.1f} m from the goal, {limit}, so this counts as {verdict}. "
        f"It walked {ending.scores.tl:.1f} m and {times}."
    )


def _percent(option: Option) -> str:
    return f"{100 * option.probability:.0f} %"
