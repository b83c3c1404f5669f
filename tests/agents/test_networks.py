"""What must hold for every trained agent, whatever its network looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scenemem.agents.collect import collect
from scenemem.agents.grounded import GroundedNetwork, LocalNetwork, MemoryConfig, memory_of
from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig
from scenemem.agents.one_step import AnywhereNetwork
from scenemem.agents.policy import Chooser, NetworkPolicy, take_best
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, LocalSpace
from scenemem.models.navigator import Noise
from torch import Tensor

from scenemem.agents.basic import BasicNetwork
from scenemem.learning.objectives import ClosestToGoal
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.ssm import FrontierNetwork
from scenemem.features.store import open_store
from scenemem.formats.features import write_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import RewardConfig, actor_critic, imitation
from scenemem.models.language import Instructions
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import PAD, Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS
from scenemem.world.graph import NONE, World

VISUAL, ROUNDS, TICKS = 6, 6, 60
SIZES = NetworkConfig(word_width=8, width=16)

MEMORY_NETWORKS: dict[str, tuple[type[GroundedNetwork], MemoryConfig]] = {
    "local": (LocalNetwork, MemoryConfig()),
    "frontier": (FrontierNetwork, MemoryConfig(reasoning_steps=2)),
    "frontier narrow": (FrontierNetwork, MemoryConfig(stream=32)),
    "frontier hints": (FrontierNetwork, MemoryConfig(hints=True)),
    "frontier hints narrow": (FrontierNetwork, MemoryConfig(hints=True, stream=32)),
    "stop reads": (FrontierNetwork, MemoryConfig(stop_reads=True, hints=True, recalls=True, stream=32)),
    "stop reads plainly": (FrontierNetwork, MemoryConfig(stop_reads=True)),
    "anywhere stop reads": (AnywhereNetwork, MemoryConfig(stop_reads=True, recalls=True)),
    "frontier by hops": (FrontierNetwork, MemoryConfig(weights="hops")),
    "no grounding": (FrontierNetwork, MemoryConfig(grounding=False)),
    "no reasoning": (FrontierNetwork, MemoryConfig(reasoning_steps=0)),
    "anywhere": (AnywhereNetwork, MemoryConfig(reasoning_steps=2)),
    "anywhere narrow": (AnywhereNetwork, MemoryConfig(stream=32)),
    "frontier read before": (FrontierNetwork, MemoryConfig(read_before=True)),
    "anywhere read before": (AnywhereNetwork, MemoryConfig(read_before=True)),
    "hop prior": (FrontierNetwork, MemoryConfig(hop_prior=True)),
    "frontier revisits": (FrontierNetwork, MemoryConfig(revisits=True, hints=True, stop_reads=True)),
    "recalls and revisits": (FrontierNetwork, MemoryConfig(recalls=True, revisits=True, hints=True)),
    "anywhere revisits": (AnywhereNetwork, MemoryConfig(revisits=True)),
}
NAMES = ("basic", "seq2seq", *MEMORY_NETWORKS)


def _network(name: str, words: int) -> AgentNetwork:
    """A random network whose scores differ clearly from option to option."""
    torch.manual_seed(4)
    if name in ("basic", "seq2seq"):
        config = replace(SIZES, panorama=name == "basic")
        network: AgentNetwork = BasicNetwork(config, words, PAD, VISUAL, ROUNDS)
    else:
        kind, memory = MEMORY_NETWORKS[name]
        network = kind(SIZES, memory, words, PAD, VISUAL, ROUNDS)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return network.eval()


@dataclass(frozen=True)
class Setting:
    """A tiny world with random features, and episodes to walk in it."""

    sight: Sight
    episodes: EpisodeSet
    vocabulary: Vocabulary

    @property
    def world(self) -> World:
        return self.sight.world

    def read(self, network: AgentNetwork, episodes: EpisodeSet) -> Instructions:
        encoded: Instructions = network.encoder(*self.vocabulary.encode_batch(episodes.texts, 40))
        return encoded


def _features(world: World) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    random = np.random.default_rng(0)
    return random.normal(size=(len(world.viewpoints), VIEWS, VISUAL)).astype(np.float32)


def _sight(world: World, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], target: Path) -> Sight:
    write_store(target, world.names, values, width=VISUAL, source="", encoder="random")
    return Sight(world, open_store(target, world))


@pytest.fixture(scope="module")
def setting(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    world = load_world(tiny_data / "connectivity")
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "train")
    sight = _sight(world, _features(world), tmp_path_factory.mktemp("store") / "random.npy")
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    return Setting(sight, episodes.select(range(0, len(episodes), 5)), vocabulary)


@pytest.fixture(params=NAMES)
def network(request: pytest.FixtureRequest, setting: Setting) -> AgentNetwork:
    return _network(request.param, len(setting.vocabulary))


class Listener(NetworkPolicy):
    """Keeps the logits of every answer."""

    def __init__(self, acting: Acting, choose: Chooser) -> None:
        super().__init__(acting, self._heard)
        self._choose_from = choose
        self._kind: Kind = "action"
        self._logits: dict[Kind, list[Tensor]] = {}

    def answer(self, question: Question, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        self._kind = question.kind
        return super().answer(question, label, pose, space)

    def _heard(self, logits: Tensor) -> Tensor:
        self._logits.setdefault(self._kind, []).append(logits)
        return self._choose_from(logits)

    @property
    def logits(self) -> dict[Kind, Tensor]:
        return {kind: torch.cat(logits) for kind, logits in self._logits.items()}


def _roam(seed: int = 0) -> Chooser:
    """Chooses anything, but seldom to stop, so that memories grow and walks lead back and forth."""
    random = torch.Generator().manual_seed(seed)

    def choose(logits: Tensor) -> Tensor:
        wish = logits.isfinite().float()
        wish[:, -1] *= 0.2
        return torch.multinomial(wish, 1, generator=random).squeeze(1)

    return choose


def _walk(
    setting: Setting,
    network: AgentNetwork,
    episodes: EpisodeSet,
    choose: Chooser,
    *,
    noise: Noise | None = None,
    instructions: Instructions | None = None,
    rounds: int = ROUNDS,
    returns: bool = True,
) -> tuple[Rollout, dict[Kind, Tensor]]:
    """Walk, and return the rollout with the logits of all decisions as they were when acting."""
    lanes = len(episodes)
    unrolling = network.unrolling(
        setting.sight, instructions or setting.read(network, episodes), noise or network.noise(lanes)
    )
    acting = network.acting(setting.sight, unrolling)
    policy = Listener(acting, choose)
    rollout = collect(
        setting.world,
        episodes,
        network.space(setting.world, lanes, rounds, returns=returns),
        policy,
        max_ticks=TICKS,
        label_rule=ClosestToGoal(setting.world, episodes.goal),
    )
    return rollout, policy.logits


def _close(seen: dict[Kind, Tensor], expected: dict[Kind, Tensor]) -> None:
    assert seen.keys() == expected.keys()
    for kind in expected:
        torch.testing.assert_close(seen[kind], expected[kind], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_replaying_says_what_acting_said(network: AgentNetwork, setting: Setting, training: bool) -> None:
    network.train(training)
    noise = network.noise(len(setting.episodes))
    instructions = setting.read(network, setting.episodes)
    rollout, acted = _walk(
        setting, network, setting.episodes, _roam(), noise=noise, instructions=instructions
    )
    replay = network.replay(rollout, setting.sight, instructions, noise)
    _close(replay.logits, acted)
    assert replay.values.shape == rollout.alive.shape
    if rollout.map is not None:
        assert int(rollout.map.count.max()) >= ROUNDS, "somebody went far"
        assert rollout.decisions.keys() in ({"action", "frontier"}, {"anywhere"})


def test_a_walk_made_by_others_can_be_replayed(setting: Setting) -> None:
    """A memory network learns from the walk of another one."""
    rollout, _ = _walk(setting, _network("frontier", len(setting.vocabulary)), setting.episodes, _roam())
    other = _network("frontier hints narrow", len(setting.vocabulary))
    instructions = setting.read(other, setting.episodes)
    replay = other.replay(rollout, setting.sight, instructions, other.noise(len(setting.episodes)))
    for kind, table in rollout.decisions.items():
        assert torch.equal(replay.logits[kind].isfinite(), table.options)


def _of_lane(rollout: Rollout, logits: dict[Kind, Tensor], lane: int) -> dict[Kind, Tensor]:
    """The finite scores a lane gave, decision by decision; what is not an option is left out."""
    found = {}
    for kind, table in rollout.decisions.items():
        rows = table.lane == lane
        if rows.any():
            found[kind] = logits[kind][rows][table.options[rows]]
    return found


def test_a_lane_is_what_it_would_be_alone(network: AgentNetwork, setting: Setting) -> None:
    """Neither other lanes, nor their order, nor padding for longer texts change a walk or a score."""
    together, logits = _walk(setting, network, setting.episodes, take_best)
    assert len(set(together.ticks.tolist())) > 1
    for lane in range(0, len(setting.episodes), 4):
        alone, own = _walk(setting, network, setting.episodes.select([lane]), take_best)
        ticks = int(alone.ticks[0])
        assert together.viewpoint[lane, :ticks].tolist() == alone.viewpoint[0].tolist()
        assert together.alive[lane].sum() == ticks
        _close(_of_lane(together, logits, lane), _of_lane(alone, own, 0))


def test_nothing_after_the_end_of_a_walk_matters(network: AgentNetwork, setting: Setting) -> None:
    instructions, noise = setting.read(network, setting.episodes), network.noise(len(setting.episodes))
    rollout, _ = _walk(setting, network, setting.episodes, _roam(1))
    assert not rollout.alive.all()
    garbage = replace(
        rollout,
        viewpoint=rollout.viewpoint.masked_fill(~rollout.alive, 7),
        view=rollout.view.masked_fill(~rollout.alive, 30),
    )
    expected = network.replay(rollout, setting.sight, instructions, noise)
    seen = network.replay(garbage, setting.sight, instructions, noise)
    _close(seen.logits, expected.logits)
    torch.testing.assert_close(seen.values[rollout.alive], expected.values[rollout.alive])


def _with_slots_turned(world: World) -> World:
    """The same world with the neighbours of every viewpoint in reversed order."""
    slots = torch.arange(world.neighbour.shape[1])
    turned = torch.where(slots < world.degree[:, None], world.degree[:, None] - 1 - slots, slots)
    names = ("neighbour", "neighbour_view", "neighbour_heading", "neighbour_elevation", "neighbour_length")
    return replace(world, **{name: getattr(world, name).gather(1, turned) for name in names})


def test_the_order_of_neighbours_only_moves_scores(network: AgentNetwork, setting: Setting) -> None:
    world = _with_slots_turned(setting.world)
    turned = replace(setting, sight=Sight(world, setting.sight.store))
    rollout, logits = _walk(setting, network, setting.episodes, take_best)
    other, moved = _walk(turned, network, setting.episodes, take_best)
    assert torch.equal(other.viewpoint, rollout.viewpoint)
    for kind, table in rollout.decisions.items():
        if kind == "frontier":
            torch.testing.assert_close(moved[kind], logits[kind], atol=1e-4, rtol=1e-4)
        for row in range(len(table.lane)):
            seen, expected = moved[kind][row], logits[kind][row]
            torch.testing.assert_close(seen.sort().values, expected.sort().values, atol=1e-4, rtol=1e-4)


def test_a_dropped_column_can_hold_anything(network: AgentNetwork, setting: Setting, tmp_path: Path) -> None:
    values = _features(setting.world)
    values[..., 2] = 50.0
    instructions, noise = setting.read(network, setting.episodes), network.noise(len(setting.episodes))
    mask = torch.ones(VISUAL)
    mask[2] = 0.0
    noise = replace(noise, feature=mask)
    rollout, acted = _walk(setting, network, setting.episodes, _roam(), noise=noise)
    garbage = _sight(setting.world, values, tmp_path / "garbage.npy")
    _close(network.replay(rollout, garbage, instructions, noise).logits, acted)


def test_a_walk_of_one_decision_works(network: AgentNetwork, setting: Setting) -> None:
    """A memory of one node: nobody is asked for a frontier."""

    def first_option(logits: Tensor) -> Tensor:
        return logits.isfinite().int().argmax(dim=-1)

    rollout, acted = _walk(setting, network, setting.episodes, first_option, rounds=1)
    assert len(rollout.decisions) == 1
    assert "frontier" not in rollout.decisions
    instructions = setting.read(network, setting.episodes)
    replay = network.replay(rollout, setting.sight, instructions, network.noise(len(setting.episodes)))
    _close(replay.logits, acted)


def test_every_parameter_learns(network: AgentNetwork, setting: Setting) -> None:
    instructions, noise = setting.read(network, setting.episodes), network.noise(len(setting.episodes))
    rollout, _ = _walk(setting, network, setting.episodes, _roam())
    replay = network.replay(rollout, setting.sight, instructions, noise)
    loss = imitation(rollout, replay, {}) + actor_critic(
        rollout, replay, RewardConfig(), entropy_weight=0.01, value_weight=0.5
    )
    names, parameters = zip(*network.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    dead = [
        name
        for name, gradient in zip(names, gradients, strict=True)
        if gradient is None or not gradient.any()
    ]
    # with the hop prior no walk of the tiny world gets to where it may stop
    never_offered = isinstance(network, FrontierNetwork) and network.memory.hop_prior
    assert set(dead) == ({"stop.visual", "stop.orientation"} if never_offered else set())
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_nothing_is_dropped_when_evaluating(network: AgentNetwork) -> None:
    noise = network.noise(3)
    for mask in (noise.feature, noise.entered, noise.looking, noise.listening, noise.deciding):
        assert (mask == 1.0).all()


def test_training_drops_whole_columns_and_scales_the_rest(setting: Setting) -> None:
    torch.manual_seed(0)
    network = _network("frontier", len(setting.vocabulary)).train()
    noise = network.noise(40)
    assert noise.feature.shape == (VISUAL,), "one mask for all lanes, views and steps"
    drawn = torch.cat([network.noise(1).feature for _ in range(9)])
    assert sorted(set(drawn.tolist())) == pytest.approx([0.0, 1 / 0.6])
    for mask in (noise.entered, noise.looking, noise.listening, noise.deciding):
        assert set(mask.flatten().tolist()) == {0.0, 2.0}
        assert 0.3 < float((mask == 0.0).float().mean()) < 0.7
        assert not torch.equal(mask[0], mask[1]), "lanes drop different numbers"


@pytest.mark.parametrize("name", ["frontier hints narrow", "stop reads", "anywhere"])
def test_whoever_has_used_up_its_decisions_ends_where_stopping_was_likeliest(
    name: str, setting: Setting
) -> None:
    network = _network(name, len(setting.vocabulary))
    assert isinstance(network, GroundedNetwork)
    network.memory = replace(network.memory, goes_back=True)

    def never_stop(logits: Tensor) -> Tensor:
        wanderer = logits.clone()
        wanderer[:, -1] = torch.where(wanderer[:, :-1].isfinite().any(dim=1), -1e6, wanderer[:, -1])
        return take_best(wanderer)

    rollout, logits = _walk(setting, network, setting.episodes, never_stop, rounds=3)
    table, known = rollout.decisions["last"], rollout.map
    assert known is not None
    kind: Kind = "anywhere" if name == "anywhere" else "action"
    asked = rollout.decisions[kind]
    likely = logits[kind].log_softmax(dim=-1)[:, -1]
    assert len(table.lane) > 5
    for lane, scores in zip(table.lane.tolist(), logits["last"], strict=True):
        best: dict[int, float] = {}
        for row in (asked.lane == lane).nonzero().squeeze(1).tolist():
            best[int(known.at[lane, asked.tick[row]])] = float(likely[row])  # the latest counts
        for node, score in best.items():
            assert float(scores[node]) == pytest.approx(score, abs=1e-5)
        others = [float(scores[node]) for node in range(int(known.count[lane].max())) if node not in best]
        assert all(score < min(best.values()) for score in others), "nobody has asked there"
    assert (table.label == NONE).all(), "where to end is not learnt"
    learning, _ = _walk(setting, network, setting.episodes, never_stop, rounds=3, returns=False)
    assert "last" not in learning.decisions, "walks to learn from are cut off"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NetworkConfig(width=7), "width must be even and positive, got 7; both directions share it"),
        (lambda: NetworkConfig(word_width=0), "word_width must be 1 or more, got 0"),
        (lambda: NetworkConfig(dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
        (lambda: NetworkConfig(feature_dropout=-0.1), r"feature_dropout must be in \[0, 1\), got -0.1"),
        (lambda: MemoryConfig(reasoning_steps=-1), "reasoning_steps must be 0 or more, got -1; use 0"),
        (lambda: MemoryConfig(recalls=True, read_before=True), "recalls and read_before exclude each other"),
        (lambda: MemoryConfig(hop_prior=True, goes_back=True), "hop_prior and goes_back exclude each other"),
        (lambda: MemoryConfig(stream=0), "stream must be 1 or more, got 0; leave it out for the feature"),
    ],
)
def test_impossible_sizes_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_map_agent_refuses_a_space_without_a_memory(setting: Setting) -> None:
    with pytest.raises(TypeError, match="LocalSpace has no memory, but this is decided over one"):
        memory_of(LocalSpace(setting.world, 1, 1))


def test_a_map_agent_refuses_a_rollout_without_a_map(setting: Setting) -> None:
    for name in ("frontier", "anywhere"):
        network = _network(name, len(setting.vocabulary))
        rollout, _ = _walk(setting, network, setting.episodes, _roam())
        instructions, noise = setting.read(network, setting.episodes), network.noise(len(setting.episodes))
        with pytest.raises(TypeError, match="no map"):
            network.replay(replace(rollout, map=None), setting.sight, instructions, noise)
