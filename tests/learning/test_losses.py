from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenemem.agents.collect import collect
from scenemem.agents.grounded import MemoryConfig
from scenemem.agents.network import AgentNetwork, NetworkConfig, Replay
from scenemem.agents.one_step import AnywhereNetwork
from scenemem.agents.policy import NetworkPolicy, Sample
from scenemem.agents.sight import Sight
from scenemem.models.navigator import Noise
from torch import Tensor

from scenemem.learning.objectives import ClosestToGoal
from scenemem.agents.rollout import Decisions, Kind, Map, Rollout
from scenemem.agents.ssm import FrontierNetwork
from scenemem.features.store import open_store
from scenemem.formats.features import write_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import RewardConfig, actor_critic, discounted_returns, imitation, rewards
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import PAD, Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS

VISUAL, ROUNDS, WORDS = 5, 4, 40


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.lists(st.lists(st.floats(-3, 3), max_size=6), min_size=1, max_size=5).filter(any),
    discount=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_returns_are_those_of_a_loop_over_lanes(lanes: list[list[float]], discount: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    bootstrap = random.normal(size=len(lanes)).tolist()
    rows = []  # (lane, order, reward, return)
    for lane, earned in enumerate(lanes):
        orders = sorted(random.choice(50, size=len(earned), replace=False).tolist())
        following = bootstrap[lane]
        for order, reward in zip(reversed(orders), reversed(earned), strict=True):
            following = reward + discount * following
            rows.append((lane, order, reward, following))
    random.shuffle(rows)
    lane_column, order_column, reward_column, expected = zip(*rows, strict=True)
    returns = discounted_returns(
        torch.tensor(reward_column),
        torch.tensor(lane_column).long(),
        torch.tensor(order_column).long(),
        torch.tensor(bootstrap),
        discount,
    )
    torch.testing.assert_close(returns, torch.tensor(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("before", "after", "stops", "sign", "metres"),
    [
        (8.0, 5.5, False, 1.0, 2.5),
        (5.5, 8.0, False, -1.0, -2.5),
        (4.0, 4.0, False, 0.0, 0.0),  # staying at a frontier earns nothing
        (4.0, 0.0, False, 1.0, 4.0),  # reaching the goal is not the end
        (2.9, 2.9, True, 2.0, 2.0),
        (3.0, 3.0, True, -2.0, -2.0),  # success is nearer than 3 m
        (9.0, 9.0, True, -2.0, -2.0),
        (0.0, 0.0, True, 2.0, 2.0),
    ],
)
def test_what_a_decision_earns(before: float, after: float, stops: bool, sign: float, metres: float) -> None:
    decision = torch.tensor([before]), torch.tensor([after]), torch.tensor([stops])
    assert rewards(*decision, RewardConfig()).tolist() == [sign]
    assert rewards(*decision, RewardConfig(quantised=False)).tolist() == [metres]


def test_success_can_be_paid_differently() -> None:
    stop = torch.tensor([1.0, 5.0]), torch.tensor([1.0, 5.0]), torch.tensor([True, True])
    assert rewards(*stop, RewardConfig(success=7.0)).tolist() == [7.0, -7.0]


def test_a_discount_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"discount must be in \[0, 1\], got 1.5"):
        RewardConfig(discount=1.5)


# the losses of whole rollouts, against a loop over lanes and decisions


@dataclass(frozen=True)
class Walked:
    """A rollout of many lanes, some stopped and some cut off, with what is needed to replay it."""

    network: AgentNetwork
    sight: Sight
    texts: tuple[str, ...]
    vocabulary: Vocabulary
    noise: Noise
    rollout: Rollout

    def replay(self) -> Replay:
        instructions = self.network.encoder(*self.vocabulary.encode_batch(self.texts, WORDS))
        return self.network.replay(self.rollout, self.sight, instructions, self.noise)

    def lane(self, lane: int) -> Walked:
        """One lane on its own, nothing padded."""
        one = slice(lane, lane + 1)
        ticks = int(self.rollout.ticks[lane])
        known = self.rollout.map
        assert known is not None
        nodes = int(known.count[lane, ticks - 1])
        return replace(
            self,
            texts=self.texts[one],
            noise=self.noise.select(torch.tensor([lane])),
            rollout=Rollout(
                viewpoint=self.rollout.viewpoint[one, :ticks],
                view=self.rollout.view[one, :ticks],
                alive=self.rollout.alive[one, :ticks],
                seen=self.rollout.seen[one, :ticks],
                decisions={
                    kind: _rows(table, table.lane == lane)
                    for kind, table in self.rollout.decisions.items()
                    if (table.lane == lane).any()
                },
                map=Map(
                    node=known.node[one, :nodes],
                    edge=known.edge[one, :nodes, :nodes],
                    at=known.at[one, :ticks],
                    count=known.count[one, :ticks],
                ),
            ),
        )


def _rows(table: Decisions, rows: Tensor) -> Decisions:
    columns = {field.name: getattr(table, field.name)[rows] for field in fields(table)}
    return replace(Decisions(**columns), lane=torch.zeros_like(columns["lane"]))


@pytest.fixture(scope="module")
def sight(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Sight:
    world = load_world(tiny_data / "connectivity")
    target = tmp_path_factory.mktemp("store") / "random.npy"
    features = np.random.default_rng(0).normal(size=(len(world.names), VIEWS, VISUAL))
    write_store(target, world.names, features, width=VISUAL, source="", encoder="random")
    return Sight(world, open_store(target, world))


@pytest.fixture(scope="module")
def episodes(tiny_data: Path, sight: Sight) -> EpisodeSet:
    every = load_split(DataFolder(tiny_data), sight.world, "r2r", "train")
    return every.select(range(0, len(every), 9))


@pytest.fixture(params=[FrontierNetwork, AnywhereNetwork])
def walked(request: pytest.FixtureRequest, sight: Sight, episodes: EpisodeSet) -> Walked:
    torch.manual_seed(3)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    # texts are read without dropout, so that every lane can be read again on its own; the rest is dropped
    config = NetworkConfig(word_width=6, width=12, dropout=0.3, feature_dropout=0.3)
    memory = MemoryConfig(reasoning_steps=2, stream=7)
    network = request.param(config, memory, len(vocabulary), PAD, VISUAL, ROUNDS).train()
    network.encoder.eval()
    lanes, noise = len(episodes), network.noise(len(episodes))
    instructions = network.encoder(*vocabulary.encode_batch(episodes.texts, WORDS))
    rollout = collect(
        sight.world,
        episodes,
        network.space(sight.world, lanes, ROUNDS),
        NetworkPolicy(
            network.acting(sight, network.unrolling(sight, instructions, noise)),
            Sample(torch.Generator().manual_seed(1)),
        ),
        max_ticks=8,
        label_rule=ClosestToGoal(sight.world, episodes.goal),
    )
    assert 0 < int(rollout.stopped.sum()) < lanes, "some stop, some are cut off"
    return Walked(network, sight, episodes.texts, vocabulary, noise, rollout)


@dataclass(frozen=True)
class Step:
    """One decision of one lane."""

    kind: Kind
    order: int
    scores: Tensor  # of the options there were
    value: Tensor
    choice: int  # among the options there were
    label: int
    before: float
    after: float
    stops: bool


def _steps(walked: Walked, replay: Replay) -> list[Step]:
    """The decisions of a single lane in their order."""
    steps = []
    for kind, table in walked.rollout.decisions.items():
        for row in range(len(table.lane)):
            options = table.options[row].nonzero().squeeze(1).tolist()
            steps.append(
                Step(
                    kind,
                    int(table.order[row]),
                    replay.logits[kind][row][options],
                    replay.values[0, table.tick[row]],
                    options.index(int(table.choice[row])),
                    options.index(int(table.label[row])),
                    float(table.before[row]),
                    float(table.after[row]),
                    bool(table.stops[row]),
                )
            )
    return sorted(steps, key=lambda step: step.order)


def _slow_imitation(walked: Walked, weights: Mapping[Kind, float]) -> Tensor:
    total, lanes = torch.zeros(()), len(walked.texts)
    for lane in range(lanes):
        alone = walked.lane(lane)
        for step in _steps(alone, alone.replay()):
            probability = step.scores.exp()[step.label] / step.scores.exp().sum()
            total = total - weights.get(step.kind, 1.0) * probability.log()
    return total / lanes


def _slow_actor_critic(walked: Walked, discount: float, entropy_weight: float, value_weight: float) -> Tensor:
    total, count = torch.zeros(()), 0
    for lane in range(len(walked.texts)):
        alone = walked.lane(lane)
        replay = alone.replay()
        steps = _steps(alone, replay)
        expected = 0.0 if steps[-1].stops else float(replay.values[0, -1].detach())
        for step in reversed(steps):
            if step.stops:
                reward = 2.0 if step.after < 3.0 else -2.0
            else:
                reward = float(np.sign(step.before - step.after))
            expected = reward + discount * expected
            probability = step.scores.softmax(0)
            total = total - (expected - step.value.detach()) * probability[step.choice].log()
            total = total + value_weight * (expected - step.value) ** 2
            total = total + entropy_weight * (probability * probability.log()).sum()
            count += 1
    return total / count


def _check(walked: Walked, fast: Tensor, slow: Tensor) -> None:
    """Same value, same gradient of every parameter."""
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)
    names, parameters = zip(*walked.network.named_parameters(), strict=True)
    fast_gradients = torch.autograd.grad(fast, parameters, materialize_grads=True)
    slow_gradients = torch.autograd.grad(slow, parameters, materialize_grads=True)
    for name, a, b in zip(names, fast_gradients, slow_gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-3), name
    assert sum(float(gradient.abs().sum()) for gradient in fast_gradients) > 0


@pytest.mark.parametrize("weights", [{}, {"frontier": 0.2, "action": 1.5, "anywhere": 0.7}])
def test_imitation_is_the_sum_over_lanes_and_decisions(walked: Walked, weights: dict[Kind, float]) -> None:
    fast = imitation(walked.rollout, walked.replay(), weights)
    _check(walked, fast, _slow_imitation(walked, weights))


def test_actor_critic_is_the_sum_over_lanes_and_decisions(walked: Walked) -> None:
    fast = actor_critic(
        walked.rollout, walked.replay(), RewardConfig(discount=0.8), entropy_weight=0.05, value_weight=0.4
    )
    _check(walked, fast, _slow_actor_critic(walked, discount=0.8, entropy_weight=0.05, value_weight=0.4))


def test_decisions_without_a_label_teach_nothing(walked: Walked) -> None:
    unlabelled = {
        kind: replace(table, label=torch.full_like(table.label, -1))
        for kind, table in walked.rollout.decisions.items()
    }
    loss = imitation(replace(walked.rollout, decisions=unlabelled), walked.replay(), {})
    assert loss.item() == 0.0


def test_only_cut_off_lanes_expect_more() -> None:
    """Lane 0 stops near the goal; lane 1 comes closer, is cut off, and expects what the critic says then."""
    decided = Decisions(
        lane=torch.tensor([0, 1]),
        tick=torch.tensor([0, 0]),
        order=torch.tensor([0, 0]),
        options=torch.ones(2, 2, dtype=torch.bool),
        choice=torch.tensor([1, 0]),
        label=torch.tensor([1, 1]),
        before=torch.tensor([1.0, 9.0]),
        after=torch.tensor([1.0, 7.0]),
        stops=torch.tensor([True, False]),
        walk=torch.zeros(2, 0),
    )
    nowhere = torch.zeros(2, 2, dtype=torch.long)
    alive = torch.tensor([[True, False], [True, True]])
    rollout = Rollout(nowhere, nowhere, alive, nowhere, {"action": decided}, map=None)
    replay = Replay({"action": torch.zeros(2, 2)}, values=torch.tensor([[1.0, 100.0], [0.5, 4.0]]))
    loss = actor_critic(rollout, replay, RewardConfig(discount=0.5), entropy_weight=0.1, value_weight=0.5)
    surprise = math.log(2.0)  # of a choice between two equal options, and their entropy
    advantage = (2.0 - 1.0, 1.0 + 0.5 * 4.0 - 0.5)
    expected = sum(surprise * a + 0.5 * a**2 - 0.1 * surprise for a in advantage) / 2
    assert float(loss) == pytest.approx(expected)
