from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from scenemem.features.store import CandidateFeatures, Places
from scenemem.models.navigator import Grounded, Packing
from scenemem.ssm.reading import (
    ActionScore,
    CandidateScore,
    Critic,
    FrontierHints,
    FrontierScore,
    GlobalScore,
    MemoryGraph,
    StayScore,
    StopFromMemory,
    StopOption,
    log_probabilities,
    tiled,
    with_stop,
)
from scenemem.world.graph import ANGLE_WIDTH, VIEWS, angle_feature
from tests.models.helpers import one_per_episode

DECISIONS, OPTIONS, WIDTH, VISUAL, NODE_WIDTH, NODES, SLOTS = 3, 4, 6, 5, 7, 3, 2
MASK = torch.tensor([0.0, 2.0, 2.0, 0.0, 2.0], dtype=torch.float64)


def _randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture
def grounded() -> Grounded:
    """The perception- and the action-aware state of three decisions."""
    torch.manual_seed(0)
    return Grounded(_randn(DECISIONS, WIDTH), _randn(DECISIONS, WIDTH))


def _of(grounded: Grounded, rows: Tensor) -> Grounded:
    """The states of some decisions."""
    return Grounded(grounded.perception[rows], grounded.action[rows])


def _plain(
    score: FrontierScore | ActionScore, grounded: Grounded, row: int, visual: Tensor, orientation: Tensor
) -> Tensor:
    """Eqs. 13 and 14 for one option: vectors in, one number out."""
    perception, action = grounded.perception[row], grounded.action[row]
    by_view = visual @ score.query_visual.weight @ perception
    by_direction = orientation @ score.query_orientation.weight @ action
    weight = score.mix.weight @ torch.cat([perception, action])
    return torch.stack([by_view, by_direction]) @ weight


def _mixed(score: FrontierScore | ActionScore, confidence: Tensor, grounded: Grounded) -> Tensor:
    """The sum of both confidences with their learned weights.  (M, O, 2)  ->  (M, O)"""
    by_view, by_direction = confidence.unbind(-1)
    weights = torch.cat([grounded.perception, grounded.action], dim=1) @ score.mix.weight.t()
    return by_view * weights[:, :1] + by_direction * weights[:, 1:]


@pytest.fixture
def nodes() -> tuple[Tensor, Tensor]:
    """The visual and the orientation states of four nodes."""
    torch.manual_seed(1)
    return _randn(DECISIONS, OPTIONS, VISUAL), _randn(DECISIONS, OPTIONS, ANGLE_WIDTH)


def test_frontiers_are_scored_by_equation_13(grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> None:
    score = FrontierScore(WIDTH, VISUAL).double()
    logits = score(grounded, nodes)
    assert logits.shape == (DECISIONS, OPTIONS)
    for m in range(DECISIONS):
        for o in range(OPTIONS):
            plain = _plain(score, grounded, m, nodes[0][m, o], nodes[1][m, o])
            torch.testing.assert_close(logits[m, o], plain)


def test_both_confidences_of_frontiers_are_weighed(grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> None:
    score = FrontierScore(WIDTH, VISUAL).double()
    confidence = score.confidences(grounded, nodes)
    assert confidence.shape == (DECISIONS, OPTIONS, 2)
    by_view = nodes[0][1, 2] @ score.query_visual(grounded.perception[1])
    torch.testing.assert_close(confidence[1, 2, 0], by_view)
    by_direction = nodes[1][1, 2] @ score.query_orientation(grounded.action[1])
    torch.testing.assert_close(confidence[1, 2, 1], by_direction)
    torch.testing.assert_close(_mixed(score, confidence, grounded), score(grounded, nodes))


def test_frontiers_may_have_narrow_orientation_states(grounded: Grounded) -> None:
    score = FrontierScore(WIDTH, NODE_WIDTH, 8).double()
    visual, orientation = _randn(DECISIONS, OPTIONS, NODE_WIDTH), _randn(DECISIONS, OPTIONS, 8)
    plain = _plain(score, grounded, 2, visual[2, 1], orientation[2, 1])
    torch.testing.assert_close(score(grounded, (visual, orientation))[2, 1], plain)


def test_the_order_of_frontiers_and_decisions_only_moves_their_scores(
    grounded: Grounded, nodes: tuple[Tensor, Tensor]
) -> None:
    score = FrontierScore(WIDTH, VISUAL).double()
    rows, order = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    moved = score(_of(grounded, rows), (nodes[0][rows][:, order], nodes[1][rows][:, order]))
    torch.testing.assert_close(moved, score(grounded, nodes)[rows][:, order])


def _trained(stop: StopOption) -> StopOption:
    torch.nn.init.normal_(stop.visual)
    torch.nn.init.normal_(stop.orientation)
    return stop


def test_stopping_fits_as_well_as_its_own_features_do() -> None:
    stop = _trained(StopOption(VISUAL).double())
    visual, orientation = _randn(2, VISUAL), _randn(2, ANGLE_WIDTH)
    confidence = stop(visual, orientation)
    assert confidence.shape == (2, 1, 2)
    for m in range(2):
        torch.testing.assert_close(confidence[m, 0, 0], visual[m] @ stop.visual)
        torch.testing.assert_close(confidence[m, 0, 1], orientation[m] @ stop.orientation)


@pytest.fixture
def candidates() -> CandidateFeatures:
    """The views of four candidates and the four numbers of their directions; some slots are empty."""
    torch.manual_seed(2)
    heading, elevation = torch.rand(2, DECISIONS, OPTIONS, dtype=torch.float64) * 2 * math.pi
    return CandidateFeatures(
        visual=_randn(DECISIONS, OPTIONS, VISUAL),
        orientation=angle_feature(heading, elevation, width=4),
        mask=torch.arange(OPTIONS) < torch.tensor([4, 1, 2]).unsqueeze(1),
    )


@pytest.fixture
def action_score() -> ActionScore:
    torch.manual_seed(4)
    score = ActionScore(WIDTH, VISUAL).double()
    _trained(score.stop)
    return score


def test_candidates_and_stopping_are_scored_by_equation_14(
    action_score: ActionScore, grounded: Grounded, candidates: CandidateFeatures
) -> None:
    """Directions are tiled and dropped columns are 0 in the equation; the stop option is never dropped."""
    logits, stop = action_score(grounded, candidates, MASK), action_score.stop
    assert logits.shape == (DECISIONS, OPTIONS + 1)
    visual, orientation = candidates.visual * MASK, tiled(candidates.orientation)
    for m in range(DECISIONS):
        options = [*zip(visual[m], orientation[m], strict=True), (stop.visual, stop.orientation)]
        for o, option in enumerate(options):
            torch.testing.assert_close(logits[m, o], _plain(action_score, grounded, m, *option))


def test_both_confidences_of_candidates_are_weighed(
    action_score: ActionScore, grounded: Grounded, candidates: CandidateFeatures
) -> None:
    confidence = action_score.confidences(grounded, candidates, MASK)
    assert confidence.shape == (DECISIONS, OPTIONS + 1, 2)
    expected = action_score(grounded, candidates, MASK)
    torch.testing.assert_close(_mixed(action_score, confidence, grounded), expected)
    by_view = candidates.visual[1, 2] @ (action_score.query_visual(grounded.perception[1]) * MASK)
    torch.testing.assert_close(confidence[1, 2, 0], by_view)
    by_direction = tiled(candidates.orientation[1, 2]) @ action_score.query_orientation(grounded.action[1])
    torch.testing.assert_close(confidence[1, 2, 1], by_direction)


def test_stopping_begins_with_a_score_of_zero_and_learns(
    grounded: Grounded, candidates: CandidateFeatures
) -> None:
    """Every scorer has a stop option of its own."""
    score, other = ActionScore(WIDTH, VISUAL).double(), ActionScore(WIDTH, VISUAL)
    stopping = score(grounded, candidates, MASK)[:, -1]
    assert stopping.tolist() == [0.0] * DECISIONS
    gradients = torch.autograd.grad(stopping.square().sum() + stopping.sum(), list(score.stop.parameters()))
    assert all(gradient.any() for gradient in gradients)
    assert score.stop.visual is not other.stop.visual


def test_the_order_of_candidates_and_decisions_only_moves_their_scores(
    action_score: ActionScore, grounded: Grounded, candidates: CandidateFeatures
) -> None:
    rows, order = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    reordered = CandidateFeatures(
        candidates.visual[rows][:, order],
        candidates.orientation[rows][:, order],
        candidates.mask[rows][:, order],
    )
    moved = action_score(_of(grounded, rows), reordered, MASK)
    stop_last = torch.tensor([3, 1, 0, 2, OPTIONS])
    torch.testing.assert_close(moved, action_score(grounded, candidates, MASK)[rows][:, stop_last])


def test_a_dropped_column_of_the_views_can_hold_anything(
    action_score: ActionScore, grounded: Grounded, candidates: CandidateFeatures
) -> None:
    garbage = replace(candidates, visual=candidates.visual.masked_fill(MASK == 0, 40.0))
    expected = action_score(grounded, candidates, MASK)
    torch.testing.assert_close(action_score(grounded, garbage, MASK), expected)


def test_the_basic_agent_scores_candidates_by_equation_2_and_stopping_as_a_zero_row(
    grounded: Grounded, candidates: CandidateFeatures
) -> None:
    score, state = CandidateScore(WIDTH, VISUAL).double(), grounded.perception
    logits = score(state, candidates.visual, candidates.orientation, MASK)
    query = torch.cat([score.query_visual.weight, score.query_orientation.weight])
    options = torch.cat([candidates.visual * MASK, tiled(candidates.orientation)], dim=-1)
    for m in range(DECISIONS):
        for o in range(OPTIONS):
            torch.testing.assert_close(logits[m, o], options[m, o] @ query @ state[m])
    assert logits[:, OPTIONS].tolist() == [0.0] * DECISIONS


def test_probabilities_are_those_of_real_neighbours_and_stop(candidates: CandidateFeatures) -> None:
    """Empty slots have none: a large negative number that stays finite, whatever was scored there."""
    logits = _randn(DECISIONS, OPTIONS + 1)
    found = log_probabilities(logits, candidates.mask)
    for m, count in enumerate(candidates.mask.sum(dim=1).tolist()):
        options = [*range(count), OPTIONS]
        torch.testing.assert_close(found[m, options], logits[m, options].softmax(0).log())
        assert found[m, count:OPTIONS].tolist() == [-1e4] * (OPTIONS - count)
    garbage = logits.clone()
    garbage[:, :-1][~candidates.mask] = 1e30
    assert torch.equal(log_probabilities(garbage, candidates.mask), found)


def test_nowhere_to_go_leaves_stopping_for_certain() -> None:
    found = log_probabilities(_randn(1, OPTIONS + 1), torch.zeros(1, OPTIONS, dtype=torch.bool))
    assert found.tolist() == [[-1e4] * OPTIONS + [0.0]]


def test_probabilities_of_tables_are_those_of_their_rows(candidates: CandidateFeatures) -> None:
    logits = _randn(2, DECISIONS, OPTIONS + 1)
    table = log_probabilities(logits, candidates.mask.expand(2, -1, -1))
    torch.testing.assert_close(table[1], log_probabilities(logits[1], candidates.mask))


def test_the_gradient_of_probabilities_is_finite_and_nothing_learns_from_empty_slots(
    candidates: CandidateFeatures,
) -> None:
    logits = _randn(DECISIONS, OPTIONS + 1).requires_grad_()
    upstream = _randn(DECISIONS, OPTIONS + 1)
    (gradient,) = torch.autograd.grad(log_probabilities(logits, candidates.mask), logits, upstream)
    assert gradient.isfinite().all()
    assert not gradient[:, :-1][~candidates.mask].any()
    torch.testing.assert_close(gradient.sum(dim=1), torch.zeros(DECISIONS, dtype=torch.float64))
    assert gradient[0].all()


def _no_open_ways() -> Tensor:
    raise AssertionError("nothing here needs the open ways")


def _no_column(name: str) -> Tensor:
    raise AssertionError(f"nothing here needs column '{name}'")


@dataclass(frozen=True)
class Setting:
    """Three decisions over the memories of two episodes: of 1, of 0, and later of 1 again."""

    grounded: Grounded  # (R, H)
    nodes: tuple[Tensor, Tensor]
    heading: Tensor  # (R,)
    graph: MemoryGraph
    edge_heading: Tensor  # (P, K)
    edge_elevation: Tensor  # (P, K)

    @property
    def panoramas(self) -> Tensor:
        """(P, 36, D)"""
        return self.graph.places.lookup(torch.arange(5))

    def with_places(self, places: Places) -> Setting:
        return replace(self, graph=replace(self.graph, places=places))

    def score(self, score: GlobalScore) -> Tensor:
        logits: Tensor = score(self.grounded, self.nodes, self.heading, MASK, self.graph)
        return logits


@pytest.fixture(params=[ANGLE_WIDTH, 32], ids=["paper", "narrow"])
def orientation_width(request: pytest.FixtureRequest) -> int:
    """Width of the orientation states of nodes."""
    width: int = request.param
    return width


@pytest.fixture
def global_score(orientation_width: int) -> GlobalScore:
    torch.manual_seed(2)
    score = GlobalScore(WIDTH, VISUAL, NODE_WIDTH, orientation_width).double()
    _trained(score.stop)
    return score


@pytest.fixture
def setting(orientation_width: int) -> Setting:
    """Episode 0 remembers 2 places, episode 1 remembers 3, of which it knew 1 at first."""
    torch.manual_seed(3)
    heading, elevation = torch.rand(2, 5, SLOTS, dtype=torch.float64) * 2 * math.pi
    places = Places(
        episode=torch.tensor([0, 0, 1, 1, 1]),
        first=torch.tensor([0, 2]),
        lookup=_randn(5, VIEWS, VISUAL).__getitem__,
        directions=angle_feature(heading, elevation, width=4),
        exists=torch.ones(5, SLOTS, dtype=torch.bool),
        views=torch.randint(0, VIEWS, (5, SLOTS)),
        leads_to=torch.full((5, SLOTS), -1),
        candidates=lambda: torch.empty(0),
    )
    graph = MemoryGraph(
        places=places,
        packing=Packing(torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]), 2, 2),
        viewpoint=torch.zeros(DECISIONS, NODES, dtype=torch.long),
        edge=torch.zeros(DECISIONS, NODES, NODES, dtype=torch.bool),
        count=torch.tensor([1, 2, 3]),
        here=torch.tensor([0, 1, 1]),
        walk=torch.zeros(DECISIONS, NODES),
        open_lookup=_no_open_ways,
        column_lookup=_no_column,
    )
    return Setting(
        Grounded(_randn(DECISIONS, WIDTH), _randn(DECISIONS, WIDTH)),
        (_randn(DECISIONS, NODES, NODE_WIDTH), _randn(DECISIONS, NODES, orientation_width)),
        torch.tensor([0.3, 4.0, 2.2], dtype=torch.float64),
        graph,
        heading,
        elevation,
    )


def _plain_sub_node(
    score: GlobalScore, grounded: Grounded, row: int, visual: list[Tensor], orientation: list[Tensor]
) -> Tensor:
    """Eqs. 10 and 11 for one sub-node: its own features beside those of its parent node."""
    query_visual = torch.cat([score.query_visual.weight, score.query_node_visual.weight])
    query_orientation = torch.cat([score.query_orientation.weight, score.query_node_orientation.weight])
    perception, action = grounded.perception[row], grounded.action[row]
    by_view = torch.cat(visual) @ query_visual @ perception
    by_direction = torch.cat(orientation) @ query_orientation @ action
    return torch.stack([by_view, by_direction]) @ (score.mix.weight @ torch.cat([perception, action]))


def test_all_sub_nodes_are_scored_by_equations_10_and_11(
    global_score: GlobalScore, setting: Setting, orientation_width: int
) -> None:
    places, nodes, grounded = setting.graph.places, setting.nodes, setting.grounded
    logits = setting.score(global_score)
    assert logits.shape == (DECISIONS, NODES * SLOTS + 1)
    # stopping has no parent node, and its learned features are never dropped
    stop_visual = [global_score.stop.visual, torch.zeros(NODE_WIDTH)]
    stop_orientation = [global_score.stop.orientation, torch.zeros(orientation_width)]
    for row, (first, count) in enumerate([(2, 1), (0, 2), (2, 3)]):
        for n, k in [(n, k) for n in range(count) for k in range(SLOTS)]:
            place = first + n
            view = setting.panoramas[place, int(places.views[place, k])] * MASK
            relative = setting.edge_heading[place, k] - setting.heading[row]
            direction = angle_feature(relative, setting.edge_elevation[place, k])
            visual, orientation = [view, nodes[0][row, n]], [direction, nodes[1][row, n]]
            plain = _plain_sub_node(global_score, grounded, row, visual, orientation)
            torch.testing.assert_close(logits[row, n * SLOTS + k], plain)
        stopping = _plain_sub_node(global_score, grounded, row, stop_visual, stop_orientation)
        torch.testing.assert_close(logits[row, -1], stopping)


def test_renumbering_nodes_and_slots_only_moves_the_scores_of_sub_nodes(
    global_score: GlobalScore, setting: Setting
) -> None:
    """The last decision knows all three nodes of episode 1, places 2 to 4."""
    names, order = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 4, 2, 3])
    places = setting.graph.places
    renumbered = replace(
        setting.with_places(
            replace(
                places,
                lookup=setting.panoramas[order].__getitem__,
                directions=places.directions[order].flip(1),
                views=places.views[order].flip(1),
            )
        ),
        nodes=(setting.nodes[0][:, names], setting.nodes[1][:, names]),
    )
    logits, moved = setting.score(global_score)[2], renumbered.score(global_score)[2]
    expected = logits[:-1].view(NODES, SLOTS)[names].flip(1).flatten()
    torch.testing.assert_close(moved, torch.cat([expected, logits[-1:]]))


def test_the_order_of_decisions_only_moves_their_scores(global_score: GlobalScore, setting: Setting) -> None:
    rows = torch.tensor([2, 0, 1])
    graph, packing = setting.graph, setting.graph.packing
    moved = replace(
        setting,
        grounded=_of(setting.grounded, rows),
        nodes=(setting.nodes[0][rows], setting.nodes[1][rows]),
        heading=setting.heading[rows],
        graph=replace(
            graph,
            packing=replace(packing, episode=packing.episode[rows], step=packing.step[rows]),
            edge=graph.edge[rows],
            count=graph.count[rows],
        ),
    )
    torch.testing.assert_close(moved.score(global_score), setting.score(global_score)[rows])


def test_places_a_memory_does_not_know_and_dropped_columns_do_not_matter(
    global_score: GlobalScore, setting: Setting
) -> None:
    """The first decision knows one node of episode 1, place 2."""
    panoramas = setting.panoramas.masked_fill(MASK == 0, 40.0)
    panoramas[torch.tensor([0, 1, 3, 4])] = -9.0
    garbage = setting.with_places(replace(setting.graph.places, lookup=panoramas.__getitem__))
    known = [*range(SLOTS), -1]
    torch.testing.assert_close(garbage.score(global_score)[0, known], setting.score(global_score)[0, known])


def test_what_the_memory_says_about_here_is_added_up(setting: Setting, orientation_width: int) -> None:
    """The terms that Eqs. 10 and 11 have for a parent node, without their mix."""
    fits = StopFromMemory(WIDTH, NODE_WIDTH, orientation_width).double()
    grounded, nodes, here = setting.grounded, setting.nodes, setting.graph.here
    assert fits(grounded, nodes, here).tolist() == [0.0] * DECISIONS  # before anything was learnt
    for parameter in fits.parameters():
        torch.nn.init.normal_(parameter)
    found = fits(grounded, nodes, here)
    for row, node in enumerate(here.tolist()):
        by_view = nodes[0][row, node] @ fits.query_visual.weight @ grounded.perception[row]
        by_direction = nodes[1][row, node] @ fits.query_orientation.weight @ grounded.action[row]
        torch.testing.assert_close(found[row], by_view + by_direction)


def test_stopping_from_memory_can_be_learnt_from_the_start(setting: Setting, orientation_width: int) -> None:
    fits = StopFromMemory(WIDTH, NODE_WIDTH, orientation_width).double()
    loss = fits(setting.grounded, setting.nodes, setting.graph.here).sum()
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, list(fits.parameters())))


def test_something_is_added_to_the_option_to_stop_only() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    added = with_stop(logits, torch.tensor([10.0, -20.0]))
    assert added.tolist() == [[1.0, 2.0, 13.0], [4.0, 5.0, -14.0]]
    assert logits[0, 2] == 3.0


@dataclass(frozen=True)
class Remembered:
    """A memory of three nodes, standing at node 1; a fourth is not known yet."""

    graph: MemoryGraph
    log_probabilities: Tensor  # (1, N, K + 1) of candidates and stop, when last there

    def facts(self) -> Tensor:
        return FrontierHints.columns(self.graph, self.log_probabilities)


def _remembered(walk: Tensor, log_probabilities: Tensor, open_ways: Tensor) -> Remembered:
    nodes, slots = open_ways.shape[1:]
    places = Places(
        episode=torch.zeros(3, dtype=torch.long),
        first=torch.zeros(1, dtype=torch.long),
        lookup=torch.zeros(3, VIEWS, VISUAL).__getitem__,
        directions=torch.zeros(3, slots, 4),
        exists=torch.ones(3, slots, dtype=torch.bool),
        views=torch.zeros(3, slots, dtype=torch.long),
        leads_to=torch.full((3, slots), -1),
        candidates=lambda: torch.empty(0),
    )
    graph = MemoryGraph(
        places=places,
        packing=one_per_episode(1, walk.device),
        viewpoint=torch.tensor([[7, 8, 9, -1]]),
        edge=torch.zeros(1, nodes, nodes, dtype=torch.bool),
        count=torch.tensor([3]),
        here=torch.tensor([1]),
        walk=walk,
        open_lookup=lambda: open_ways,
        column_lookup=_no_column,
    )
    return Remembered(graph, log_probabilities)


WALK = torch.tensor([[5.0, 0.0, 20.0, torch.inf]])
LOG_PROBABILITIES = torch.tensor(
    [[[-1.0, -2.0, -3.0], [-4.0, -0.5, -1e4], [-6.0, -7.0, -0.1], [9.0, 9.0, 9.0]]]
)
OPEN = torch.tensor([[[False, True], [True, False], [False, False], [True, True]]])


@pytest.fixture
def remembered() -> Remembered:
    return _remembered(WALK, LOG_PROBABILITIES, OPEN)


def test_hints_are_plain_facts(remembered: Remembered) -> None:
    assert remembered.facts()[0].tolist() == [
        pytest.approx(row)
        for row in (
            # here, walk / 10, age / 10, best open candidate, stopping there
            [0.0, 0.5, 0.2, -2.0, -3.0],
            [1.0, 0.0, 0.1, -4.0, -10.0],  # remembered scores have a floor
            [0.0, 2.0, 0.0, -10.0, -0.1],  # nothing is open there
            [0.0, 0.0, 0.0, 0.0, 0.0],  # not known yet
        )
    ]


def test_candidates_that_all_scored_below_the_floor_stand_at_it() -> None:
    worse, everywhere = LOG_PROBABILITIES.clone(), torch.ones_like(OPEN)
    worse[0, 0, :2] = torch.tensor([-11.0, -12.0])
    assert _remembered(WALK, worse, everywhere).facts()[0, 0, 3] == -10.0


def test_the_order_of_candidates_and_unknown_nodes_do_not_matter(remembered: Remembered) -> None:
    order = torch.tensor([1, 0, 2])  # stopping stays last
    reordered = _remembered(WALK, LOG_PROBABILITIES[..., order], OPEN.flip(-1))
    torch.testing.assert_close(reordered.facts(), remembered.facts())
    garbage = _remembered(torch.where(WALK.isinf(), 3.0, WALK), LOG_PROBABILITIES, OPEN)
    torch.testing.assert_close(garbage.facts(), remembered.facts())


def test_hints_score_every_node_from_its_own_facts(remembered: Remembered) -> None:
    torch.manual_seed(0)
    hints, state = FrontierHints(WIDTH), torch.randn(1, WIDTH)
    scores = hints(state, remembered.graph, remembered.log_probabilities)
    assert scores.shape == (1, 4)
    for node, row in enumerate(remembered.facts()[0]):
        plain = hints.score(torch.tanh(hints.state(state[0]) + hints.facts(row)))
        torch.testing.assert_close(scores[0, node], plain[0])


def test_staying_has_a_score_of_its_own_and_only_staying(remembered: Remembered) -> None:
    stay, state = StayScore(WIDTH), torch.randn(1, WIDTH)
    assert stay(state, remembered.graph).tolist() == [[0.0] * 4], "before anything was learnt"
    torch.nn.init.normal_(stay.score.weight)
    torch.nn.init.constant_(stay.score.bias, 3.0)
    scores = stay(state, remembered.graph)[0]
    torch.testing.assert_close(scores[1], state[0] @ stay.score.weight[0] + 3.0)
    assert scores[[0, 2, 3]].tolist() == [0.0] * 3


def test_a_critic_gives_one_number_per_state() -> None:
    critic, state = Critic(WIDTH), torch.randn(2, 3, WIDTH)
    values = critic(state)
    assert values.shape == (2, 3)
    first, _, last = critic.layers
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    inner = (first.weight @ state[1, 2] + first.bias).clamp_min(0.0)
    torch.testing.assert_close(values[1, 2], (last.weight @ inner + last.bias)[0])
