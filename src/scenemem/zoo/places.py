"""Places of a memory: all seen ones as one choice, and the tables of readers with each place once.

A sub-node is a way from one node; the same unvisited place may be a sub-node of several nodes. Where agents
may go again to visited places, all ways are open, and these places stand among those that can be chosen, too.

Shape letters: M episodes that decide, R memories, N nodes, K candidate slots, O = N * K ways, U unvisited
places, P = N + U places, E ways of the memory with the most, W any width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.agents.agent import Decide
from scenemem.agents.rollout import DecisionRequest
from scenemem.ssm.ablations import GlobalActions
from scenemem.ssm.graph import MemoryGraph
from scenemem.world.graph import FULL_TURN, NONE, STOP, Pose, World, direction

POSITION = 7
"""Numbers of the position of a place."""


class PlaceActions(GlobalActions):
    """All seen, unvisited places of the memory, each once, or stop.

    A place that several nodes see is reached from the one with the shortest way. With ``final_backtrack``
    every end, also a deliberate stop, leads to the visited place where stopping was likeliest. With
    ``allow_revisits`` visited places are options, too, but for the one where the agent stands.
    """

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """As in one softmax over all ways; with ``final_backtrack`` a stop first leads to where to end."""
        action = super().choose(pose, action, episodes, decide)
        if self.final_backtrack:
            stopping = (self.target[episodes] == self.memory.here[episodes]) & (self._then[episodes] == STOP)
            self.target[episodes[stopping]] = NONE
            self.end_at(episodes[stopping], decide)
        return action

    def request(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """One way to every place  ->  options (R, N * K + 1)"""
        request, memory = super().request(pose, episodes), self.memory
        node = memory.node[episodes].clamp_min(0)
        walk = memory.walk[episodes, memory.here[episodes]].unsqueeze(-1) + self.world.neighbour_length[node]
        ways = request.options[:, :-1] & (request.viewpoint[:, :-1] != pose.viewpoint[episodes].unsqueeze(1))
        cost = walk.flatten(1).masked_fill(~ways, torch.inf)  # (R, N * K)
        ways = ways & first_of_cheapest(request.viewpoint[:, :-1], cost)
        return replace(request, options=torch.cat([ways, request.options[:, -1:]], dim=1))


def first_of_cheapest(place: Tensor, cost: Tensor) -> Tensor:
    """Which option is the cheapest of those that lead to the same place, the first of equals.

    place: (M, O)  cost: (M, O), inf where there is no option  ->  (M, O) bool
    """
    order = cost.argsort(dim=1, stable=True)
    # after sorting by cost and then, stably, by place, the first of every place is its cheapest
    by_place = place.gather(1, order).argsort(dim=1, stable=True)
    row = order.gather(1, by_place)
    sorted_place = place.gather(1, row)
    first = torch.ones_like(sorted_place, dtype=torch.bool)
    first[:, 1:] = sorted_place[:, 1:] != sorted_place[:, :-1]
    return torch.zeros_like(first).scatter(1, row, first) & cost.isfinite()


@dataclass(frozen=True)
class Links:
    """The ways of R memories and the places they lead to; E of the memory with the most."""

    node: Tensor  # (R, E) where a way begins
    slot: Tensor  # (R, E) its candidate slot there
    place: Tensor  # (R, E) where it leads: a number of ``SeenPlaces.all``
    mask: Tensor  # (R, E) bool, true at ways


@dataclass(frozen=True, eq=False)
class SeenPlaces:
    """The unvisited places of R memories, each once, in the order of their viewpoint numbers."""

    graph: MemoryGraph
    viewpoint: Tensor  # (R, U), -1 where there is none
    of_way: Tensor  # (R, O) the place every open way leads to; U at ways that are not open

    @classmethod
    def of(cls, graph: MemoryGraph) -> SeenPlaces:
        """Merge the open ways of a graph by where they lead."""
        world = graph.environment.world
        leads_to = world.neighbour[graph.viewpoint.clamp_min(0)].flatten(1)  # (R, O)
        ways = graph.open.flatten(1)
        last = len(world.viewpoints)
        ordered, order = torch.where(ways, leads_to, last).sort(dim=1, stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        first &= ordered < last
        count = int(first.sum(dim=1).max())
        number = torch.where(ordered < last, first.cumsum(dim=1) - 1, count)
        viewpoint = torch.full((len(ways), count + 1), NONE, device=ways.device)
        viewpoint.scatter_(1, number, torch.where(ordered < last, ordered, NONE))
        of_way = torch.full_like(number, count).scatter(1, order, number)
        return cls(graph, viewpoint[:, :count], of_way)

    @property
    def world(self) -> World:
        """Where they are."""
        return self.graph.environment.world

    @cached_property
    def edge(self) -> Tensor:
        """(R, N, P) bool, which nodes have a way to which place"""
        rows, nodes = self.graph.viewpoint.shape
        table = self.graph.edge.new_zeros(rows, nodes, self.viewpoint.shape[1] + 1)
        sees = table.scatter(2, self.of_way.view(rows, nodes, -1), True)[..., :-1]
        return torch.cat([self.graph.edge, sees], dim=2)

    @cached_property
    def open_ways(self) -> tuple[Tensor, Tensor, Tensor]:
        """The open ways, which are few: memory (E,), node (E,) and slot (E,)"""
        row, way = (self.of_way < self.viewpoint.shape[1]).nonzero().unbind(1)
        slots = self.world.neighbour.shape[1]
        return row, way // slots, way % slots

    @cached_property
    def _places(self) -> Tensor:
        """(E,) where every open way leads, as a row of the flattened table of places"""
        count = self.viewpoint.shape[1]
        return self.open_ways[0] * count + self.of_way[self.of_way < count]

    def pooled(self, ways: Tensor, how: Literal["mean", "amax"]) -> Tensor:
        """All ways that lead to a place as one; 0 where there is none.  ways: (E, W), open  ->  (R, U, W)"""
        table = ways.new_zeros(self.viewpoint.numel(), ways.shape[1])
        index = self._places.unsqueeze(-1).expand_as(ways)
        one = table.scatter_reduce(0, index, ways, how, include_self=False)
        return one.view(*self.viewpoint.shape, ways.shape[1])

    def per_way(self, values: Tensor) -> Tensor:
        """Values of places, at the ways that lead there.  (R, U)  ->  (R, O), 0 where none leads"""
        return pad(values, (0, 1)).gather(1, self.of_way)

    @cached_property
    def all(self) -> Tensor:
        """(R, P) viewpoints of the nodes, then of the unvisited places; -1 where there is none"""
        return torch.cat([self.graph.viewpoint, self.viewpoint], dim=1)

    def links(self) -> Links:
        """All ways of all nodes: to the node that a place has become, and to the place that can be chosen."""
        graph, world = self.graph, self.world
        nodes, slots = graph.open.shape[1:]
        leads_to = world.neighbour[graph.viewpoint.clamp_min(0)].flatten(1)  # (R, O)
        exists = (graph.viewpoint != NONE).unsqueeze(2) & world.neighbour_mask[graph.viewpoint.clamp_min(0)]
        same = leads_to.unsqueeze(2) == graph.viewpoint.unsqueeze(1)  # (R, O, N)
        to_node, is_open = exists.flatten(1) & same.any(dim=2), self.of_way < self.viewpoint.shape[1]
        leads = torch.stack([to_node, is_open], dim=2).flatten(1)  # (R, 2 * O)
        place = torch.stack([same.int().argmax(dim=2), nodes + self.of_way], dim=2).flatten(1)
        count = int(leads.sum(dim=1).max())
        first = leads.int().argsort(dim=1, descending=True, stable=True)[:, :count]
        way = first // 2
        return Links(way // slots, way % slots, place.gather(1, first), leads.gather(1, first))

    @cached_property
    def metres(self) -> Tensor:
        """The shortest ways between all places over what is known; 0 where there is no way.  (R, P, P)"""
        position = self.world.position[self.all.clamp_min(0)].float()
        straight = torch.cdist(position, position)
        linked = pad(self.edge, (0, 0, 0, self.viewpoint.shape[1]))
        linked = linked | linked.transpose(1, 2)
        metres = straight.masked_fill(~linked, torch.inf)
        metres.diagonal(dim1=1, dim2=2).zero_()
        for node in range(self.edge.shape[1]):  # only visited places are walked through
            metres = torch.minimum(metres, metres[:, :, node].unsqueeze(2) + metres[:, node].unsqueeze(1))
        return metres.masked_fill(metres.isinf(), 0.0)

    @cached_property
    def hops(self) -> Tensor:
        """Edges of the way with the fewest from here to every place; 0 where there is none  ->  (R, P)"""
        rows = torch.arange(len(self.all), device=self.all.device)
        reached = torch.zeros_like(self.graph.viewpoint, dtype=torch.bool)
        reached[rows, self.graph.here] = True
        edge = self.edge.float()
        found = pad(reached, (0, self.viewpoint.shape[1]))
        hops = torch.zeros_like(self.all)
        for step in range(1, edge.shape[1] + 1):
            fresh = (torch.bmm(reached.float().unsqueeze(1), edge).squeeze(1) > 0) & ~found
            hops = hops.masked_fill(fresh, step)
            found = found | fresh
            reached = found[:, : edge.shape[1]]
        return hops

    def positions(self, heading: Tensor) -> Tensor:
        """Where every place lies, seen from here.

        Sine and cosine of its heading, relative to ``heading`` (R,), and of its elevation; the straight and
        the walked distance, in 30 m; hops, in tens  ->  (R, P, 7), 0 where there is no place
        """
        rows = torch.arange(len(self.all), device=self.all.device)
        position = self.world.position[self.all.clamp_min(0)]
        here = position[rows, self.graph.here].unsqueeze(1)
        towards, rise = direction(here, position)
        turn = (towards - heading.unsqueeze(1)).remainder(FULL_TURN)
        straight = (position - here).norm(dim=-1)
        walked = self.metres[rows, self.graph.here]
        columns = [turn.sin(), turn.cos(), rise.sin(), rise.cos(), straight / 30.0]
        code = torch.stack([*(column.float() for column in columns), walked / 30.0, self.hops / 10.0], dim=-1)
        return code.masked_fill((self.all == NONE).unsqueeze(-1), 0.0)
