"""Rollouts: parts of them, and several as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.rollout import (
    ACTION,
    DECISION_TYPES,
    FINAL,
    DecisionRequest,
    Decisions,
    EpisodeIndex,
    MemoryRecord,
    Rollout,
    joined,
)
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.features.store import Environment
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, World

assert PRESETS, "presets register the packaged agents"


@pytest.fixture(scope="module", params=["basic", "ssm", "ssm-global"])
def agent(
    request: pytest.FixtureRequest,
    random_environment: Callable[[World, int], Environment],
    world: World,
    episodes: EpisodeSet,
) -> TrainedAgent:
    torch.manual_seed(1)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    spec = AGENTS[request.param]
    settings = {} if request.param == "basic" else {"final_backtrack": True, "restore_state": True}
    network = spec.build(spec.config(word_width=6, width=8, **settings), DataSizes(len(vocabulary), 4))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # so that it prefers something
    return TrainedAgent(network, random_environment(world, 4), vocabulary, WalkConfig(4, 12, 12))


def _same_walks(one: Rollout, other: Rollout) -> None:
    """Everything about the episodes is the same; tables may be padded for others."""
    for name in ("viewpoint", "view", "alive", "state_step"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.stopped, other.stopped)
    assert torch.equal(one.jumps, other.jumps)
    assert one.decisions.keys() == other.decisions.keys()
    for kind, table in one.decisions.items():
        for item in fields(Decisions):
            if item.name != "order":  # it counts the requests of the whole batch
                seen, expected = getattr(table, item.name), getattr(other.decisions[kind], item.name)
                torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True, msg=item.name)
    assert (one.memory is None) == (other.memory is None)
    if one.memory is None or other.memory is None:
        return
    assert one.memory.allow_revisits == other.memory.allow_revisits
    nodes = max(one.memory.node.shape[1], other.memory.node.shape[1])
    assert one.memory.notes.keys() == other.memory.notes.keys()
    for name, noted in one.memory.notes.items():
        assert torch.equal(noted, other.memory.notes[name]), name
    for item in fields(MemoryRecord):
        if item.name not in ("allow_revisits", "notes"):
            seen, expected = (_wide(item.name, record, nodes) for record in (one.memory, other.memory))
            assert torch.equal(seen, expected), item.name


def _wide(name: str, record: MemoryRecord, nodes: int) -> Tensor:
    """A table of a memory with room for as many nodes."""
    table: Tensor = getattr(record, name)
    missing = nodes - record.node.shape[1]
    if name == "edge":
        return torch.nn.functional.pad(table, (0, missing, 0, missing))
    if name in ("node", "walk"):
        return torch.nn.functional.pad(table, (0, missing), value=NONE if name == "node" else torch.inf)
    return table


def test_an_episode_of_several_rollouts_is_the_episode_of_its_own(
    agent: TrainedAgent, episodes: EpisodeSet
) -> None:
    sizes = (1, 12, 5, 20)
    parts, begin = [], 0
    for size in sizes:
        parts.append(agent.walk(episodes.select(range(begin, begin + size))))
        begin += size
    together = joined(parts)
    assert len(together.alive) == sum(sizes)
    first = 0
    for part in parts:
        for episode in range(len(part.alive)):
            _same_walks(
                together.select(torch.tensor([first + episode])), part.select(torch.tensor([episode]))
            )
        first += len(part.alive)
    assert joined(parts[:1]).viewpoint.equal(parts[0].viewpoint)


def test_batches_walked_apart_and_joined_are_the_batch(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    whole = agent.walk(episodes.select(range(30)))
    halves = [agent.walk(episodes.select(range(11))), agent.walk(episodes.select(range(11, 30)))]
    together = joined(halves)
    for episode in range(30):
        row = torch.tensor([episode])
        _same_walks(together.select(row), whole.select(row))


def test_a_part_has_its_episodes_in_the_order_given(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    whole = agent.walk(episodes.select(range(12)))
    chosen = torch.tensor([7, 0, 3])
    part = whole.select(chosen)
    assert part.length.tolist() == whole.length[chosen].tolist()
    assert part.alive.shape[1] == int(part.length.max()), "steps that none of them reaches are left out"
    for number, episode in enumerate(chosen.tolist()):
        _same_walks(part.select(torch.tensor([number])), whole.select(torch.tensor([episode])))


def test_a_part_without_episodes_is_empty(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    nothing = agent.walk(episodes.select(range(4))).select(torch.empty(0, dtype=torch.long))
    assert nothing.alive.shape == (0, 0)
    assert not nothing.decisions


def test_what_decisions_are_about() -> None:
    assert [str(kind) for kind in DECISION_TYPES] == ["frontier", "action", "global", "final"]
    assert [kind.over_nodes for kind in DECISION_TYPES] == [True, False, False, True]
    assert [kind for kind in DECISION_TYPES if not kind.learned] == [FINAL]


def test_walks_are_padded_after_their_end(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    rollout = agent.walk(episodes.select(range(30)))
    assert not rollout.alive.all()
    assert (rollout.walked[~rollout.alive] == NONE).all()
    assert torch.equal(rollout.walked[rollout.alive], rollout.viewpoint[rollout.alive])
    assert ACTION not in rollout.decisions or rollout.decisions[ACTION].options[:, -1].all()


# lists of episodes


def test_a_list_of_episodes_is_known_to_host_and_device() -> None:
    everyone = EpisodeIndex.of(torch.tensor([1, 4, 5, 9]))
    assert everyone.where(np.ones(4, dtype=np.bool_)) is everyone, "the same list, so that nothing is rebuilt"
    some = everyone.where(np.array([False, True, False, True]))
    assert some.number.tolist() == some.index.tolist() == [4, 9]
    rows = everyone.rows_of(some)
    assert rows is not None
    assert rows.tolist() == [1, 3]
    assert everyone.rows_of(EpisodeIndex.of(torch.tensor([1, 4, 5, 9]))) is None
    assert not everyone.where(np.zeros(4, dtype=np.bool_)), "an empty list is false"


def test_a_request_knows_its_episodes_when_it_is_asked() -> None:
    options, places = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.long)
    request = DecisionRequest(ACTION, torch.tensor([2, 7]), options, places)
    assert request.episodes.number.tolist() == [2, 7]
    assert request.episodes is request.episodes
