"""EGP: its label rule, its graph, and what a jump does to the state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, WalkOptions
from scenemem.agents.agent import DecisionPoint
from scenemem.agents.rollout import GLOBAL, DecisionRequest
from scenemem.agents.walker import collect
from scenemem.errors import SettingError
from scenemem.learning.objectives import ReferencePath
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.egp import EGP, EGPConfig
from scenemem.zoo.labels import ReferenceIndex
from scenemem.zoo.place_actions import PlaceActions
from scenemem.zoo.seen_places import SeenPlaces
from tests.zoo.helpers import Setting, roam


class _Noting:
    """Roams, and keeps every request with its label."""

    def __init__(self) -> None:
        self.noted: list[tuple[DecisionRequest, Tensor]] = []
        self._pick = roam(5)

    def observe(self, *_: object) -> None:
        pass

    def decide(self, request: DecisionRequest, label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        self.noted.append((request, label))
        logits = torch.zeros(request.options.shape).masked_fill(~request.options, -torch.inf)
        return self._pick(logits, request.episode)


class _Obedient:
    """Does what the label says."""

    def observe(self, *_: object) -> None:
        pass

    def decide(self, _request: DecisionRequest, label: Tensor, *_: object) -> Tensor:
        return label


def test_the_label_is_the_last_place_of_the_path_that_is_offered(world: World, episodes: EpisodeSet) -> None:
    some, policy = episodes.select(range(0, len(episodes), 6)), _Noting()
    space = PlaceActions(world, len(some), 6)
    rule = ReferenceIndex(world, some.path, some.goal)
    collect(world, some, space, policy, max_steps=40, label_rule=rule)
    on_path = off_path = 0
    for request, label in policy.noted:
        for row, episode in enumerate(request.episode.tolist()):
            path = [place for place in some.path[episode].tolist() if place != NONE]
            options = request.options[row, :-1].nonzero().squeeze(1).tolist()
            places = {int(request.viewpoint[row, option]): option for option in options}
            if int(request.viewpoint[row, -1]) == path[-1] or not options:
                assert int(label[row]) == request.stop
                continue
            ahead = [place for place in path if place in places]
            if ahead:
                assert int(label[row]) == places[ahead[-1]]
                on_path += 1
            else:
                goal = torch.tensor(path[-1])
                metres = {o: float(world.geodesic(torch.tensor(p), goal)) for p, o in places.items()}
                assert metres[int(label[row])] == pytest.approx(min(metres.values()), abs=0.05)
                off_path += 1
    assert on_path > 20
    assert off_path > 0


def test_with_revisits_every_known_place_but_here_is_offered_once(world: World, episodes: EpisodeSet) -> None:
    some, policy = episodes.select(range(0, len(episodes), 6)), _Noting()
    space = PlaceActions(world, len(some), 6, WalkOptions(allow_revisits=True))
    rollout = collect(world, some, space, policy, max_steps=40, label_rule=ReferencePath(world, some.path))
    walked = rollout.walked.tolist()
    again = 0
    for table in rollout.decisions.values():
        for row, (episode, step) in enumerate(zip(table.episode.tolist(), table.step.tolist(), strict=True)):
            nodes = list(dict.fromkeys(walked[episode][: step + 1]))
            near = {other for place in nodes for other in world.neighbour[place].tolist() if other != NONE}
            options = table.options[row, :-1].nonzero().squeeze(1).tolist()
            slots = world.neighbour.shape[1]
            offered = [int(world.neighbour[nodes[option // slots], option % slots]) for option in options]
            assert sorted(offered) == sorted(near - {walked[episode][step]})
            again += bool(set(offered) & set(nodes))
    assert again > 0


def test_a_teacher_leads_it_along_a_path_that_comes_back(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 6))
    paths = [[place for place in row if place != NONE] for row in some.path.tolist()]
    there_and_back = [path + path[-2::-1] for path in paths]
    longest = max(map(len, there_and_back))
    reference = torch.tensor([path + [NONE] * (longest - len(path)) for path in there_and_back])
    space = PlaceActions(world, len(some), longest, WalkOptions(allow_revisits=True))
    rule = ReferencePath(world, reference)
    rollout = collect(world, some, space, _Obedient(), max_steps=60, label_rule=rule)
    for walk, path in zip(rollout.walked.tolist(), there_and_back, strict=True):
        assert [place for place in walk if place != NONE] == path


@pytest.mark.parametrize("name", ["egp", "egp-revisits", "egp-as-published"])
def test_the_graph_has_every_known_way_and_stop(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    assert isinstance(agent, EGP)
    found: list[DecisionPoint] = []
    rollout, log = setting.walk(agent, roam(1), learning=True)
    score = agent.score

    def spy(point: DecisionPoint) -> object:
        found.append(point)
        return score(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "score", spy)
        patch.setattr(agent, "score_in_parts", 1)
        logits = agent.evaluate_actions(rollout, log, setting.environment).logits[GLOBAL]
    (point,), world = found, setting.world
    assert logits.isfinite().any(dim=1).all()
    seen = SeenPlaces.of(point.memory(), world)
    stop = agent.embedded(point.observations)[point.row, -1]
    edges = agent._edges(seen, stop)
    for row in range(0, len(point.row), 7):
        everything = [*seen.all[row].tolist(), "stop"]
        drawn = {
            (everything[int(u)], everything[int(v)])
            for u, v, there in zip(edges.source[row], edges.target[row], edges.mask[row], strict=True)
            if there
        }
        nodes = [place for place in seen.graph.viewpoint[row].tolist() if place != NONE]
        known = {
            (place, other) for place in nodes for other in world.neighbour[place].tolist() if other != NONE
        }
        assert drawn == known | {(int(point.viewpoint[row]), "stop")}


def test_every_observation_on_the_way_updates_the_state(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent("egp"), roam(2))
    steps = torch.arange(rollout.alive.shape[1]).expand_as(rollout.state_step)
    assert torch.equal(rollout.state_step[rollout.alive], steps[rollout.alive])
    assert rollout.memory is not None
    assert int(rollout.length.max()) > int(rollout.memory.count.max()), "somebody walked back"


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="proxies must be 1 or more, got 0"):
        EGPConfig(proxies=0)
