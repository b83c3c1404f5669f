from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scenemem.agents.build import Kind, WalkConfig, build_network
from scenemem.agents.grounded import LocalNetwork, MemoryConfig
from scenemem.agents.network import AgentNetwork, NetworkConfig
from scenemem.agents.one_step import AnywhereNetwork
from scenemem.agents.sight import Sight
from scenemem.agents.trained import TrainedAgent

from scenemem.agents.basic import BasicNetwork
from scenemem.agents.ssm import FrontierNetwork
from scenemem.features.store import open_store
from scenemem.formats.features import write_store
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS

NETWORKS: dict[Kind, type[AgentNetwork]] = {
    "basic": BasicNetwork,
    "local": LocalNetwork,
    "frontier": FrontierNetwork,
    "anywhere": AnywhereNetwork,
}


@pytest.fixture(scope="module")
def sight(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Sight:
    world = load_world(tiny_data / "connectivity")
    target = tmp_path_factory.mktemp("store") / "random.npy"
    features = np.random.default_rng(0).normal(size=(len(world.names), VIEWS, 4))
    write_store(target, world.names, features, width=4, source="", encoder="random")
    return Sight(world, open_store(target, world))


@pytest.fixture(scope="module")
def episodes(tiny_data: Path, sight: Sight) -> EpisodeSet:
    return load_split(DataFolder(tiny_data), sight.world, "r2r", "test")


def _agent(kind: Kind, sight: Sight, episodes: EpisodeSet) -> TrainedAgent:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    config, walk = NetworkConfig(word_width=6, width=8), WalkConfig(rounds=4, ticks=9, words=7)
    network = build_network(kind, config, MemoryConfig(), walk, vocabulary, sight.width)
    return TrainedAgent(network, sight, vocabulary, max_words=walk.words, max_ticks=walk.ticks)


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_agent_walks_without_knowing_the_goal(
    kind: Kind, sight: Sight, episodes: EpisodeSet
) -> None:
    agent = _agent(kind, sight, episodes)
    assert type(agent.network) is NETWORKS[kind]
    rollout = agent.walk(episodes)
    assert rollout.viewpoint[:, 0].tolist() == episodes.start.tolist()
    assert int(rollout.ticks.max()) <= 9
    walks = [walk[:ticks] for walk, ticks in zip(rollout.viewpoint, rollout.ticks, strict=True)]
    assert all((sight.world.slot_of(walk[:-1], walk[1:]) >= 0).all() for walk in walks)


def test_walking_drops_nothing_and_leaves_training_as_it_was(sight: Sight, episodes: EpisodeSet) -> None:
    agent = _agent("frontier", sight, episodes)
    agent.network.train()
    first, again = agent.walk(episodes), agent.walk(episodes)
    assert agent.network.training
    assert torch.equal(first.viewpoint, again.viewpoint)
    agent.network.eval()
    agent.walk(episodes)
    assert not agent.network.training


def test_long_instructions_are_cut(sight: Sight, episodes: EpisodeSet) -> None:
    agent = _agent("basic", sight, episodes)
    assert agent.read(("one two three " * 20,)).context.shape[1] == 7


@pytest.mark.parametrize("name", ["rounds", "ticks", "words"])
def test_a_walk_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 1 or more, got 0"):
        WalkConfig(**{name: 0})
