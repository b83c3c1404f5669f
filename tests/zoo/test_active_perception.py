"""Active Perception: its walks against plain ones, what explorations add and cost, what replays show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


@dataclass
class _Plain:
    """One episode, walked by hand with the choices it made."""

    world: World
    depth: int
    budget: int
    walk: list[int] = field(default_factory=list)

    def offered(self, entered: set[int], out: int) -> list[bool]:
        places = self.world.neighbour[self.walk[-1]].tolist()
        goes_on = out <= self.depth and self.budget > 0
        return [place != NONE and place not in entered and goes_on for place in places]

    def run(self, start: int, choices: Choices, moves: int) -> None:
        left = iter(choices)
        self.walk.append(start)
        for _ in range(moves):
            base, entered = self.walk[-1], {self.walk[-1]}
            while any(self.offered(entered, 0)):
                request, row, choice = next(left)
                assert request.type == GATE
                if choice == 1:
                    break
                out = 0
                while any(offer := self.offered(entered, out)):
                    request, row, choice = next(left)
                    assert request.type == EXPLORE
                    assert request.options[row].tolist() == [*offer, out > 0]
                    if choice == len(offer):
                        break
                    self.walk.append(int(self.world.neighbour[self.walk[-1], choice]))
                    entered.add(self.walk[-1])
                    self.budget -= 1
                    out += 1
                self.walk += way_over(self.world, self.walk, self.walk[-1], base)
            request, row, choice = next(left)
            assert request.type == ACTION
            if choice == request.stop:
                break
            self.walk.append(int(self.world.neighbour[base, choice]))
        assert next(left, None) is None


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
        plain, walked = _Plain(setting.world, depth, budget), places_of(walk.rollout.walked[episode])
        if len(walked) == 60:
            continue  # cut off
        plain.run(start, choices[episode], 3)
        assert walked == plain.walk
        explored += budget - plain.budget
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


@torch.no_grad()
def test_the_gate_reads_how_unsure_the_navigator_is(agent: ActivePerception, walk: Walk) -> None:
    assert walk.rollout.decisions[GATE].logits.shape[1] == 2
    navigator = agent.navigator(walk.points[0])
    sure = torch.nn.functional.pad(torch.zeros_like(navigator[:, 1:]), (0, 1), value=50.0)
    unsure, certain = (agent.gate_logit(walk.points[0], logits) for logits in (navigator, sure))
    assert not torch.allclose(unsure, certain)


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 1000))
def test_entropy_is_that_of_the_options(options: int, others: int, seed: int) -> None:
    logits = torch.randn(1, options + others, generator=torch.Generator().manual_seed(seed))
    is_option = torch.arange(options + others).unsqueeze(0) < options
    log_p = logits[:, :options].log_softmax(dim=-1)
    torch.testing.assert_close(entropy(logits, is_option), -(log_p.exp() * log_p).sum(dim=-1))


# labels, rewards, the gate's loss


def test_explorations_are_led_towards_the_goal(setting: Setting) -> None:
    agent = setting.loud(ActivePerception, NAME, depth=3, budget=20)
    rollout, world = setting.walk(agent, roam(4)).rollout, setting.world
    assert (rollout.decisions[GATE].label == NONE).all()
    table, came_back = rollout.decisions[EXPLORE], 0
    stop = table.options.shape[1] - 1
    for row, label in enumerate(table.label.tolist()):
        here, goal = (
            rollout.viewpoint[table.episode[row], table.step[row]],
            setting.episodes.goal[table.episode[row]],
        )
        options = table.options[row].nonzero().squeeze(1).tolist()
        if here == goal and stop in options:
            assert label == stop
            came_back += 1
            continue
        ways = world.neighbour_length[here] + world.geodesic(world.neighbour[here].clamp_min(0), goal)
        best = min(float(ways[slot]) for slot in options if slot != stop)
        assert float(ways[label]) == pytest.approx(best)
    assert came_back > 0


def test_an_exploration_costs_and_the_moves_earn(setting: Setting, walk: Walk) -> None:
    rollout = walk.rollout
    context = setting.context(rollout, reward=RewardConfig(rule="exploration"))
    gate, explore, move = (rollout.decisions[kind] for kind in (GATE, EXPLORE, ACTION))
    opened = exploration_reward(gate, rollout, context)
    torch.testing.assert_close(opened, torch.where(gate.choice == 0, -EXPLORATION_COST, 0.0))
    assert not exploration_reward(explore, rollout, context).any()
    expected = distance_reward(move, rollout, context)
    assert torch.equal(exploration_reward(move, rollout, context), expected)
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
    expected: list[int] = []
    for place in walk:
        if place not in expected:
            expected.append(place)
        if place == walk[-1]:
            break
    assert first_visits(walk) == expected


def test_a_replay_shows_the_branches_explored(setting: Setting) -> None:
    network = setting.loud(ActivePerception, NAME, seed=1)
    torch.nn.init.constant_(network.gate[-1].bias, 50.0)
    agent = TrainedAgent(network, setting.environment, setting.vocabulary)
    (trace,) = trace_episodes(agent, setting.episodes.select([0]))
    kinds = [move.decisions[0].kind for move in trace.moves]
    assert {"gate", "explore", "action"} <= set(kinds)
    gate = trace.moves[kinds.index("gate")]
    assert [option.name for option in gate.decisions[0].options] == ["explore", "go on"]
    assert not gate.stops
    assert gate.decisions[0].numbers.keys() == {"entropy", "explores", "explored ways"}
    backs = [move for move in trace.moves if move.decisions[0].chosen.name == "come back"]
    assert backs
    assert all(move.back_to == move.walk[-1] for move in backs), "shown as a way back"
    assert max(move.decisions[0].numbers["explored ways"] for move in trace.moves) >= 1
