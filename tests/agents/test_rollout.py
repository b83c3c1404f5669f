"""Rollouts: parts of them, and several as one."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from scenemem.agents.rollout import DECISION_TYPES, FINAL, Decisions, DecisionType, Rollout, joined
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.world.graph import NONE
from tests.agents.helpers import Setting, roam

ENDS = {"final_backtrack": True, "restore_state": True}


@pytest.fixture(scope="module", params=["basic", "ssm-plus", "ssm-global"])
def agent(request: pytest.FixtureRequest, whole: Setting) -> TrainedAgent:
    settings = ENDS if request.param == "ssm-plus" else {}
    return whole.agent(request.param, limits=WalkConfig(4, 12, 12), **settings)


def _same_walks(one: Rollout, other: Rollout) -> None:
    """Everything about the episodes is the same."""
    for name in ("viewpoint", "view", "alive", "stopped", "jumps"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.decisions.keys() == other.decisions.keys()
    for kind, table in one.decisions.items():
        for item in fields(Decisions):
            if item.name != "order":  # it counts the requests of the whole batch
                seen, expected = getattr(table, item.name), getattr(other.decisions[kind], item.name)
                tolerance = 1e-4 if item.name == "logits" else 0.0  # texts are padded for others
                torch.testing.assert_close(seen, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def _row(rollout: Rollout, episode: int) -> Rollout:
    return rollout.select(torch.tensor([episode]))


def test_batches_walked_apart_and_joined_are_the_batch(agent: TrainedAgent, whole: Setting) -> None:
    episodes, begin, parts = whole.episodes, 0, list[Rollout]()
    for size in (1, 12, 5, 20):
        parts.append(agent.walk(episodes.select(range(begin, begin + size))))
        begin += size
    together, batch = joined(parts), agent.walk(episodes.select(range(begin)))
    assert len(together.alive) == begin
    walks = [_row(part, episode) for part in parts for episode in range(len(part.alive))]
    for episode, alone in enumerate(walks):
        _same_walks(_row(together, episode), alone)
        _same_walks(_row(batch, episode), alone)
    assert joined(parts[:1]).viewpoint.equal(parts[0].viewpoint)


def test_a_part_has_its_episodes_in_the_order_given(agent: TrainedAgent, whole: Setting) -> None:
    rollout = whole.walk(agent.network, roam(2), whole.episodes.select(range(12)), max_decisions=4)
    chosen = torch.tensor([7, 0, 3])
    part = rollout.select(chosen)
    assert part.length.tolist() == rollout.length[chosen].tolist()
    assert part.alive.shape[1] == int(part.length.max()), "steps that none of them reaches are left out"
    assert torch.equal(part.heads["value"], rollout.heads["value"][chosen, : part.alive.shape[1]])
    for number, episode in enumerate(chosen.tolist()):
        _same_walks(_row(part, number), _row(rollout, episode))
        for kind, table in part.decisions.items():
            own = rollout.decisions[kind]
            assert torch.equal(table.logits[table.episode == number], own.logits[own.episode == episode])
    nothing = rollout.select(chosen[:0])
    assert nothing.alive.shape == (0, 0)
    assert not nothing.decisions


def test_what_decisions_are_about() -> None:
    assert [str(kind) for kind in DECISION_TYPES] == ["frontier", "action", "global", "final"]
    assert [kind.over_nodes for kind in DECISION_TYPES] == [True, False, False, True]
    assert [kind for kind in DECISION_TYPES if not kind.learned] == [FINAL]
    named = DecisionType("turns", over_nodes=False, names=("left", "stop"))
    assert [named.name_of(option, 4) for option in range(4)] == [None, None, "left", "stop"]


def test_walks_are_padded_after_their_end(agent: TrainedAgent, whole: Setting) -> None:
    rollout = whole.walk(agent.network, roam(), max_decisions=4)
    assert not rollout.alive.all()
    assert torch.equal(rollout.alive, rollout.alive.cummin(dim=1).values)
    assert (rollout.walked[~rollout.alive] == NONE).all()
    assert torch.equal(rollout.walked[rollout.alive], rollout.viewpoint[rollout.alive])
