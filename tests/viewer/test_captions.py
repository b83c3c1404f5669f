from __future__ import annotations

import msgspec
import pytest

from scenemem.formats.traces import Attention, Decision, Ending, Memory, Option, Round, Scores, Trace, Word
from scenemem.viewer.captions import captions, cues, letters, quoted
from scenemem.viewer.stories import headline


def _with_round(trace: Trace, number: int, turn: Round) -> Trace:
    rounds = [*trace.rounds[:number], turn, *trace.rounds[number + 1 :]]
    return msgspec.structs.replace(trace, rounds=tuple(rounds))


def test_every_round_and_the_end_are_told(turning_back: Trace) -> None:
    assert captions(turning_back, {1: "hallway", 3: "kitchen"}) == [
        "Round 1: it goes east to new place A (hallway), 90 % sure, looking for “sofa” and told to move by "
        "“Go past”.",
        "Round 2: it goes east to new place B, 60 % sure, looking for “sofa” and told to move by “Go past”.",
        "Round 3: it turns back to place 2 (hallway), 2.0 m back on its map, because what it saw there fits "
        "“sofa” better than what is here (80 % against 20 % for going on from here). From there it goes "
        "north to new place A (kitchen), 75 % sure, looking for “sofa” and told to move by “Go past”.",
        "Round 4: it goes north to new place A, 100 % sure, with no word left to follow.",
        "Round 5: it stops, 100 % sure, with no word left to follow.",
        "The end: it stopped 0.0 m from the goal, under 3 m, so this counts as a success. "
        "It walked 11.6 m and turned back once.",
    ]


def _returning(trace: Trace, **changes: object) -> Trace:
    """The trace with another reason to go back."""
    turn = trace.rounds[2]
    back, north = turn.decisions
    options = (msgspec.structs.replace(back.options[0], **changes), back.options[1])
    decision = msgspec.structs.replace(back, options=options)
    return _with_round(trace, 2, msgspec.structs.replace(turn, decisions=(decision, north)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"visual": 0.5, "geometric": 9.0, "logit": 5.0},
            "because the way it lies fits “Go past”",
        ),
        (
            {"visual": 0.5, "geometric": 1.0, "logit": 5.0},
            "because a place it had left unvisited there",
        ),
        ({"visual": None}, "turns back to place 2, 2.0 m back on its map (80 % against"),
        ({"walk": None}, "turns back to place 2, because what it saw there"),
    ],
)
def test_the_strongest_cue_is_the_reason(
    changes: dict[str, object], reason: str, turning_back: Trace
) -> None:
    assert reason in captions(_returning(turning_back, **changes), {})[2]


def test_an_agent_without_attention_is_told_without_words(turning_back: Trace) -> None:
    turn = turning_back.rounds[0]
    plain = msgspec.structs.replace(turn.decisions[0], attention=None, weights=None)
    first = msgspec.structs.replace(turn, decisions=(plain,), memory=None)
    assert (
        captions(_with_round(turning_back, 0, first), {})[0]
        == "Round 1: it goes east to new place A, 90 % sure."
    )
    assert cues(plain, plain.options[0]) is None


def test_going_back_in_one_step_and_being_cut_off_have_their_words(turning_back: Trace) -> None:
    turn = turning_back.rounds[2]
    at_once = Decision("anywhere", (Option(3, 1.0, 0.0, node=1, heading=0.0, compass="north"),), 0)
    told = captions(_with_round(turning_back, 2, msgspec.structs.replace(turn, decisions=(at_once,))), {})
    assert (
        told[2] == "Round 3: it turns back to place 2. From there it goes north to new place A, 100 % sure."
    )
    lost = Ending(False, 1, None, 5.6, Scores(6.0, 5.6, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.0))
    cut = msgspec.structs.replace(turn, walk=(2, 1), decisions=turn.decisions[:1])
    short = msgspec.structs.replace(turning_back, rounds=(*turning_back.rounds[:2], cut), ending=lost)
    told = captions(short, {})
    assert told[2].endswith("(80 % against 20 % for going on from here).")
    assert told[3] == (
        "The end: it was cut off after 3 rounds 5.6 m from the goal, not under 3 m, "
        "so this counts as a failure. It walked 6.0 m and turned back once."
    )
    stays = msgspec.structs.replace(turn.decisions[0], choice=1)
    still = msgspec.structs.replace(cut, walk=(2,), decisions=(stays,))
    told = captions(msgspec.structs.replace(short, rounds=(*turning_back.rounds[:2], still), ending=None), {})
    assert told[2] == "Round 3: it stays where it is."
    assert len(told) == 3, "an episode under way has no end"


def test_secret_goals_are_not_judged(turning_back: Trace) -> None:
    secret = msgspec.structs.replace(turning_back, ending=Ending(True, 4))
    assert captions(secret, {})[-1] == "The end: it stopped. The goal is not public."
    assert headline(secret) == "Walked to an unknown goal"


def test_quotes_take_the_loudest_words_and_leave_punctuation(turning_back: Trace) -> None:
    assert quoted(turning_back, (0.0, 0.0, 0.0, 0.1, 0.9)) == "“sofa”"
    assert quoted(turning_back, (0.0, 0.3, 0.3, 0.4, 0.0)) == "“past the sofa”"
    assert quoted(turning_back, (0.1, 0.0, 0.0, 0.0, 0.0)) is None, "it listened to the marks"
    signs = msgspec.structs.replace(turning_back.task, words=(Word("!"),))
    silent = msgspec.structs.replace(turning_back, task=signs, rounds=())
    assert quoted(silent, (1.0,)) is None
    long = tuple(Word(word, " ") for word in ["a", "b", "c", "d", "e", "f"])
    many = msgspec.structs.replace(turning_back, task=msgspec.structs.replace(signs, words=long), rounds=())
    assert quoted(many, (0.16,) * 6) == "“a b c d”", "four words are enough"


def test_unvisited_choices_are_lettered_clockwise(turning_back: Trace) -> None:
    assert letters(turning_back) == [{1: "A"}, {3: "A", 2: "B"}, {3: "A"}, {4: "A"}, {}]


def test_letters_never_run_out(turning_back: Trace) -> None:
    places = tuple(msgspec.structs.replace(turning_back.scene.places[0], id=str(n)) for n in range(60))
    options = tuple(Option(n, 1 / 55, 0.0, node=0, heading=0.1 * n) for n in range(1, 56))
    turn = Round(0.0, (0,), (Decision("anywhere", options, 0),), Memory(0, (0,), (True,), (), ()))
    scene = msgspec.structs.replace(turning_back.scene, places=places)
    names = letters(msgspec.structs.replace(turning_back, scene=scene, rounds=(turn,), ending=None))[0]
    assert len(set(names.values())) == 55
    assert (names[1], names[26], names[27], names[53]) == ("A", "Z", "AA", "BA")


@pytest.mark.parametrize(
    ("to_goal", "osr", "stopped", "words"),
    [
        (1.0, 1.0, True, "Turned back and arrived"),
        (9.0, 1.0, True, "Was there and did not stop"),
        (9.0, 0.0, True, "Got lost"),
        (9.0, 0.0, False, "Ran out of rounds"),
    ],
)
def test_headlines(to_goal: float, osr: float, stopped: bool, words: str, turning_back: Trace) -> None:
    scores = Scores(5.0, to_goal, float(to_goal < 3), osr, 0.0, 0.0, 0.0, 0.0, 0.0)
    ending = Ending(stopped, 4, None, to_goal, scores)
    assert headline(msgspec.structs.replace(turning_back, ending=ending)) == words


def test_headlines_without_going_back_or_under_way(turning_back: Trace) -> None:
    straight = msgspec.structs.replace(turning_back, rounds=turning_back.rounds[:1])
    assert headline(straight) == "Arrived"
    assert headline(msgspec.structs.replace(straight, ending=None)) == "On its way"


def test_attention_holds_shares() -> None:
    assert msgspec.convert({"perception": [0.5], "action": [1.0]}, Attention) == Attention((0.5,), (1.0,))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"perception": [1.5], "action": [1.0]}, Attention)
