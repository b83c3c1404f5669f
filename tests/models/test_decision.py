from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from scenemem.models.collect_read import Graphs, Places
from scenemem.models.decision import (
    ActionScore,
    Critic,
    FrontierScore,
    OneStepScore,
    StopOption,
    WeighedScore,
)
from scenemem.models.seating import Seating
from torch import Tensor

from scenemem.models.reading import tiled
from scenemem.models.language import Grounded
from scenemem.world.graph import ANGLE_WIDTH, VIEWS, angle_feature

DECISIONS, OPTIONS, WIDTH, VISUAL, STREAM, NODES, SLOTS = 3, 4, 6, 5, 7, 3, 2
MASK = torch.tensor([0.0, 2.0, 2.0, 0.0, 2.0])


@pytest.fixture
def asks() -> tuple[Tensor, Tensor]:
    """The two states of three decisions."""
    torch.manual_seed(0)
    return torch.randn(DECISIONS, WIDTH), torch.randn(DECISIONS, WIDTH)


def _plain(score: WeighedScore, perception: Tensor, action: Tensor, seen: Tensor, felt: Tensor) -> Tensor:
    """Eqs. 13 and 14 for one option: vectors in, one number out."""
    by_sight = seen @ score.ask_visual.weight @ perception
    by_direction = felt @ score.ask_orientation.weight @ action
    weight = score.weigh.weight @ torch.cat([perception, action])
    return torch.stack([by_sight, by_direction]) @ weight


@pytest.fixture
def nodes() -> tuple[Tensor, Tensor]:
    """The two kinds of states of four nodes."""
    torch.manual_seed(1)
    return torch.randn(DECISIONS, OPTIONS, VISUAL), torch.randn(DECISIONS, OPTIONS, ANGLE_WIDTH)


def test_frontiers_are_scored_by_equation_13(
    asks: tuple[Tensor, Tensor], nodes: tuple[Tensor, Tensor]
) -> None:
    score = FrontierScore(WIDTH, VISUAL)
    logits = score(*asks, *nodes)
    assert logits.shape == (DECISIONS, OPTIONS)
    for m in range(DECISIONS):
        for o in range(OPTIONS):
            plain = _plain(score, asks[0][m], asks[1][m], nodes[0][m, o], nodes[1][m, o])
            torch.testing.assert_close(logits[m, o], plain, atol=1e-5, rtol=1e-4)


def test_the_order_of_frontiers_and_decisions_only_moves_their_scores(
    asks: tuple[Tensor, Tensor], nodes: tuple[Tensor, Tensor]
) -> None:
    score = FrontierScore(WIDTH, VISUAL)
    rows, order = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    moved = score(*(ask[rows] for ask in asks), *(node[rows][:, order] for node in nodes))
    torch.testing.assert_close(moved, score(*asks, *nodes)[rows][:, order])


@pytest.fixture
def stop() -> StopOption:
    return _learned(StopOption(VISUAL))


def _learned(stop: StopOption) -> StopOption:
    torch.nn.init.normal_(stop.visual)
    torch.nn.init.normal_(stop.orientation)
    return stop


def test_stopping_fits_as_well_as_its_own_features_do(stop: StopOption) -> None:
    sight, direction = torch.randn(2, VISUAL), torch.randn(2, ANGLE_WIDTH)
    confidence = stop(sight, direction)
    assert confidence.shape == (2, 1, 2)
    for m in range(2):
        torch.testing.assert_close(confidence[m, 0, 0], sight[m] @ stop.visual)
        torch.testing.assert_close(confidence[m, 0, 1], direction[m] @ stop.orientation)


@pytest.fixture
def neighbours() -> tuple[Tensor, Tensor]:
    """The views of four neighbours and the four numbers of their directions."""
    torch.manual_seed(2)
    angles = torch.rand(2, DECISIONS, OPTIONS) * 2 * math.pi
    return torch.randn(DECISIONS, OPTIONS, VISUAL), angle_feature(angles[0], angles[1], width=4)


def test_neighbours_and_stopping_are_scored_by_equation_14(
    asks: tuple[Tensor, Tensor], neighbours: tuple[Tensor, Tensor], stop: StopOption
) -> None:
    """Directions are tiled and dropped columns are 0 in the equation; the stop option is never dropped."""
    score = ActionScore(WIDTH, VISUAL)
    logits = score(*asks, *neighbours, MASK, stop)
    assert logits.shape == (DECISIONS, OPTIONS + 1)
    visual, orientation = neighbours[0] * MASK, tiled(neighbours[1])
    for m in range(DECISIONS):
        options = [*zip(visual[m], orientation[m], strict=True), (stop.visual, stop.orientation)]
        for o, (seen, felt) in enumerate(options):
            plain = _plain(score, asks[0][m], asks[1][m], seen, felt)
            torch.testing.assert_close(logits[m, o], plain, atol=1e-5, rtol=1e-4)


def test_both_confidences_of_neighbours_are_weighed(
    asks: tuple[Tensor, Tensor], neighbours: tuple[Tensor, Tensor], stop: StopOption
) -> None:
    score = ActionScore(WIDTH, VISUAL)
    confidence = score.confidences(*asks, *neighbours, MASK, stop)
    assert confidence.shape == (DECISIONS, OPTIONS + 1, 2)
    torch.testing.assert_close(
        score.weighed(confidence, *asks), score(*asks, *neighbours, MASK, stop), atol=1e-6, rtol=1e-5
    )
    sight = score.ask_visual(asks[0]) * MASK
    torch.testing.assert_close(confidence[1, 2, 0], neighbours[0][1, 2] @ sight[1])


def test_the_order_of_neighbours_and_decisions_only_moves_their_scores(
    asks: tuple[Tensor, Tensor], neighbours: tuple[Tensor, Tensor], stop: StopOption
) -> None:
    score = ActionScore(WIDTH, VISUAL)
    rows, order = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    moved = score(*(ask[rows] for ask in asks), *(seen[rows][:, order] for seen in neighbours), MASK, stop)
    expected = score(*asks, *neighbours, MASK, stop)[rows][:, torch.tensor([3, 1, 0, 2, OPTIONS])]
    torch.testing.assert_close(moved, expected)


def test_a_dropped_column_of_the_views_can_hold_anything(
    asks: tuple[Tensor, Tensor], neighbours: tuple[Tensor, Tensor], stop: StopOption
) -> None:
    score, (visual, orientation) = ActionScore(WIDTH, VISUAL), neighbours
    expected = score(*asks, visual, orientation, MASK, stop)
    garbage = visual.masked_fill(MASK == 0, 40.0)
    torch.testing.assert_close(score(*asks, garbage, orientation, MASK, stop), expected)


@dataclass(frozen=True)
class Setting:
    """Three decisions over the maps of two lanes: of lane 1, of lane 0, and later of lane 1 again."""

    grounded: Grounded  # (R, H)
    places: Places
    nodes: tuple[Tensor, Tensor]
    heading: Tensor  # (R,)
    graphs: Graphs
    edge_heading: Tensor  # (P, K)
    edge_elevation: Tensor  # (P, K)

    @property
    def panoramas(self) -> Tensor:
        """(P, 36, D)"""
        return self.places.look(torch.arange(5))

    def score(self, one_step: OneStepScore, mask: Tensor = MASK) -> Tensor:
        logits: Tensor = one_step(self.grounded, self.places, self.nodes, self.heading, mask, self.graphs)
        return logits


@pytest.fixture(params=[ANGLE_WIDTH, 32], ids=["paper", "narrow"])
def orientation(request: pytest.FixtureRequest) -> int:
    """Width of the orientation states of nodes."""
    width: int = request.param
    return width


@pytest.fixture
def one_step(orientation: int) -> OneStepScore:
    torch.manual_seed(2)
    score = OneStepScore(WIDTH, VISUAL, STREAM, orientation)
    _learned(score.stop)
    return score


@pytest.fixture
def setting(orientation: int) -> Setting:
    """Lane 0 remembers 2 places, lane 1 remembers 3, of which it knew 1 at first."""
    torch.manual_seed(3)
    heading, elevation = torch.rand(5, SLOTS) * 2 * math.pi, torch.rand(5, SLOTS) - 0.5
    places = Places(
        lane=torch.tensor([0, 0, 1, 1, 1]),
        first=torch.tensor([0, 2]),
        look=torch.randn(5, VIEWS, VISUAL).__getitem__,
        directions=angle_feature(heading, elevation, width=4),
        exists=torch.ones(5, SLOTS, dtype=torch.bool),
        views=torch.randint(0, VIEWS, (5, SLOTS)),
    )
    seating = Seating(torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]), 2, 2)
    edge = torch.zeros(DECISIONS, NODES, NODES, dtype=torch.bool)
    return Setting(
        Grounded(torch.randn(DECISIONS, WIDTH), torch.randn(DECISIONS, WIDTH)),
        places,
        (torch.randn(DECISIONS, NODES, STREAM), torch.randn(DECISIONS, NODES, orientation)),
        torch.tensor([0.3, 4.0, 2.2]),
        Graphs(seating, edge, torch.tensor([1, 2, 3])),
        heading,
        elevation,
    )


def _plain_sub_node(
    one_step: OneStepScore, grounded: Grounded, row: int, seen: list[Tensor], felt: list[Tensor]
) -> Tensor:
    """Eqs. 10 and 11 for one sub-node: its own features beside those of its parent node."""
    ask_f = torch.cat([one_step.ask_visual.weight, one_step.ask_node_visual.weight])
    ask_r = torch.cat([one_step.ask_orientation.weight, one_step.ask_node_orientation.weight])
    perception, action = grounded.perception[row], grounded.action[row]
    confidence = torch.stack([torch.cat(seen) @ ask_f @ perception, torch.cat(felt) @ ask_r @ action])
    return confidence @ (one_step.weigh.weight @ torch.cat([perception, action]))


def test_all_sub_nodes_are_scored_by_equations_10_and_11(
    one_step: OneStepScore, setting: Setting, orientation: int
) -> None:
    places, nodes, grounded = setting.places, setting.nodes, setting.grounded
    logits = setting.score(one_step)
    assert logits.shape == (DECISIONS, NODES * SLOTS + 1)
    # stopping has no parent node, and its learned features are never dropped
    stop_seen = [one_step.stop.visual, torch.zeros(STREAM)]
    stop_felt = [one_step.stop.orientation, torch.zeros(orientation)]
    for row, (first, count) in enumerate([(2, 1), (0, 2), (2, 3)]):
        for n, k in [(n, k) for n in range(count) for k in range(SLOTS)]:
            place = first + n
            view = setting.panoramas[place, int(places.views[place, k])] * MASK
            relative = setting.edge_heading[place, k] - setting.heading[row]
            direction = angle_feature(relative, setting.edge_elevation[place, k])
            seen, felt = [view, nodes[0][row, n]], [direction, nodes[1][row, n]]
            plain = _plain_sub_node(one_step, grounded, row, seen, felt)
            torch.testing.assert_close(logits[row, n * SLOTS + k], plain, atol=1e-5, rtol=1e-4)
        stopping = _plain_sub_node(one_step, grounded, row, stop_seen, stop_felt)
        torch.testing.assert_close(logits[row, -1], stopping, atol=1e-5, rtol=1e-4)


def test_renaming_nodes_and_slots_only_moves_the_scores_of_sub_nodes(
    one_step: OneStepScore, setting: Setting
) -> None:
    """The last decision knows all three nodes of lane 1, places 2 to 4."""
    names, order = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 4, 2, 3])
    places = replace(
        setting.places,
        look=setting.panoramas[order].__getitem__,
        directions=setting.places.directions[order].flip(1),
        views=setting.places.views[order].flip(1),
    )
    renamed = replace(setting, places=places, nodes=(setting.nodes[0][:, names], setting.nodes[1][:, names]))
    logits, moved = setting.score(one_step)[2], renamed.score(one_step)[2]
    expected = logits[:-1].view(NODES, SLOTS)[names].flip(1).flatten()
    torch.testing.assert_close(moved, torch.cat([expected, logits[-1:]]))


def test_the_order_of_decisions_only_moves_their_scores(one_step: OneStepScore, setting: Setting) -> None:
    rows = torch.tensor([2, 0, 1])
    seating, graphs = setting.graphs.seating, setting.graphs
    moved = replace(
        setting,
        grounded=setting.grounded.at(rows),
        nodes=(setting.nodes[0][rows], setting.nodes[1][rows]),
        heading=setting.heading[rows],
        graphs=Graphs(
            replace(seating, lane=seating.lane[rows], tick=seating.tick[rows]),
            graphs.edge[rows],
            graphs.count[rows],
        ),
    )
    torch.testing.assert_close(moved.score(one_step), setting.score(one_step)[rows])


def test_places_a_memory_does_not_know_and_dropped_columns_do_not_matter(
    one_step: OneStepScore, setting: Setting
) -> None:
    """The first decision knows one node of lane 1, place 2."""
    panoramas = setting.panoramas.masked_fill(MASK == 0, 40.0)
    panoramas[torch.tensor([0, 1, 3, 4])] = -9.0
    garbage = replace(setting, places=replace(setting.places, look=panoramas.__getitem__))
    known = [*range(SLOTS), -1]
    torch.testing.assert_close(garbage.score(one_step)[0, known], setting.score(one_step)[0, known])


def test_a_critic_gives_one_number_per_state() -> None:
    critic = Critic(WIDTH)
    state = torch.randn(2, 3, WIDTH)
    values = critic(state)
    assert values.shape == (2, 3)
    torch.testing.assert_close(critic(state[1, 2]), values[1, 2])
