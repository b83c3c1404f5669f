"""Which words of the instruction a decision marks; the strongest are the ones its caption quotes."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from scenemem.formats.traces import Decision, Trace, Word

QUOTED = 3
"""The strongest level of a mark: exactly the words that are quoted."""

_LEVELS = (0.2, 0.4, 0.7)  # shares of the loudest word from which a word is marked 1, 2, 3
_HEARD = 0.25  # attention on words with a meaning below which no word in particular was heard
_MOST = 4  # words quoted
_LITTLE = (  # words without a meaning of their own
    "a after also an and are as at be been before but by can do for from has have i if in is it its just my "
    "of on once one or our should so than that the their them then there these they this those to until we "
    "when where which while who will with would you your"
)


@dataclass(frozen=True)
class Marks:
    """How strongly every word is marked, 0 to 3; all 0 when no word in particular was heard."""

    looks: tuple[int, ...]  # for what to look for
    moves: tuple[int, ...]  # for how to move


def marks_of(words: Sequence[Word], decision: Decision) -> Marks | None:
    """The marks of a decision; None for an agent without attention."""
    heard = decision.attention
    return None if heard is None else Marks(levels(words, heard.perception), levels(words, heard.action))


def marks(trace: Trace) -> list[list[Marks | None]]:
    """Per round, the marks of every decision."""
    return [[marks_of(trace.task.words, decision) for decision in turn.decisions] for turn in trace.moves]


def levels(words: Sequence[Word], shares: Sequence[float]) -> tuple[int, ...]:
    """How strongly to mark every word; punctuation and little words such as "the" never are."""
    meant = [number for number, word in enumerate(words) if _means_something(word.text)]
    if sum(shares[number] for number in meant) < _HEARD:
        return (0,) * len(words)
    meant.sort(key=lambda number: -shares[number])
    loudest, found = shares[meant[0]], [0] * len(words)
    for rank, number in enumerate(meant):
        level = sum(shares[number] >= least * loudest for least in _LEVELS)
        found[number] = level if rank < _MOST else min(level, QUOTED - 1)
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
    if not once:
        return None
    *others, last = list(once.values())[::-1]
    return f"{', '.join(others)} and {last}" if others else last


def _means_something(text: str) -> bool:
    return text.lower() not in _LITTLE.split() and not set(text) <= set(string.punctuation)
