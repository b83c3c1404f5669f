"""Active Perception: its walks against plain ones, what explorations add and cost, what replays show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.agent import DecisionPoint
from scenemem.agents.rollout import ACTION, DecisionRequest, Outputs, Rollout
from scenemem.agents.walker import Decided, TrainedAgent
from scenemem.errors import SettingError
from scenemem.learning.objectives import RewardConfig, distance_reward
from scenemem.presets import PRESETS
from scenemem.simulator.panorama import Pose
from scenemem.viewer.traces import trace_episodes
from scenemem.world.graph import NONE, World
from scenemem.zoo.active_perception import ActiveConfig, ActivePerception, entropy, first_visits
from scenemem.zoo.exploration import COST, exploration_reward, gate_imitation
from scenemem.zoo.exploring import EXPLORE, EXPLORED, GATE, ExploringActions
from tests.zoo.helpers import Setting, roam

NAME = "active-perception"


class _Noting:
    """A watcher that keeps every decision of every episode, in order."""

    def __init__(self) -> None:
        self.decided_by: dict[int, list[tuple[DecisionRequest, int, int]]] = {}
        self.space: ExploringActions

    def observed(self, _pose: Pose, _active: Tensor, space: object, /) -> None:
        assert isinstance(space, ExploringActions)
        self.space = space

    def decided(self, decided: Decided, /) -> None:
        choices = decided.choice.tolist()
        for row, episode in enumerate(decided.request.episode.tolist()):
            self.decided_by.setdefault(episode, []).append((decided.request, row, choices[row]))


@dataclass
class _Plain:
    """One episode, walked by hand with the choices it made."""

    world: World
    depth: int
    budget: int
    known: nx.Graph = field(default_factory=nx.Graph)
    walk: list[int] = field(default_factory=list)

    def enter(self, place: int) -> None:
        self.walk.append(place)
        self.known.add_node(place)
        for slot, other in enumerate(self.world.neighbour[place].tolist()):
            if other in self.known:
                self.known.add_edge(place, other, metres=float(self.world.neighbour_length[place, slot]))

    def come_back(self, base: int) -> None:
        self.walk += nx.dijkstra_path(self.known, self.walk[-1], base, weight="metres")[1:]

    def offered(self, entered: set[int], out: int) -> list[bool]:
        places = self.world.neighbour[self.walk[-1]].tolist()
        goes_on = out <= self.depth and self.budget > 0
        return [place != NONE and place not in entered and goes_on for place in places]

    def run(self, start: int, choices: list[tuple[DecisionRequest, int, int]], moves: int) -> None:
        left = iter(choices)
        self.enter(start)
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
                    self.enter(int(self.world.neighbour[self.walk[-1], choice]))
                    entered.add(self.walk[-1])
                    self.budget -= 1
                    out += 1
                self.come_back(base)
            request, row, choice = next(left)
            assert request.type == ACTION
            if choice == request.stop:
                break
            self.enter(int(self.world.neighbour[base, choice]))
        assert next(left, None) is None


@pytest.mark.parametrize(("depth", "budget"), [(0, 3), (1, 8), (4, 30), (2, 0)])
def test_walks_are_those_made_by_hand(depth: int, budget: int, setting: Setting) -> None:
    agent, watcher = setting.loud_agent(NAME, depth=depth, budget=budget), _Noting()
    rollout, _ = setting.walk(agent, roam(3), watcher=watcher, max_decisions=3)
    explored = 0
    for episode, start in enumerate(setting.episodes.start.tolist()):
        plain = _Plain(setting.world, depth, budget)
        walked = [place for place in rollout.walked[episode].tolist() if place != NONE]
        if len(walked) == rollout.alive.shape[1] == 60:
            continue  # cut off
        plain.run(start, watcher.decided_by[episode], 3)
        assert walked == plain.walk
        explored += budget - plain.budget
    assert explored > 0 or budget == 0


def test_coming_back_restores_the_state(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent(NAME), roam(2))
    steps = torch.arange(rollout.alive.shape[1]).expand_as(rollout.state_step)
    restored = (rollout.state_step != steps) & rollout.alive
    assert restored.any()
    same = rollout.viewpoint.gather(1, rollout.state_step) == rollout.viewpoint
    assert same[rollout.alive].all()


def _points(agent: ActivePerception, setting: Setting) -> tuple[DecisionPoint, Rollout, Outputs]:
    found: list[DecisionPoint] = []
    rollout, log = setting.walk(agent, roam(1), learning=True)
    score = agent.score

    def spy(point: DecisionPoint) -> object:
        found.append(point)
        return score(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "score", spy)
        outputs = agent.evaluate_actions(rollout, log, setting.environment)
    return found[0], rollout, outputs


def test_an_exploration_adds_its_report_to_how_its_way_looks(setting: Setting) -> None:
    agent = setting.loud_agent(NAME, depth=2, budget=20)
    assert isinstance(agent, ActivePerception)
    point, _, _ = _points(agent, setting)
    graph, seen = point.memory(), point.candidates()
    explored, states = graph.note(EXPLORED), graph.column("state")
    assert (explored != NONE).any()
    visual = seen.visual.clone()
    for row, slot in (explored != NONE).nonzero().tolist():
        visual[row, slot] += agent.report(states[row, int(explored[row, slot])])
    state = point.state.hidden * point.mask("decision")
    expected = agent.scorer(state, visual, seen.orientation, point.feature_mask)
    torch.testing.assert_close(agent.navigator(point), expected, rtol=1e-4, atol=1e-4)


def test_the_gate_reads_how_unsure_the_navigator_is(setting: Setting) -> None:
    agent = setting.loud_agent(NAME)
    assert isinstance(agent, ActivePerception)
    point, _, outputs = _points(agent, setting)
    assert outputs.logits[GATE].shape[1] == 2
    navigator = agent.navigator(point)
    sure = torch.nn.functional.pad(torch.zeros_like(navigator[:, 1:]), (0, 1), value=50.0)
    assert not torch.allclose(agent.gate_logit(point, navigator), agent.gate_logit(point, sure))


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 1000))
def test_entropy_is_that_of_the_options(options: int, others: int, seed: int) -> None:
    logits = torch.randn(1, options + others, generator=torch.Generator().manual_seed(seed))
    is_option = torch.arange(options + others).unsqueeze(0) < options
    chance = logits[:, :options].softmax(dim=-1)
    expected = -(chance * chance.log()).sum(dim=-1)
    torch.testing.assert_close(entropy(logits, is_option), expected)


# labels, rewards, the gate's loss


def test_explorations_are_led_towards_the_goal(setting: Setting) -> None:
    agent, watcher = setting.loud_agent(NAME, depth=3, budget=20), _Noting()
    rollout, _ = setting.walk(agent, roam(4), watcher=watcher)
    world, labels = setting.world, rollout.decisions[EXPLORE].label.tolist()
    assert (rollout.decisions[GATE].label == NONE).all()
    table = rollout.decisions[EXPLORE]
    came_back = 0
    for row, (episode, step) in enumerate(zip(table.episode.tolist(), table.step.tolist(), strict=True)):
        here, goal = rollout.viewpoint[episode, step], setting.episodes.goal[episode]
        options = table.options[row].nonzero().squeeze(1).tolist()
        stop = table.options.shape[1] - 1
        if here == goal and stop in options:
            assert labels[row] == stop
            came_back += 1
            continue
        way = {
            slot: float(
                world.neighbour_length[here, slot] + world.geodesic(world.neighbour[here, slot], goal)
            )
            for slot in options
            if slot != stop
        }
        assert way[labels[row]] == pytest.approx(min(way.values()))
    assert came_back > 0


def test_an_exploration_costs_and_the_moves_earn(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent(NAME), roam(1), learning=True)
    context = setting.context(rollout, reward=RewardConfig(rule="exploration"))
    gate, explore, move = (rollout.decisions[kind] for kind in (GATE, EXPLORE, ACTION))
    opened = exploration_reward(gate, rollout, context)
    assert opened.tolist() == pytest.approx(
        [-COST if choice == 0 else 0.0 for choice in gate.choice.tolist()]
    )
    assert not exploration_reward(explore, rollout, context).any()
    expected = distance_reward(move, rollout, context)
    assert torch.equal(exploration_reward(move, rollout, context), expected)
    assert not gate.stops.any()
    assert not explore.stops.any()


def test_the_gate_learns_to_open_where_the_navigator_is_unsure(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent(NAME), roam(1), learning=True)
    table = rollout.decisions[GATE]
    unsure = torch.rand(rollout.alive.shape, generator=torch.Generator().manual_seed(0)).round()
    logits = torch.randn(len(table.episode), 2)
    outputs = Outputs({GATE: logits}, {"unsure": unsure})
    found = gate_imitation(rollout, outputs, setting.context(rollout))
    right = unsure[table.episode, table.step] == 1
    chance = torch.where(right, logits.softmax(-1)[:, 0], logits.softmax(-1)[:, 1])
    torch.testing.assert_close(found, -chance.log().sum() / len(rollout.alive))
    assert gate_imitation(rollout, Outputs({}, {"unsure": unsure}), setting.context(rollout)) == 0.0


def test_a_reference_path_explores_nothing(setting: Setting) -> None:
    agent, preset = setting.agent(NAME), PRESETS[NAME]
    (stage,) = preset.learning.stages
    setting.trainer(agent, preset, stages=(replace(stage, losses={"teacher_forcing": 1.0}),)).step()
    aside = ("gate.", "explorer.", "report.", "entropy_weight.")
    learnt = {name for name, weight in agent.network.named_parameters() if _any(weight.grad)}
    assert learnt
    assert not any(name.startswith(aside) for name in learnt)


def _any(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.any())


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
    agent = TrainedAgent(setting.loud_agent(NAME, seed=1), setting.environment, setting.vocabulary)
    network = agent.network
    assert isinstance(network, ActivePerception)
    torch.nn.init.constant_(network.gate[-1].bias, 50.0)  # type: ignore[arg-type]
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
    returned = [move.decisions[0].numbers["explored ways"] for move in trace.moves]
    assert max(returned) >= 1


def test_impossible_settings_are_refused(world: World) -> None:
    with pytest.raises(SettingError, match="depth must be 0 or more, got -1"):
        ActiveConfig(depth=-1)
    with pytest.raises(SettingError, match="depth and budget must be 0 or more, got 1 and -2"):
        ExploringActions(world, 1, 1, depth=1, budget=-2)
