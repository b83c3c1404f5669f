"""Search: an action space of all open ways, wrapped around agents that choose among neighbours.

An agent searches only when it is evaluated; it learns as the local agent it is. Everything is really walked,
so trajectories hold every metre. Coming back to a place restores the state the agent had there, which is what
"snapshot and restore" means for states that belong to places. Shape letters: B episodes, M some of them, N
nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import scenemem.extend as ext
from scenemem.agents.agent import Scores
from scenemem.zoo.panoramic import with_stop_option

END = ext.DecisionType(ext.FINAL.name, over_nodes=True)
"""Which visited place to end at after a long search: a final place that the agent's network scores."""


class SearchActions(ext.GlobalActions):
    """Search over all open ways of all visited places; coming back restores the state of a place.

    Args:
        max_decisions: places expanded before the search ends; one number, or (B,).
        long: search until nothing is open or all decisions are used up, then choose a visited place to end at
            (an ``END`` decision); otherwise the agent ends where it stops.
    """

    final_type = END

    def __init__(self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, long: bool) -> None:
        options = ext.WalkOptions(restore_state=True, final_backtrack=long)
        super().__init__(world, episodes, max_decisions, options)
        self.long = long

    def settle(self, episodes: Tensor) -> None:
        """Where nothing is open any more a long search is over."""
        if self.long:
            is_open = self.memory.subnode[episodes].flatten(1).any(dim=1)
            self.decisions_left[episodes[~is_open & (self.target[episodes] == ext.NONE)]] = 0

    def request(self, pose: ext.Pose, episodes: Tensor) -> ext.DecisionRequest:
        """A long search does not stop by itself."""
        request = super().request(pose, episodes)
        if self.long:
            request.options[:, -1] = False
        return request


Search = Literal["none", "short", "long"]
Priority = Literal["logits", "log_probabilities"]


@dataclass(frozen=True)
class SearchConfig:
    """How a local agent searches when it is evaluated; mixed into the settings of an agent."""

    search: Search = "none"
    """short goes on greedily and takes the best open way when it would come back; long is best-first"""
    priority: Priority = "logits"
    """what is added up along a route"""


_FIRST = 1e4  # above every sum of scores
_NOWHERE = -1e4  # below every sum of scores


class SearchMixin(ext.Agent):
    """Mixed into a local agent: ``class Fast(SearchMixin, Follower)``. It learns as before, searches later.

    The frontier holds every open way with the sum of scores along the route that found it, and every visited
    place is a candidate to end at, with the score of stopping there:

        priority(n, k) = sum of scores from the start to n + score_k(n),   candidate(n) = ... + score_stop(n)

    A place is entered once, by the first route that gets there; published searches let another route enter it
    again.
    """

    config: Any

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """The agent's own while it learns, the open ways of all places when it searches."""
        if learning or self.config.search == "none":
            return super().action_space(world, episodes, max_decisions, learning=learning)
        return SearchActions(world, episodes, max_decisions, long=self.config.search == "long")

    def local_scores(self, observations: ext.Observations) -> Tensor:
        """The local scores of the neighbours of every place, and of stopping  ->  (X, K + 1)"""
        rows = torch.arange(len(observations.viewpoint), device=observations.viewpoint.device)
        point = ext.DecisionPoint(observations, rows)
        scores = super().score(point)  # type: ignore[safe-super]  # the agent mixed with
        logits = scores if isinstance(scores, Tensor) else scores[ext.ACTION]
        options = with_stop_option(observations.candidates.mask)
        logits = logits.masked_fill(~options, -torch.inf)
        if self.config.priority == "log_probabilities":
            logits = logits.log_softmax(dim=-1)
        return logits.masked_fill(~options, _NOWHERE)

    def node_features(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The scores of the neighbours (X, K + 1), and the place before (X, 1)"""
        found = super().node_features(observations)
        if self.config.search != "none":
            found["scores"] = observations.cached(self.local_scores)
            found["parent"] = observations.previous.to(found["scores"]).unsqueeze(-1)
        return found

    def score(self, point: ext.DecisionPoint) -> Scores:
        """Actions as the agent's own; with a memory the priorities of all ways and candidates."""
        if point.graph is None:
            return super().score(point)  # type: ignore[safe-super]  # the agent mixed with
        graph, scores = point.graph, point.graph.column("scores")  # (R, N, K + 1)
        whole = self.routes(point, scores).unsqueeze(-1) + scores
        ways, candidates = whole[..., :-1].flatten(1), whole[..., -1]
        if self.config.search == "long":
            return {ext.GLOBAL: torch.nn.functional.pad(ways, (0, 1)), END: candidates}
        rows = torch.arange(len(ways), device=ways.device)
        best = scores[rows, graph.here].argmax(dim=1)
        slots = scores.shape[2] - 1
        stop = torch.where(best == slots, _FIRST, 2 * _NOWHERE).to(ways).unsqueeze(1)
        # a greedy way that leads back is not open, so raising it changes nothing
        chosen = (graph.here * slots + best.clamp_max(slots - 1)).unsqueeze(1)
        first = torch.zeros_like(ways).scatter(1, chosen, torch.where(best < slots, _FIRST, 0.0).unsqueeze(1))
        return {ext.GLOBAL: torch.cat([ways + first, stop], dim=1), END: candidates}

    def routes(self, point: ext.DecisionPoint, scores: Tensor) -> Tensor:
        """The sum of scores from the start to every node.  scores: (R, N, K + 1)  ->  (R, N)"""
        graph, world = point.memory(), point.observations.environment.world
        came_from = graph.column("parent").squeeze(-1).round().long()
        parent, on_route = tree(graph.viewpoint, came_from)
        slot = world.slot_of(came_from.clamp_min(0), graph.viewpoint.clamp_min(0)).clamp_min(0)
        rows = torch.arange(len(parent), device=parent.device).unsqueeze(1)
        step = scores[rows, parent, slot].masked_fill(came_from == ext.NONE, 0.0)
        return (on_route * step.unsqueeze(1)).sum(dim=2)


def tree(viewpoint: Tensor, came_from: Tensor) -> tuple[Tensor, Tensor]:
    """Of every node of a search the one it was entered from, any for the start, and the nodes on its route.

    viewpoint: (R, N) of every node  came_from: (R, N) the viewpoint it was entered from, -1 at the start

    ->  (R, N) node; (R, N, N) bool, both ends included
    """
    count, rows = viewpoint.shape[1], torch.arange(len(viewpoint), device=viewpoint.device)
    parent = (came_from.unsqueeze(2) == viewpoint.unsqueeze(1)).int().argmax(dim=2)
    on_route = torch.eye(count, dtype=torch.bool, device=viewpoint.device).repeat(len(rows), 1, 1)
    for node in range(1, count):  # parents have smaller numbers
        on_route[:, node] |= on_route[rows, parent[:, node].clamp_max(node - 1)]
    return parent, on_route


def routes_to(viewpoint: Tensor, came_from: Tensor, row: Tensor, node: Tensor) -> Tensor:
    """The way from the start of a search to some of its nodes, as viewpoints, both ends included.

    viewpoint, came_from: (R, N) as of ``tree``  row, node: (M,) where the routes end

    ->  (M, N), padded with -1
    """
    there = tree(viewpoint, came_from)[1][row, node]
    order = there.int().argsort(dim=1, descending=True, stable=True)  # nodes are numbered as they are entered
    return viewpoint[row].masked_fill(~there, ext.NONE).gather(1, order)
