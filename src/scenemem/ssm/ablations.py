"""The ablations that decide otherwise (paper, table 3): among all sub-nodes at once, or only those here.

Shape letters: B episodes, R decision steps, M decisions, N nodes, S node states, K candidate slots, D visual
columns, V and W widths of node states, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.agent import Decide, DecisionPoint, Explanation, Limit, with_last
from scenemem.agents.build import DataSizes, MakeUpdater
from scenemem.agents.rollout import ACTION, GLOBAL, DecisionRequest, DecisionType
from scenemem.models.navigator import dots, fold_angles
from scenemem.ssm.agent import GroundedAgent
from scenemem.ssm.deciding import ActionScore, MemoryActions, StopOption
from scenemem.ssm.graph import MemoryGraph, WalkOptions
from scenemem.ssm.reading import Grounded, GroundedConfig, MemoryReader, SSMConfig
from scenemem.world.graph import ANGLE_WIDTH, NONE, STOP, Pose, World, rotated


class LocalMemoryActions(MemoryActions):
    """The neighbours of here, or stop; the memory holds which are visited, and where walks may end."""

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        self.decisions_left[episodes] -= 1
        return self.choose_neighbour(pose, action, episodes, decide)


class LocalSSM(GroundedAgent):
    """The local ablation: no frontier is chosen, only one of the sub-nodes of here, or stop (Eq. 14).

    Eq. 14 has no term of the memory, so nothing is read; the memory only records the places visited.
    """

    space = LocalMemoryActions

    def __init__(self, config: GroundedConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> None:
        super().__init__(config, sizes, updater)
        self.actions = ActionScore(config.width, sizes.visual)

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        grounded = point.per_observation(self.ground)
        return dots(*self.actions(grounded, point.candidates(), point.feature_mask))

    def explain(self, point: DecisionPoint) -> Explanation:
        """Words, and confidences by view and by direction."""
        grounded = point.per_observation(self.ground)
        options, mix = self.actions(grounded, point.candidates(), point.feature_mask)
        return Explanation(self.words_at(point), {ACTION: options}, {ACTION: mix})


class GlobalActions(MemoryActions):
    """The one-step ablation: any sub-node of the memory, or stop; then walk there."""

    def __init__(
        self, world: World, episodes: int, max_decisions: Limit, options: WalkOptions | None = None
    ) -> None:
        super().__init__(world, episodes, max_decisions, options)
        self._then = torch.full((episodes,), STOP, device=world.device)  # the slot to take at the target

    def may_decide(self, episodes: Tensor) -> Tensor:
        """Episodes that are nowhere bound  ->  (M,) bool"""
        return super().may_decide(episodes) & (self.target[episodes] == NONE)

    def choose(self, pose: Pose, action: Tensor, episodes: Tensor, decide: Decide) -> Tensor:
        """Episodes choose one of all ways."""
        self.decisions_left[episodes] -= 1
        choice = decide(self.request(pose, episodes))
        slots = self.world.neighbour.shape[1]
        stops = choice == self.memory.node.shape[1] * slots
        self.target[episodes] = torch.where(stops, self.memory.here[episodes], choice // slots)
        self._then[episodes] = torch.where(stops, STOP, choice % slots)
        return action

    def walk_on(self, pose: Pose, action: Tensor) -> Tensor:
        """Episodes at their node take the way they chose; the remaining ones walk."""
        arrived = (self.target == self.memory.here) & ~self.ending
        action = torch.where(arrived, self._then, super().walk_on(pose, action))
        self.target.masked_fill_(arrived, NONE)
        return action

    def request(self, pose: Pose, episodes: Tensor) -> DecisionRequest:
        """Options: slot k of node n is option n * K + k; the last one stops."""
        ways = self.memory.open_ways(episodes).flatten(1)
        viewpoints = self.world.neighbour[self.memory.node[episodes]].flatten(1)
        options, here = with_last(ways, ways.new_ones(len(episodes))), pose.viewpoint[episodes]
        return DecisionRequest(GLOBAL, episodes, options, with_last(viewpoints, here))


class GlobalScore(nn.Module):
    """All sub-nodes of the memory at once (Eqs. 10, 11).

    q^f = [f_{v,k}, f^_v] . W_f h^p and q^r = [r_{v,k}, r^_v] . W_r h^a: how the sub-node itself looks, and
    what its parent node was read as. Both halves of each W are separate layers here.
    """

    def __init__(
        self, width: int, visual: int, node_width: int, orientation_width: int = ANGLE_WIDTH
    ) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.query_node_visual = nn.Linear(width, node_width, bias=False)
        self.query_node_orientation = nn.Linear(width, orientation_width, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)
        self.stop = StopOption(visual)

    def forward(
        self,
        grounded: Grounded,
        nodes: tuple[Tensor, Tensor],
        heading: Tensor,
        feature_mask: Tensor,
        graph: MemoryGraph,
    ) -> Tensor:
        """Logits of slot k of node n at n * K + k, stop last; where there is no node they mean nothing.

        grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  heading: (M,)  ->  (M, N * K + 1)
        """
        perception, action = grounded.perception, grounded.action
        query_visual, query_orientation = self.query_visual(perception), self.query_orientation(action)
        by_view = dots(nodes[0], self.query_node_visual(perception))
        by_direction = dots(nodes[1], self.query_node_orientation(action))
        of_node = torch.stack([by_view, by_direction], dim=-1).unsqueeze(2)  # (M, N, 1, 2)
        absolute = rotated(fold_angles(query_orientation), -heading)
        of_slot = slot_confidences(graph, query_visual * feature_mask, absolute)
        stop = self.stop(query_visual, query_orientation)
        return dots(torch.cat([(of_slot + of_node).flatten(1, 2), stop], dim=1), self.mix(grounded.both))


def slot_confidences(graph: MemoryGraph, visual: Tensor, orientation: Tensor) -> Tensor:
    """How every candidate slot of every node looks, and where it leads.

    visual: (R, D)  orientation: (R, 4), a query about absolute directions  ->  (R, N, K, 2)
    """
    by_view = dots(graph.candidates(), visual[graph.row])
    directions = graph.environment.directions[graph.place]  # (S, K, 4)
    by_direction = dots(directions, orientation[graph.row])  # (S, K)
    table = graph.padded(torch.stack([by_view, by_direction], dim=-1).flatten(1))
    return table.view(*table.shape[:2], -1, 2)


class GlobalSSM(GroundedAgent):
    """The one-step ablation: all sub-nodes of the memory compete in a single decision."""

    config: SSMConfig
    space = GlobalActions

    def __init__(self, config: SSMConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> None:
        super().__init__(config, sizes, updater)
        self.reader = MemoryReader(config, sizes)
        self.global_score = GlobalScore(config.width, sizes.visual, *config.node_widths(sizes))

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Global decisions: (R, N * K + 1)"""
        graph, grounded = point.memory(), point.per_observation(self.ground)
        nodes = self.reader(grounded, point.heading, point.feature_mask, graph)
        return {GLOBAL: self.global_score(grounded, nodes, point.heading, point.feature_mask, graph)}
