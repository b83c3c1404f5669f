"""DUET: fusion, graph-aware bias, pseudo labels and the best-stop ending against plain references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace
from scenemem.agents.agent import DecisionPoint, recorded_observations
from scenemem.agents.rollout import FINAL, GLOBAL, DecisionRequest
from scenemem.agents.walker import Decided, collect, take_best
from scenemem.errors import SettingError
from scenemem.models.navigator import Packing
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.duet import Duet, DuetConfig, go_back
from scenemem.zoo.labels import ShortestDetour
from scenemem.zoo.place_actions import PlaceActions
from scenemem.zoo.seen_places import SeenPlaces
from scenemem.zoo.transformer import CrossModalLayer, Words
from tests.zoo.helpers import Setting, roam


def _points(agent: Duet, setting: Setting) -> list[DecisionPoint]:
    """The decision point of a rollout."""
    found: list[DecisionPoint] = []
    rollout, log = setting.walk(agent, roam(1), learning=True)
    score = agent.score

    def spy(point: DecisionPoint) -> object:
        found.append(point)
        return score(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "score", spy)
        patch.setattr(agent, "score_in_parts", 1)
        agent.evaluate_actions(rollout, log, setting.environment)
    return found


def _duet(setting: Setting, name: str = "duet", **changes: Any) -> Duet:
    agent = setting.loud_agent(name, **changes)
    assert isinstance(agent, Duet)
    return agent


def test_a_place_that_is_not_next_to_here_is_scored_by_the_ways_back(setting: Setting) -> None:
    (point,) = _points(_duet(setting), setting)
    graph, world = point.memory(), setting.world
    seen = SeenPlaces.of(graph, world)
    torch.manual_seed(0)
    here = torch.randn(len(point.row), world.neighbour.shape[1])
    exists = world.neighbour_mask[point.viewpoint]
    found = go_back(here, seen, exists)
    nodes, slots = graph.open.shape[1:]
    far = 0
    for row in range(0, len(found), 5):
        visited = set(graph.viewpoint[row].tolist())
        around = world.neighbour[point.viewpoint[row]].tolist()
        back = sum(float(here[row, k]) for k, place in enumerate(around) if place in visited - {NONE})
        for way in range(nodes * slots):
            node, slot = divmod(way, slots)
            if not bool(graph.open[row, node, slot]):
                continue
            place = int(world.neighbour[graph.viewpoint[row, node], slot])
            near = place in around
            expected = float(here[row, around.index(place)]) if near else back
            assert float(found[row, way]) == pytest.approx(expected, abs=1e-5)
            far += not near
    assert far > 5


def test_the_score_is_the_weighted_sum_of_both_scales(setting: Setting) -> None:
    agent = _duet(setting)
    (point,) = _points(agent, setting)
    with torch.no_grad():
        fused, logits = agent.read(point), agent.score(point)[GLOBAL]
    torch.testing.assert_close(fused.mix.sum(1), torch.ones(len(point.row)))
    expected = fused.mix[:, :1] * fused.confidence[..., 0] + fused.mix[:, 1:] * fused.confidence[..., 1]
    torch.testing.assert_close(logits, expected)
    for weights in fused.words().values():
        torch.testing.assert_close(weights.sum(1), torch.ones(len(point.row)))


def test_a_place_has_one_score_whoever_sees_it(setting: Setting) -> None:
    (point,) = _points(agent := _duet(setting), setting)
    with torch.no_grad():
        logits = agent.score(point)[GLOBAL][:, :-1]
    seen = SeenPlaces.of(point.memory(), setting.world)
    several = 0
    for row in range(len(logits)):
        for number in range(int(seen.mask[row].sum())):
            own = logits[row][seen.of_way[row] == number]
            torch.testing.assert_close(own, own[:1].expand_as(own))
            several += len(own) > 1
    assert several > 3


def test_farther_places_are_attended_less_when_the_bias_says_so(setting: Setting) -> None:
    """The map's attention depends on the distances through the bias alone."""
    agent = _duet(setting)
    (point,) = _points(agent, setting)
    seen = SeenPlaces.of(point.memory(), setting.world)
    codes = seen.positions(point.heading)
    with torch.no_grad():
        _, bias = agent.map_tokens(point, seen, codes)
    weight, constant = agent.distance.weight.item(), agent.distance.bias.item()
    places = seen.all >= 0
    pairs = places.unsqueeze(1) & places.unsqueeze(2)
    expected = (weight * seen.metres + constant)[pairs]
    torch.testing.assert_close(bias[:, 1:, 1:][pairs], expected)
    assert bool(bias[:, :, 1:].isneginf().any(dim=1)[~places].all())
    assert bool((bias[:, :, 0] == constant).all()), "stop is no metres away from anything"


@pytest.mark.parametrize("seed", range(4))
def test_at_the_beginning_nothing_drowns_anything_else(seed: int, setting: Setting) -> None:
    """Neither distances nor directions hide the rest, and words reach every token, whatever the seed."""
    agent = setting.agent("duet", seed=seed).network
    assert isinstance(agent, Duet)
    assert abs(agent.distance.weight.item()) < 0.1, "places 10 m away would have e times the weight, or less"
    assert agent.distance.bias.item() == 0.0
    rollout, log = setting.walk(agent.eval(), roam(), learning=True)
    seen = recorded_observations(setting.environment, log, rollout)
    with torch.no_grad():
        looks, lies = agent.view(seen.candidates.visual), agent.angle(seen.candidates.orientation)
        words = agent.text(log.instructions.context)
    mask = seen.candidates.mask
    assert 0.5 < float(looks[mask].norm(dim=-1).mean() / lies[mask].norm(dim=-1).mean()) < 2.0
    assert float(words[log.instructions.mask].square().mean()) == pytest.approx(1.0, abs=0.05)


def test_words_are_read_per_episode_as_they_would_be_alone() -> None:
    torch.manual_seed(0)
    layer = CrossModalLayer(8, 6, 2)
    packing = Packing(torch.tensor([0, 2, 2]), torch.tensor([0, 0, 1]), 3, 2)
    context, mask = torch.randn(3, 5, 6), torch.arange(5) < torch.tensor([[5], [1], [3]])
    tokens = torch.randn(3, 4, 8)
    found = layer.read(tokens, Words(context, mask, packing))
    for row, line in enumerate([0, 2, 2]):
        words = context[line : line + 1, : int(mask[line].sum())]
        alone = Packing(torch.tensor([0]), torch.tensor([0]), 1, 1)
        own = layer.read(tokens[row : row + 1], Words(words, torch.ones(1, words.shape[1]).bool(), alone))
        torch.testing.assert_close(found[row : row + 1], own)


# pseudo labels


class _Noting:
    """Roams, and keeps every request with its label."""

    def __init__(self) -> None:
        self.noted: list[tuple[DecisionRequest, Tensor, Tensor]] = []
        self._pick = roam(4)

    def observe(self, *_: object) -> None:
        pass

    def decide(self, request: DecisionRequest, label: Tensor, _pose: Pose, space: ActionSpace, /) -> Tensor:
        assert space.memory is not None
        self.noted.append((request, label, space.memory.node[request.episode].clone()))
        logits = torch.zeros(request.options.shape).masked_fill(~request.options, -torch.inf)
        return self._pick(logits, request.episode)


def test_the_pseudo_expert_takes_the_shortest_detour(world: World, episodes: EpisodeSet) -> None:
    import networkx as nx

    some, policy = episodes.select(range(0, len(episodes), 6)), _Noting()
    space = PlaceActions(world, len(some), 6)
    collect(world, some, space, policy, max_steps=40, label_rule=ShortestDetour(world, some.goal))
    for request, label, nodes in policy.noted:
        for row, episode in enumerate(request.episode.tolist()):
            here, goal = int(request.viewpoint[row, -1]), int(some.goal[episode])
            known = nx.Graph()
            visited = {place for place in nodes[row].tolist() if place != NONE}
            for place in visited:
                for slot, other in enumerate(world.neighbour[place].tolist()):
                    if other != NONE:
                        known.add_edge(place, other, metres=float(world.neighbour_length[place, slot]))
            options = request.options[row, :-1].nonzero().squeeze(1).tolist()
            places = [int(request.viewpoint[row, option]) for option in options]
            assert len(set(places)) == len(places), "every place is offered once"
            if here == goal or not options:
                assert int(label[row]) == request.stop
                continue
            cost = {}
            for option, place in zip(options, places, strict=True):
                way = nx.dijkstra_path_length(known.subgraph(visited | {place}), here, place, weight="metres")
                cost[option] = way + float(world.geodesic(torch.tensor(place), torch.tensor(goal)))
            assert cost[int(label[row])] == pytest.approx(min(cost.values()), abs=1e-4)


# the end


def test_every_end_leads_to_where_stopping_was_likeliest(setting: Setting) -> None:
    agent, chances = _duet(setting), list[tuple[int, int, float]]()

    class Watcher:
        def observed(self, *_: object) -> None:
            pass

        def decided(self, decided: Decided, /) -> None:
            if decided.request.type == GLOBAL:
                stop = decided.logits.log_softmax(1)[:, -1].tolist()
                places = decided.request.viewpoint[:, -1].tolist()
                chances.extend(zip(decided.request.episode.tolist(), places, stop, strict=True))

    rollout, _ = setting.walk(agent, take_best, watcher=Watcher())
    assert FINAL in rollout.decisions
    assert len(rollout.decisions[FINAL].episode) == len(setting.episodes), "also after a deliberate stop"
    ends = rollout.viewpoint.gather(1, (rollout.length - 1).unsqueeze(1)).squeeze(1).tolist()
    for episode, end in enumerate(ends):
        own = {place: chance for who, place, chance in chances if who == episode}
        assert own[end] == pytest.approx(max(own.values()), abs=1e-5)


def test_learning_walks_end_where_they_stop(setting: Setting) -> None:
    rollout, _ = setting.walk(_duet(setting), take_best, learning=True)
    assert FINAL not in rollout.decisions


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="map_width must be even and a multiple of heads, got 30"):
        DuetConfig(map_width=30)
    with pytest.raises(SettingError, match="layers must be 1 or more, got 0"):
        DuetConfig(layers=0)
