"""The ablations that decide otherwise: all sub-nodes at once (Eqs. 10 and 11), or only those of here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from scenemem.ssm.ablations import GlobalScore
from scenemem.world.graph import angle_feature
from tests.ssm.helpers import MASK, VISUAL, WIDTH, Moment, randn, repainted, slots_reversed, trained

NODE_WIDTH, NODES = 7, 5
close = torch.testing.assert_close


@pytest.fixture(params=[128, 32], ids=["paper", "narrow"])
def width(request: pytest.FixtureRequest) -> int:
    """Of the orientation states of nodes."""
    return int(request.param)


@pytest.fixture
def score(width: int) -> GlobalScore:
    torch.manual_seed(2)
    made: GlobalScore = trained(GlobalScore(WIDTH, VISUAL, NODE_WIDTH, width))
    return made


@pytest.fixture
def nodes(width: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return randn(3, NODES, NODE_WIDTH), randn(3, NODES, width)


def _logits(score: GlobalScore, moment: Moment, nodes: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Of the slots of all node states, and of stopping: (S, K) and (R,)."""
    graph = moment.graph
    logits = score(moment.grounded, nodes, moment.heading, MASK, graph)
    rows, count = graph.viewpoint.shape
    assert logits.shape == (rows, count * graph.open.shape[2] + 1)
    return logits[:, :-1].view(rows, count, -1)[graph.row, graph.node], logits[:, -1]


def _plain(
    score: GlobalScore, moment: Moment, row: int, visual: list[Tensor], orientation: list[Tensor]
) -> Tensor:
    """Eqs. 10 and 11 for one sub-node: its own features beside those of its parent node."""
    query_visual = torch.cat([score.query_visual.weight, score.query_node_visual.weight])
    query_orientation = torch.cat([score.query_orientation.weight, score.query_node_orientation.weight])
    perception, action = moment.grounded.perception[row], moment.grounded.action[row]
    by_view = torch.cat(visual) @ query_visual @ perception
    by_direction = torch.cat(orientation) @ query_orientation @ action
    return torch.stack([by_view, by_direction]) @ (score.mix.weight @ torch.cat([perception, action]))


def test_all_sub_nodes_are_scored_by_equations_10_and_11(
    score: GlobalScore, moment: Moment, nodes: tuple[Tensor, Tensor], width: int
) -> None:
    """Stopping has no parent node, and its learned features are never dropped."""
    slots, stops = _logits(score, moment, nodes)
    world = moment.environment.world
    for state, (row, node, place) in enumerate(moment.states):
        panorama = moment.environment.panorama(torch.tensor(place)) * MASK
        for slot in world.neighbour_mask[place].nonzero().squeeze(1).tolist():
            view = panorama[world.neighbour_view[place, slot]]
            relative = world.neighbour_heading[place, slot] - moment.heading[row]
            direction = angle_feature(relative, world.neighbour_elevation[place, slot])
            parts = [view, nodes[0][row, node]], [direction, nodes[1][row, node]]
            close(slots[state, slot], _plain(score, moment, row, *parts))
    for row in range(3):
        nothing = torch.zeros(NODE_WIDTH), torch.zeros(width)
        parts = [score.stop.visual, nothing[0]], [score.stop.orientation, nothing[1]]
        close(stops[row], _plain(score, moment, row, *parts))


def test_the_order_of_visits_slots_and_memories_only_moves_scores(
    score: GlobalScore, moment: Moment, nodes: tuple[Tensor, Tensor]
) -> None:
    (slots, stops), row = _logits(score, moment, nodes), moment.graph.row
    turned = _logits(score, replace(moment, environment=slots_reversed(moment.environment)), nodes)
    close(turned, (slots.flip(1), stops))
    swapped = _logits(score, moment.only([2, 0, 1]), (nodes[0][[2, 0, 1]], nodes[1][[2, 0, 1]]))
    close(swapped, (torch.cat([slots[row == 2], slots[row == 0], slots[row == 1]]), stops[[2, 0, 1]]))
    one = moment.only([0])
    backwards = replace(one, walks=[one.walks[0][::-1]])
    renumbered = _logits(score, backwards, (nodes[0][:1].flip(1), nodes[1][:1].flip(1)))
    close(renumbered, (slots[row == 0].flip(0), stops[:1]))


def test_places_a_memory_does_not_know_and_dropped_columns_do_not_matter(
    score: GlobalScore, moment: Moment, nodes: tuple[Tensor, Tensor]
) -> None:
    visited = [place for *_, place in moment.states]

    def change(values: Tensor) -> Tensor:
        kept = values[visited].masked_fill(MASK == 0, 40.0)
        return torch.full_like(values, -9.0).index_put((torch.tensor(visited),), kept)

    changed = replace(moment, environment=repainted(moment.environment, change))
    close(_logits(score, changed, nodes), _logits(score, moment, nodes))
