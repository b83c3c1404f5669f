"""Deciding (paper, section 3.3): first a frontier of the memory (Eq. 13), then a neighbour or stop (Eq. 14).

Shape letters: B episodes, M that have arrived, R that decide, N nodes, K candidate slots, O options, D visual
columns, V and W widths of node states, H state width.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn

from scenemem.agents.agent import ActionSpace, Arrival, Decide, Limit
from scenemem.agents.rollout import FINAL, FRONTIER, DecisionRequest
from scenemem.features.store import CandidateFeatures
from scenemem.models.navigator import dots, fold_angles
from scenemem.ssm.graph import SceneMemory, WalkOptions
from scenemem.ssm.reading import Grounded
from scenemem.world.graph import ANGLE_WIDTH, NONE, STOP, Pose, World


class MemoryActions(ActionSpace):
    """A space with a memory: choices may lie far away and are walked to over known edges."""

    memory: SceneMemory
    final_type = FINAL

    def __init__(
        self, world: World, episodes: int, max_decisions: Limit, options: WalkOptions | None = None
    ) -> None:
        super().__init__(world, episodes, max_decisions)
        options = options or WalkOptions()
        self.memory = SceneMemory(
            world,
            episodes,
            capacity=1 + int(self.decisions_left.max()) if episodes else 1,  # a place per decision at most
            walk_cost=options.walk_cost,
            allow_revisits=options.allow_revisits,
        )
        self.restores = options.restore_state
        self.allow_revisits = options.allow_revisits
        self.final_backtrack = options.final_backtrack
        self.target = torch.full_like(self.memory.here, NONE)  # (B,) node to walk to; -1 for none
        self.ending = torch.zeros_like(self.target, dtype=torch.bool)  # (B,) on the way to a final place
        self._seen = torch.zeros_like(self.memory.node, dtype=torch.bool)  # (B, N) observed there
        self._view = torch.zeros_like(self.memory.node)  # (B, N) view faced then
        # (B, N) log-probability of stopping there; the lowest where nothing was decided
        self._stop_scores = torch.full_like(self.memory.walk[:, 0], torch.finfo(torch.float32).min)

    def arrive(self, pose: Pose, episodes: Tensor, goes_on: Tensor) -> tuple[Pose, Arrival]:
        """Add the places to the memory, or turn to what was seen there."""
        memory = self.memory
        memory.visit(pose.viewpoint[episodes], episodes)
        here = memory.here[episodes]
        new = torch.ones_like(here, dtype=torch.bool)
        if self.restores:
            new = ~self._seen[episodes, here]
            if self.allow_revisits:
                new |= self.target[episodes] == NONE  # hopped here, and is not on the way back
            view = torch.where(new, pose.view[episodes], self._view[episodes, here])
            self._seen[episodes, here] = True
            self._view[episodes, here] = view
            pose = replace(pose, view=pose.view.index_copy(0, episodes, view))
        self.settle(episodes)
        facts = torch.stack([new.long(), self.may_decide(episodes).long(), memory.count[episodes]]).cpu()
        may, returned = (facts[1] > 0) & goes_on, (facts[0] == 0).nonzero().squeeze(1)
        deciding = may.nonzero().squeeze(1).to(here.device)
        back = returned.to(here.device) if len(returned) else None
        return pose, Arrival(episodes, deciding, facts[2, may], back)

    def settle(self, episodes: Tensor) -> None:
        """A hook for spaces that keep account of where episodes (M,) have just arrived."""

    def may_decide(self, episodes: Tensor) -> Tensor:
        """Episodes that are nowhere bound and have decisions left, or have got where they were bound.

        episodes: (M,)  ->  (M,) bool
        """
        target = self.target[episodes]
        free = (target == NONE) & ((self.decisions_left[episodes] > 0) | self.final_backtrack)
        return (free | (target == self.memory.here[episodes])) & ~self.ending[episodes]

    def step(self, pose: Pose, episodes: Tensor, decide: Decide) -> Tensor:
        """Episodes decide as long as they may; then they go to the place to end at, and stop."""
        if self.final_backtrack:
            exhausted = (self.decisions_left[episodes] == 0) & (self.target[episodes] == NONE)
            self.end_at(episodes[exhausted], decide)  # without a place to choose they are cut off
            episodes = episodes[~exhausted]
        action = torch.full_like(pose.viewpoint, STOP)
        if len(episodes):
            action = self.choose(pose, action, episodes, decide)
        return self.walk_on(pose, action)

    @abstractmethod
    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Let episodes (R,) decide  ->  ``action`` (B,) with their slots to hop to; others have a target"""

    def choose_neighbour(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """One of the open neighbours of here, or stop (Eq. 14)  ->  ``action`` with the answers"""
        request = self.neighbours(pose, episodes)
        choice = decide(request)
        return action.index_copy(0, episodes, choice.masked_fill(request.stops(choice), STOP))

    def neighbours(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """Options: the open neighbours of where episodes (R,) stand, or stop."""
        here, memory = pose.viewpoint[episodes], self.memory
        if self.allow_revisits:
            return self.candidates_or_stop(episodes, here, self.world.neighbour_mask[here])
        return self.candidates_or_stop(episodes, here, memory.subnode[episodes, memory.here[episodes]])

    def walk_on(self, pose: Pose, action: Tensor) -> Tensor:
        """``action`` with the next hop of episodes that are bound somewhere; at a final place they stop."""
        bound = (self.target != NONE) & (self.target != self.memory.here)
        hop = self.world.slot_of(pose.viewpoint, self.memory.towards(self.target.clamp_min(0)))
        return torch.where(bound, hop, action)

    def final_places(self, episodes: Tensor) -> Tensor:
        """The nodes at which exhausted episodes may end  ->  (R, N) bool"""
        return self.memory.node[episodes] != NONE

    def end_at(self, episodes: Tensor, decide: Decide) -> None:
        """Let episodes choose the place where they end."""
        options = self.final_places(episodes)
        sent, options = episodes[options.any(dim=1)], options[options.any(dim=1)]
        if len(sent):
            # a walk ends where stopping was likeliest
            scores = None if self.final_type.learned else self._stop_scores[sent]
            places = self.memory.node[sent]
            self.target[sent] = decide(DecisionRequest(self.final_type, sent, options, places, scores))
            self.ending[sent] = True

    def answered(self, request: DecisionRequest, logits: Tensor) -> None:
        """Note how likely stopping was where the episodes stand.  logits: (M, O)"""
        likely = logits.log_softmax(dim=-1)[:, -1].to(self._stop_scores)
        self._stop_scores[request.episode, self.memory.here[request.episode]] = likely


class FrontierActions(MemoryActions):
    """The paper's two steps: a frontier of the memory, then one of its sub-nodes, or stop.

    The current node can always be chosen as the frontier, so that stopping is always possible.
    """

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Episodes that are nowhere bound choose a frontier; those at their frontier a sub-node or stop."""
        here, free = self.memory.here[episodes], self.target[episodes] == NONE
        self.decisions_left[episodes] -= free.long()
        options = self.frontiers(episodes).scatter(1, here.unsqueeze(1), True)
        # no request where staying is the only option
        several = (free & (options.sum(dim=1) > 1)).nonzero().squeeze(1)
        choosing = episodes[several]
        if len(choosing):
            request = DecisionRequest(FRONTIER, choosing, options[several], self.memory.node[choosing])
            self.target[choosing] = decide(request)
        target = self.target[episodes]
        arrived = episodes[(target == NONE) | (target == here)]
        self.target[arrived] = NONE
        return self.choose_neighbour(pose, action, arrived, decide) if len(arrived) else action

    def frontiers(self, episodes: Tensor) -> Tensor:
        """(R, N) bool, nodes with a sub-node"""
        return self.memory.subnode[episodes].any(dim=-1)


class FrontierScore(nn.Module):
    """Eq. 13 on nodes: [c^f, c^r] . w with c^f = f . W_f h^p, c^r = r . W_r h^a and w = W [h^p, h^a]."""

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The perception-aware and the action-aware confidence of every node, and w: ``dots`` are the logits.

        grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  ->  (M, N, 2), (M, 2)
        """
        by_view = dots(nodes[0], self.query_visual(grounded.perception))
        by_direction = dots(nodes[1], self.query_orientation(grounded.action))
        return torch.stack([by_view, by_direction], dim=-1), self.mix(grounded.both)


class StopOption(nn.Module):
    """The learned features of the option to stop; they are never dropped."""

    def __init__(self, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.visual = nn.Parameter(torch.zeros(visual))
        self.orientation = nn.Parameter(torch.zeros(orientation))

    def forward(self, visual: Tensor, orientation: Tensor) -> Tensor:
        """How well stopping fits the queries.  visual: (M, D)  orientation: (M, 128)  ->  (M, 1, 2)"""
        return torch.stack([visual @ self.visual, orientation @ self.orientation], dim=-1).unsqueeze(1)


class ActionScore(nn.Module):
    """Eq. 14: the form of Eq. 13 on the neighbours of here and on stopping, with weights of its own.

    Directions come as four numbers instead of 128; folding the query is exact (see ``fold_angles``).
    """

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.stop = StopOption(visual)
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def forward(
        self, grounded: Grounded, seen: CandidateFeatures, feature_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The confidences of every option, stop last, and w: ``dots`` are the logits.

        grounded: (M, H)  seen: M rows  feature_mask: (D,)  ->  (M, K + 1, 2), (M, 2)
        """
        query_visual = self.query_visual(grounded.perception)
        query_orientation = self.query_orientation(grounded.action)
        by_view = dots(seen.visual, query_visual * feature_mask)
        by_direction = dots(seen.orientation, fold_angles(query_orientation))
        candidates = torch.stack([by_view, by_direction], dim=-1)
        options = torch.cat([candidates, self.stop(query_visual, query_orientation)], dim=1)
        return options, self.mix(grounded.both)
