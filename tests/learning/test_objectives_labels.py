"""Label rules: what would have been right, for teachers and for the agent's own walks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import (
    ActionSpace,
    FrontierActions,
    GlobalActions,
    LocalActions,
    MemoryActions,
    WalkOptions,
)
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL, DecisionRequest, DecisionType
from scenemem.agents.walker import FollowLabels, LabelRule, collect
from scenemem.errors import UserError
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
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import build_world, load_world
from scenemem.world.graph import World
from tests.conftest import scan_from_graph

Space = type[LocalActions | FrontierActions | GlobalActions]
SPACES = (LocalActions, FrontierActions, GlobalActions)
REVISITS = WalkOptions(allow_revisits=True)


@pytest.fixture(scope="module")
def metres(world: World) -> dict[int, dict[int, float]]:
    """Shortest distances of the whole world, by networkx."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(world.viewpoints)))
    for here, slot in world.neighbour_mask.nonzero().tolist():
        graph.add_edge(
            here, int(world.neighbour[here, slot]), metres=float(world.neighbour_length[here, slot])
        )
    return dict(nx.all_pairs_dijkstra_path_length(graph, weight="metres"))


class Examiner:
    """Wanders at random and checks every ``ClosestToGoal`` label against a plain computation."""

    def __init__(self, world: World, episodes: EpisodeSet, metres: dict[int, dict[int, float]]) -> None:
        self._world = world
        self._goal = episodes.goal.tolist()
        self._metres = metres
        self._random = torch.Generator().manual_seed(0)
        self.at_goal = self.walked_away = 0

    def observe(self, _pose: Pose, _active: Tensor, _space: ActionSpace, /) -> None:
        """Only labels are looked at."""

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        for row, episode in enumerate(request.episode.tolist()):
            options = request.options[row].nonzero().squeeze(1).tolist()
            here = int(pose.viewpoint[episode])
            costs = {option: self._cost(request, row, option, episode, here, space) for option in options}
            assert costs[int(label[row])] == pytest.approx(min(costs.values()), abs=1e-4)
            self.at_goal += here == self._goal[episode]
        chance = request.options.double()
        if not request.type.over_nodes:
            chance[:, request.stop] = 1e-30
        return torch.multinomial(chance, 1, generator=self._random).squeeze(1)

    def _cost(
        self, request: DecisionRequest, row: int, option: int, episode: int, here: int, space: ActionSpace
    ) -> float:
        """How far the goal is by way of an option; at the goal stopping is free, elsewhere the last resort.

        A walk over known places only decides between options that are equally good.
        """
        to_goal = self._metres[self._goal[episode]]
        if not request.type.over_nodes:
            if option == request.stop:
                return 0.0 if here == self._goal[episode] else 1e6
            there = int(request.viewpoint[row, option])
            if request.type == ACTION:
                return to_goal[there] + self._metres[here][there]
        assert isinstance(space, MemoryActions)
        if request.type == GLOBAL:
            node = option // self._world.neighbour.shape[1]
            return to_goal[there] + 1e-3 * float(space.memory.walk[episode, space.memory.here[episode], node])
        place = int(space.memory.node[episode, option])
        self.walked_away += place != here
        visited = set(space.memory.node[episode].tolist())
        walk = float(space.memory.walk[episode, space.memory.here[episode], option])
        sub_nodes = [there for there in self._world.neighbour[place].tolist() if there not in visited]
        ahead = min((to_goal[there] for there in sub_nodes), default=1e6)
        return (-1.0 if place == self._goal[episode] else ahead) + 1e-3 * walk


@pytest.mark.parametrize("kind", SPACES)
def test_student_forcing_labels_lead_closest_to_the_goal(
    world: World,
    episodes: EpisodeSet,
    metres: dict[int, dict[int, float]],
    kind: Space,
) -> None:
    examiner = Examiner(world, episodes, metres)
    rule = ClosestToGoal(world, episodes.goal)
    collect(world, episodes, kind(world, len(episodes), 7), examiner, max_steps=100, label_rule=rule)
    assert examiner.at_goal > 0
    assert examiner.walked_away > 0 or kind is not FrontierActions


def _followed(world: World, episodes: EpisodeSet, space: ActionSpace, rule: LabelRule) -> list[list[int]]:
    """The walks of a teacher, each known to have stopped by itself."""
    rollout = collect(world, episodes, space, FollowLabels(), max_steps=100, label_rule=rule)
    assert rollout.stopped.all()
    return [
        walk[:length]
        for walk, length in zip(rollout.viewpoint.tolist(), rollout.length.tolist(), strict=True)
    ]


@pytest.mark.parametrize("kind", SPACES)
def test_following_the_reference_walks_it(world: World, episodes: EpisodeSet, kind: Space) -> None:
    walks = _followed(world, episodes, kind(world, len(episodes), 15), ReferencePath(world, episodes.path))
    assert walks == [
        path[:length]
        for path, length in zip(episodes.path.tolist(), episodes.path_length.tolist(), strict=True)
    ]


@pytest.mark.parametrize("kind", SPACES)
def test_following_the_closest_place_ends_at_the_goal(
    world: World, episodes: EpisodeSet, kind: Space
) -> None:
    space, rule = kind(world, len(episodes), 15), ClosestToGoal(world, episodes.goal)
    walks = _followed(world, episodes, space, rule)
    assert [walk[-1] for walk in walks] == episodes.goal.tolist()


def _along(world: World, episodes: EpisodeSet, kind: Space, names: str) -> str:
    """Follow a reference path given as names of grid viewpoints."""
    path = torch.tensor([[world.index_of("grid", name) for name in names.split()]])
    one = replace(episodes.select([0]), start=path[:, 0], goal=path[:, -1], path=path)
    (walk,) = _followed(world, one, kind(world, 1, 15), ReferencePath(world, path))
    return " ".join(world.viewpoints[place] for place in walk)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("g10 g20 g21 g11 g10 g00", id="a loop"),
        pytest.param("g00 g10 g20 g10 g11", id="out and back"),
        pytest.param("g01 g11 g21 g20 g10 g11 g12", id="crosses itself"),
    ],
)
def test_a_reference_that_crosses_itself_is_followed(
    world: World, episodes: EpisodeSet, kind: Space, path: str
) -> None:
    assert _along(world, episodes, kind, path) == path


@pytest.mark.parametrize(
    ("path", "walked"),
    [
        # the way back is known already and shorter than the reference
        ("g00 g10 g20 g21 g11 g21 g20 g10 g00 g01", "g00 g10 g20 g21 g11 g01"),
        # back at the end, where there is more to see
        ("g10 g20 g10", "g10 g20 g10"),
        # nothing new can be seen from the last place, so it cannot be named a frontier
        ("g00 g10 g11 g01 g00", "g00 g10 g11 g01"),
    ],
)
def test_a_memory_agent_passes_over_points_it_has_visited(
    world: World, episodes: EpisodeSet, path: str, walked: str
) -> None:
    assert _along(world, episodes, LocalActions, path) == path
    assert _along(world, episodes, FrontierActions, path) == walked


class Detour:
    """Goes one wrong way first, then does what is right."""

    def __init__(self, wrong: int) -> None:
        self._wrong: int | None = wrong

    def observe(self, _pose: Pose, _active: Tensor, _space: ActionSpace, /) -> None:
        """A teacher does not look."""

    def decide(self, _request: DecisionRequest, label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        choice = label if self._wrong is None else torch.full_like(label, self._wrong)
        self._wrong = None
        return choice


def test_a_memory_agent_off_the_reference_is_led_back_to_it(world: World, episodes: EpisodeSet) -> None:
    names = ["g10", "g20", "g30", "g31"]
    path = torch.tensor([[world.index_of("grid", name) for name in names]])
    one = replace(episodes.select([0]), start=path[:, 0], goal=path[:, -1], path=path)
    wrong = int(world.slot_of(path[0, 0], torch.tensor(world.index_of("grid", "g00"))))
    rollout = collect(
        world,
        one,
        FrontierActions(world, 1, 15),
        Detour(wrong),
        max_steps=30,
        label_rule=ReferencePath(world, path),
    )
    assert [world.viewpoints[place] for place in rollout.viewpoint[0].tolist()] == ["g10", "g00", *names]


def _single(world: World, episodes: EpisodeSet, names: str, start: str | None = None) -> EpisodeSet:
    """One episode along grid viewpoints given by name, begun at its first one unless told."""
    path = torch.tensor([[world.index_of("grid", name) for name in names.split()]])
    begin = path[:, 0] if start is None else torch.tensor([world.index_of("grid", start)])
    return replace(episodes.select([0]), start=begin, goal=path[:, -1], path=path)


LOOPS = ("g10 g20 g21 g11 g10 g00", "g00 g10 g20 g10 g11", "g01 g11 g21 g20 g10 g11 g12", "g10 g20 g10")


@pytest.mark.parametrize("names", LOOPS)
def test_the_rest_of_a_path_is_walked_in_order_even_where_it_crosses_itself(
    world: World, episodes: EpisodeSet, names: str
) -> None:
    one = _single(world, episodes, names)
    rule = RestOfPath(world, one.path, passes_over=False)
    (walk,) = _followed(world, one, LocalActions(world, 1, 15), rule)
    assert " ".join(world.viewpoints[place] for place in walk) == names


@pytest.mark.parametrize("kind", [FrontierActions, GlobalActions])
@pytest.mark.parametrize("names", LOOPS[:3])
def test_memory_agents_pass_over_points_where_they_have_stood(
    world: World, episodes: EpisodeSet, kind: type[FrontierActions | GlobalActions], names: str
) -> None:
    one = _single(world, episodes, names)
    rule = RestOfPath(world, one.path, passes_over=True)
    (walk,) = _followed(world, one, kind(world, 1, 15), rule)
    assert walk[-1] == int(one.goal)
    assert set(walk) == set(one.path[0].tolist())


@pytest.mark.parametrize("kind", [FrontierActions, GlobalActions])
@pytest.mark.parametrize("names", LOOPS)
def test_who_revisits_places_walks_every_point_of_a_path(
    world: World, episodes: EpisodeSet, kind: type[FrontierActions | GlobalActions], names: str
) -> None:
    """By both rules, as an agent without a memory does."""
    one = _single(world, episodes, names)
    rules = (ReferencePath(world, one.path), RestOfPath(world, one.path, passes_over=False))
    for rule in rules:
        (walk,) = _followed(world, one, kind(world, 1, 15, REVISITS), rule)
        assert " ".join(world.viewpoints[place] for place in walk) == names


def test_who_revisits_places_comes_back_to_a_goal_it_has_left(world: World, episodes: EpisodeSet) -> None:
    one = _single(world, episodes, "g10", start="g10")
    wrong = int(world.slot_of(one.start[0], torch.tensor(world.index_of("grid", "g20"))))
    rollout = collect(
        world,
        one,
        FrontierActions(world, 1, 15, REVISITS),
        Detour(wrong),
        max_steps=30,
        label_rule=ClosestToGoal(world, one.goal),
    )
    assert rollout.stopped.all()
    assert [world.viewpoints[place] for place in rollout.viewpoint[0].tolist()] == ["g10", "g20", "g10"]


def test_an_agent_off_the_path_is_led_to_its_next_point(world: World, episodes: EpisodeSet) -> None:
    one = _single(world, episodes, "g10 g20 g30 g31", start="g00")
    rule = RestOfPath(world, one.path, passes_over=False)
    (walk,) = _followed(world, one, LocalActions(world, 1, 15), rule)
    assert [world.viewpoints[place] for place in walk] == ["g00", "g10", "g20", "g30", "g31"]


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


@pytest.mark.parametrize("kind", [FRONTIER, GLOBAL])
def test_decisions_over_a_memory_need_one(world: World, episodes: EpisodeSet, kind: DecisionType) -> None:
    place = episodes.start[:1].unsqueeze(1).expand(1, 2)
    request = DecisionRequest(kind, torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool), place)
    rules: list[LabelRule] = [ClosestToGoal(world, episodes.goal), ReferencePath(world, episodes.path)]
    for rule in rules:
        with pytest.raises(TypeError, match="LocalActions has no memory"):
            rule(request, LocalActions(world, 1, 1), torch.zeros(1, 3))


def test_some_episodes_are_led_and_the_others_judged_by_their_own_rule(
    world: World, episodes: EpisodeSet
) -> None:
    """Each by its rule alone: labels, progress along the path, and metres as students measure them."""
    path = torch.tensor([[world.index_of("grid", name) for name in LOOPS[0].split()]])
    pair = replace(
        episodes.select([0, 0]),
        start=path[:, 0].repeat(2),
        goal=path[:, -1].repeat(2),
        path=path.repeat(2, 1),
    )
    forced = torch.tensor([True, False])
    student = ClosestToGoal(world, pair.goal)
    rule = MixedRules(forced, ReferencePath(world, pair.path), student)
    walks = _followed(world, pair, LocalActions(world, 2, 15), rule)
    assert [" ".join(world.viewpoints[place] for place in walk) for walk in walks] == [LOOPS[0], "g10 g00"]
    both = torch.arange(2)
    assert torch.equal(rule.metres(pair.path, both), student.metres(pair.path, both))


@pytest.mark.parametrize(
    ("name", "options", "walked"),
    [
        ("goal", WalkOptions(), "g10 g00"),
        ("path", WalkOptions(), "g10 g20 g21 g11 g10 g00"),
        ("path", REVISITS, "g10 g20 g21 g11 g10 g00"),
    ],
)
def test_rules_are_found_by_name(
    world: World, episodes: EpisodeSet, name: str, options: WalkOptions, walked: str
) -> None:
    one = _single(world, episodes, LOOPS[0])
    space = FrontierActions(world, 1, 15, options)
    (walk,) = _followed(world, one, space, LABEL_RULES[name](world, one, space))
    assert " ".join(world.viewpoints[place] for place in walk) == walked


@pytest.mark.parametrize("revisits", [False, True])
def test_the_path_rule_passes_over_known_points_for_who_may_not_revisit_them(
    world: World, episodes: EpisodeSet, metres: dict[int, dict[int, float]], revisits: bool
) -> None:
    """After g11 the path leads back to g10, where it began; only who may go there again has to."""
    one = _single(world, episodes, LOOPS[0])
    space = FrontierActions(world, 1, 15, WalkOptions(allow_revisits=revisits))
    rule, episode = LABEL_RULES["path"](world, one, space), torch.tensor([0])
    for place in one.path[0, :4]:
        rule.arrive(place.unsqueeze(0), episode)
    here, begin, goal = (world.index_of("grid", name) for name in ("g01", "g10", "g00"))
    expected = metres[here][begin] + metres[begin][goal] if revisits else metres[here][goal]
    assert float(rule.metres(torch.tensor([[here]]), episode)) == pytest.approx(expected, abs=1e-4)


def test_an_unknown_rule_is_named_with_what_is_near() -> None:
    with pytest.raises(UserError, match="unknown label rule 'paths'; did you mean path"):
        LABEL_RULES["paths"]


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
STREET = {"H": (0, 0), "K": (1, 0.5), "B": (2, 0), "G": (7, 0), "A": (8, 0), "E": (7, 3)}
EDGES = ("HK", "HB", "HA", "KB", "BG", "AG", "GE")


class AlongAPlan:
    """Walks from place to place as planned, stays as a frontier, and keeps what would have been right."""

    def __init__(self, world: World, plan: str) -> None:
        self._world = world
        self._plan = iter([world.index_of("street", name) for name in plan[1:]])
        self.labels: list[str] = []

    def observe(self, _pose: Pose, _active: Tensor, _space: ActionSpace, /) -> None:
        """Nothing is looked at."""

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        right, names = int(label), (*self._world.viewpoints, "stop")
        place = int(request.viewpoint[0, right])
        self.labels.append("stop" if not request.type.over_nodes and right == request.stop else names[place])
        if request.type.over_nodes:
            assert isinstance(space, MemoryActions)
            return space.memory.here
        if (there := next(self._plan, None)) is None:
            return torch.tensor([request.stop])
        return self._world.slot_of(pose.viewpoint, torch.tensor([there]))


@pytest.mark.parametrize(
    ("plan", "nearest", "by_way"),
    [
        # the place nearest the goal, however far the hop, or the shortest way
        pytest.param("H", ["A"], ["B"], id="a sub-node"),
        # K is 6.1 m from the goal and H 7, but a sub-node of H is 1 m from it, and the best one of K 5
        pytest.param("KH", ["B", "K", "A"], ["B", "H", "B"], id="a frontier"),
        pytest.param("KBG", [*"BBGG", "stop"], [*"BBGG", "stop"], id="at the goal"),
        # the goal has a sub-node, so it is a frontier; staying at A leaves only H
        pytest.param("KBGA", [*"BBGG", "stop", *"GH"], [*"BBGG", "stop", *"GH"], id="past the goal"),
    ],
)
def test_the_papers_label_is_the_node_nearest_the_goal_and_its_sub_node_nearest_the_goal(
    episodes: EpisodeSet, plan: str, nearest: list[str], by_way: list[str]
) -> None:
    graph = nx.Graph(tuple(edge) for edge in EDGES)
    for name, (x, y) in STREET.items():
        graph.add_node(name, position=(float(x), float(y), 1.5))
    world = build_world([scan_from_graph("street", graph)])
    start, goal = (torch.tensor([world.index_of("street", name)]) for name in (plan[0], "G"))
    one = replace(episodes.select([0]), scans=world.scans, scan=torch.tensor([0]), start=start, goal=goal)
    one = replace(one, path=start.unsqueeze(1), path_length=torch.tensor([1]))
    for rule, expected in ((NearestNode, nearest), (ClosestToGoal, by_way)):
        walker = AlongAPlan(world, plan)
        space = FrontierActions(world, 1, 15)
        collect(world, one, space, walker, max_steps=30, label_rule=rule(world, goal))
        assert walker.labels == expected, rule.__name__
