"""Frontier hints: the facts, how they score, and that the paper's agent adds them to its frontier scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.agent import DecisionPoint, Observations
from scenemem.agents.build import DataSizes
from scenemem.agents.rollout import DecisionType
from scenemem.agents.walker import TrainedAgent, WalkConfig, take_best
from scenemem.features.store import Environment, Places
from scenemem.ssm.agent import REMEMBERED, SSM, SSMConfig
from scenemem.ssm.reading import FrontierHints, MemoryGraph
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import World
from tests.models.helpers import one_per_episode

NODES, MAX_DECISIONS = 4, 9
REMEMBERED_SCORES = torch.tensor(
    [[[-1.0, -2.0, -3.0], [-4.0, -0.5, -1e4], [-6.0, -7.0, -0.1], [9.0, 9.0, 9.0]]]
)
OPEN = torch.tensor([[[False, True], [True, False], [False, False], [True, True]]])


def _nothing(place: Tensor) -> Tensor:
    raise AssertionError(f"hints do not look at places, here {place}")


def _no_column(name: str) -> Tensor:
    raise AssertionError(f"hints are handed what is remembered, and do not ask for column {name}")


def _graph(walk: list[float], open_ways: Tensor = OPEN) -> MemoryGraph:
    """A memory of three nodes, standing at node 1; the fourth is not known yet."""
    none = torch.empty(0, dtype=torch.long)
    return MemoryGraph(
        places=Places(none, none, _nothing, torch.empty(0, 2, 4), none.bool(), none, none, none.float),
        packing=one_per_episode(1, torch.device("cpu")),
        viewpoint=torch.tensor([[7, 3, 5, -1]]),
        edge=torch.zeros(1, NODES, NODES, dtype=torch.bool),
        count=torch.tensor([3]),
        here=torch.tensor([1]),
        walk=torch.tensor([walk]),
        open_lookup=lambda: open_ways,
        column_lookup=_no_column,
    )


@pytest.fixture
def graph() -> MemoryGraph:
    return _graph([5.0, 0.0, 20.0, torch.inf])


def test_facts_are_plain(graph: MemoryGraph) -> None:
    assert FrontierHints.columns(graph, REMEMBERED_SCORES)[0].tolist() == [
        pytest.approx(row)
        for row in (
            # here, walk / 10, age / 10, best open neighbour, stopping there
            [0.0, 0.5, 0.2, -2.0, -3.0],
            [1.0, 0.0, 0.1, -4.0, -10.0],  # remembered scores have a floor
            [0.0, 2.0, 0.0, -10.0, -0.1],  # nothing is open there
            [0.0, 0.0, 0.0, 0.0, 0.0],  # not known yet
        )
    ]


def test_neighbour_order_and_unknown_nodes_do_not_matter(graph: MemoryGraph) -> None:
    expected = FrontierHints.columns(graph, REMEMBERED_SCORES)
    order = torch.tensor([1, 0, 2])  # stopping stays last
    turned = _graph([5.0, 0.0, 20.0, torch.inf], OPEN.flip(-1))
    torch.testing.assert_close(FrontierHints.columns(turned, REMEMBERED_SCORES[..., order]), expected)
    garbage = _graph([5.0, 0.0, 20.0, 3.0])
    torch.testing.assert_close(FrontierHints.columns(garbage, REMEMBERED_SCORES), expected)


def test_hints_score_every_node_from_its_own_facts(graph: MemoryGraph) -> None:
    torch.manual_seed(0)
    hints, state = FrontierHints(6), torch.randn(1, 6)
    scores = hints(state, graph, REMEMBERED_SCORES)
    assert scores.shape == (1, NODES)
    for node, row in enumerate(FrontierHints.columns(graph, REMEMBERED_SCORES)[0]):
        plain = hints.score(torch.tanh(hints.state(state[0]) + hints.facts(row)))
        torch.testing.assert_close(scores[0, node], plain[0])


# in the agent


@pytest.fixture(scope="module")
def agent(
    random_environment: Callable[[World, int], Environment], world: World, episodes: EpisodeSet
) -> TrainedAgent:
    torch.manual_seed(2)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    network = SSM.build(SSMConfig(word_width=8, width=16, hints=True), DataSizes(len(vocabulary), 4))
    return TrainedAgent(network, random_environment(world, 4), vocabulary, WalkConfig(MAX_DECISIONS, 40, 20))


def _restless(logits: Tensor, episode: Tensor) -> Tensor:
    """Stops only where it cannot go on; any frontier is as good as another."""
    if logits.shape[1] == MAX_DECISIONS + 1:
        return take_best(logits, episode)
    logits = logits.clone()
    logits[:, -1] = torch.where(logits[:, :-1].isfinite().any(dim=1), -1e6, logits[:, -1])
    return take_best(logits, episode)


def test_a_hint_in_favour_of_here_keeps_an_agent_where_it_is_and_one_against_it_sends_it_away(
    agent: TrainedAgent, episodes: EpisodeSet
) -> None:
    hints = agent.network.hints
    assert isinstance(hints, FrontierHints)
    jumps = {}
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for parameter in hints.parameters():
                nn.init.zeros_(parameter)
            hints.facts.weight[0, 0] = 1.0  # the first fact says whether a node is here
            hints.score.weight[0, 0] = sign * 1e4
        jumps[sign] = int(agent.walk(episodes.restrict(["grid"]), _restless).jumps.sum())
    assert jumps[1.0] == 0
    assert jumps[-1.0] > 20


def test_remembered_scores_are_those_of_the_last_visit(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    """The column an agent with hints writes: log-probabilities of its neighbours and of stopping."""
    network, world = agent.network, agent.environment.world
    assert isinstance(network, SSM)
    score, columns, compared = network.score, network.columns, 0
    written: dict[int, Tensor] = {}

    def spied_columns(observations: Observations) -> dict[str, Tensor]:
        found = columns(observations)
        viewpoint = int(observations.viewpoint)
        exists = [*world.neighbour_mask[viewpoint].tolist(), True]
        written[viewpoint] = network.action_logits(observations)[0][exists].log_softmax(dim=0)
        assert not found[REMEMBERED].requires_grad
        return found

    def checked(point: DecisionPoint) -> dict[DecisionType, Tensor]:
        nonlocal compared
        graph = point.memory()
        remembered = graph.column(REMEMBERED)[0]
        for node in range(int(graph.count[0])):
            viewpoint = int(graph.viewpoint[0, node])
            exists = [*world.neighbour_mask[viewpoint].tolist(), True]
            torch.testing.assert_close(remembered[node][exists], written[viewpoint])
            compared += node != int(graph.here[0])
        return score(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "columns", spied_columns)
        patch.setattr(network, "score", checked)
        walked = agent.walk(episodes.restrict(["grid"]).select([8]), _restless)
    assert compared > 10
    assert len(set(walked.walked[0].tolist())) < int(walked.length[0]), "it came back"


def test_without_hints_nothing_is_remembered(episodes: EpisodeSet) -> None:
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    plain = SSM.build(SSMConfig(word_width=8, width=16), DataSizes(len(vocabulary), 4))
    assert plain.hints is None
    assert not any("hints" in name for name, _ in plain.named_parameters())
