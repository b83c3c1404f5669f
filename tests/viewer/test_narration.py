"""What is said of a trace: captions, marked words, headlines, summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenemem.formats.traces import Decision, Ending, Memory, Move, Option, Scores, Trace, Word
from scenemem.viewer.narration import QUOTED, DrawnWalk, Marks, compared, levels, quoted

change = msgspec.structs.replace


def captions(trace: Trace, room_of: dict[int, str] | None = None) -> Sequence[str]:
    return DrawnWalk.of(trace, room_of or {}).captions


def _with_move(trace: Trace, number: int, **changes: object) -> Trace:
    moves = list(trace.moves)
    moves[number] = change(moves[number], **changes)
    return change(trace, moves=tuple(moves))


def _told(trace: Trace, number: int, **changes: object) -> str:
    """The caption of a move that is changed."""
    return captions(_with_move(trace, number, **changes))[number]


def _after(trace: Trace, number: int, ending: Ending | None = None, **changes: object) -> Sequence[str]:
    """What is told when the walk ends with a changed move."""
    moves = (*trace.moves[:number], change(trace.moves[number], **changes))
    return captions(change(trace, moves=moves, ending=ending))


def _with_chances(decision: Decision, *chances: float, choice: int = 0) -> Decision:
    pairs = zip(decision.options, chances, strict=True)
    options = tuple(change(option, probability=chance) for option, chance in pairs)
    return change(decision, options=options, choice=choice)


def test_every_move_and_the_end_are_told(turning_back: Trace) -> None:
    assert captions(turning_back, {1: "hallway", 3: "kitchen"}) == [
        "Move 1: it goes east to new place A (hallway), 90 % sure. "
        "View words: “sofa”; direction words: “Go”.",
        "Move 2: it goes east to new place B, 60 % sure. View words: “sofa”; direction words: “Go”.",
        "Move 3: it is in a dead end (no unvisited neighbour) and turns back to place 2 (hallway), "
        "2.0 m back on its map, 80 % sure, mainly because of the view. "
        "View words: “sofa”; direction words: “Go”.\n"
        "From there it goes north to new place A (kitchen), 75 % sure. "
        "View words: “past”; direction words: “sofa”.",
        "Move 4: it goes north to new place A, the only option. No word stands out.",
        "Move 5: it stops, the only option: it has no unvisited neighbour. No word stands out.",
        "The end: it stopped 0.0 m from the goal: a success (less than 3 m is needed). "
        "It walked 11.6 m and turned back once.",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"visual": 0.5, "geometric": 9.0, "logit": 5.0}, "80 % sure, mainly because of the direction. View"),
        ({"visual": -0.5, "geometric": -3.0, "logit": 5.0}, "80 % sure, mainly because of the hints. View"),
        ({"visual": -0.5, "logit": 5.0}, "80 % sure, mainly because of the hints. View"),
        ({"visual": None}, "2.0 m back on its map, 80 % sure. View words"),
        ({"visual": 0.5, "logit": 1.0}, "2.0 m back on its map, 80 % sure. View words"),
        ({"walk": None}, "turns back to place 2, 80 % sure, mainly because of the view."),
    ],
)
def test_the_strongest_cue_is_the_reason(
    changes: dict[str, object], reason: str, turning_back: Trace
) -> None:
    back, north = turning_back.moves[2].decisions
    back = change(back, options=(change(back.options[0], **changes), back.options[1]))
    told, spoken = _told(turning_back, 2, decisions=(back, north)), compared(back)
    assert reason in told
    assert spoken is None or ("of the view. " in told.split("\n")[0]) == (spoken[0] == max(spoken) > 0)


def test_near_ties_are_close_calls(turning_back: Trace) -> None:
    def told(number: int, *decisions: Decision) -> str:
        return _told(turning_back, number, decisions=decisions)

    first, (back, north) = turning_back.moves[0].decisions[0], turning_back.moves[2].decisions
    tie = "to new place A, a close call (54 % against 46 % for stopping)."
    assert tie in told(0, _with_chances(first, 0.54, 0.46))
    tie = "2.0 m back on its map, a close call (52 % against 48 % for staying here), mainly"
    assert tie in told(2, _with_chances(back, 0.52, 0.48), north)
    three = change(back, options=(*back.options, Option(0, 0.0, 0.0, node=0)))
    tie = "a close call (45 % against 40 % for place 1)"
    assert tie in told(2, _with_chances(three, 0.45, 0.15, 0.4), north)
    alone = change(back, options=(change(back.options[0], probability=1.0),))
    assert "2.0 m back on its map, the only option. View words" in told(2, alone, north)


def test_stopping_quotes_the_words_that_are_marked(turning_back: Trace) -> None:
    stop = _with_chances(turning_back.moves[0].decisions[0], 0.1, 0.9, choice=1)
    assert _after(turning_back, 0, walk=(0,), decisions=(stop,)) == [
        "Move 1: it stops, 90 % sure. View words: “sofa”; direction words: “Go”."
    ]
    only = Decision("action", (Option(2, 1.0, 0.0, stop=True, node=2),), 0)
    stay = _with_chances(turning_back.moves[2].decisions[0], 0.2, 0.8, choice=1)
    assert _after(turning_back, 2, walk=(2,), decisions=(stay, only))[2] == (
        "Move 3: it stops, the only option: it has no unvisited neighbour."
    )


def test_what_is_not_there_is_not_told(turning_back: Trace) -> None:
    first = turning_back.moves[0].decisions[0]
    plain = change(first, attention=None, weights=None)
    told = _told(turning_back, 0, decisions=(plain,), memory=None)
    assert told == "Move 1: it goes east to new place A, 90 % sure."
    assert compared(plain) is None
    memory = change(turning_back.moves[2].memory, frontier=(False, True, True))  # type: ignore[type-var]
    told = _told(turning_back, 2, memory=memory)
    assert told.startswith("Move 3: it turns back to place 2"), "no dead end"
    on, stop = (change(option, visual=0.0, geometric=0.0) for option in first.options)
    against = change(first, options=(change(on, logit=0.0), change(stop, logit=-2.0)))
    told = _told(turning_back, 0, decisions=(against,))
    assert ", mainly because its memory speaks against stopping here." in told


def test_going_back_in_one_step_and_being_cut_off_have_their_words(turning_back: Trace) -> None:
    north = Option(3, 1.0, 0.0, node=1, walk=4.0, heading=0.0, compass="north")
    assert _told(turning_back, 2, decisions=(Decision("global", (north,), 0),)) == (
        "Move 3: it is in a dead end (no unvisited neighbour) and turns back to place 2. "
        "From there it goes north to new place A, the only option."
    )
    lost = Ending(False, 1, None, 5.6, Scores(6.0, 5.6, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.0))
    back = turning_back.moves[2].decisions[0]
    told = _after(turning_back, 2, lost, walk=(2, 1), decisions=(back,))
    assert told[2].endswith("View words: “sofa”; direction words: “Go”.")
    assert told[3] == (
        "The end: it was cut off after 3 moves 5.6 m from the goal: a failure (less than 3 m is needed). "
        "It walked 6.0 m and turned back once."
    )
    told = _after(turning_back, 2, walk=(2,), decisions=(change(back, choice=1),))
    assert told[2:] == ["Move 3: it stays where it is."], "an episode under way has no end"


def test_running_out_of_decisions_has_its_words(turning_back: Trace) -> None:
    back = Decision("final", (Option(1, 0.7, 0.0, node=1), Option(2, 0.3, -0.8, node=2)), 0)
    here = change(back, choice=1)
    assert _after(turning_back, 2, decisions=(back,), walk=(2, 1))[2] == (
        "Move 3: no decisions are left; it goes back to place 2 and stops there, "
        "the place it rates best for stopping."
    )
    assert "place 2 but is cut off on the way" in _after(turning_back, 2, decisions=(back,), walk=(2,))[2]
    assert "it stops where it is, the place" in _after(turning_back, 2, decisions=(here,), walk=(2,))[2]


def test_unvisited_choices_are_lettered_clockwise_and_letters_never_run_out(turning_back: Trace) -> None:
    assert DrawnWalk.of(turning_back, {}).letters == [{1: "A"}, {3: "A", 2: "B"}, {3: "A"}, {4: "A"}, {}]
    places = tuple(change(turning_back.scene.places[0], id=str(n)) for n in range(60))
    options = tuple(Option(n, 1 / 55, 0.0, node=0, heading=0.1 * n) for n in range(1, 56))
    move = Move(0.0, (0,), (Decision("global", options, 0),), Memory(0, (0,), (True,), (), ()))
    scene = change(turning_back.scene, places=places)
    names = DrawnWalk.of(change(turning_back, scene=scene, moves=(move,), ending=None), {}).letters[0]
    assert len(set(names.values())) == 55
    assert (names[1], names[26], names[27], names[53]) == ("A", "Z", "AA", "BA")


WORDS = (Word("Go"), *(Word(text, " ") for text in ("past", "the", "red", "sofa", ",")))
TEXTS = st.sampled_from(["Go", "past", "the", "sofa", "left", "wall", ",", ".", "after"])


def test_marks_grow_with_attention_and_leave_little_words_and_punctuation() -> None:
    shares = (0.5, 0.2, 0.6, 0.1, 0.0, 0.9)
    assert levels(WORDS, shares) == (3, 2, 0, 1, 0, 0)
    assert quoted(WORDS, levels(WORDS, shares)) == "“Go”"
    assert quoted(WORDS, (3, 0, 0, 3, 3, 0)) == "“Go” and “red sofa”", "neighbours together"
    spoken = ("wall", "mirror", "then", "Wall", "mirror", "by", "sofa", "or", "go")
    repeated = tuple(Word(text, " ") for text in spoken)
    assert quoted(repeated, (3, 3, 0, 3, 3, 0, 3, 0, 3)) == "“wall mirror”, “sofa” and “go”"
    assert levels(WORDS, (0.1, 0.0, 0.6, 0.0, 0.0, 0.3)) == (0,) * 6, "on nothing that means something"
    assert quoted(WORDS, (0,) * 6) is None
    assert levels((Word("!"),), (1.0,)) == (0,)
    assert levels((), ()) == ()


@given(st.lists(st.tuples(TEXTS, st.floats(0.0, 1.0)), min_size=1, max_size=12))
def test_at_most_four_words_are_quoted_and_none_stronger_is_left_out(
    attended: list[tuple[str, float]],
) -> None:
    words, shares = [Word(text, " ") for text, _ in attended], [share for _, share in attended]
    found = levels(words, shares)
    strong = [share for share, level in zip(shares, found, strict=True) if level == QUOTED]
    others = [
        share
        for (text, share), level in zip(attended, found, strict=True)
        if level != QUOTED and text not in ("the", ",", ".", "after")
    ]
    assert len(strong) <= 4
    assert (quoted(words, found) is None) == (not strong)
    assert not strong or min(strong) >= max(others, default=0.0)


def test_every_decision_marks_the_words_its_sentence_quotes(turning_back: Trace) -> None:
    walk = DrawnWalk.of(turning_back, {})
    first, second = walk.marks[2]
    assert first == Marks((0, 0, 0, 3, 0), (3, 2, 0, 0, 0))
    assert second == Marks((0, 3, 0, 0, 0), (0, 0, 0, 3, 0))
    for move, told in zip(walk.marks, walk.captions, strict=False):
        for mark, sentence in zip(move, told.split("\n"), strict=True):
            assert mark is not None
            words = [quoted(turning_back.task.words, kind) for kind in (mark.view, mark.direction)]
            assert all((word or "No word stands out") in sentence for word in words)


TURNED = "At move 3 it turned back to place 2 (hall)"
MENDED = f"{TURNED}; at move 5 it stopped at the goal."
NEVER = "It never turned back and stopped"
PASSED = "It came within 0.0 m of the goal at move 4, walked on and stopped 7.0 m from the goal."
LEFT = "It left the described path at move 2, never came nearer than 5.6 m"
CUT = f"{LEFT} and was cut off after 2 moves 9.0 m from the goal."


def _ended(
    trace: Trace, to_goal: float | None, rates: Sequence[float] = (0, 0.0), stopped: bool = True
) -> DrawnWalk:
    """A walk that ends so far from the goal; its OSR and SPL."""
    scores = None
    if to_goal is not None:
        osr, spl = rates
        scores = Scores(6.0, to_goal, float(to_goal < 3), osr, spl, 1.0, 1.0, 1.0, 1.0)
    walk = DrawnWalk.of(change(trace, ending=Ending(stopped, 4, None, to_goal, scores)), {1: "hall"})
    assert walk.scores == scores
    return walk


@pytest.mark.parametrize(
    ("moves", "ending", "headline", "story"),
    [
        (5, (0.0, (1, 0.5)), "Turned back and reached the goal", MENDED),
        (2, (1.2, (1, 0.5)), "Reached the goal", f"{NEVER} 1.2 m from the goal."),
        (2, (1.2, (1, 1.0)), "Went straight to the goal", f"{NEVER} 1.2 m from the goal."),
        (5, (7.0, (1, 0.0)), "Passed the goal without stopping", PASSED),
        (2, (9.0,), "Stopped 9.0 m from the goal", f"{LEFT} and stopped 9.0 m from the goal."),
        (2, (9.0, (0, 0.0), False), "Cut off before it stopped", CUT),
        (2, (None,), "Stopped", f"{NEVER}."),
        (5, (None, (), False), "Cut off before it stopped", f"{TURNED}; it was cut off after 5 moves."),
    ],
)
def test_an_episode_has_a_headline_and_is_one_sentence(
    moves: int, ending: tuple[Any, ...], headline: str, story: str, turning_back: Trace
) -> None:
    trace = change(turning_back, moves=turning_back.moves[:moves])
    walk = _ended(trace, *ending)
    assert (walk.headline, walk.story) == (headline, story)
    if ending == (None,):
        assert walk.captions[-1] == "The end: it stopped. Without a known goal it is not scored."
    under_way = DrawnWalk.of(change(trace, ending=None), {})
    assert (under_way.headline, under_way.story) == ("Walking", "")


def test_several_returns_are_counted(turning_back: Trace) -> None:
    there = change(turning_back.moves[1], walk=(3, 1, 2))
    again = change(turning_back.moves[2], walk=(2, 1, 3))
    first = turning_back.moves[:3]
    assert _ended(change(turning_back, moves=(*first, there, again)), 3.6).story == (
        "It turned back 2 times (at moves 3 and 5) and stopped 3.6 m from the goal."
    )
    search = change(turning_back, moves=(*first, *[there, again] * 4))
    told = "It turned back 5 times (first at move 3), never came nearer than 3.6 m and stopped 7.0 m"
    assert _ended(search, 7.0).story.startswith(told)
