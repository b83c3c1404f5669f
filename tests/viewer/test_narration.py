"""What is said of a trace: captions, marked words, headlines, summaries."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenemem.formats.traces import Attention, Decision, Ending, Memory, Option, Scores, Trace, Word
from scenemem.formats.traces import Move as Move
from scenemem.viewer.narration import (
    QUOTED,
    Marks,
    captions,
    compared,
    cues,
    headline,
    letters,
    levels,
    marks,
    quoted,
    summary,
)


def _with_move(trace: Trace, number: int, move: Move) -> Trace:
    moves = [*trace.moves[:number], move, *trace.moves[number + 1 :]]
    return msgspec.structs.replace(trace, moves=tuple(moves))


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
    move = trace.moves[2]
    back, north = move.decisions
    options = (msgspec.structs.replace(back.options[0], **changes), back.options[1])
    decision = msgspec.structs.replace(back, options=options)
    return _with_move(trace, 2, msgspec.structs.replace(move, decisions=(decision, north)))


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
            "scored (40 % for A on the last visit); the view and the direction count against it.",
        ),
        (
            {"visual": -0.5, "logit": 5.0},
            "on the last visit); the view counts against it.",
        ),
        ({"visual": None}, "2.0 m back on its map (80 % against 20 % for staying here). View words"),
        ({"visual": 0.5, "logit": 1.0}, "(80 % against 20 % for staying here). View words"),
        ({"walk": None}, "turns back to place 2 (80 % against 20 % for staying here). What counts"),
    ],
)
def test_the_strongest_cue_is_the_reason(
    changes: dict[str, object], reason: str, turning_back: Trace
) -> None:
    trace = _returning(turning_back, **changes)
    assert reason in captions(trace, {})[2]
    spoken = compared(trace.moves[2].decisions[0])
    by_view = "What counts most is the view" in captions(trace, {})[2]
    assert spoken is None or by_view == (spoken[0] == max(spoken) > 0)


def test_facts_without_a_chance_to_remember_have_no_number(turning_back: Trace) -> None:
    trace = _returning(turning_back, visual=0.5, logit=5.0)
    at_once = msgspec.structs.replace(trace.moves[1].decisions[0], kind="global")
    trace = _with_move(trace, 1, msgspec.structs.replace(trace.moves[1], decisions=(at_once,)))
    assert "and how well its open ways scored. View words" in captions(trace, {})[2]


def _with_chances(decision: Decision, *chances: float, choice: int = 0) -> Decision:
    pairs = zip(decision.options, chances, strict=True)
    options = tuple(msgspec.structs.replace(option, probability=chance) for option, chance in pairs)
    return msgspec.structs.replace(decision, options=options, choice=choice)


def test_near_ties_are_close_calls(turning_back: Trace) -> None:
    first, _, third = turning_back.moves[:3]
    tie = msgspec.structs.replace(first, decisions=(_with_chances(first.decisions[0], 0.54, 0.46),))
    told = captions(_with_move(turning_back, 0, tie), {})[0]
    assert "to new place A, a close call (54 % against 46 % for stopping)." in told
    back, north = third.decisions
    tie = msgspec.structs.replace(third, decisions=(_with_chances(back, 0.52, 0.48), north))
    told = captions(_with_move(turning_back, 2, tie), {})[2]
    assert "(a close call, 52 % against 48 % for staying here)" in told
    three = tuple(
        msgspec.structs.replace(option, probability=chance)
        for option, chance in zip(
            (*back.options, Option(0, 0.0, 0.0, node=0)), (0.45, 0.15, 0.4), strict=True
        )
    )
    move = msgspec.structs.replace(third, decisions=(msgspec.structs.replace(back, options=three), north))
    told = captions(_with_move(turning_back, 2, move), {})[2]
    assert "(a close call, 45 % against 15 % for staying here and 40 % for place 1)" in told
    alone = msgspec.structs.replace(back.options[0], probability=1.0)
    move = msgspec.structs.replace(third, decisions=(msgspec.structs.replace(back, options=(alone,)), north))
    assert "2.0 m back on its map. View words" in captions(_with_move(turning_back, 2, move), {})[2]


def test_stopping_quotes_the_view_words(turning_back: Trace) -> None:
    first, third = turning_back.moves[0], turning_back.moves[2]
    stop = msgspec.structs.replace(
        first, walk=(0,), decisions=(_with_chances(first.decisions[0], 0.1, 0.9, choice=1),)
    )
    short = msgspec.structs.replace(turning_back, moves=(stop,), ending=None)
    assert captions(short, {}) == ["Move 1: it stops, 90 % sure. View words: “sofa”."]
    only = Decision("action", (Option(2, 1.0, 0.0, stop=True, node=2),), 0)
    stay = _with_chances(third.decisions[0], 0.2, 0.8, choice=1)
    dead_end = msgspec.structs.replace(third, walk=(2,), decisions=(stay, only))
    moves = (*turning_back.moves[:2], dead_end)
    assert captions(msgspec.structs.replace(turning_back, moves=moves, ending=None), {})[2] == (
        "Move 3: it stops, the only option: it has no unvisited neighbour, "
        "and it does not turn back to place 2 (20 % against 80 %)."
    )


def test_going_back_to_what_is_no_dead_end(turning_back: Trace) -> None:
    move = turning_back.moves[2]
    assert move.memory is not None
    memory = msgspec.structs.replace(move.memory, frontier=(False, True, True))
    told = captions(_with_move(turning_back, 2, msgspec.structs.replace(move, memory=memory)), {})[2]
    assert told.startswith("Move 3: it turns back to place 2")
    assert "20 % for going on from here)" in told


def test_an_agent_without_attention_is_told_without_words(turning_back: Trace) -> None:
    move = turning_back.moves[0]
    plain = msgspec.structs.replace(move.decisions[0], attention=None, weights=None)
    first = msgspec.structs.replace(move, decisions=(plain,), memory=None)
    assert (
        captions(_with_move(turning_back, 0, first), {})[0]
        == "Move 1: it goes east to new place A, 90 % sure."
    )
    assert cues(plain, plain.options[0]) is None


def test_going_back_in_one_step_and_being_cut_off_have_their_words(turning_back: Trace) -> None:
    move = turning_back.moves[2]
    north = Option(3, 1.0, 0.0, node=1, walk=4.0, heading=0.0, compass="north")
    at_once = Decision("global", (north,), 0)
    told = captions(_with_move(turning_back, 2, msgspec.structs.replace(move, decisions=(at_once,))), {})
    assert (
        told[2] == "Move 3: it is in a dead end (no unvisited neighbour) and turns back to place 2. "
        "From there it goes north to new place A, the only option."
    )
    lost = Ending(False, 1, None, 5.6, Scores(6.0, 5.6, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.0))
    cut = msgspec.structs.replace(move, walk=(2, 1), decisions=move.decisions[:1])
    short = msgspec.structs.replace(turning_back, moves=(*turning_back.moves[:2], cut), ending=lost)
    told = captions(short, {})
    assert told[2].endswith("View words: “sofa”; direction words: “Go”.")
    assert told[3] == (
        "The end: it was cut off after 3 moves 5.6 m from the goal: a failure (less than 3 m is needed). "
        "It walked 6.0 m and turned back once."
    )
    stays = msgspec.structs.replace(move.decisions[0], choice=1)
    still = msgspec.structs.replace(cut, walk=(2,), decisions=(stays,))
    told = captions(msgspec.structs.replace(short, moves=(*turning_back.moves[:2], still), ending=None), {})
    assert told[2] == "Move 3: it stays where it is."
    assert len(told) == 3, "an episode under way has no end"


def test_running_out_of_decisions_has_its_words(turning_back: Trace) -> None:
    def told(last: Move) -> str:
        moves = (*turning_back.moves[:2], last)
        return captions(msgspec.structs.replace(turning_back, moves=moves, ending=None), {})[2]

    back = Decision("final", (Option(1, 0.7, 0.0, node=1), Option(2, 0.3, -0.8, node=2)), 0)
    arrives = msgspec.structs.replace(turning_back.moves[2], decisions=(back,), walk=(2, 1))
    assert arrives.stops
    assert told(arrives) == (
        "Move 3: no decisions are left; it goes back to place 2 and stops there, "
        "the place it rates best for stopping."
    )
    cut_off = msgspec.structs.replace(arrives, walk=(2,))
    assert not cut_off.stops
    assert "place 2 but is cut off on the way" in told(cut_off)
    here = msgspec.structs.replace(cut_off, decisions=(msgspec.structs.replace(back, choice=1),))
    assert here.stops
    assert "it stops where it is, the place" in told(here)


def test_secret_goals_are_not_judged(turning_back: Trace) -> None:
    secret = msgspec.structs.replace(turning_back, ending=Ending(True, 4))
    assert captions(secret, {})[-1] == "The end: it stopped. The goal is not public."
    assert headline(secret) == "Walked to an unknown goal"


def test_unvisited_choices_are_lettered_clockwise(turning_back: Trace) -> None:
    assert letters(turning_back) == [{1: "A"}, {3: "A", 2: "B"}, {3: "A"}, {4: "A"}, {}]


def test_letters_never_run_out(turning_back: Trace) -> None:
    places = tuple(msgspec.structs.replace(turning_back.scene.places[0], id=str(n)) for n in range(60))
    options = tuple(Option(n, 1 / 55, 0.0, node=0, heading=0.1 * n) for n in range(1, 56))
    move = Move(0.0, (0,), (Decision("global", options, 0),), Memory(0, (0,), (True,), (), ()))
    scene = msgspec.structs.replace(turning_back.scene, places=places)
    names = letters(msgspec.structs.replace(turning_back, scene=scene, moves=(move,), ending=None))[0]
    assert len(set(names.values())) == 55
    assert (names[1], names[26], names[27], names[53]) == ("A", "Z", "AA", "BA")


@pytest.mark.parametrize(
    ("to_goal", "osr", "stopped", "words"),
    [
        (1.0, 1.0, True, "Turned back and reached the goal"),
        (9.0, 1.0, True, "Passed the goal without stopping"),
        (9.0, 0.0, True, "Did not find the goal"),
        (9.0, 0.0, False, "Cut off before it stopped"),
    ],
)
def test_headlines(to_goal: float, osr: float, stopped: bool, words: str, turning_back: Trace) -> None:
    scores = Scores(5.0, to_goal, float(to_goal < 3), osr, 0.0, 0.0, 0.0, 0.0, 0.0)
    ending = Ending(stopped, 4, None, to_goal, scores)
    assert headline(msgspec.structs.replace(turning_back, ending=ending)) == words


def test_headlines_without_going_back_or_under_way(turning_back: Trace) -> None:
    straight = msgspec.structs.replace(turning_back, moves=turning_back.moves[:1])
    assert headline(straight) == "Reached the goal"
    assert headline(msgspec.structs.replace(straight, ending=None)) == "Walking"


def test_attention_holds_shares() -> None:
    assert msgspec.convert({"perception": [0.5], "action": [1.0]}, Attention) == Attention((0.5,), (1.0,))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"perception": [1.5], "action": [1.0]}, Attention)


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
    first, second = marks(turning_back)[2]
    assert first == Marks((0, 0, 0, 3, 0), (3, 2, 0, 0, 0))
    assert second == Marks((0, 3, 0, 0, 0), (0, 0, 0, 3, 0))
    for move, told in zip(marks(turning_back), captions(turning_back, {}), strict=False):
        for mark, sentence in zip(move, told.split("\n"), strict=True):
            assert mark is not None
            words = [quoted(turning_back.task.words, kind) for kind in (mark.view, mark.direction)]
            assert all((word or "No word stands out") in sentence for word in words)


def _ending(trace: Trace, to_goal: float | None, *, stopped: bool = True) -> Trace:
    near = to_goal is not None and to_goal < 3
    scores = None if to_goal is None else Scores(6.0, to_goal, near, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    return msgspec.structs.replace(trace, ending=Ending(stopped, 4, None, to_goal, scores))


def _without_return(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, moves=trace.moves[:2])


@pytest.mark.parametrize(
    ("returns", "to_goal", "stopped", "told"),
    [
        (
            True,
            0.0,
            True,
            "At move 3 it turned back to place 2 (hall); at move 5 it stopped at the goal.",
        ),
        (False, 1.2, True, "It never turned back and stopped 1.2 m from the goal."),
        (
            True,
            7.0,
            True,
            "It came within 0.0 m of the goal at move 4, walked on and stopped 7.0 m from the goal.",
        ),
        (
            False,
            9.0,
            True,
            "It left the described path at move 2, never came nearer than 5.6 m and stopped 9.0 m "
            "from the goal.",
        ),
        (
            False,
            9.0,
            False,
            "It left the described path at move 2, never came nearer than 5.6 m and was cut off "
            "after 2 moves 9.0 m from the goal.",
        ),
        (False, None, True, "It never turned back and stopped."),
        (
            True,
            None,
            False,
            "At move 3 it turned back to place 2 (hall); it was cut off after 5 moves.",
        ),
    ],
)
def test_an_episode_is_one_sentence(
    returns: bool, to_goal: float | None, stopped: bool, told: str, turning_back: Trace
) -> None:
    trace = turning_back if returns else _without_return(turning_back)
    assert summary(_ending(trace, to_goal, stopped=stopped), {1: "hall"}) == told


def test_several_returns_are_counted(turning_back: Trace) -> None:
    there = msgspec.structs.replace(turning_back.moves[1], walk=(3, 1, 2))
    again = msgspec.structs.replace(turning_back.moves[2], walk=(2, 1, 3))
    moves = (*turning_back.moves[:3], there, again)
    trace = _ending(msgspec.structs.replace(turning_back, moves=moves), 3.6)
    turned = "It turned back 2 times (at moves 3 and 5)"
    assert summary(trace, {}) == f"{turned}, never came nearer than 3.6 m and stopped 3.6 m from the goal."
    assert summary(msgspec.structs.replace(trace, ending=None), {}) == "", "it is not over"
    search = msgspec.structs.replace(trace, moves=(*moves[:3], *[there, again] * 4))
    assert summary(search, {}).startswith("It turned back 5 times (first at move 3), never came nearer")


def test_a_straight_way_has_its_headline(turning_back: Trace) -> None:
    assert headline(_ending(_without_return(turning_back), 1.0)) == "Went straight to the goal"


def test_a_memory_that_speaks_against_stopping_is_a_reason_to_go_on(turning_back: Trace) -> None:
    first = turning_back.moves[0]
    decision = first.decisions[0]
    on, stop = (msgspec.structs.replace(option, visual=0.0, geometric=0.0) for option in decision.options)
    options = (msgspec.structs.replace(on, logit=0.0), msgspec.structs.replace(stop, logit=-2.0))
    move = msgspec.structs.replace(first, decisions=(msgspec.structs.replace(decision, options=options),))
    trace = msgspec.structs.replace(turning_back, moves=(move, *turning_back.moves[1:]))
    assert ", mainly because its memory speaks against stopping here." in captions(trace, {})[0]
