from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scenemem.agents.hints import FrontierHints, NodeFacts

NODES = 4


@pytest.fixture
def facts() -> NodeFacts:
    """A memory of three nodes, standing at node 1; the fourth is not known yet."""
    return NodeFacts(
        here=torch.tensor([1]),
        count=torch.tensor([3]),
        walk=torch.tensor([[5.0, 0.0, 20.0, torch.inf]]),
        remembered=torch.tensor(
            [[[-1.0, -2.0, -3.0], [-4.0, -0.5, -1e4], [-6.0, -7.0, -0.1], [9.0, 9.0, 9.0]]]
        ),
        open=torch.tensor([[[False, True], [True, False], [False, False], [True, True]]]),
    )


def test_facts_are_plain(facts: NodeFacts) -> None:
    assert facts.columns()[0].tolist() == [
        pytest.approx(row)
        for row in (
            # here, walk / 10, age / 10, best open neighbour, stopping there
            [0.0, 0.5, 0.2, -2.0, -3.0],
            [1.0, 0.0, 0.1, -4.0, -10.0],  # remembered scores have a floor
            [0.0, 2.0, 0.0, -10.0, -0.1],  # nothing is open there
            [0.0, 0.0, 0.0, 0.0, 0.0],  # not known yet
        )
    ]


def test_neighbour_order_and_unknown_nodes_do_not_matter(facts: NodeFacts) -> None:
    order = torch.tensor([1, 0, 2])  # stopping stays last
    turned = replace(facts, remembered=facts.remembered[..., order], open=facts.open.flip(-1))
    torch.testing.assert_close(turned.columns(), facts.columns())
    garbage = replace(facts, walk=torch.where(facts.walk.isinf(), 3.0, facts.walk))
    torch.testing.assert_close(garbage.columns(), facts.columns())


def test_hints_score_every_node_from_its_own_facts(facts: NodeFacts) -> None:
    torch.manual_seed(0)
    hints, state = FrontierHints(6), torch.randn(1, 6)
    scores = hints(state, facts)
    assert scores.shape == (1, NODES)
    for node, row in enumerate(facts.columns()[0]):
        plain = hints.score(torch.tanh(hints.state(state[0]) + hints.facts(row)))
        torch.testing.assert_close(scores[0, node], plain[0])
