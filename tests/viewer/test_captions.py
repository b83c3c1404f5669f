from __future__ import annotations

import msgspec
import pytest

from scenemem.formats.traces import Attention, Decision, Ending, Memory, Move, Option, Scores, Trace
from scenemem.viewer.captions import captions, compared, cues, letters
from scenemem.viewer.stories import headline


def _with_round(trace: Trace, number: int, turn: Move) -> Trace:
    rounds = [*trace.moves[:number], turn, *trace.moves[number + 1 :]]
    return msgspec.structs.replace(trace, moves=tuple(rounds))


def test_every_round_and_the_end_are_told(turning_back: Trace) -> None:
    assert captions(turning_back, {1: "hallway", 3: "kitchen"}) == [
        "Round 1: it goes east to new place A (hallway), 90 % sure. It looks for “sofa”; it moves by “Go”.",
        "Round 2: it goes east to new place B, 60 % sure. It looks for “sofa”; it moves by “Go”.",
        "Round 3: it is in a dead end (no unvisited place next to it) and turns back to place 2 (hallway), "
        "2.0 m back on its map (80 % against 20 % for staying here). Sight speaks most for it: what it saw "
        "there fits the shaded words. It looks for “sofa”; it moves by “Go”.\n"
        "From there it goes north to new place A (kitchen), 75 % sure. "
        "It looks for “past”; it moves by “sofa”.",
        "Round 4: it goes north to new place A, the only option. It follows no word in particular.",
        "Round 5: it stops, the only option here: no place next to it is unvisited. "
        "It looked for no word in particular.",
        "The end: it stopped 0.0 m from the goal, under 3 m, so this counts as a success. "
        "It walked 11.6 m and turned back once.",
    ]


def _returning(trace: Trace, **changes: object) -> Trace:
    """The trace with another reason to go back."""
    turn = trace.moves[2]
    back, north = turn.decisions
    options = (msgspec.structs.replace(back.options[0], **changes), back.options[1])
    decision = msgspec.structs.replace(back, options=options)
    return _with_round(trace, 2, msgspec.structs.replace(turn, decisions=(decision, north)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"visual": 0.5, "geometric": 9.0, "logit": 5.0},
            "Heading speaks most for it: where it lies fits the underlined words.",
        ),
        (
            {"visual": -0.5, "geometric": -3.0, "logit": 5.0},
            "Facts speak most for it: how near and how new it is, and how good the way on looked "
            "(40 % for A when it was last there); sight and heading speak against it.",
        ),
        (
            {"visual": -0.5, "logit": 5.0},
            "when it was last there); sight speaks against it.",
        ),
        ({"visual": None}, "2.0 m back on its map (80 % against 20 % for staying here). It looks for"),
        ({"visual": 0.5, "logit": 1.0}, "(80 % against 20 % for staying here). It looks for"),
        ({"walk": None}, "turns back to place 2 (80 % against 20 % for staying here). Sight"),
    ],
)
def test_the_strongest_cue_is_the_reason(
    changes: dict[str, object], reason: str, turning_back: Trace
) -> None:
    trace = _returning(turning_back, **changes)
    assert reason in captions(trace, {})[2]
    spoken = compared(trace.moves[2].decisions[0])
    assert spoken is None or ("Sight speaks most" in captions(trace, {})[2]) == (spoken[0] == max(spoken) > 0)


def test_facts_without_a_chance_to_remember_have_no_number(turning_back: Trace) -> None:
    trace = _returning(turning_back, visual=0.5, logit=5.0)
    at_once = msgspec.structs.replace(trace.moves[1].decisions[0], kind="global")
    trace = _with_round(trace, 1, msgspec.structs.replace(trace.moves[1], decisions=(at_once,)))
    assert "and how good the way on looked. It looks for" in captions(trace, {})[2]


def _with_chances(decision: Decision, *chances: float, choice: int = 0) -> Decision:
    pairs = zip(decision.options, chances, strict=True)
    options = tuple(msgspec.structs.replace(option, probability=chance) for option, chance in pairs)
    return msgspec.structs.replace(decision, options=options, choice=choice)


def test_near_ties_are_close_calls(turning_back: Trace) -> None:
    first, _, third = turning_back.moves[:3]
    tie = msgspec.structs.replace(first, decisions=(_with_chances(first.decisions[0], 0.54, 0.46),))
    told = captions(_with_round(turning_back, 0, tie), {})[0]
    assert "to new place A, a close call (54 % against 46 % for stopping)." in told
    back, north = third.decisions
    tie = msgspec.structs.replace(third, decisions=(_with_chances(back, 0.52, 0.48), north))
    told = captions(_with_round(turning_back, 2, tie), {})[2]
    assert "(a close call, 52 % against 48 % for staying here)" in told
    three = tuple(
        msgspec.structs.replace(option, probability=chance)
        for option, chance in zip(
            (*back.options, Option(0, 0.0, 0.0, node=0)), (0.45, 0.15, 0.4), strict=True
        )
    )
    turn = msgspec.structs.replace(third, decisions=(msgspec.structs.replace(back, options=three), north))
    told = captions(_with_round(turning_back, 2, turn), {})[2]
    assert "(a close call, 45 % against 15 % for staying here and 40 % for place 1)" in told
    alone = msgspec.structs.replace(back.options[0], probability=1.0)
    turn = msgspec.structs.replace(third, decisions=(msgspec.structs.replace(back, options=(alone,)), north))
    assert "2.0 m back on its map. It looks for" in captions(_with_round(turning_back, 2, turn), {})[2]


def test_stopping_says_what_it_looked_for(turning_back: Trace) -> None:
    first, third = turning_back.moves[0], turning_back.moves[2]
    stop = msgspec.structs.replace(
        first, walk=(0,), decisions=(_with_chances(first.decisions[0], 0.1, 0.9, choice=1),)
    )
    short = msgspec.structs.replace(turning_back, moves=(stop,), ending=None)
    assert captions(short, {}) == ["Round 1: it stops, 90 % sure. It looked for “sofa”."]
    only = Decision("action", (Option(2, 1.0, 0.0, stop=True, node=2),), 0)
    stay = _with_chances(third.decisions[0], 0.2, 0.8, choice=1)
    dead_end = msgspec.structs.replace(third, walk=(2,), decisions=(stay, only))
    rounds = (*turning_back.moves[:2], dead_end)
    assert captions(msgspec.structs.replace(turning_back, moves=rounds, ending=None), {})[2] == (
        "Round 3: it stops, the only option here: no place next to it is unvisited, "
        "and it does not turn back to place 2 (20 % against 80 %)."
    )


def test_going_back_to_what_is_no_dead_end(turning_back: Trace) -> None:
    turn = turning_back.moves[2]
    assert turn.memory is not None
    memory = msgspec.structs.replace(turn.memory, frontier=(False, True, True))
    told = captions(_with_round(turning_back, 2, msgspec.structs.replace(turn, memory=memory)), {})[2]
    assert told.startswith("Round 3: it turns back to place 2")
    assert "20 % for going on from here)" in told


def test_an_agent_without_attention_is_told_without_words(turning_back: Trace) -> None:
    turn = turning_back.moves[0]
    plain = msgspec.structs.replace(turn.decisions[0], attention=None, weights=None)
    first = msgspec.structs.replace(turn, decisions=(plain,), memory=None)
    assert (
        captions(_with_round(turning_back, 0, first), {})[0]
        == "Round 1: it goes east to new place A, 90 % sure."
    )
    assert cues(plain, plain.options[0]) is None


def test_going_back_in_one_step_and_being_cut_off_have_their_words(turning_back: Trace) -> None:
    turn = turning_back.moves[2]
    at_once = Decision("global", (Option(3, 1.0, 0.0, node=1, heading=0.0, compass="north"),), 0)
    told = captions(_with_round(turning_back, 2, msgspec.structs.replace(turn, decisions=(at_once,))), {})
    assert (
        told[2] == "Round 3: it is in a dead end (no unvisited place next to it) and turns back to place 2. "
        "From there it goes north to new place A, the only option."
    )
    lost = Ending(False, 1, None, 5.6, Scores(6.0, 5.6, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.0))
    cut = msgspec.structs.replace(turn, walk=(2, 1), decisions=turn.decisions[:1])
    short = msgspec.structs.replace(turning_back, moves=(*turning_back.moves[:2], cut), ending=lost)
    told = captions(short, {})
    assert told[2].endswith("It looks for “sofa”; it moves by “Go”.")
    assert told[3] == (
        "The end: it was cut off after 3 rounds 5.6 m from the goal, not under 3 m, "
        "so this counts as a failure. It walked 6.0 m and turned back once."
    )
    stays = msgspec.structs.replace(turn.decisions[0], choice=1)
    still = msgspec.structs.replace(cut, walk=(2,), decisions=(stays,))
    told = captions(msgspec.structs.replace(short, moves=(*turning_back.moves[:2], still), ending=None), {})
    assert told[2] == "Round 3: it stays where it is."
    assert len(told) == 3, "an episode under way has no end"


def test_running_out_of_decisions_has_its_words(turning_back: Trace) -> None:
    def told(last: Move) -> str:
        rounds = (*turning_back.moves[:2], last)
        return captions(msgspec.structs.replace(turning_back, moves=rounds, ending=None), {})[2]

    back = Decision("final", (Option(1, 0.7, 0.0, node=1), Option(2, 0.3, -0.8, node=2)), 0)
    arrives = msgspec.structs.replace(turning_back.moves[2], decisions=(back,), walk=(2, 1))
    assert arrives.stops
    assert told(arrives) == (
        "Round 3: its decisions are used up, and it goes back to place 2 and stops there: "
        "no other place seemed as right to stop at."
    )
    cut_off = msgspec.structs.replace(arrives, walk=(2,))
    assert not cut_off.stops
    assert "place 2 but is cut off on the way" in told(cut_off)
    here = msgspec.structs.replace(cut_off, decisions=(msgspec.structs.replace(back, choice=1),))
    assert here.stops
    assert "it stops where it stands: no other" in told(here)


def test_secret_goals_are_not_judged(turning_back: Trace) -> None:
    secret = msgspec.structs.replace(turning_back, ending=Ending(True, 4))
    assert captions(secret, {})[-1] == "The end: it stopped. The goal is not public."
    assert headline(secret) == "Walked to an unknown goal"


def test_unvisited_choices_are_lettered_clockwise(turning_back: Trace) -> None:
    assert letters(turning_back) == [{1: "A"}, {3: "A", 2: "B"}, {3: "A"}, {4: "A"}, {}]


def test_letters_never_run_out(turning_back: Trace) -> None:
    places = tuple(msgspec.structs.replace(turning_back.scene.places[0], id=str(n)) for n in range(60))
    options = tuple(Option(n, 1 / 55, 0.0, node=0, heading=0.1 * n) for n in range(1, 56))
    turn = Move(0.0, (0,), (Decision("global", options, 0),), Memory(0, (0,), (True,), (), ()))
    scene = msgspec.structs.replace(turning_back.scene, places=places)
    names = letters(msgspec.structs.replace(turning_back, scene=scene, moves=(turn,), ending=None))[0]
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
    straight = msgspec.structs.replace(turning_back, moves=turning_back.moves[:1])
    assert headline(straight) == "Arrived"
    assert headline(msgspec.structs.replace(straight, ending=None)) == "On its way"


def test_attention_holds_shares() -> None:
    assert msgspec.convert({"perception": [0.5], "action": [1.0]}, Attention) == Attention((0.5,), (1.0,))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"perception": [1.5], "action": [1.0]}, Attention)
