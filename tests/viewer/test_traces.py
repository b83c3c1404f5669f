"""Traces while acting: the walk is the untraced one, and the numbers say how it came about."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from scenemem.agents.walker import Sample, TrainedAgent
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.traces import Decision, Move, Option, Scores, Trace, read_trace, write_trace
from scenemem.presets import PRESETS
from scenemem.runs.experiment import Experiment
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.narration import compass
from scenemem.viewer.traces import open_scene, trace_episodes
from scenemem.world.graph import NONE

Make = Callable[..., Experiment]

KINDS = {
    (preset.agent, preset.model): name
    for name, preset in reversed(list(PRESETS.items()))
    if not preset.data.features  # others need features of their own
}
VARIANTS = [
    *((name, {}) for name in KINDS.values()),
    ("ssm-plus", {"read_before_update": True, "restore_state": False}),
    ("ssm-plus", {"hop_prior": True, "final_backtrack": False}),
    ("ssm", {"walk_cost": "hops"}),
    ("ssm", {"allow_revisits": True}),
    ("ssm-global", {"walk_cost": "hops"}),
]


def _again(made: Experiment) -> None:
    """Let the agent sample from the start of its stream."""
    pick = Sample(torch.Generator().manual_seed(0))
    made.agent.walk = partial(TrainedAgent.walk, made.agent, pick=pick)  # type: ignore[method-assign]


def _short_first(made: Experiment) -> EpisodeSet:
    """Episodes in the order they are walked in: each then draws the same numbers, traced or not."""
    episodes = made.episodes("val_unseen")
    _, words = made.agent.vocabulary.encode_batch(episodes.texts, made.agent.limits.max_words)
    return episodes.select(words.argsort(stable=True))


def _rest(decision: Decision, option: Option) -> float:
    """What is left of a score without view and direction."""
    assert decision.weights is not None
    assert option.visual is not None
    assert option.geometric is not None
    return option.logit - decision.weights[0] * option.visual - decision.weights[1] * option.geometric


@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=lambda value: str(value))
def test_a_traced_walk_is_the_untraced_one(name: str, settings: dict[str, object], experiment: Make) -> None:
    made = experiment(name, **settings)
    episodes = _short_first(made)
    world = made.environment.world
    walked = walk_split(made.agent, episodes)
    _again(made)
    traces = trace_episodes(made.agent, episodes)
    _again(made)
    assert torch.equal(walk_split(made.agent, episodes).viewpoint, walked.viewpoint), "nothing stays attached"
    for episode, trace in enumerate(traces):
        path = [int(world.local[place]) for place in walked.viewpoint[episode] if place != NONE]
        assert trace.path == path
        assert (trace.moves[0].memory is None) == (PRESETS[name].agent in ("basic", "ssm-local-revisits"))
    if walked.jumps.any():
        jumps = [
            sum(move.back_to is not None and move.decisions[0].kind == "frontier" for move in trace.moves)
            for trace in traces
        ]
        assert jumps == walked.jumps.tolist()


def _traced(made: Experiment, **limits: int) -> list[Trace]:
    made.agent.limits = replace(made.agent.limits, **limits)
    return trace_episodes(made.agent, made.episodes("val_unseen"))


@pytest.fixture
def traces(experiment: Make) -> list[Trace]:
    return _traced(experiment("ssm-plus"))


def _decisions(traces: list[Trace], kind: str) -> list[tuple[Trace, Move, int]]:
    return [
        (trace, move, number)
        for trace in traces
        for move in trace.moves
        for number, decision in enumerate(move.decisions)
        if decision.kind == kind
    ]


def test_the_rest_of_the_score_of_stopping_is_what_the_memory_says(experiment: Make) -> None:
    rest = {}
    for name in ("ssm-plus", "ssm-plus-no-stop-from-memory"):
        made = experiment(name)
        for parameter, value in made.agent.network.named_parameters():
            if parameter.startswith("stop_from_memory"):
                torch.nn.init.normal_(value)
        decisions = [move.decisions[number] for _, move, number in _decisions(_traced(made), "action")]
        parts = [_rest(one, option) for one in decisions for option in one.options if option.stop]
        rest[name] = max(map(abs, parts))
    assert rest["ssm-plus"] > 0.1
    assert rest["ssm-plus-no-stop-from-memory"] < 2e-3


def test_an_agent_that_runs_out_of_decisions_is_traced_to_its_last_place(experiment: Make) -> None:
    ends = _decisions(_traced(experiment("ssm-backtrack"), max_decisions=2), "final")
    assert ends
    for trace, move, _ in ends:
        assert move is trace.moves[-1]
        assert move.decisions[0].chosen.place == move.walk[-1]
        assert trace.ending is not None
        assert trace.ending.stopped


def test_scores_are_made_of_their_cues(traces: list[Trace], experiment: Make) -> None:
    assert _decisions(traces, "frontier")
    without = _traced(experiment("ssm-plus-no-hints"))
    scored = [*_decisions(traces, "action"), *_decisions(without, "frontier")]
    for _, move, number in scored:  # nothing but view and direction
        decision = move.decisions[number]
        for option in decision.options:
            assert option.stop or _rest(decision, option) == pytest.approx(0.0, abs=2e-3)
        likely = sum(math.exp(option.logit) for option in decision.options)
        assert [option.probability for option in decision.options] == pytest.approx(
            [math.exp(option.logit) / likely for option in decision.options], abs=1e-3
        )


def test_agents_with_grounding_attend_to_every_word_and_the_marks_take_the_rest(
    traces: list[Trace], experiment: Make
) -> None:
    for trace, move, number in _decisions(traces, "action"):
        attention = move.decisions[number].attention
        assert attention is not None
        assert len(attention.perception) == len(trace.task.words)
        assert 0.0 < sum(attention.perception) < 1.0
        assert 0.0 < sum(attention.action) < 1.0
    for name in ("ssm-no-grounding", "basic", "seq2seq"):
        moves = _traced(experiment(name))[0].moves
        assert all(decision.attention is None for move in moves for decision in move.decisions)


def test_the_memory_is_the_one_the_walk_has_built(traces: list[Trace]) -> None:
    for trace in traces:
        walked = [trace.task.start]
        linked = set(trace.scene.edges) | {(b, a) for a, b in trace.scene.edges}
        for move in trace.moves:
            memory = move.memory
            assert memory is not None
            assert list(memory.nodes) == list(dict.fromkeys(walked)), "in the order of their first visit"
            assert memory.nodes[memory.here] == move.walk[0]
            assert all((memory.nodes[a], memory.nodes[b]) in linked for a, b in memory.edges)
            assert not {way.place for way in memory.ways} & set(memory.nodes)
            open_ended = {way.node for way in memory.ways}
            assert memory.frontier == tuple(n in open_ended for n in range(len(memory.nodes)))
            walked += move.walk[1:]


def test_options_say_where_they_lead(traces: list[Trace]) -> None:
    def point(trace: Trace, place: int) -> tuple[float, float, float]:
        found = trace.scene.places[place]
        return found.x, found.y, found.z

    for trace, move, number in _decisions(traces, "action"):
        stood = move.walk[0] if move.back_to is None else move.back_to
        here = point(trace, stood)
        for option in move.decisions[number].options:
            if option.stop:
                assert option.place == stood
                continue
            there = point(trace, option.place)
            assert option.walk == pytest.approx(math.dist(here, there), abs=0.02)
            assert option.heading is not None
            bearing = math.atan2(there[0] - here[0], there[1] - here[1])
            assert math.cos(option.heading - bearing) == pytest.approx(1.0, abs=1e-3)
            assert option.compass == compass(option.heading)
    for trace, move, number in _decisions(traces, "frontier"):
        assert move.memory is not None
        for option in move.decisions[number].options:
            assert option.node is not None
            assert move.memory.nodes[option.node] == option.place
            assert option.walk is not None
            at_least = math.dist(point(trace, move.walk[0]), point(trace, option.place))
            assert option.walk >= at_least - 0.02


def test_one_step_agents_choose_among_all_ways_of_the_map(experiment: Make) -> None:
    traces = _traced(experiment("ssm-global"))
    assert any(move.back_to is not None for trace in traces for move in trace.moves)
    for _, move, number in _decisions(traces, "global"):
        assert move.memory is not None
        ways = [(option.node, option.place) for option in move.decisions[number].options if not option.stop]
        assert ways == [(way.node, way.place) for way in move.memory.ways]
        chosen = move.decisions[number].chosen
        if not chosen.stop and move.walk[-1] == chosen.place:
            assert chosen.walk is not None


def test_moves_are_told_as_they_happen(experiment: Make) -> None:
    made, told = experiment("ssm"), list[tuple[int, Move]]()
    episodes = made.episodes("val_unseen").select([0, 1, 2])
    traces = trace_episodes(made.agent, episodes, lambda episode, move: told.append((episode, move)))
    for episode, trace in enumerate(traces):
        assert tuple(move for who, move in told if who == episode) == trace.moves


def test_the_end_and_the_scores_are_those_of_the_evaluation_if_the_goal_is_known(
    experiment: Make,
) -> None:
    made = experiment("ssm-backtrack")
    made.agent.limits = replace(made.agent.limits, max_steps=3)
    episodes = _short_first(made)
    traces = trace_episodes(made.agent, episodes)
    _again(made)
    means = walk_split(made.agent, episodes).measured(made.environment.world).means()
    stopped, scores = set[bool](), list[Scores]()
    for trace in traces:
        assert trace.ending is not None
        assert trace.ending.place == trace.path[-1]
        assert trace.ending.stopped == trace.moves[-1].stops
        assert trace.ending.scores is not None
        assert trace.ending.to_goal == pytest.approx(trace.ending.scores.ne, abs=1e-3)
        stopped.add(trace.ending.stopped)
        scores.append(trace.ending.scores)
    assert stopped == {True, False}
    assert sum(score.sr for score in scores) / len(scores) == pytest.approx(means["sr"])
    assert sum(score.tl for score in scores) / len(scores) == pytest.approx(means["tl"], abs=1e-3)

    (trace,) = trace_episodes(made.agent, made.episodes("test").select([0]))
    assert trace.task.goal is None
    assert trace.task.reference == ()
    assert trace.ending is not None
    assert trace.ending.scores is None
    assert all(place.to_goal is None for place in trace.scene.places)


def test_words_are_those_of_the_text(experiment: Make, tmp_path: Path) -> None:
    made = experiment("ssm")
    episodes = made.episodes("val_unseen").select([0, 1])
    long = "Zigzag " + "round " * 200
    odd = "İn the KITCHEN…  wait"  # its first letter is longer in small
    changed = type(episodes)(**{**vars(episodes), "texts": (long, odd)})
    read, strange = trace_episodes(made.agent, changed)
    write_trace(tmp_path / "t.json", strange)
    assert read_trace(tmp_path / "t.json") == strange
    joined = "".join(word.before + word.text for word in read.task.words)
    assert long.startswith(joined)
    assert len(read.task.words) == made.agent.limits.max_words - 2
    assert not read.task.words[0].known
    assert [word.text.lower() for word in strange.task.words][-1] == "wait"


def test_floors_are_told_apart_by_height(experiment: Make) -> None:
    world = experiment("basic").environment.world
    flat_scan = world.scans.index("grid")
    assert len(open_scene(world, flat_scan, NONE).floors) == 1
    spiral = open_scene(world, world.scans.index("spiral"), NONE)
    assert list(spiral.floors) == sorted(spiral.floors)
    floors = [place.floor for place in spiral.places]
    assert floors == sorted(floors), "the staircase only climbs"
    to_goal = {place.id: place.to_goal for place in open_scene(world, flat_scan, 0).places}
    assert to_goal["g-alone"] is None, "no way leads there"


def test_headings_have_names() -> None:
    names = {0.0: "north", 1.6: "east", -0.7: "north-west", 6.2: "north", 3.9: "south-west"}
    assert {heading: compass(heading) for heading in names} == names
