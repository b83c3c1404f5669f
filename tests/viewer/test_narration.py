"""What is said of a trace: captions, marked words, headlines, summaries."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenemem.formats.traces import Decision, Ending, Memory, Option, Scores, Trace, Word
from scenemem.formats.traces import Move as Move
from scenemem.viewer.narration import QUOTED, Marks, Walk, compared, cues, levels, quoted

change = msgspec.structs.replace


def captions(trace: Trace, room_of: dict[int, str] | None = None) -> Sequence[str]:
    return Walk.of(trace, room_of or {}).captions


def _with_move(trace: Trace, number: int, **changes: object) -> Trace:
    moves = list(trace.moves)
    moves[number] = change(moves[number], **changes)
    return change(trace, moves=tuple(moves))


def test_every_move_and_the_end_are_told(turning_back: Trace) -> None:
    assert captions(turning_back, {1: "hallway", 3: "kitchen"}) == [
        "Move 1: it goes east to new place A (hallway), 90 % sure. "
        "View words: “sofa”; direction words: “Go”.",
        "Move 2: it goes east to new place B, 60 % sure. View words: “sofa”; direction words: “Go”.",
        "Move 3: it is in a dead end (no unvisited neighbour) and turns back to place 2 (hallway), "
        "2.0 m back on its map (80 % against 20 % for staying here). What counts most is the view: what "
        "it saw there matches the shaded words. View words: “sofa”; direction words: “Go”.\n"
        "From there it goes north to new place A (kitchen), 75 % sure. "
        "View words: “past”; direction words: “sofa”.",
        "Move 4: it goes north to new place A, the only option. No word stands out.",
        "Move 5: it stops, the only option: it has no unvisited neighbour. No word stands out.",
        "The end: it stopped 0.0 m from the goal: a success (less than 3 m is needed). "
        "It walked 11.6 m and turned back once.",
    ]


def _returning(trace: Trace, **changes: object) -> Trace:
    """The trace with another reason to go back."""
    back, north = trace.moves[2].decisions
    options = (change(back.options[0], **changes), back.options[1])
    return _with_move(trace, 2, decisions=(change(back, options=options), north))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"visual": 0.5, "geometric": 9.0, "logit": 5.0},
            "What counts most is the direction: where it lies matches the underlined words.",
        ),
        (
            {"visual": -0.5, "geometric": -3.0, "logit": 5.0},
            "What counts most are the hints: how near and how recent it is, and how well its open ways "
            "scored; the view and the direction count against it.",
        ),
        ({"visual": -0.5, "logit": 5.0}, "open ways scored; the view counts against it."),
        ({"visual": None}, "2.0 m back on its map (80 % against 20 % for staying here). View words"),
        ({"visual": 0.5, "logit": 1.0}, "(80 % against 20 % for staying here). View words"),
        ({"walk": None}, "turns back to place 2 (80 % against 20 % for staying here). What counts"),
    ],
)
def test_the_strongest_cue_is_the_reason(
    changes: dict[str, object], reason: str, turning_back: Trace
) -> None:
    trace = _returning(turning_back, **changes)
    told, spoken = captions(trace)[2], compared(trace.moves[2].decisions[0])
    assert reason in told
    assert spoken is None or ("the view: what" in told) == (spoken[0] == max(spoken) > 0)


def _with_chances(decision: Decision, *chances: float, choice: int = 0) -> Decision:
    pairs = zip(decision.options, chances, strict=True)
    options = tuple(change(option, probability=chance) for option, chance in pairs)
    return change(decision, options=options, choice=choice)


def test_near_ties_are_close_calls(turning_back: Trace) -> None:
    def told(number: int, *decisions: Decision) -> str:
        return captions(_with_move(turning_back, number, decisions=decisions))[number]

    first, (back, north) = turning_back.moves[0].decisions[0], turning_back.moves[2].decisions
    tie = told(0, _with_chances(first, 0.54, 0.46))
    assert "to new place A, a close call (54 % against 46 % for stopping)." in tie
    tie = told(2, _with_chances(back, 0.52, 0.48), north)
    assert "(a close call, 52 % against 48 % for staying here)" in tie
    three = change(back, options=(*back.options, Option(0, 0.0, 0.0, node=0)))
    tie = told(2, _with_chances(three, 0.45, 0.15, 0.4), north)
    assert "(a close call, 45 % against 15 % for staying here and 40 % for place 1)" in tie
    alone = change(back, options=(change(back.options[0], probability=1.0),))
    assert "2.0 m back on its map. View words" in told(2, alone, north)


def _after(trace: Trace, number: int, ending: Ending | None = None, **changes: object) -> Sequence[str]:
    """What is told when the walk ends with a changed move."""
    moves = (*trace.moves[:number], change(trace.moves[number], **changes))
    return captions(change(trace, moves=moves, ending=ending))


def test_stopping_quotes_the_view_words(turning_back: Trace) -> None:
    stop = _with_chances(turning_back.moves[0].decisions[0], 0.1, 0.9, choice=1)
    assert _after(turning_back, 0, walk=(0,), decisions=(stop,)) == [
        "Move 1: it stops, 90 % sure. View words: “sofa”."
    ]
    only = Decision("action", (Option(2, 1.0, 0.0, stop=True, node=2),), 0)
    stay = _with_chances(turning_back.moves[2].decisions[0], 0.2, 0.8, choice=1)
    assert _after(turning_back, 2, walk=(2,), decisions=(stay, only))[2] == (
        "Move 3: it stops, the only option: it has no unvisited neighbour, "
        "and it does not turn back to place 2 (20 % against 80 %)."
    )


def test_going_back_to_what_is_no_dead_end(turning_back: Trace) -> None:
    memory = change(turning_back.moves[2].memory, frontier=(False, True, True))  # type: ignore[type-var]
    told = captions(_with_move(turning_back, 2, memory=memory))[2]
    assert told.startswith("Move 3: it turns back to place 2")
    assert "20 % for going on from here)" in told


def test_an_agent_without_attention_is_told_without_words(turning_back: Trace) -> None:
    plain = change(turning_back.moves[0].decisions[0], attention=None, weights=None)
    told = captions(_with_move(turning_back, 0, decisions=(plain,), memory=None))
    assert told[0] == "Move 1: it goes east to new place A, 90 % sure."
    assert cues(plain, plain.options[0]) is None


def test_going_back_in_one_step_and_being_cut_off_have_their_words(turning_back: Trace) -> None:
    north = Option(3, 1.0, 0.0, node=1, walk=4.0, heading=0.0, compass="north")
    told = captions(_with_move(turning_back, 2, decisions=(Decision("global", (north,), 0),)))
    assert (
        told[2] == "Move 3: it is in a dead end (no unvisited neighbour) and turns back to place 2. "
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
    assert Walk.of(turning_back, {}).letters == [{1: "A"}, {3: "A", 2: "B"}, {3: "A"}, {4: "A"}, {}]
    places = tuple(change(turning_back.scene.places[0], id=str(n)) for n in range(60))
    options = tuple(Option(n, 1 / 55, 0.0, node=0, heading=0.1 * n) for n in range(1, 56))
    move = Move(0.0, (0,), (Decision("global", options, 0),), Memory(0, (0,), (True,), (), ()))
    scene = change(turning_back.scene, places=places)
    names = Walk.of(change(turning_back, scene=scene, moves=(move,), ending=None), {}).letters[0]
    assert len(set(names.values())) == 55
    assert (names[1], names[26], names[27], names[53]) == ("A", "Z", "AA", "BA")


@pytest.mark.parametrize(
    ("moves", "to_goal", "scores", "stopped", "words"),
    [
        (5, 1.0, (1.0, 0.5), True, "Turned back and reached the goal"),
        (1, 1.0, (1.0, 0.5), True, "Reached the goal"),
        (1, 1.0, (1.0, 1.0), True, "Went straight to the goal"),
        (5, 9.0, (1.0, 0.0), True, "Passed the goal without stopping"),
        (5, 9.0, (0.0, 0.0), True, "Stopped 9.0 m from the goal"),
        (5, 9.0, (0.0, 0.0), False, "Cut off before it stopped"),
        (5, None, None, True, "Walked to an unknown goal"),
    ],
)
def test_headlines(
    moves: int,
    to_goal: float | None,
    scores: tuple[float, float] | None,
    stopped: bool,
    words: str,
    turning_back: Trace,
) -> None:
    found = None
    if scores and to_goal:
        osr, spl = scores
        found = Scores(5.0, to_goal, float(to_goal < 3), osr, spl, 0.0, 0.0, 0.0, 0.0)
    trace = change(turning_back, moves=turning_back.moves[:moves])
    walk = Walk.of(change(trace, ending=Ending(stopped, 4, None, to_goal, found)), {})
    assert walk.headline == words
    assert walk.scores == found
    assert found or walk.captions[-1] == "The end: it stopped. Without a known goal it is not scored."
    under_way = Walk.of(change(trace, ending=None), {})
    assert (under_way.headline, under_way.story) == ("Walking", "")


WORDS = (Word("Go"), *(Word(text, " ") for text in ("past", "the", "red", "sofa", ",")))
TEXTS = st.sampled_from(["Go", "past", "the", "sofa", "left", "wall", ",", ".", "after"])


def test_marks_grow_with_attention_and_leave_little_words_and_punctuation() -> None:
    assert levels(WORDS, (0.5, 0.2, 0.6, 0.1, 0.0, 0.9)) == (3, 2, 0, 1, 0, 0)
    assert quoted(WORDS, levels(WORDS, (0.5, 0.2, 0.6, 0.1, 0.0, 0.9))) == "“Go”"


def test_attention_on_little_words_marks_nothing() -> None:
    assert levels(WORDS, (0.1, 0.0, 0.6, 0.0, 0.0, 0.3)) == (0,) * 6
    assert quoted(WORDS, (0,) * 6) is None
    assert levels((Word("!"),), (1.0,)) == (0,)
    assert levels((), ()) == ()


def test_neighbours_are_quoted_together_and_repeated_words_once() -> None:
    assert quoted(WORDS, (3, 0, 0, 3, 3, 0)) == "“Go” and “red sofa”"
    spoken = ("wall", "mirror", "then", "Wall", "mirror", "by", "sofa", "or", "go")
    many = tuple(Word(text, " ") for text in spoken)
    assert quoted(many, (3, 3, 0, 3, 3, 0, 3, 0, 3)) == "“wall mirror”, “sofa” and “go”"


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
    walk = Walk.of(turning_back, {})
    first, second = walk.marks[2]
    assert first == Marks((0, 0, 0, 3, 0), (3, 2, 0, 0, 0))
    assert second == Marks((0, 3, 0, 0, 0), (0, 0, 0, 3, 0))
    for move, told in zip(walk.marks, walk.captions, strict=False):
        for mark, sentence in zip(move, told.split("\n"), strict=True):
            assert mark is not None
            words = [quoted(turning_back.task.words, kind) for kind in (mark.view, mark.direction)]
            assert all((word or "No word stands out") in sentence for word in words)


TURNED = "At move 3 it turned back to place 2 (hall)"
PASSED = "It came within 0.0 m of the goal at move 4"
LEFT = "It left the described path at move 2, never came nearer than 5.6 m"


def _ending(trace: Trace, to_goal: float | None, *, stopped: bool = True) -> Trace:
    near = to_goal is not None and to_goal < 3
    scores = None if to_goal is None else Scores(6.0, to_goal, near, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    return change(trace, ending=Ending(stopped, 4, None, to_goal, scores))


@pytest.mark.parametrize(
    ("returns", "to_goal", "stopped", "told"),
    [
        (True, 0.0, True, f"{TURNED}; at move 5 it stopped at the goal."),
        (False, 1.2, True, "It never turned back and stopped 1.2 m from the goal."),
        (True, 7.0, True, f"{PASSED}, walked on and stopped 7.0 m from the goal."),
        (False, 9.0, True, f"{LEFT} and stopped 9.0 m from the goal."),
        (False, 9.0, False, f"{LEFT} and was cut off after 2 moves 9.0 m from the goal."),
        (False, None, True, "It never turned back and stopped."),
        (True, None, False, f"{TURNED}; it was cut off after 5 moves."),
    ],
)
def test_an_episode_is_one_sentence(
    returns: bool, to_goal: float | None, stopped: bool, told: str, turning_back: Trace
) -> None:
    trace = turning_back if returns else change(turning_back, moves=turning_back.moves[:2])
    assert Walk.of(_ending(trace, to_goal, stopped=stopped), {1: "hall"}).story == told


def test_several_returns_are_counted(turning_back: Trace) -> None:
    there = change(turning_back.moves[1], walk=(3, 1, 2))
    again = change(turning_back.moves[2], walk=(2, 1, 3))
    moves = (*turning_back.moves[:3], there, again)
    trace = _ending(change(turning_back, moves=moves), 3.6)
    turned = "It turned back 2 times (at moves 3 and 5)"
    told = f"{turned}, never came nearer than 3.6 m and stopped 3.6 m from the goal."
    assert Walk.of(trace, {}).story == told
    search = Walk.of(change(trace, moves=(*moves[:3], *[there, again] * 4)), {})
    assert search.story.startswith("It turned back 5 times (first at move 3), never came nearer")


def test_a_memory_that_speaks_against_stopping_is_a_reason_to_go_on(turning_back: Trace) -> None:
    decision = turning_back.moves[0].decisions[0]
    on, stop = (change(option, visual=0.0, geometric=0.0) for option in decision.options)
    options = (change(on, logit=0.0), change(stop, logit=-2.0))
    trace = _with_move(turning_back, 0, decisions=(change(decision, options=options),))
    assert ", mainly because its memory speaks against stopping here." in captions(trace)[0]
