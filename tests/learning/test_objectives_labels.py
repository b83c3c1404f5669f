"""Label rules: what would have been right, for teachers and for the agent's own walks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, LocalActions
from scenemem.agents.rollout import ACTION, GLOBAL, DecisionRequest
from scenemem.agents.walker import FollowLabels, LabelRule, collect
from scenemem.evaluation.metrics import measure
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import (
    LABEL_RULES,
    ClosestToGoal,
    MixedRules,
    NearestNode,
    ReferencePath,
    RestOfPath,
)
from scenemem.ssm.ablations import GlobalActions
from scenemem.ssm.deciding import FrontierActions, MemoryActions
from scenemem.ssm.graph import WalkOptions
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import Pose, World
from tests.agents.helpers import Roaming, known_graph, walks_of

Space = type[LocalActions | FrontierActions | GlobalActions]
SPACES = (LocalActions, FrontierActions, GlobalActions)
REVISITS = WalkOptions(allow_revisits=True)


@pytest.fixture(scope="module")
def metres(world: World) -> dict[int, dict[int, float]]:
    """Shortest distances of the whole world, by networkx."""
    graph = known_graph(world, list(range(len(world.viewpoints))))
    return dict(nx.all_pairs_dijkstra_path_length(graph, weight="metres"))


class Examiner(Roaming):
    """Wanders at random and checks every label of a rule against a plain computation."""

    def __init__(
        self, episodes: EpisodeSet, metres: dict[int, dict[int, float]], rule: type[ClosestToGoal]
    ) -> None:
        super().__init__(stops=0.0)
        self._goal = episodes.goal.tolist()
        self._metres = metres
        self._by_place = rule is NearestNode
        self.at_goal = self.walked_away = 0

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, None]:
        for row, episode in enumerate(request.episode.tolist()):
            options = request.options[row].nonzero().squeeze(1).tolist()
            here = int(pose.viewpoint[episode])
            costs = {option: self._cost(request, row, option, episode, here, space) for option in options}
            assert costs[int(label[row])] == pytest.approx(min(costs.values()), abs=1e-4)
            self.at_goal += here == self._goal[episode]
        return super().decide(request, label, pose, space)

    def _cost(
        self, request: DecisionRequest, row: int, option: int, episode: int, here: int, space: ActionSpace
    ) -> float:
        """How far the goal is by way of an option; at the goal stopping is free, elsewhere the last resort.

        A walk over known places only decides between options that are equally good.
        """
        to_goal, world = self._metres[self._goal[episode]], space.world
        if not request.type.over_nodes:
            if option == request.stop:
                return 0.0 if here == self._goal[episode] else 1e6
            there = int(request.viewpoint[row, option])
            if request.type == ACTION:
                return to_goal[there] + (0.0 if self._by_place else self._metres[here][there])
        assert isinstance(space, MemoryActions)
        memory = space.memory
        if request.type == GLOBAL:
            node = option // world.neighbour.shape[1]
            return to_goal[there] + 1e-3 * float(memory.walk[episode, memory.here[episode], node])
        place = int(memory.node[episode, option])
        self.walked_away += place != here
        visited = set(memory.node[episode].tolist())
        walk = 1e-3 * float(memory.walk[episode, memory.here[episode], option])
        sub_nodes = [there for there in world.neighbour[place].tolist() if there not in visited]
        if self._by_place:
            return (to_goal[place] if sub_nodes or place == self._goal[episode] else 1e4) + walk
        ahead = min((to_goal[there] for there in sub_nodes), default=1e6)
        return (-1.0 if place == self._goal[episode] else ahead) + walk


@pytest.mark.parametrize("rule", [ClosestToGoal, NearestNode])
@pytest.mark.parametrize("kind", SPACES)
def test_student_forcing_labels_lead_closest_to_the_goal(
    world: World,
    episodes: EpisodeSet,
    metres: dict[int, dict[int, float]],
    kind: Space,
    rule: type[ClosestToGoal],
) -> None:
    """By what can be reached from a frontier, or by where the frontier itself is."""
    examiner, made = Examiner(episodes, metres, rule), rule(world, episodes.goal)
    collect(world, episodes, kind(world, len(episodes), 7), examiner, max_steps=100, label_rule=made)
    assert examiner.at_goal > 0
    assert examiner.walked_away > 0 or kind is not FrontierActions


def _followed(world: World, episodes: EpisodeSet, space: ActionSpace, rule: LabelRule) -> list[list[int]]:
    """The walks of a teacher, each known to have stopped by itself."""
    rollout = collect(world, episodes, space, FollowLabels(), max_steps=100, label_rule=rule)
    assert rollout.stopped.all()
    return walks_of(rollout)


def _single(world: World, episodes: EpisodeSet, names: str) -> EpisodeSet:
    """One episode along grid viewpoints given by name, begun at its first one or as in ``start: path``."""
    start, _, along = names.rpartition(": ")
    path = torch.tensor([[world.index_of("grid", name) for name in along.split()]])
    begin = torch.tensor([world.index_of("grid", start)]) if start else path[:, 0]
    return replace(episodes.select([0]), start=begin, goal=path[:, -1], path=path)


def _names(world: World, walk: list[int]) -> str:
    return " ".join(world.viewpoints[place] for place in walk)


LOOPS = ("g10 g20 g21 g11 g10 g00", "g00 g10 g20 g10 g11", "g01 g11 g21 g20 g10 g11 g12", "g10 g20 g10")
LONG = "g00 g10 g20 g21 g11 g21 g20 g10 g00 g01"


@pytest.mark.parametrize("kind", SPACES)
def test_following_a_rule_ends_at_the_goal(world: World, episodes: EpisodeSet, kind: Space) -> None:
    """Along the reference path, or by any way."""
    along, closer = (
        _followed(world, episodes, kind(world, len(episodes), 15), rule)
        for rule in (ReferencePath(world, episodes.path), ClosestToGoal(world, episodes.goal))
    )
    paths = zip(episodes.path.tolist(), episodes.path_length.tolist(), strict=True)
    assert along == [path[:length] for path, length in paths]
    assert [walk[-1] for walk in closer] == episodes.goal.tolist()


def _reference(world: World, episodes: EpisodeSet) -> LabelRule:
    return ReferencePath(world, episodes.path)


def _rest(world: World, episodes: EpisodeSet) -> LabelRule:
    return RestOfPath(world, episodes.path, passes_over=False)


REMEMBERING = (FrontierActions, GlobalActions)


@pytest.mark.parametrize(
    ("kind", "options", "rule", "names", "walked"),
    [
        # agents without a memory walk a path that crosses itself in order, and those that revisit places
        *((LocalActions, (), rule, loop, loop) for rule in (_reference, _rest) for loop in LOOPS),
        *((kind, (REVISITS,), _reference, loop, loop) for kind in REMEMBERING for loop in LOOPS),
        *((kind, (REVISITS,), _rest, loop, loop) for kind in REMEMBERING for loop in LOOPS),
        # one with a memory passes over points it has visited, where its way leads there all the same
        *((FrontierActions, (), _reference, loop, loop) for loop in LOOPS),
        # the way back is known already and shorter than the reference
        (FrontierActions, (), _reference, LONG, "g00 g10 g20 g21 g11 g01"),
        # nothing new can be seen from the last place, so it cannot be named a frontier
        (FrontierActions, (), _reference, "g00 g10 g11 g01 g00", "g00 g10 g11 g01"),
        # off the path, the next point of it is led to
        (LocalActions, (), _rest, "g00: g10 g20 g30 g31", "g00 g10 g20 g30 g31"),
    ],
)
def test_a_path_is_followed(
    world: World,
    episodes: EpisodeSet,
    kind: Space,
    options: tuple[WalkOptions, ...],
    rule: Any,
    names: str,
    walked: str,
) -> None:
    one = _single(world, episodes, names)
    (walk,) = _followed(world, one, kind(world, 1, 15, *options), rule(world, one))
    assert _names(world, walk) == walked


@pytest.mark.parametrize("kind", SPACES[1:])
@pytest.mark.parametrize("names", LOOPS[:3])
def test_the_rest_of_a_path_passes_over_points_where_a_memory_agent_has_stood(
    world: World, episodes: EpisodeSet, kind: Space, names: str
) -> None:
    one = _single(world, episodes, names)
    (walk,) = _followed(world, one, kind(world, 1, 15), RestOfPath(world, one.path, passes_over=True))
    assert walk[-1] == int(one.goal)
    assert set(walk) == set(one.path[0].tolist())


class Detour(FollowLabels):
    """Goes one wrong way first, then does what is right."""

    def __init__(self, wrong: int) -> None:
        self._wrong: int | None = wrong

    def decide(
        self, _request: DecisionRequest, label: Tensor, _pose: Pose, _space: ActionSpace, /
    ) -> tuple[Tensor, None]:
        choice = label if self._wrong is None else torch.full_like(label, self._wrong)
        self._wrong = None
        return choice, None


@pytest.mark.parametrize(
    ("names", "wrong", "options", "name", "walked"),
    [
        ("g10 g20 g30 g31", "g00", WalkOptions(), "path", "g10 g00 g10 g20 g30 g31"),
        ("g10", "g20", REVISITS, "goal", "g10 g20 g10"),
    ],
)
def test_an_agent_that_went_wrong_is_led_back(
    world: World, episodes: EpisodeSet, names: str, wrong: str, options: WalkOptions, name: str, walked: str
) -> None:
    """To the path, or to a goal it has left; by rules that are found by their names."""
    one, space = _single(world, episodes, names), FrontierActions(world, 1, 15, options)
    policy = Detour(int(world.slot_of(one.start[0], torch.tensor(world.index_of("grid", wrong)))))
    rule = LABEL_RULES[name](world, one, space)
    rollout = collect(world, one, space, policy, max_steps=30, label_rule=rule)
    assert rollout.stopped.all()
    assert _names(world, rollout.viewpoint[0].tolist()) == walked


def test_what_is_still_to_go_is_the_way_to_the_next_point_and_the_rest(
    world: World, episodes: EpisodeSet, metres: dict[int, dict[int, float]]
) -> None:
    one = _single(world, episodes, "g10 g20 g21 g11 g10 g00")
    points = one.path[0].tolist()
    rule, episode = RestOfPath(world, one.path, passes_over=False), torch.tensor([0])
    for number, place in enumerate(points):
        rule.arrive(torch.tensor([place]), episode)
        ahead = points[min(number + 1, len(points) - 1) :]
        rest = sum(metres[a][b] for a, b in itertools.pairwise(ahead))
        for there in points:
            seen = float(rule.metres(torch.tensor([[there]]), episode))
            assert seen == pytest.approx(metres[there][ahead[0]] + rest, abs=1e-4)


def test_some_episodes_are_led_and_the_others_judged_by_their_own_rule(
    world: World, episodes: EpisodeSet
) -> None:
    """Each by its rule alone: labels, progress along the path, and metres as students measure them."""
    one = _single(world, episodes, LOOPS[0])
    pair = replace(
        one.select([0, 0]), start=one.start.repeat(2), goal=one.goal.repeat(2), path=one.path.repeat(2, 1)
    )
    forced = torch.tensor([True, False])
    student = ClosestToGoal(world, pair.goal)
    rule = MixedRules(forced, ReferencePath(world, pair.path), student)
    walks = _followed(world, pair, LocalActions(world, 2, 15), rule)
    assert [_names(world, walk) for walk in walks] == [LOOPS[0], "g10 g00"]
    both = torch.arange(2)
    assert torch.equal(rule.metres(pair.path, both), student.metres(pair.path, both))


@pytest.mark.parametrize("revisits", [False, True])
def test_the_path_rule_passes_over_known_points_for_agents_that_may_not_revisit_them(
    world: World, episodes: EpisodeSet, metres: dict[int, dict[int, float]], revisits: bool
) -> None:
    """After g11 the path leads back to g10, where it began; only an agent that may revisit it has to."""
    one = _single(world, episodes, LOOPS[0])
    space = FrontierActions(world, 1, 15, WalkOptions(allow_revisits=revisits))
    rule, episode = LABEL_RULES["path"](world, one, space), torch.tensor([0])
    for place in one.path[0, :4]:
        rule.arrive(place.unsqueeze(0), episode)
    here, begin, goal = (world.index_of("grid", name) for name in ("g01", "g10", "g00"))
    expected = metres[here][begin] + metres[begin][goal] if revisits else metres[here][goal]
    assert float(rule.metres(torch.tensor([[here]]), episode)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.real_data
@pytest.mark.parametrize(("split", "every"), [("train", 12), ("val_seen", 1), ("val_unseen", 1)])
@pytest.mark.parametrize("kind", SPACES)
def test_following_the_reference_is_perfect_on_real_r2r(
    real_data: Path, split: str, every: int, kind: Space
) -> None:
    world = load_world(real_data / "connectivity")
    episodes = load_split(DataFolder(real_data), world, "r2r", split)
    episodes = episodes.select(range(0, len(episodes), every))
    walks = _followed(world, episodes, kind(world, len(episodes), 15), ReferencePath(world, episodes.path))
    longest = max(map(len, walks))
    walked = torch.tensor([walk + [-1] * (longest - len(walk)) for walk in walks])
    metrics = measure(world, walked, episodes.path)
    assert float(metrics.sr.mean()) == 1.0
    assert float(metrics.spl_ref.mean()) == pytest.approx(1.0)
    assert float(metrics.ndtw.mean()) == pytest.approx(1.0)


# To the goal G it is 1 m from A, 3 m from E, 5 m from B, 6.1 m from K by way of B, and from H 7 m by way of B
# or 9 m by way of A.
