"""Active Perception: its walks against plain ones, what explorations add and cost, what replays show."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scenemem.agents.rollout import ACTION, DecisionRequest
from scenemem.agents.walker import TrainedAgent
from scenemem.learning.objectives import RewardConfig, distance_reward
from scenemem.presets import PRESETS
from scenemem.viewer.traces import trace_episodes
from scenemem.world.graph import NONE, World
from scenemem.zoo.active_perception import ActivePerception, entropy, first_visits
from scenemem.zoo.exploring import EXPLORE, EXPLORED, GATE
from scenemem.zoo.objectives import EXPLORATION_COST, exploration_reward, gate_imitation
from tests.zoo.helpers import Setting, Walk, places_of, roam, way_over, with_heads, with_logits

NAME = "active-perception"
Choices = list[tuple[DecisionRequest, int, int]]


def _by_hand(
    world: World, start: int, choices: Choices, *, depth: int, budget: int, moves: int
) -> tuple[list[int], int]:
    """One episode, walked with the choices it made  ->  its walk, and the budget that is left"""
    walk, left = [start], iter(choices)

    def offered(entered: set[int], out: int) -> list[bool]:
        goes_on = out <= depth and budget > 0
        return [goes_on and place not in {NONE, *entered} for place in world.neighbour[walk[-1]].tolist()]

    for _ in range(moves):
        base, entered = walk[-1], {walk[-1]}
        while any(offered(entered, 0)):
            request, row, choice = next(left)
            assert request.type == GATE
            if choice == 1:
                break
            out = 0
            while any(offer := offered(entered, out)):
                request, row, choice = next(left)
                assert request.type == EXPLORE
                assert request.options[row].tolist() == [*offer, out > 0]
                if choice == len(offer):
                    break
                walk.append(int(world.neighbour[walk[-1], choice]))
                entered.add(walk[-1])
                budget, out = budget - 1, out + 1
            walk += way_over(world, walk, walk[-1], base)
        request, row, choice = next(left)
        assert request.type == ACTION
        if choice == request.stop:
            break
        walk.append(int(world.neighbour[base, choice]))
    assert next(left, None) is None
    return walk, budget


@pytest.mark.parametrize(("depth", "budget"), [(0, 3), (1, 8), (4, 30), (2, 0)])
def test_walks_are_those_made_by_hand(depth: int, budget: int, setting: Setting) -> None:
    agent = setting.loud(ActivePerception, NAME, depth=depth, budget=budget)
    walk = setting.walk(agent, roam(3), max_decisions=3)
    choices: dict[int, Choices] = {}
    for decided in walk.answers:
        rows = zip(decided.request.episode.tolist(), decided.choice.tolist(), strict=True)
        for row, (episode, choice) in enumerate(rows):
            choices.setdefault(episode, []).append((decided.request, row, choice))
    explored = 0
    for episode, start in enumerate(setting.episodes.start.tolist()):
        walked = places_of(walk.rollout.walked[episode])
        if len(walked) < 60:  # not cut off
            limits = {"depth": depth, "budget": budget, "moves": 3}
            expected, left = _by_hand(setting.world, start, choices[episode], **limits)
            assert walked == expected
            explored += budget - left
    assert explored > 0 or budget == 0


@pytest.fixture(scope="module")
def agent(setting: Setting) -> ActivePerception:
    agent: ActivePerception = setting.loud(ActivePerception, NAME, depth=2, budget=20)
    return agent


@pytest.fixture(scope="module")
def walk(agent: ActivePerception, setting: Setting) -> Walk:
    return setting.walk(agent, roam(1), learning=True)


@torch.no_grad()
def test_an_exploration_adds_its_report_to_how_its_way_looks(agent: ActivePerception, walk: Walk) -> None:
    reports = 0
    for point in walk.points:
        graph, seen = point.memory(), point.candidates()
        explored, states, visual = graph.note(EXPLORED), graph.column("state"), seen.visual.clone()
        for row, slot in (explored != NONE).nonzero().tolist():
            visual[row, slot] += agent.report(states[row, int(explored[row, slot])])
            reports += 1
        state = point.state.hidden * point.mask("decision")
        expected = agent.scorer(state, visual, seen.orientation, point.feature_mask)
        torch.testing.assert_close(agent.navigator(point), expected, rtol=1e-4, atol=1e-4)
    assert reports > 0


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 1000))
def test_entropy_is_that_of_the_options(options: int, others: int, seed: int) -> None:
    logits = torch.randn(1, options + others, generator=torch.Generator().manual_seed(seed))
    is_option = torch.arange(options + others).unsqueeze(0) < options
    expected = torch.distributions.Categorical(logits=logits[:, :options]).entropy()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy(logits, is_option), expected)


# labels, rewards, the gate's loss


def test_explorations_are_led_towards_the_goal(setting: Setting) -> None:
    agent = setting.loud(ActivePerception, NAME, depth=3, budget=20)
    rollout, world, came_back = setting.walk(agent, roam(4)).rollout, setting.world, 0
    assert (rollout.decisions[GATE].label == NONE).all()
    table = rollout.decisions[EXPLORE]
    for row, label in enumerate(table.label.tolist()):
        here = rollout.viewpoint[table.episode[row], table.step[row]]
        goal = setting.episodes.goal[table.episode[row]]
        *ways, back = table.options[row].tolist()
        if here == goal and back:
            assert label == len(ways)
            came_back += 1
            continue
        metres = world.neighbour_length[here] + world.geodesic(world.neighbour[here].clamp_min(0), goal)
        best = metres[torch.tensor(ways)].min()
        assert float(metres[label]) == pytest.approx(float(best))
    assert came_back > 0


def test_an_exploration_costs_and_the_moves_earn(setting: Setting, walk: Walk) -> None:
    rollout = walk.rollout
    context = setting.context(rollout, reward=RewardConfig(rule="exploration"))
    gate, explore, move = (rollout.decisions[kind] for kind in (GATE, EXPLORE, ACTION))
    opened = exploration_reward(gate, rollout, context)
    torch.testing.assert_close(opened, torch.where(gate.choice == 0, -EXPLORATION_COST, 0.0))
    assert not exploration_reward(explore, rollout, context).any()
    earned = exploration_reward(move, rollout, context)
    assert torch.equal(earned, distance_reward(move, rollout, context))
    assert not gate.stops.any()
    assert not explore.stops.any()


def test_the_gate_learns_to_open_where_the_navigator_is_unsure(setting: Setting, walk: Walk) -> None:
    table, context = walk.rollout.decisions[GATE], setting.context(walk.rollout)
    unsure = torch.rand(walk.rollout.alive.shape, generator=torch.Generator().manual_seed(0)).round()
    logits = torch.randn(len(table.episode), 2)
    rollout = with_logits(with_heads(walk.rollout, unsure=unsure), GATE, logits)
    right = unsure[table.episode, table.step] == 1
    chance = torch.where(right, logits.softmax(-1)[:, 0], logits.softmax(-1)[:, 1])
    torch.testing.assert_close(gate_imitation(rollout, context), -chance.log().sum() / len(unsure))
    assert gate_imitation(replace(rollout, decisions={}), context) == 0.0


def test_a_reference_path_explores_nothing(setting: Setting) -> None:
    agent, preset = setting.agent(NAME), PRESETS[NAME]
    (stage,) = preset.learning.stages
    setting.trainer(agent, preset, stages=(replace(stage, losses={"teacher_forcing": 1.0}),)).step()
    weights = agent.network.named_parameters()
    learnt = {name.partition(".")[0] for name, w in weights if w.grad is not None and bool(w.grad.any())}
    assert learnt
    assert not learnt & {"gate", "explorer", "report", "entropy_weight"}


# what is counted and shown


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_the_release_counts_first_visits_up_to_the_final_place(walk: list[int]) -> None:
    upto = walk[: walk.index(walk[-1]) + 1]
    assert first_visits(walk) == [place for step, place in enumerate(upto) if place not in upto[:step]]


def test_a_replay_shows_the_branches_explored(setting: Setting) -> None:
    network = setting.loud(ActivePerception, NAME, seed=1)
    torch.nn.init.constant_(network.gate[-1].bias, 50.0)
    agent = TrainedAgent(network, setting.environment, setting.vocabulary)
    (trace,) = trace_episodes(agent, setting.episodes.select([0]))
    shown = [(move, move.decisions[0]) for move in trace.moves]
    assert {decision.kind for _, decision in shown} >= {"gate", "explore", "action"}
    opened, gate = next(one for one in shown if one[1].kind == "gate")
    assert [option.name for option in gate.options] == ["explore", "go on"]
    assert not opened.stops
    assert gate.numbers.keys() == {"entropy", "explores", "explored ways"}
    backs = [move for move, decision in shown if decision.chosen.name == "come back"]
    assert backs
    assert all(move.back_to == move.walk[-1] for move in backs), "shown as a way back"
    assert max(decision.numbers["explored ways"] for _, decision in shown) >= 1
