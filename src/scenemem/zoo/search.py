"""Search: action spaces that look before they go, wrapped around agents that choose among neighbours.

An agent searches only when it is evaluated; it learns as the local agent it is. Everything is really walked,
so trajectories hold every metre. Coming back to a place restores the state the agent had there, which is what
"snapshot and restore" means for states that belong to places. Shape letters: B episodes, M some of them, N
nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scenemem.agents.agent import (
    ActionSpace,
    Agent,
    Decide,
    DecisionPoint,
    Limit,
    Observations,
    Scores,
)
from scenemem.agents.rollout import ACTION, FINAL, GLOBAL, DecisionRequest, DecisionType
from scenemem.ssm.ablations import GlobalActions
from scenemem.ssm.deciding import MemoryActions
from scenemem.ssm.graph import WalkOptions
from scenemem.world.graph import NONE, STOP, Pose, World
from scenemem.zoo.panoramic import with_stop_option


class AcceptActions(MemoryActions):
    """Progress inference of Self-Monitoring: step into the likeliest neighbour, and stay if it helped.

    A neighbour is accepted when the column ``progress`` is larger there than at the last accepted place.
    Otherwise the agent goes back and tries the next one, up to ``tries``; then it takes the best it tried.
    Choosing to stop ends the episode.

    Args:
        max_decisions: accepted moves before an episode is cut off; one number, or (B,).
        tries: neighbours tried before the best one of them is taken.
    """

    def __init__(self, world: World, episodes: int, max_decisions: Limit, *, tries: int) -> None:
        limit = torch.as_tensor(max_decisions, device=world.device)
        # every try may find a new place
        super().__init__(world, episodes, limit * tries, WalkOptions(restore_state=True, allow_revisits=True))
        self._moves_left = limit.expand(episodes).clone()  # (B,)
        self._tries = tries
        self._trying = torch.zeros(episodes, dtype=torch.bool, device=world.device)  # has just stepped out
        self._tried = torch.zeros(episodes, world.neighbour.shape[1], dtype=torch.bool, device=world.device)
        self._base = torch.zeros_like(self.target)  # (B,) node it tries from
        self._accepted = torch.full((episodes,), -torch.inf, device=world.device)  # value at the base
        self._best = torch.full_like(self._accepted, -torch.inf)  # value of the best place tried
        self._best_node = torch.full_like(self.target, NONE)

    def may_decide(self, episodes: Tensor) -> Tensor:
        """Whether a place is accepted is known after it was observed, so all may  ->  (M,) bool"""
        return torch.ones_like(episodes, dtype=torch.bool)

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """At an accepted place an episode tries a neighbour, or stops."""
        self._judge(episodes)
        self._settle(episodes)
        deciding = episodes[(self.target[episodes] == NONE) & ~self._trying[episodes]]
        fresh = ~self._tried[deciding].any(dim=1)
        exhausted = fresh & (self._moves_left[deciding] == 0)
        self._moves_left[deciding] -= fresh.long()
        deciding = deciding[~exhausted]
        if len(deciding):
            action = self.choose_neighbour(pose, action, deciding, decide)
            goes = deciding[action[deciding] != STOP]
            self._tried[goes, action[goes]] = True
            self._trying[goes] = True
        return action

    def neighbours(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """Options: the neighbours not tried yet, or stop."""
        request = super().neighbours(pose, episodes)
        untried = nn.functional.pad(~self._tried[episodes], (0, 1), value=True)
        return replace(request, options=request.options & untried)

    def _judge(self, active: Tensor) -> None:
        """Episodes that have stepped out stay, go back, or go to the best place tried."""
        trying = active[self._trying[active]]
        self._trying[trying] = False
        here = self.memory.here[trying]
        value = self.memory.columns["progress"][trying, here, 0]
        better = value > self._best[trying]
        self._best[trying] = torch.where(better, value, self._best[trying])
        self._best_node[trying] = torch.where(better, here, self._best_node[trying])
        accepted = value > self._accepted[trying]
        self._accept(trying[accepted])
        rest = trying[~accepted]
        base = self.memory.node[rest, self._base[rest]]
        left = (self.world.neighbour_mask[base] & ~self._tried[rest]).any(dim=1)
        again = left & (self._tried[rest].sum(dim=1) < self._tries)
        self.target[rest] = torch.where(again, self._base[rest], self._best_node[rest])

    def _settle(self, active: Tensor) -> None:
        """Episodes that have got back try again at their base, and stay at the best place tried."""
        begins = active[self._accepted[active] == -torch.inf]
        self._accept(begins[self.target[begins] == NONE])
        arrived = active[self.target[active] == self.memory.here[active]]
        self.target[arrived] = NONE
        self._accept(arrived[self.memory.here[arrived] != self._base[arrived]])

    def _accept(self, episodes: Tensor) -> None:
        """The episodes (M,) go on from where they stand."""
        here = self.memory.here[episodes]
        self._base[episodes] = here
        self._accepted[episodes] = self.memory.columns["progress"][episodes, here, 0]
        self._tried[episodes] = False
        self._best[episodes] = -torch.inf
        self._best_node[episodes] = NONE


END = DecisionType(FINAL.name, over_nodes=True)
"""Which visited place to end at after a long search: a final place that the agent's network scores."""


class SearchActions(GlobalActions):
    """Search over all open ways of all visited places; coming back restores the state of a place.

    Args:
        max_decisions: places expanded before the search ends; one number, or (B,).
        long: search until nothing is open or all decisions are used up, then choose a visited place to end at
            (an ``END`` decision); otherwise the agent ends where it stops.
    """

    final_type = END

    def __init__(self, world: World, episodes: int, max_decisions: Limit, *, long: bool) -> None:
        options = WalkOptions(restore_state=True, final_backtrack=long)
        super().__init__(world, episodes, max_decisions, options)
        self.long = long

    def settle(self, episodes: Tensor) -> None:
        """Where nothing is open any more a long search is over."""
        if self.long:
            is_open = self.memory.subnode[episodes].flatten(1).any(dim=1)
            self.decisions_left[episodes[~is_open & (self.target[episodes] == NONE)]] = 0

    def request(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
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
    mean: bool = False
    """divide the sum by the number of decisions"""


_FIRST = 1e4  # above every sum of scores
_NOWHERE = -1e4  # below every sum of scores


class SearchMixin(Agent):
    """Mixed into a local agent: ``class Fast(SearchMixin, Follower)``. It learns as before, searches later.

    The frontier holds every open way with the sum of scores along the route that found it, and every visited
    place is a candidate to end at, with the score of stopping there:

        priority(n, k) = sum of scores from the start to n + score_k(n),   candidate(n) = ... + score_stop(n)

    A place is entered once, by the first route that gets there; published searches let another route enter it
    again.
    """

    config: Any

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """The agent's own while it learns, the open ways of all places when it searches."""
        if learning or self.config.search == "none":
            return super().action_space(world, episodes, max_decisions, learning=learning)
        return SearchActions(world, episodes, max_decisions, long=self.config.search == "long")

    def local_scores(self, observations: Observations) -> Tensor:
        """The local scores of the neighbours of every place, and of stopping  ->  (X, K + 1)"""
        rows = torch.arange(len(observations.viewpoint), device=observations.viewpoint.device)
        point = DecisionPoint(observations, rows)
        scores = super().score(point)  # type: ignore[safe-super]  # the agent mixed with
        logits = scores if isinstance(scores, Tensor) else scores[ACTION]
        options = with_stop_option(observations.candidates.mask)
        logits = logits.masked_fill(~options, -torch.inf)
        if self.config.priority == "log_probabilities":
            logits = logits.log_softmax(dim=-1)
        return logits.masked_fill(~options, _NOWHERE)

    def node_features(self, observations: Observations) -> dict[str, Tensor]:
        """The scores of the neighbours (X, K + 1), and the place before (X, 1)"""
        found = super().node_features(observations)
        if self.config.search != "none":
            found["scores"] = observations.cached(self.local_scores)
            found["parent"] = observations.previous.to(found["scores"]).unsqueeze(-1)
        return found

    def score(self, point: DecisionPoint) -> Scores:
        """Actions as the agent's own; with a memory the priorities of all ways and candidates."""
        if point.graph is None:
            return super().score(point)  # type: ignore[safe-super]  # the agent mixed with
        graph, scores = point.graph, point.graph.column("scores")  # (R, N, K + 1)
        along, depth = self.routes(point, scores)
        whole = along.unsqueeze(-1) + scores
        if self.config.mean:
            whole = whole / (depth + 1).unsqueeze(-1)
        ways, candidates = whole[..., :-1].flatten(1), self.rank_ends(point, whole[..., -1])
        if self.config.search == "long":
            return {GLOBAL: torch.nn.functional.pad(ways, (0, 1)), END: candidates}
        rows = torch.arange(len(ways), device=ways.device)
        best = scores[rows, graph.here].argmax(dim=1)
        slots = scores.shape[2] - 1
        stop = torch.where(best == slots, _FIRST, 2 * _NOWHERE).to(ways).unsqueeze(1)
        # a greedy way that leads back is not open, so raising it changes nothing
        chosen = (graph.here * slots + best.clamp_max(slots - 1)).unsqueeze(1)
        first = torch.zeros_like(ways).scatter(1, chosen, torch.where(best < slots, _FIRST, 0.0).unsqueeze(1))
        return {GLOBAL: torch.cat([ways + first, stop], dim=1), END: candidates}

    def rank_ends(self, point: DecisionPoint, totals: Tensor) -> Tensor:
        """How good it is to end at every node, by the sums of scores with that of stopping there: (R, N)"""
        del point
        return totals

    def routes(self, point: DecisionPoint, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of scores from the start to every node, and the number of decisions: (R, N) each

        scores: (R, N, K + 1) of the ways of every node, and of stopping there
        """
        graph, world = point.memory(), point.observations.environment.world
        came_from = graph.column("parent").squeeze(-1).round().long()
        parent, on_route = tree(graph.viewpoint, came_from)
        slot = world.slot_of(came_from.clamp_min(0), graph.viewpoint.clamp_min(0)).clamp_min(0)
        rows = torch.arange(len(parent), device=parent.device).unsqueeze(1)
        step = scores[rows, parent, slot].masked_fill(came_from == NONE, 0.0)
        return (on_route * step.unsqueeze(1)).sum(dim=2), on_route.sum(dim=2).to(step) - 1


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
    return viewpoint[row].masked_fill(~there, NONE).gather(1, order)
