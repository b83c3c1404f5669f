"""The paper's agent against a reference written from the paper's text alone, and what the text implies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.agent import Agent, DecisionPoint
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL, DecisionType, Rollout
from scenemem.agents.walker import Pick, TrainedAgent, WalkConfig, take_best
from scenemem.features.store import Environment
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, view_heading
from tests.ssm import reference
from tests.ssm.helpers import Setting, referred, repainted, scored

DECISIONS = 9
PAPER: dict[str, dict[str, Any]] = {
    "the paper's agent": {},
    "projected": {"node_width": 6},
    "unvisited views": {"views": "unvisited"},
    "without grounding": {"grounding": False},
    "without reasoning": {"reasoning_steps": 0},
    "one iteration": {"reasoning_steps": 1},
}


@dataclass(frozen=True)
class Seen:
    """A decision point, and what the agent said at it."""

    agent: Any
    point: DecisionPoint
    scores: Mapping[DecisionType, Tensor]

    @property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """The node states: (R, N, V) and (R, N, W)."""
        return read(self.agent, self.point)

    def rows(self, setting: Setting, agent: Agent, **settings: Any) -> Iterator[tuple[int, Any]]:
        """Every row, and what the reference says there with the weights of an agent."""
        known = {name: tensor.double().numpy() for name, tensor in agent.state_dict().items()}
        kind = {"steps": settings.get("reasoning_steps", 3), "views": settings.get("views", "navigable")}
        for row in range(len(self.point.viewpoint)):
            yield row, reference.decide(known, situation(setting.environment, self.point, row), **kind)


def decisions(setting: Setting, agent: Any) -> list[Seen]:
    """Every decision point of random walks that seldom stop."""
    random = torch.Generator().manual_seed(0)

    def roam(logits: Tensor, _episode: Tensor) -> Tensor:
        chance = logits.isfinite().float()
        chance[:, -1] *= 0.05
        return torch.multinomial(chance, 1, generator=random).squeeze(1)

    walker = TrainedAgent(agent, setting.environment, setting.vocabulary, WalkConfig(DECISIONS, 40))
    seen = scored(agent, lambda: walker.walk(setting.episodes, roam))
    return [
        Seen(agent, point, {ACTION: scores} if isinstance(scores, Tensor) else scores)
        for point, scores in seen
    ]


@torch.no_grad()
def read(agent: Any, point: DecisionPoint) -> tuple[Tensor, Tensor]:
    """The node states of a point: (R, N, V) and (R, N, W)."""
    nodes: tuple[Tensor, Tensor] = agent.reader(
        point.per_observation(agent.ground), point.heading, point.feature_mask, point.memory()
    )
    return nodes


def situation(environment: Environment, point: DecisionPoint, row: int) -> reference.Situation:
    """What the reference wants to know about one row of a decision point."""
    places = [place for place in point.memory().viewpoint[row].tolist() if place != NONE]
    words, observed = point.observations.instructions, int(point.row[row])
    return reference.Situation(
        visited=tuple(referred(environment, place) for place in places),
        here=int(point.viewpoint[row]),
        heading=float(view_heading(point.view[row])),
        words=words.context[observed][words.mask[observed]].double().numpy(),
        hidden=point.state.hidden[row].double().numpy(),
    )


def close(seen: Tensor | float, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(seen), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", PAPER)
def test_a_whole_decision_is_what_the_paper_says(name: str, setting: Setting) -> None:
    settings = PAPER[name]
    agent = setting.random("ssm", orientation_width=128, **settings)
    largest, compared = 0, 0
    for seen in decisions(setting, agent):
        nodes = seen.nodes
        for row, said in seen.rows(setting, agent, **settings):
            largest = max(largest, len(said.node_states))
            assert not any(states[row, len(said.node_states) :].any() for states in nodes), "padding is 0"
            for number, node in enumerate(said.node_states):
                for states, expected in zip(nodes, said.node_states[node], strict=True):
                    close(states[row, number], expected)
                if node in said.frontier_scores:
                    close(seen.scores[FRONTIER][row, number], said.frontier_scores[node])
            options = seen.scores[ACTION][row]
            neighbours = setting.environment.world.neighbour[int(seen.point.viewpoint[row])].tolist()
            for place, score in said.action_scores.items():
                close(options[-1 if place is None else neighbours.index(place)], score)
            compared += 1
    assert largest > 6
    assert compared > 100


@pytest.mark.parametrize("settings", [{}, {"node_width": 6}, {"views": "unvisited"}], ids=str)
def test_a_one_step_decision_is_what_the_paper_says(settings: dict[str, Any], setting: Setting) -> None:
    agent = setting.random("ssm-global", orientation_width=128, **settings)
    neighbours, compared = setting.environment.world.neighbour.tolist(), 0
    for seen in decisions(setting, agent):
        for row, said in seen.rows(setting, agent, **settings):
            logits, nodes = seen.scores[GLOBAL][row], [*said.node_states]
            close(logits[-1], said.one_step_scores.pop(None))
            for (node, place), expected in said.one_step_scores.items():
                option = nodes.index(node) * len(neighbours[node]) + neighbours[node].index(place)
                close(logits[option], expected)
                compared += 1
    assert compared > 300


# what the text implies


@dataclass(frozen=True)
class Moment:
    """A late decision of one walk, and a node with visited and unvisited neighbours."""

    agent: Agent
    point: DecisionPoint
    row: int
    node: int
    slots: dict[str, int]  # of the node: a way to a visited place, and to a place never visited

    @property
    def viewpoint(self) -> int:
        return int(self.point.memory().viewpoint[self.row, self.node])

    def again(self, environment: Environment) -> tuple[Tensor, Tensor, Tensor]:
        """Node states and frontier scores of the same state in a changed world: (N, V), (N, W), (N,)."""
        changed = replace(self.point, graph=replace(self.point.memory(), environment=environment))
        with torch.no_grad():
            scores: Any = self.agent.score(changed)
        visual, orientation = read(self.agent, changed)
        return visual[self.row], orientation[self.row], scores[FRONTIER][self.row]


def moment(setting: Setting, agent: Agent) -> Moment:
    """The first one that is found, from the end."""
    world = setting.environment.world
    for seen in reversed(decisions(setting, agent)):
        for row, places in enumerate(seen.point.memory().viewpoint.tolist()):
            for node, place in enumerate(place for place in places if place != NONE):
                slots = world.neighbour_mask[place].nonzero().flatten().tolist()
                inside = [slot for slot in slots if int(world.neighbour[place, slot]) in places]
                outside = [slot for slot in slots if slot not in inside]
                if len(inside) > 1 and outside:  # a softmax over one edge would be blind
                    named = {"visited": inside[0], "unvisited": outside[0]}
                    return Moment(agent, seen.point, row, node, named)
    raise AssertionError("no such moment")


def turned(environment: Environment, viewpoint: int, slot: int) -> Environment:
    """A world in which one way leads elsewhere in heading and elevation; the same views are seen."""
    world = environment.world
    heading, elevation = world.neighbour_heading.clone(), world.neighbour_elevation.clone()
    heading[viewpoint, slot] += 2.0
    elevation[viewpoint, slot] -= 0.4
    changed = replace(world, neighbour_heading=heading, neighbour_elevation=elevation)
    return Environment(changed, environment.store)


def brighter(environment: Environment, viewpoint: int, view: int) -> Environment:
    """A world in which one view shows something else."""

    def change(values: Tensor) -> Tensor:
        values[viewpoint, view] += 1.5
        return values

    return repainted(environment, change)


VISUAL, ORIENTATION = "visual", "orientation"


@pytest.mark.parametrize(
    ("settings", "way", "reached"),
    [
        ({}, "unvisited", None),
        ({}, "visited", ORIENTATION),
        ({"edges": "all"}, "unvisited", ORIENTATION),
        ({"edges": "all"}, "visited", ORIENTATION),
    ],
    ids=str,
)
def test_only_turning_a_way_between_visited_places_changes_an_orientation_state(
    settings: dict[str, Any], way: str, reached: str | None, setting: Setting
) -> None:
    at = moment(setting, setting.random("ssm", **settings))
    _assert_reached(at, setting, turned(setting.environment, at.viewpoint, at.slots[way]), reached)


@pytest.mark.parametrize(
    ("settings", "view", "reached"),
    [
        ({}, "visited", VISUAL),
        ({}, "unvisited", VISUAL),
        ({}, "other", None),
        ({"views": "unvisited"}, "visited", None),
        ({"views": "unvisited"}, "unvisited", VISUAL),
        ({"views": "all"}, "other", VISUAL),
    ],
    ids=str,
)
def test_only_a_view_that_leads_somewhere_changes_a_visual_state(
    settings: dict[str, Any], view: str, reached: str | None, setting: Setting
) -> None:
    """Or one that leads to a place never visited, or all of them: the other readings of Eq. 3."""
    at = moment(setting, setting.random("ssm", **settings))
    looking = setting.environment.world.neighbour_view[at.viewpoint].tolist()
    views = {name: looking[slot] for name, slot in at.slots.items()}
    views["other"] = next(number for number in range(36) if number not in looking)
    assert views["visited"] != views["unvisited"]
    _assert_reached(at, setting, brighter(setting.environment, at.viewpoint, views[view]), reached)


def _assert_reached(at: Moment, setting: Setting, changed: Environment, reached: str | None) -> None:
    """Which node states are others in a changed world; the frontier scores are when any of them is."""
    before, after = at.again(setting.environment), at.again(changed)
    same = [torch.equal(*both) for both in zip(before, after, strict=True)]
    assert same == [reached != VISUAL, reached != ORIENTATION, reached is None]
    if reached is not None:
        kind = [VISUAL, ORIENTATION].index(reached)
        assert not torch.allclose(before[kind][at.node], after[kind][at.node], atol=1e-4)


def test_the_first_decision_has_no_edge_and_a_state_all_the_same(setting: Setting) -> None:
    """Nothing is read and no message comes; the GRU is applied to zeros."""
    agent = setting.random("ssm", reasoning_steps=1)
    first = decisions(setting, agent)[0]
    assert first.point.memory().count.tolist() == [1] * len(setting.episodes)
    update: Any = agent.get_submodule("reader.orientation_messages.update")
    nothing = torch.zeros(1, update.hidden_size)
    for state in first.nodes[1][:, 0]:
        close(state, update(nothing, nothing)[0].detach())


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_state_holds_the_neighbourhood_of_as_many_hops_as_iterations(steps: int, setting: Setting) -> None:
    agent = setting.random("ssm", reasoning_steps=steps)
    seen = max(decisions(setting, agent), key=lambda one: int(one.point.memory().count.max()))
    graph = seen.point.memory()
    row, count = int(graph.count.argmax()), int(graph.count.max())
    edges = nx.from_numpy_array(graph.edge[row, :count, :count].numpy())
    hops = nx.single_source_shortest_path_length(edges, 0)
    assert max(hops.values()) > steps + 1
    world, viewpoint = setting.environment.world, int(graph.viewpoint[row, 0])
    slot = next(
        slot
        for slot, place in enumerate(world.neighbour[viewpoint].tolist())
        if place in graph.viewpoint[row, 1:count].tolist()
    )
    start = Moment(agent, seen.point, row, 0, {"visited": slot})
    before = start.again(setting.environment)[:2]
    view = int(world.neighbour_view[viewpoint, slot])
    visual, _, _ = start.again(brighter(setting.environment, viewpoint, view))
    _, orientation, _ = start.again(turned(setting.environment, viewpoint, slot))
    for old, new in zip(before, (visual, orientation), strict=True):
        changed = {node for node in range(count) if not torch.allclose(old[node], new[node], atol=1e-6)}
        assert changed == {node for node, distance in hops.items() if distance <= steps}


# what a viewpoint is called


def walked(
    setting: Setting, agent: Agent, environment: Environment, episodes: EpisodeSet, pick: Pick
) -> tuple[Rollout, list[Tensor], list[Tensor]]:
    """A walk, the scores at each of its decisions, and what was chosen."""
    scores, choices = list[Tensor](), list[Tensor]()

    def watched(logits: Tensor, episode: Tensor) -> Tensor:
        scores.append(logits)
        choices.append(pick(logits, episode))
        return choices[-1]

    walker = TrainedAgent(agent, environment, setting.vocabulary, WalkConfig(DECISIONS, 40))
    return walker.walk(episodes, watched), scores, choices


def restless(setting: Setting, kind: str, **settings: Any) -> Agent:
    """An agent that seldom stops: stopping scores 0."""
    agent: Agent = setting.random(kind, **settings)
    for name, parameter in agent.named_parameters():
        if ".stop." in name:
            nn.init.zeros_(parameter)
    return agent


@pytest.mark.parametrize("kind", ["ssm", "ssm-global", "ssm-local"])
def test_which_place_a_sub_node_is_changes_no_score(kind: str, setting: Setting) -> None:
    """All ways to places that a walk never visits are made to lead to one and the same place."""
    agent, world, compared = restless(setting, kind), setting.environment.world, 0
    for number in range(len(setting.episodes)):
        one = setting.episodes.select([number])
        rollout, scores, choices = walked(setting, agent, setting.environment, one, take_best)
        visited = torch.unique(rollout.viewpoint[0, : int(rollout.length[0])])
        ways = world.neighbour[visited]
        unvisited = world.neighbour_mask[visited] & ~torch.isin(ways, visited)
        if len(elsewhere := torch.unique(ways[unvisited])) < 2:
            continue
        neighbour = world.neighbour.clone()
        neighbour[visited] = torch.where(unvisited, elsewhere[0], ways)
        environment = Environment(replace(world, neighbour=neighbour), setting.environment.store)
        again = iter(choices)
        _, others, _ = walked(setting, agent, environment, one, lambda *_, again=again: next(again))
        for seen, other in zip(scores, others, strict=True):
            assert torch.equal(seen, other)
        compared += len(scores)
    assert compared > 30


@pytest.mark.parametrize("kind", ["ssm", "ssm-global", "ssm-local"])
def test_numbering_viewpoints_otherwise_changes_no_walk(kind: str, setting: Setting) -> None:
    agent, world = restless(setting, kind), setting.environment.world
    scores, paths = [], []
    for number in (None, torch.randperm(len(world.viewpoints), generator=torch.Generator().manual_seed(5))):
        environment, episodes = setting.environment, setting.episodes
        if number is not None:
            environment, episodes = renumbered(environment, number), told_anew(episodes, number)
        rollout, logits, _ = walked(setting, agent, environment, episodes, take_best)
        path = rollout.viewpoint.masked_fill(rollout.viewpoint == NONE, len(world.viewpoints))
        old = torch.arange(len(world.viewpoints)) if number is None else number.argsort()
        paths.append(torch.cat([old, torch.tensor([NONE])])[path])
        # slots may come in another order
        scores.append([one.sort(dim=1).values for one in logits])
    assert torch.equal(*paths)
    assert int((paths[0] != NONE).sum()) > 3 * len(setting.episodes)
    for seen, other in zip(*scores, strict=True):
        torch.testing.assert_close(seen, other, atol=1e-5, rtol=1e-5)


def renumbered(environment: Environment, number: Tensor) -> Environment:
    """The same world with new numbers (V,), and with the ways of every viewpoint in the opposite order.

    First steps of shortest paths, which agents do not read, keep their old slots.
    """
    world, order = environment.world, number.argsort()
    slots = torch.arange(world.neighbour.shape[1]) < world.degree.unsqueeze(1)
    number_of = torch.arange(slots.shape[1])
    flip = torch.where(slots, world.degree.unsqueeze(1) - 1 - number_of, number_of)
    renamed = torch.where(world.neighbour_mask, number[world.neighbour.clamp_min(0)], NONE)
    flipped = {
        name: getattr(world, name).gather(1, flip)[order]
        for name in ("neighbour_view", "neighbour_heading", "neighbour_elevation", "neighbour_length")
    }
    return Environment(
        replace(
            world,
            viewpoints=tuple(world.viewpoints[old] for old in order.tolist()),
            scan_of=world.scan_of[order],
            position=world.position[order],
            neighbour=renamed.gather(1, flip)[order],
            row_start=world.row_start[order],
            local=world.local[order],
            **flipped,
        ),
        replace(environment.store, row=environment.store.row[order]),
    )


def told_anew(episodes: EpisodeSet, number: Tensor) -> EpisodeSet:
    """The same episodes in a world with new numbers."""
    path = torch.where(episodes.path == NONE, NONE, number[episodes.path.clamp_min(0)])
    return replace(episodes, start=number[episodes.start], goal=number[episodes.goal], path=path)


# the ablation with local decisions


def test_local_decisions_are_equation_14_alone_over_the_sub_nodes_of_here(setting: Setting) -> None:
    whole, agent = setting.random("ssm", orientation_width=128), restless(setting, "ssm-local")
    assert not [name for name, _ in agent.named_parameters() if name.startswith(("reader", "frontier"))]
    whole.load_state_dict({**whole.state_dict(), **agent.state_dict()})
    neighbours, compared = setting.environment.world.neighbour.tolist(), 0
    for seen in decisions(setting, agent):
        for row, said in seen.rows(setting, whole):
            ways = neighbours[int(seen.point.viewpoint[row])]
            for place, expected in said.action_scores.items():
                close(seen.scores[ACTION][row, -1 if place is None else ways.index(place)], expected)
            compared += len(said.action_scores)
    assert compared > 100
