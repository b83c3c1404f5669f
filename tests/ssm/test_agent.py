"""The paper's agent: walks like those of a plain agent, replaceable parts, gradients over a walk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.agent import DecisionPoint, Observations
from scenemem.agents.build import DataSizes
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionType, Rollout
from scenemem.agents.walker import TrainedAgent, WalkConfig, take_best
from scenemem.formats.connectivity import Scan, connectivity_files, read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.models.navigator import LSTMState, Observation, RolloutInputs
from scenemem.ssm.additions import SSMPlus, SSMPlusConfig
from scenemem.ssm.agent import SSM
from scenemem.ssm.graph import MemoryGraph
from scenemem.ssm.reading import MemoryReader, SSMConfig
from scenemem.tasks.episode_set import bind_episodes
from scenemem.world.build import build_world
from scenemem.world.graph import NONE
from tests.ssm import reference
from tests.ssm.helpers import MakeEnvironment, Setting, referred

MAX_DECISIONS, MAX_STEPS, MAX_WORDS = 15, 14, 80
NORTH_STEP = math.pi / 6


# whole walks, one episode at a time


@dataclass(frozen=True)
class Decision:
    """What could be chosen, how it scored, what was chosen: nodes by number, neighbours by slot."""

    kind: DecisionType
    options: list[int]
    scores: list[float]
    choice: int


@dataclass
class Walk:
    """One episode under way: where it went and what it remembers."""

    inputs: RolloutInputs
    state: LSTMState
    here: int
    view: int
    viewpoints: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    memory: nx.Graph = field(default_factory=nx.Graph)  # visited places and the edges between them
    kept: dict[int, tuple[LSTMState, int]] = field(default_factory=dict)  # state and view at each place
    remembered: dict[int, dict[Any, float]] = field(default_factory=dict)  # log p when last there
    jumps: int = 0  # frontiers elsewhere that were gone to

    @property
    def nodes(self) -> list[int]:
        """Visited places in the order of their first visit."""
        return list(self.memory.nodes)

    @property
    def hidden(self) -> Tensor:
        return self.state.hidden[0]

    @property
    def is_over(self) -> bool:
        return len(self.viewpoints) == MAX_STEPS


class PlainSSM:
    """Walks step by step; every decision is that of the reference written from the paper."""

    def __init__(self, setting: Setting, network: SSMPlus) -> None:
        self.environment, world = setting.environment, setting.environment.world
        self.network, self.config = network, network.config
        self.weights = {name: value.double().numpy() for name, value in network.state_dict().items()}
        self.neighbours = [[n for n in row if n >= 0] for row in world.neighbour.tolist()]
        self.views, self.metres = world.neighbour_view.tolist(), world.neighbour_length.tolist()
        self.stop = world.neighbour.shape[1]
        self.place = cache(partial(referred, self.environment))

    def walk(self, tokens: list[int], start: int, heading: float) -> Walk:
        words = self.network.encoder(torch.tensor([tokens]), torch.tensor([len(tokens)]))
        inputs = RolloutInputs(self.environment, words, self.network.dropout_masks(1))
        state: Any = self.network.updater.initial_state(words)
        walk = Walk(inputs, state, start, round(heading / NORTH_STEP) % 12 + 12)
        self.arrive(walk)
        for _ in range(MAX_DECISIONS):
            self.go_to_frontier(walk)
            place = None if walk.is_over else self.chosen_sub_node(walk)
            if place is None:
                break
            if self.config.allow_revisits:
                walk.kept.pop(place, None)  # a hop is part of the way, so the place is seen anew
            self.hop(walk, place)
            if walk.is_over:
                break
        return walk

    def hop(self, walk: Walk, place: int) -> None:
        walk.view = self.views[walk.here][self.neighbours[walk.here].index(place)]
        walk.here = place
        self.arrive(walk)

    def arrive(self, walk: Walk) -> None:
        """Remember the place and update the state by what is seen there."""
        walk.viewpoints.append(walk.here)
        walk.memory.add_node(walk.here)
        for place, metres in zip(self.neighbours[walk.here], self.metres[walk.here], strict=False):
            if place in walk.memory:
                walk.memory.add_edge(walk.here, place, metres=metres)
        if not (self.config.restore_state and walk.here in walk.kept):
            where = (torch.tensor([number]) for number in (walk.here, NONE, walk.view))
            observation: Any = Observation.of(walk.inputs, torch.tensor([0]), *where)
            walk.kept[walk.here] = self.network.updater(walk.state, observation), walk.view
        walk.state, walk.view = walk.kept[walk.here]
        if self.config.hints:
            scores = self.scores_of_all_neighbours(walk)
            chances = torch.tensor(list(scores.values())).log_softmax(dim=0).tolist()
            walk.remembered[walk.here] = dict(zip(scores, chances, strict=True))

    def go_to_frontier(self, walk: Walk) -> None:
        scores = self.said(walk, walk.nodes).frontier_scores
        if len(scores) == 1:
            return
        hinted = {place: score + self.hint(walk, place) for place, score in scores.items()}
        target: Any = max(hinted, key=lambda place: hinted[place])
        numbers: dict[Any, int] = {place: number for number, place in enumerate(walk.nodes)}
        options = [numbers[place] for place in hinted]
        walk.decisions.append(Decision(FRONTIER, options, [*hinted.values()], numbers[target]))
        walk.jumps += target != walk.here
        for place in nx.shortest_path(walk.memory, walk.here, target, weight="metres")[1:]:
            self.hop(walk, place)
            if walk.is_over:
                return

    def chosen_sub_node(self, walk: Walk) -> int | None:
        """Eq. 14; None stops."""
        said, slots = self.said(walk, walk.nodes), self.neighbours[walk.here]
        scores = (
            self.scores_of_all_neighbours(walk) if self.config.allow_revisits else dict(said.action_scores)
        )
        scores[None] += self.stop_fits(walk, said)
        best: Any = max(scores, key=lambda place: scores[place])
        options = {place: self.stop if place is None else slots.index(place) for place in scores}
        walk.decisions.append(Decision(ACTION, list(options.values()), list(scores.values()), options[best]))
        return None if best is None else int(best)

    # decisions

    def said(self, walk: Walk, visited: list[int]) -> reference.Decision:
        """What the paper says when these places were visited."""
        seen = reference.Situation(
            visited=tuple(map(self.place, visited)),
            here=walk.here,
            heading=walk.view % 12 * NORTH_STEP,
            words=walk.inputs.instructions.context[0].double().numpy(),
            hidden=walk.hidden.double().numpy(),
        )
        return reference.decide(self.weights, seen, steps=self.config.reasoning_steps)

    def scores_of_all_neighbours(self, walk: Walk) -> dict[Any, float]:
        """As if nothing else was visited, Eq. 14 scores every neighbour of here, and stopping."""
        return dict(self.said(walk, [walk.here]).action_scores)

    def hint(self, walk: Walk, place: Any) -> float:
        """What plain facts say about a frontier, or staying; 0 without the options."""
        hints, stay = self.network.hints, self.network.stay_score
        if stay is not None and place == walk.here:
            return float(stay.score(walk.hidden))
        if hints is None:
            return 0.0
        remembered, everything = walk.remembered[place], self.config.allow_revisits
        ways = [n for n in self.neighbours[place] if everything or n not in walk.memory]
        metres = nx.shortest_path_length(walk.memory, walk.here, place, weight="metres")
        age = len(walk.nodes) - 1 - walk.nodes.index(place)
        best = max((remembered[there] for there in ways), default=-10.0)
        facts = [float(place == walk.here), metres / 10, age / 10, max(best, -10.0)]
        facts.append(max(remembered[None], -10.0))
        return float(hints.score(torch.tanh(hints.state(walk.hidden) + hints.facts(torch.tensor(facts)))))

    def stop_fits(self, walk: Walk, said: reference.Decision) -> float:
        """How well stopping fits what the memory says about here; 0 without the option."""
        if self.network.stop_from_memory is None:
            return 0.0
        words, hidden = walk.inputs.instructions.context[0].double().numpy(), walk.hidden.double().numpy()
        views, directions = said.node_states[walk.here]
        p = reference.aware_state(self.weights, "perception", words, hidden)
        a = reference.aware_state(self.weights, "action", words, hidden)
        by_view = views @ self.weights["stop_from_memory.query_visual.weight"] @ p
        return float(by_view + directions @ self.weights["stop_from_memory.query_orientation.weight"] @ a)


def _batched(network: SSMPlus, setting: Setting) -> tuple[Rollout, list[list[Decision]]]:
    """The rollout of all episodes together, and what every episode decided."""
    limits = WalkConfig(MAX_DECISIONS, MAX_STEPS, MAX_WORDS)
    agent = TrainedAgent(network, setting.environment, setting.vocabulary, limits)
    rollout = agent.walk(setting.episodes, take_best)
    decided: list[dict[int, Decision]] = [{} for _ in setting.episodes.texts]
    for kind, table in rollout.decisions.items():
        for row, (episode, order) in enumerate(
            zip(table.episode.tolist(), table.order.tolist(), strict=True)
        ):
            options = table.options[row].nonzero().squeeze(1)
            scores = table.logits[row, options].tolist()
            decided[episode][order] = Decision(kind, options.tolist(), scores, int(table.choice[row]))
    return rollout, [[found[order] for order in sorted(found)] for found in decided]


@torch.no_grad()
def _compare(setting: Setting, settings: dict[str, Any]) -> tuple[int, int]:
    """Walk every episode both ways; returns how many frontiers were jumped to and how many walks cut off."""
    network = setting.random("ssm-plus", std=0.12, word_width=16, width=64, **settings)
    # stopping then scores 0, so that walks are long enough to jump
    nn.init.zeros_(network.actions.stop.visual)
    nn.init.zeros_(network.actions.stop.orientation)
    (rollout, decided), plain, jumps = _batched(network, setting), PlainSSM(setting, network), 0
    for episode, text in enumerate(setting.episodes.texts):
        tokens = setting.vocabulary.encode(text, MAX_WORDS)
        start, heading = int(setting.episodes.start[episode]), float(setting.episodes.heading[episode])
        walk = plain.walk(tokens, start, heading)
        assert rollout.viewpoint[episode, : int(rollout.length[episode])].tolist() == walk.viewpoints
        for seen, expected in zip(decided[episode], walk.decisions, strict=True):
            assert replace(seen, scores=[]) == replace(expected, scores=[])
            assert seen.scores == pytest.approx(expected.scores, abs=1e-4)
        jumps += walk.jumps
    return jumps, int((~rollout.stopped).sum())


OURS = {"node_width": 16, "restore_state": True, "stop_from_memory": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper": {},
    "revisits": {**OURS, "allow_revisits": True},
    "ours": {**OURS, "hints": True},
    "hints and revisits": {"hints": True, "restore_state": True, "allow_revisits": True},
    "narrow": {"node_width": 16},
    "restores": {"restore_state": True},
    "stop from memory": {**OURS, "stay_score": True},
    "hints": {"hints": True},
}


def _uneven(scan: Scan) -> Scan:
    """The same scan with every place moved a little, so that no two ways are equally long."""
    random = np.random.default_rng(1)

    def moved(pose: tuple[float, ...]) -> tuple[float, ...]:
        x, y, z = random.normal(scale=0.1, size=3).tolist()
        return (*pose[:3], pose[3] + x, *pose[4:7], pose[7] + y, *pose[8:11], pose[11] + z, *pose[12:])

    viewpoints = tuple(msgspec.structs.replace(v, pose=moved(v.pose)) for v in scan.viewpoints)
    return msgspec.structs.replace(scan, viewpoints=viewpoints)


@pytest.mark.parametrize("name", VARIANTS)
def test_walks_of_the_tiny_world_equal_those_of_a_plain_agent(
    tiny_data: Path, random_environment: MakeEnvironment, name: str
) -> None:
    world = build_world(_uneven(read_scan(file)) for file in connectivity_files(tiny_data / "connectivity"))
    file = tiny_data / "r2r" / "R2R_train.json"
    episodes = bind_episodes(world, read_episodes(file), file, name="tiny").select(range(0, 90, 3))
    jumps, _ = _compare(Setting.of(random_environment, world, episodes), VARIANTS[name])
    assert jumps > 10


@pytest.mark.real_data
@pytest.mark.parametrize("name", list(VARIANTS)[:4])
def test_two_hundred_real_walks_equal_those_of_a_plain_agent(
    real_data: Path, random_environment: MakeEnvironment, name: str
) -> None:
    file = real_data / "r2r" / "R2R_val_unseen.json"
    records = read_episodes(file)
    scans = sorted({record.scan for record in records})
    world = build_world(read_scan(real_data / "connectivity" / f"{scan}_connectivity.json") for scan in scans)
    episodes = bind_episodes(world, records, file, name="r2r val_unseen")
    chosen = episodes.select(torch.linspace(0, len(episodes) - 1, 200).long())
    assert len(set(chosen.scan.tolist())) == len(scans)
    jumps, cut_off = _compare(Setting.of(random_environment, world, chosen), VARIANTS[name])
    assert jumps > 100
    assert cut_off > 0, "some walks end because their time is up"


# parts that are handed in


class Silent(nn.Module):
    """Messages without a weight: nothing is passed."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.made_with = width, steps

    def forward(self, states: Tensor, _graph: MemoryGraph) -> Tensor:
        return states


class Doubling(MemoryReader):
    """Reads everything twice as large."""

    def forward(self, *given: Any) -> tuple[Tensor, Tensor]:
        visual, orientation = super().forward(*given)
        return 2 * visual, 2 * orientation


@pytest.mark.parametrize(("kind", "config"), [(SSM, SSMConfig), (SSMPlus, SSMPlusConfig)])
def test_an_agent_is_made_of_the_parts_handed_in(kind: Any, config: Any, setting: Setting) -> None:
    made = config(word_width=8, width=16, node_width=3, reasoning_steps=2)
    agent = kind(made, setting.sizes, reader=Doubling, messages=Silent)
    assert agent.reader.visual_messages.made_with == (3, 2)
    assert agent.reader.orientation_messages.made_with == (128, 2)
    plain = kind(replace(made, reasoning_steps=0), setting.sizes)
    agent.load_state_dict(plain.state_dict())
    frontiers = [setting.learning(one.eval())[0].decisions[FRONTIER].logits[:9] for one in (agent, plain)]
    torch.testing.assert_close(frontiers[0], 2 * frontiers[1])


# gradients over a walk


class Watched(SSMPlus):
    """Restores states, and says at every step which states it has."""

    def heads(self, observations: Observations) -> dict[str, Tensor]:
        return {
            "hidden": observations.state.hidden,
            "earlier": observations.earlier,
            "previous": observations.previous,
        }


@pytest.mark.parametrize("revisits", [False, True])
def test_states_of_walks_that_return_equal_those_made_one_by_one(revisits: bool, setting: Setting) -> None:
    """Values and gradients; a jump back restores the state and the view, a hop back sees anew."""
    torch.manual_seed(5)
    config = SSMPlusConfig(word_width=8, width=16, restore_state=True, allow_revisits=revisits)
    agent = Watched(config, setting.sizes).eval()
    rollout, inputs = setting.learning(agent, max_decisions=9)
    initial, updater = agent.updater.initial_state(inputs.instructions), agent.updater
    expected, returns = torch.zeros_like(rollout.heads["hidden"]), torch.zeros_like(rollout.alive)
    actions, anew = rollout.decisions[ACTION], 0
    hops = set(zip(actions.episode.tolist(), (actions.step + 1).tolist(), strict=True))
    for episode, length in enumerate(rollout.length.tolist()):
        row, kept = torch.tensor([episode]), dict[int, tuple[LSTMState, int, int]]()
        state, before = initial.select(row), NONE
        for step in range(length):
            place, earlier = int(rollout.viewpoint[episode, step]), state.hidden[0]
            is_known, is_hop = place in kept, (episode, step) in hops
            returns[episode, step] = is_known and not is_hop
            anew += is_known and is_hop
            if not returns[episode, step]:
                view = int(rollout.view[episode, step])
                where = (torch.tensor([number]) for number in (place, before, view))
                kept[place] = updater(state, Observation.of(inputs, row, *where)), before, view
            state, previous, view = kept[place]
            expected[episode, step] = state.hidden[0]
            torch.testing.assert_close(rollout.heads["earlier"][episode, step], earlier)
            assert int(rollout.heads["previous"][episode, step]) == previous
            assert int(rollout.view[episode, step]) == view
            before = place
    found, learned = rollout.heads["hidden"], [*agent.encoder.parameters(), *updater.parameters()]
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    gradients = torch.autograd.grad(found, learned, upstream, retain_graph=True)
    torch.testing.assert_close(
        gradients, torch.autograd.grad(expected, learned, upstream), atol=1e-4, rtol=1e-4
    )
    assert int(returns.sum()) > 10
    assert (anew > 5) == revisits
    mixed = returns.any(dim=0) & (rollout.alive & ~returns).any(dim=0)
    assert int(mixed.sum()) > 2, "steps at which some return and others see something new"


class Moody(SSM):
    """Scores the frontiers by what it wrote at them."""

    def __init__(self, config: SSMConfig, sizes: DataSizes) -> None:
        super().__init__(config, sizes)
        self.written: list[tuple[Tensor, Tensor]] = []  # episodes (M,), and what they wrote (M, 1)

    def node_features(self, observations: Observations) -> dict[str, Tensor]:
        mood = torch.randn(len(observations.view), 1, requires_grad=True)
        self.written.append((observations.episode, mood))
        return {"mood": mood}

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        mood = point.memory().column("mood").squeeze(2)
        return {**super().score(point), FRONTIER: mood}


def test_a_decision_learns_through_the_memory_from_the_observation_that_wrote_there(setting: Setting) -> None:
    """Its gradient reaches what was written on the last visit of the chosen node, and nothing else."""
    torch.manual_seed(0)
    agent = Moody(SSMConfig(word_width=8, width=16), setting.sizes).eval()
    rollout, _ = setting.learning(agent)
    table, elsewhere = rollout.decisions[FRONTIER], 0
    moods = [mood for _, mood in agent.written]
    for row in range(len(table.choice)):
        logit = table.logits[row, table.choice[row]]
        gradients = torch.autograd.grad(logit, moods, retain_graph=True, allow_unused=True)
        reached = [
            (step, int(episodes[number]))
            for step, ((episodes, _), gradient) in enumerate(zip(agent.written, gradients, strict=True))
            if gradient is not None
            for number in gradient.squeeze(1).nonzero().squeeze(1).tolist()
        ]
        episode, step = int(table.episode[row]), int(table.step[row])
        visits = rollout.viewpoint[episode, : step + 1] == table.place[row]
        last = int(visits.nonzero().max())
        assert reached == [(last, episode)]
        elsewhere += last < step
    assert elsewhere > 5
