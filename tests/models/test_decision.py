from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from scenemem.models.collect_read import Graphs, Places
from scenemem.models.decision import Critic, OneStepScore, StopOption, WeighedScore
from scenemem.models.grounding import Grounded
from scenemem.world.geometry import ANGLE_WIDTH, VIEWS, angle_feature

DECISIONS, OPTIONS, WIDTH, VISUAL, STREAM, NODES, SLOTS = 3, 4, 6, 5, 7, 3, 2


@pytest.fixture
def scored() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two states and the two kinds of features of four options, three decisions."""
    torch.manual_seed(0)
    return (
        torch.randn(DECISIONS, WIDTH),
        torch.randn(DECISIONS, WIDTH),
        torch.randn(DECISIONS, OPTIONS, VISUAL),
        torch.randn(DECISIONS, OPTIONS, ANGLE_WIDTH),
    )


def test_options_are_scored_by_equations_13_and_14(scored: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    score = WeighedScore(WIDTH, VISUAL)
    perception, action, visual, orientation = scored
    logits = score(*scored)
    for m in range(DECISIONS):
        weight = score.weigh.weight @ torch.cat([perception[m], action[m]])
        for o in range(OPTIONS):
            by_sight = visual[m, o] @ score.ask_visual.weight @ perception[m]
            by_direction = orientation[m, o] @ score.ask_orientation.weight @ action[m]
            torch.testing.assert_close(logits[m, o], torch.stack([by_sight, by_direction]) @ weight)


def test_the_order_of_options_and_decisions_only_moves_their_scores(
    scored: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    score = WeighedScore(WIDTH, VISUAL)
    perception, action, visual, orientation = scored
    rows, order = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    moved = score(perception[rows], action[rows], visual[rows][:, order], orientation[rows][:, order])
    torch.testing.assert_close(moved, score(*scored)[rows][:, order])


def test_stopping_is_one_more_option_with_features_of_its_own() -> None:
    stop = StopOption(VISUAL)
    torch.nn.init.normal_(stop.visual)
    torch.nn.init.normal_(stop.orientation)
    visual, orientation = torch.randn(2, 3, VISUAL), torch.randn(2, 3, ANGLE_WIDTH)
    longer_visual, longer_orientation = stop(visual, orientation)
    assert torch.equal(longer_visual[:, :3], visual)
    assert torch.equal(longer_orientation[:, :3], orientation)
    assert torch.equal(longer_visual[:, 3], stop.visual.expand(2, -1))
    assert torch.equal(longer_orientation[:, 3], stop.orientation.expand(2, -1))


@pytest.fixture
def one_step() -> OneStepScore:
    torch.manual_seed(2)
    score = OneStepScore(WIDTH, VISUAL, STREAM)
    torch.nn.init.normal_(score.stop.visual)
    torch.nn.init.normal_(score.stop.orientation)
    return score


@pytest.fixture
def heading() -> Tensor:
    """Two lanes at two times."""
    return torch.tensor([[0.3, 4.0], [2.2, 5.5]])


@pytest.fixture
def edge_angles() -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.rand(2, NODES, SLOTS) * 2 * math.pi, torch.rand(2, NODES, SLOTS) - 0.5


@pytest.fixture
def places(edge_angles: tuple[Tensor, Tensor]) -> Places:
    return Places(
        panoramas=torch.randn(2, NODES, VIEWS, VISUAL),
        directions=angle_feature(*edge_angles, width=4),
        exists=torch.ones(2, NODES, SLOTS, dtype=torch.bool),
        views=torch.randint(0, VIEWS, (2, NODES, SLOTS)),
    )


@pytest.fixture
def graphs() -> Graphs:
    """Three decisions: lane 1 at time 0, lane 0 at time 1, lane 1 at time 1."""
    edge = torch.zeros(3, NODES, NODES, dtype=torch.bool)
    return Graphs(torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1]), edge, torch.full((3,), NODES))


def test_all_sub_nodes_are_scored_by_equations_10_and_11(
    one_step: OneStepScore,
    places: Places,
    graphs: Graphs,
    heading: Tensor,
    edge_angles: tuple[Tensor, Tensor],
) -> None:
    grounded = Grounded(torch.randn(2, 2, WIDTH), torch.randn(2, 2, WIDTH))
    nodes = torch.randn(3, NODES, STREAM), torch.randn(3, NODES, ANGLE_WIDTH)
    mask = torch.tensor([0.0, 2.0, 2.0, 0.0, 2.0])
    logits = one_step(grounded, places, nodes, heading, mask, graphs)
    ask_f = torch.cat([one_step.ask_visual.weight, one_step.ask_node_visual.weight])
    ask_r = torch.cat([one_step.ask_orientation.weight, one_step.ask_node_orientation.weight])

    def plain(lane: int, time: int, seen: Tensor, felt: Tensor) -> Tensor:
        perception, action = grounded.perception[lane, time], grounded.action[lane, time]
        confidence = torch.stack([seen @ ask_f @ perception, felt @ ask_r @ action])
        return confidence @ (one_step.weigh.weight @ torch.cat([perception, action]))

    assert logits.shape == (3, NODES * SLOTS + 1)
    for row, (lane, time) in enumerate(zip(graphs.lane.tolist(), graphs.tick.tolist(), strict=True)):
        for n in range(NODES):
            for k in range(SLOTS):
                view = places.panoramas[lane, n, int(places.views[lane, n, k])] * mask
                relative = edge_angles[0][lane, n, k] - heading[lane, time]
                direction = angle_feature(relative, edge_angles[1][lane, n, k])
                seen, felt = torch.cat([view, nodes[0][row, n]]), torch.cat([direction, nodes[1][row, n]])
                torch.testing.assert_close(
                    logits[row, n * SLOTS + k], plain(lane, time, seen, felt), atol=1e-5, rtol=1e-4
                )
        # stopping has no parent node, and its learned features are never dropped
        seen = torch.cat([one_step.stop.visual, torch.zeros(STREAM)])
        felt = torch.cat([one_step.stop.orientation, torch.zeros(ANGLE_WIDTH)])
        torch.testing.assert_close(logits[row, -1], plain(lane, time, seen, felt), atol=1e-5, rtol=1e-4)


def test_renaming_nodes_and_slots_only_moves_the_scores_of_sub_nodes(
    one_step: OneStepScore, places: Places, graphs: Graphs, heading: Tensor
) -> None:
    grounded = Grounded(torch.randn(2, 2, WIDTH), torch.randn(2, 2, WIDTH))
    nodes = torch.randn(3, NODES, STREAM), torch.randn(3, NODES, ANGLE_WIDTH)
    mask = torch.ones(VISUAL)
    names = torch.tensor([2, 0, 1])
    renamed = replace(
        places,
        panoramas=places.panoramas[:, names],
        directions=places.directions[:, names].flip(2),
        views=places.views[:, names].flip(2),
    )
    logits = one_step(grounded, places, nodes, heading, mask, graphs)
    moved = one_step(grounded, renamed, (nodes[0][:, names], nodes[1][:, names]), heading, mask, graphs)
    expected = logits[:, :-1].view(3, NODES, SLOTS)[:, names].flip(2).flatten(1)
    torch.testing.assert_close(moved, torch.cat([expected, logits[:, -1:]], dim=1))


def test_a_critic_gives_one_number_per_state() -> None:
    critic = Critic(WIDTH)
    state = torch.randn(2, 3, WIDTH)
    values = critic(state)
    assert values.shape == (2, 3)
    torch.testing.assert_close(critic(state[1, 2]), values[1, 2])
