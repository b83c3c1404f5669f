"""Seen places as one choice, and EGP and DUET, which score them: against plain graphs of what is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import networkx as nx
import pytest
import torch

from scenemem.agents.agent import DecisionPoint
from scenemem.agents.rollout import FINAL, GLOBAL
from scenemem.agents.walker import FollowLabels, LabelRule, collect, take_best
from scenemem.evaluation.metrics import ndtw, path_length
from scenemem.learning.objectives import ReferencePath
from scenemem.ssm.graph import WalkOptions
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.duet import Duet, go_back
from scenemem.zoo.egp import EGP, Edges, GraphNet, ProxyChannel, ProxyPlanner, pooled_edges
from scenemem.zoo.objectives import BestNDTW, ReferenceIndex, ShortestDetour
from scenemem.zoo.places import PlaceActions, SeenPlaces, first_of_cheapest
from tests.agents.helpers import Roaming
from tests.zoo.helpers import Setting, places_of, roam, way_over

# Places


@pytest.fixture(scope="module", params=[0, 1, 6])
def seen(request: pytest.FixtureRequest, setting: Setting) -> SeenPlaces:
    """After some decisions of walks that roam."""
    walk = setting.walk(setting.loud(EGP, "egp"), roam(1, stop=0.0), learning=True, max_decisions=8)
    return SeenPlaces.of(walk.points[request.param].memory())


def _known(seen: SeenPlaces, row: int) -> nx.Graph:
    """What an episode knows, as networkx has it: the edges of the places where it was."""
    graph, world = nx.Graph(), seen.world
    graph.add_nodes_from(nodes := places_of(seen.graph.viewpoint[row]))
    for place in nodes:
        for other in places_of(world.neighbour[place]):
            length = math.dist(world.position[place].tolist(), world.position[other].tolist())
            graph.add_edge(place, other, metres=length)
    return graph


def test_every_unvisited_place_is_there_once_and_knows_its_ways(seen: SeenPlaces) -> None:
    slots, last = seen.world.neighbour.shape[1], seen.viewpoint.shape[1]
    torch.manual_seed(0)
    ways = torch.randn(*seen.of_way.shape, 3)
    memory, node, slot = seen.open_ways
    open_ways = ways[memory, node * slots + slot]
    mean, largest = seen.pooled(open_ways, "mean"), seen.pooled(open_ways, "amax")
    assert not seen.per_way(torch.randn(seen.viewpoint.shape))[seen.of_way == last].any()
    for row in range(len(seen.all)):
        known, nodes = _known(seen, row), places_of(seen.graph.viewpoint[row])
        assert places_of(seen.viewpoint[row]) == sorted(set(known) - set(nodes))
        leads_to = seen.world.neighbour[seen.graph.viewpoint[row]].flatten()
        is_open = seen.graph.open[row].flatten()
        assert torch.equal(seen.of_way[row] == last, ~is_open)
        for number, place in enumerate(places_of(seen.viewpoint[row])):
            own = is_open & (leads_to == place)
            assert torch.equal(seen.of_way[row] == number, own)
            torch.testing.assert_close(mean[row, number], ways[row][own].mean(0))
            torch.testing.assert_close(largest[row, number], ways[row][own].amax(0))


def test_distances_are_those_of_the_known_map(seen: SeenPlaces) -> None:
    """Only places where the agent was are walked through."""
    for row, everything in enumerate(seen.all.tolist()):
        known, nodes = _known(seen, row), set(places_of(seen.graph.viewpoint[row]))
        here = int(seen.graph.viewpoint[row, seen.graph.here[row]])
        for one, first in enumerate(everything):
            for other, second in enumerate(everything):
                if NONE in (first, second):
                    assert not seen.metres[row, one, other]
                    continue
                through = known.subgraph(nodes | {first, second})
                expected = nx.dijkstra_path_length(through, first, second, weight="metres")
                assert float(seen.metres[row, one, other]) == pytest.approx(expected, abs=1e-3)
                if first == here:
                    assert int(seen.hops[row, other]) == nx.shortest_path_length(through, here, second)


def test_positions_turn_with_the_agent(seen: SeenPlaces) -> None:
    plain, turned = (seen.positions(torch.full((len(seen.all),), heading)) for heading in (0.0, math.pi / 2))
    torch.testing.assert_close(turned[..., 1], plain[..., 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(turned[..., 2:], plain[..., 2:])
    assert not plain[seen.all == NONE].any()


def test_of_equal_places_the_cheapest_is_kept() -> None:
    place = torch.tensor([[5, 3, 5, 3, 8, 5], [1, 1, 1, 1, 1, 1]])
    inf = torch.inf
    cost = torch.tensor([[2.0, 1.0, 1.5, 1.0, inf, inf], [inf, inf, 4.0, 3.0, 3.0, inf]])
    kept = first_of_cheapest(place, cost)
    assert kept.nonzero().tolist() == [[0, 1], [0, 2], [1, 3]]


def test_where_everything_was_visited_no_place_is_left(seen: SeenPlaces) -> None:
    graph = replace(seen.graph, open=torch.zeros_like(seen.graph.open))
    closed, ways = SeenPlaces.of(graph), torch.randn(0, 3)
    rows, nodes = graph.viewpoint.shape
    assert closed.viewpoint.shape == (rows, 0)
    assert closed.pooled(ways, "mean").shape == closed.pooled(ways, "amax").shape == (rows, 0, 3)
    assert closed.per_way(torch.zeros(rows, 0)).shape == closed.of_way.shape
    assert closed.positions(torch.zeros(rows)).shape == (rows, nodes, 7)


@pytest.mark.parametrize("revisits", [False, True])
def test_ways_lead_to_nodes_and_to_places_that_can_be_chosen(revisits: bool, seen: SeenPlaces) -> None:
    """With revisits a way to a visited place leads to its node and to the place that can be chosen, too."""
    world, graph = seen.world, seen.graph
    if revisits:
        ways = world.neighbour_mask[graph.viewpoint.clamp_min(0)] & (graph.viewpoint != NONE).unsqueeze(-1)
        graph = replace(graph, open=ways)
        seen = SeenPlaces.of(graph)
    links = seen.links()
    columns = torch.stack([links.node, links.slot, links.place], dim=2)
    for row, everything in enumerate(seen.all.tolist()):
        nodes, expected = graph.viewpoint[row].tolist(), []
        for node, here in enumerate(places_of(graph.viewpoint[row])):
            for slot, other in enumerate(places_of(world.neighbour[here])):
                if other in nodes:
                    expected.append([node, slot, nodes.index(other)])
                if revisits or other not in nodes:
                    expected.append([node, slot, everything.index(other, len(nodes))])
        assert columns[row][links.mask[row]].tolist() == expected, "in the order of nodes and slots"


# Choosing one of them, and what is right


@dataclass(frozen=True)
class _Choice:
    """One decision among all seen places."""

    walk: list[int]  # so far
    path: list[int]
    places: dict[int, int]  # of every option but stop
    label: int
    stop: int

    def way_to(self, world: World, option: int) -> list[int]:
        """Over known places; empty for stop."""
        if option == self.stop:
            return []
        return way_over(world, {*self.walk, self.places[option]}, self.walk[-1], self.places[option])


def _choices(
    world: World, episodes: EpisodeSet, rule: LabelRule, *, revisits: bool = False
) -> Iterator[_Choice]:
    """Those of walks that roam."""
    space = PlaceActions(world, len(episodes), 6, WalkOptions(allow_revisits=revisits))
    rollout = collect(world, episodes, space, Roaming(4, stops=1e-3), max_steps=40, label_rule=rule)
    table, slots = rollout.decisions[GLOBAL], world.neighbour.shape[1]
    for row, (episode, step) in enumerate(zip(table.episode.tolist(), table.step.tolist(), strict=True)):
        walk = rollout.viewpoint[episode, : step + 1].tolist()
        visited = list(dict.fromkeys(walk))
        places = {
            option: int(world.neighbour[visited[option // slots], option % slots])
            for option in table.options[row, :-1].nonzero().squeeze(1).tolist()
        }
        path, stop = places_of(episodes.path[episode]), table.options.shape[1] - 1
        yield _Choice(walk, path, places, int(table.label[row]), stop)


@pytest.mark.parametrize("revisits", [False, True])
def test_every_known_place_is_offered_once(revisits: bool, world: World, episodes: EpisodeSet) -> None:
    some, again = episodes.select(range(0, len(episodes), 6)), 0
    for one in _choices(world, some, ReferencePath(world, some.path), revisits=revisits):
        near = {other for place in one.walk for other in places_of(world.neighbour[place])}
        closed = {one.walk[-1]} if revisits else set(one.walk)
        assert sorted(one.places.values()) == sorted(near - closed)
        again += bool(set(one.places.values()) & set(one.walk))
    assert (again > 0) == revisits


def _metres(world: World, places: list[int]) -> float:
    return float(path_length(world, torch.tensor([places])))


def _stops(one: _Choice) -> float:
    """The cost of stopping where only the goal is right."""
    return -math.inf if one.walk[-1] == one.path[-1] else math.inf


def _place_on_path(world: World, one: _Choice, way: list[int]) -> float:
    """The later on the path the better; off the path, the nearer to the goal."""
    if not way:
        return _stops(one)
    on_path = way[-1] in one.path
    return -one.path.index(way[-1]) if on_path else _metres(world, [way[-1], one.path[-1]])


def _detour(world: World, one: _Choice, way: list[int]) -> float:
    """Metres to the place over the known map, and on to the goal."""
    return _metres(world, [one.walk[-1], *way, one.path[-1]]) if way else _stops(one)


def _infidelity(world: World, one: _Choice, way: list[int]) -> float:
    return -float(ndtw(world, torch.tensor([[*one.walk, *way]]), torch.tensor([one.path])))


RULES: dict[str, tuple[Callable[..., LabelRule], Callable[[World, _Choice, list[int]], float], float]] = {
    # the rule, what an option costs, and how exactly the label is the cheapest
    "the last place of the path": (ReferenceIndex, _place_on_path, 0.05),
    "the shortest detour": (ShortestDetour, _detour, 1e-4),
    "the best fidelity": (BestNDTW, _infidelity, 2e-6),
}


@pytest.mark.parametrize("name", RULES)
def test_labels_are_the_cheapest_options(name: str, world: World, episodes: EpisodeSet) -> None:
    make, cost, exact = RULES[name]
    some, jumps, labels = episodes.select(range(0, len(episodes), 6)), 0, set[bool]()
    along = () if make is ShortestDetour else (some.path,)
    for one in _choices(world, some, make(world, *along, some.goal)):
        costs = {option: cost(world, one, one.way_to(world, option)) for option in (*one.places, one.stop)}
        assert costs[one.label] == pytest.approx(min(costs.values()), abs=exact)
        jumps += len(one.way_to(world, one.label)) > 1
        labels |= {one.label == one.stop, one.places.get(one.label) in one.path}
    assert jumps > 10, "over known places"
    assert labels == {True, False}, "some stop, some are off the path"


def test_a_teacher_leads_it_along_a_path_that_comes_back(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 6))
    there_and_back = [path + path[-2::-1] for path in map(places_of, some.path)]
    longest = max(map(len, there_and_back))
    reference = torch.tensor([path + [NONE] * (longest - len(path)) for path in there_and_back])
    space = PlaceActions(world, len(some), longest, WalkOptions(allow_revisits=True))
    rule = ReferencePath(world, reference)
    rollout = collect(world, some, space, FollowLabels(), max_steps=60, label_rule=rule)
    assert [places_of(walk) for walk in rollout.walked] == there_and_back


# EGP and its planner


@pytest.mark.parametrize("name", ["egp", "egp-revisits", "egp-as-published"])
def test_the_graph_has_every_known_way_and_stop(name: str, setting: Setting) -> None:
    agent, world = setting.loud(EGP, name), setting.world
    point = setting.walk(agent, roam(1), learning=True).points[3]
    seen = SeenPlaces.of(point.memory())
    edges = agent._edges(seen, agent.embedded(point.observations)[point.row, -1])
    both = torch.stack([edges.source, edges.target], dim=2)
    for row, here in enumerate(point.viewpoint.tolist()):
        everything = [*seen.all[row].tolist(), "stop"]
        drawn = {(everything[u], everything[v]) for u, v in both[row][edges.mask[row]].tolist()}
        nodes = places_of(seen.graph.viewpoint[row])
        known = {(place, other) for place in nodes for other in places_of(world.neighbour[place])}
        assert drawn == known | {(here, "stop")}


@torch.no_grad()
def test_a_visited_node_has_its_place_a_flag_the_state_if_it_is_here_and_the_instruction(
    setting: Setting,
) -> None:
    agent = setting.loud(EGP, "egp")
    point = setting.walk(agent, roam(1), learning=True).points[3]
    graph, hidden = point.memory(), torch.randn(len(point.row), 16)
    places, words = graph.column("place"), point.observations.instructions.hidden[point.row]
    found = agent._visited(point, hidden, places)
    for row, node in itertools.product(range(len(found)), range(places.shape[1])):
        state = hidden[row] if node == int(graph.here[row]) else torch.zeros(16)
        entered = torch.cat([places[row, node], torch.tensor([float(node == 0)]), state, words[row]])
        torch.testing.assert_close(found[row, node], agent.enter(entered), rtol=1e-4, atol=1e-4)


WIDTH, NODES, EDGES = 6, 5, 9


def _graph(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Edges]:
    torch.manual_seed(seed)
    nodes = torch.randn(2, NODES, WIDTH)
    exists = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    source, target = torch.randint(0, 3, (2, 2, EDGES)).unbind(0)
    mask = torch.rand(2, EDGES) < 0.7
    return nodes, exists, Edges(source, target, mask, torch.randn(2, EDGES, WIDTH))


def _drawn(edges: Edges, row: int) -> list[tuple[int, int, torch.Tensor]]:
    """Both ends and the feature of every edge of a graph."""
    ends = edges.source[row].tolist(), edges.target[row].tolist(), edges.feature[row]
    return [edge for edge, there in zip(zip(*ends, strict=True), edges.mask[row], strict=True) if there]


def test_edges_between_proxies_are_sums_over_the_edges_of_their_nodes() -> None:
    _, _, edges = _graph()
    share = torch.rand(2, 3, NODES)
    expected = torch.zeros(2, 3, 3, WIDTH)
    for row in range(2):
        for u, v, feature in _drawn(edges, row):
            expected[row] += share[row, :, None, u, None] * share[row, None, :, v, None] * feature
    pooled = pooled_edges(share, edges)
    assert pooled.mask.all()
    for row, u, v in itertools.product(range(2), range(3), range(3)):
        assert (int(pooled.source[row, 3 * u + v]), int(pooled.target[row, 3 * u + v])) == (u, v)
        torch.testing.assert_close(pooled.feature[row, 3 * u + v], expected[row, u, v])


def test_messages_are_those_of_the_equations() -> None:
    nodes, exists, edges = _graph(1)
    net = GraphNet(WIDTH, steps=1)
    found = net(nodes, exists, edges)
    for row in range(2):
        count = int(exists[row].sum())
        whole = nodes[row, :count].mean(0)
        received, sent = torch.zeros(NODES, WIDTH), torch.zeros(NODES, WIDTH)
        for *ends, feature in _drawn(edges, row):
            for (u, v), layer in ((ends, net.edge[0]), (ends[::-1], net.edge[1])):
                joined = torch.cat([nodes[row, u], nodes[row, v], whole])
                message = torch.nn.functional.elu(net.message(joined)) + layer(feature)
                received[v] += message
                sent[u] += message
        for v in range(count):
            change = net.node(torch.cat([received[v], sent[v], whole, nodes[row, v]]))
            torch.testing.assert_close(found[row, v], nodes[row, v] + change, rtol=1e-4, atol=1e-5)
        assert not found[row, count:].any(), "nothing reaches absent nodes"


def test_every_proxy_is_a_mean_of_nodes() -> None:
    nodes, exists, edges = _graph(4)
    share = ProxyChannel(WIDTH, proxies=3, steps=2, small=4).assignment(nodes, exists, edges)
    assert share.shape == (2, 3, NODES)
    torch.testing.assert_close(share.sum(dim=2), torch.ones(2, 3))
    assert torch.equal(share > 0, exists.unsqueeze(1).expand_as(share)), "absent nodes have no share"


def test_numbers_of_nodes_and_edges_and_padding_do_not_matter() -> None:
    nodes, exists, edges = _graph(2)
    planner = ProxyPlanner(WIDTH, channels=2, proxies=3, steps=2)
    expected, pad = planner(nodes, exists, edges), torch.nn.functional.pad
    order, shuffled = torch.randperm(NODES), torch.randperm(EDGES)
    number = order.argsort()
    moved = Edges(
        pad(number[edges.source][:, shuffled], (0, 2)),
        pad(number[edges.target][:, shuffled], (0, 2)),
        pad(edges.mask[:, shuffled], (0, 2)),
        pad(edges.feature[:, shuffled], (0, 0, 0, 2), value=3.0),
    )
    found = planner(pad(nodes[:, order], (0, 0, 0, 3), value=7.0), pad(exists[:, order], (0, 3)), moved)
    torch.testing.assert_close(found[:, :NODES], expected[:, order], rtol=1e-4, atol=1e-5)
    assert not found[:, NODES:].any()


# DUET


@pytest.fixture(scope="module")
def agent(setting: Setting) -> Duet:
    agent: Duet = setting.loud(Duet, "duet")
    return agent


@pytest.fixture(scope="module")
def point(agent: Duet, setting: Setting) -> DecisionPoint:
    """A decision of several episodes that have been to a few places."""
    return setting.walk(agent, roam(1, stop=0.0), learning=True).points[4]


def test_a_place_that_is_not_next_to_here_is_scored_by_the_ways_back(
    point: DecisionPoint, world: World
) -> None:
    graph, slots, far = point.memory(), world.neighbour.shape[1], 0
    torch.manual_seed(0)
    here = torch.randn(len(point.row), slots)
    found = go_back(here, SeenPlaces.of(graph), world.neighbour_mask[point.viewpoint])
    for row in range(len(found)):
        visited = places_of(graph.viewpoint[row])
        own = dict(zip(places_of(world.neighbour[point.viewpoint[row]]), here[row].tolist(), strict=False))
        back = sum(score for place, score in own.items() if place in visited)
        for node, slot in graph.open[row].nonzero().tolist():
            place = int(world.neighbour[graph.viewpoint[row, node], slot])
            assert float(found[row, node * slots + slot]) == pytest.approx(own.get(place, back), abs=1e-5)
            far += place not in own
    assert far > 5


@torch.no_grad()
def test_the_score_is_the_weighted_sum_of_both_scales(agent: Duet, point: DecisionPoint) -> None:
    fused, logits = agent.read(point), agent.score(point)[GLOBAL]
    expected = fused.mix[:, :1] * fused.confidence[..., 0] + fused.mix[:, 1:] * fused.confidence[..., 1]
    torch.testing.assert_close(logits, expected)
    for weights in (fused.mix, *fused.words().values()):
        torch.testing.assert_close(weights.sum(1), torch.ones(len(point.row)))
    seen, several = SeenPlaces.of(point.memory()), 0
    for row, ways in enumerate(seen.of_way):
        for number in range(len(places_of(seen.viewpoint[row]))):
            own = logits[row, :-1][ways == number]
            torch.testing.assert_close(own, own[:1].expand_as(own), msg="whichever node leads there")
            several += len(own) > 1
    assert several > 3


@torch.no_grad()
def test_farther_places_are_attended_less_when_the_bias_says_so(agent: Duet, point: DecisionPoint) -> None:
    """The map's attention depends on the distances through the bias alone."""
    seen = SeenPlaces.of(point.memory())
    _, bias = agent.map_tokens(point, seen, seen.positions(point.heading))
    weight, constant = agent.distance.weight.item(), agent.distance.bias.item()
    places = seen.all >= 0
    pairs = places.unsqueeze(1) & places.unsqueeze(2)
    torch.testing.assert_close(bias[:, 1:, 1:][pairs], (weight * seen.metres + constant)[pairs])
    assert bool(bias[:, :, 1:].isneginf().any(dim=1)[~places].all())
    assert bool((bias[:, :, 0] == constant).all()), "stop is no metres away from anything"


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_at_the_beginning_nothing_drowns_anything_else(seed: int, setting: Setting) -> None:
    """Neither distances nor directions hide the rest, and words reach every token, whatever the seed."""
    agent = setting.agent("duet", seed=seed).network.eval()
    assert isinstance(agent, Duet)
    assert abs(agent.distance.weight.item()) < 0.1, "places 10 m away would have e times the weight, or less"
    assert agent.distance.bias.item() == 0.0
    seen = setting.walk(agent, roam(), learning=True).seen[0]
    looks, lies = agent.view(seen.candidates.visual), agent.angle(seen.candidates.orientation)
    mask = seen.candidates.mask
    assert 0.5 < float(looks[mask].norm(dim=-1).mean() / lies[mask].norm(dim=-1).mean()) < 2.0
    words = agent.text(seen.instructions.context)[seen.instructions.mask]
    assert float(words.square().mean()) == pytest.approx(1.0, abs=0.05)


def test_every_end_leads_to_where_stopping_was_likeliest(agent: Duet, setting: Setting) -> None:
    walk, chances = setting.walk(agent, take_best), dict[tuple[int, int], float]()
    for decided in walk.answers:
        if decided.request.type == GLOBAL:
            stop, request = decided.logits.log_softmax(1)[:, -1].tolist(), decided.request
            at = zip(request.episode.tolist(), request.viewpoint[:, -1].tolist(), strict=True)
            chances |= dict(zip(at, stop, strict=True))
    ends = walk.rollout.decisions[FINAL]
    assert len(ends.episode) == len(setting.episodes), "also after a deliberate stop"
    for episode, walked in enumerate(map(places_of, walk.rollout.walked)):
        own = {place: chance for (other, place), chance in chances.items() if other == episode}
        assert own[walked[-1]] == pytest.approx(max(own.values()), abs=1e-5)
    assert FINAL not in setting.walk(agent, take_best, learning=True).rollout.decisions
