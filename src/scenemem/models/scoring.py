"""Scores of what to do next (paper, Eqs. 2, 10, 11, 13 and 14), frontier hints and the critic.

Shape letters: M decision steps, O options, H state width, V visual width, W orientation width, N nodes,
K candidate slots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.models.attention import dots, rotated, untiled
from scenemem.models.grounding import Grounded
from scenemem.models.reading import MemoryGraph
from scenemem.world.geometry import ANGLE_WIDTH


class WeighedScore(nn.Module):
    """[c^f, c^r] . w with c^f = f . W_f h^p, c^r = r . W_r h^a and w = W [h^p, h^a].

    The same form serves frontiers (Eq. 13) and sub-nodes (Eq. 14); each use has its own weights.

    Args:
        width: H of the two states.
        visual: width V of the options' visual features.
        orientation: width of the options' orientation features.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        self.mix = nn.Linear(2 * width, 2, bias=False)

    def weighed(self, confidence: Tensor, perception: Tensor, action: Tensor) -> Tensor:
        """confidence: (M, O, 2)  perception, action: (M, H)  ->  logits (M, O)"""
        return dots(confidence, self.mix(torch.cat([perception, action], dim=-1)))


class FrontierScore(WeighedScore):
    """Eq. 13 on the nodes of a memory."""

    def forward(self, perception: Tensor, action: Tensor, visual: Tensor, orientation: Tensor) -> Tensor:
        """perception, action: (M, H)  visual: (M, O, V)  orientation: (M, O, 128)  ->  logits (M, O)"""
        confidence = self.confidences(perception, action, visual, orientation)
        return self.weighed(confidence, perception, action)

    def confidences(self, perception: Tensor, action: Tensor, visual: Tensor, orientation: Tensor) -> Tensor:
        """The perception-aware and the action-aware confidence of every option  ->  (M, O, 2)"""
        by_view = dots(visual, self.query_visual(perception))
        by_direction = dots(orientation, self.query_orientation(action))
        return torch.stack([by_view, by_direction], dim=-1)


class StopOption(nn.Module):
    """The learned features of the option to stop; they are never dropped."""

    def __init__(self, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.visual = nn.Parameter(torch.zeros(visual))
        self.orientation = nn.Parameter(torch.zeros(orientation))

    def forward(self, visual: Tensor, orientation: Tensor) -> Tensor:
        """How well stopping fits the queries.  visual: (M, V)  orientation: (M, 128)  ->  (M, 1, 2)"""
        return torch.stack([visual @ self.visual, orientation @ self.orientation], dim=-1).unsqueeze(1)


class StopFromMemory(nn.Module):
    """How well what the memory says about a place fits stopping there (an option; not in the paper).

    f^_v . W_f h^p + r^_v . W_r h^a, the terms that Eqs. 10 and 11 have for the parent of a sub-node. Both W
    begin at 0.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, orientation, bias=False)
        nn.init.zeros_(self.query_visual.weight)
        nn.init.zeros_(self.query_orientation.weight)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor], here: Tensor) -> Tensor:
        """grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  here: (M,) a node  ->  (M,)"""
        row = torch.arange(len(here), device=here.device)
        queries = (self.query_visual(grounded.perception), self.query_orientation(grounded.action))
        fits = [(states[row, here] * query).sum(dim=-1) for states, query in zip(nodes, queries, strict=True)]
        return torch.stack(fits).sum(dim=0)


class ActionScore(WeighedScore):
    """Eq. 14 on the neighbours of here and on stopping.

    Directions come as four numbers instead of 128; folding the query is exact (see ``untiled``).
    """

    def forward(
        self,
        perception: Tensor,
        action: Tensor,
        visual: Tensor,
        orientation: Tensor,
        feature_mask: Tensor,
        stop: StopOption,
    ) -> Tensor:
        """Stop is the last option.

        perception, action: (M, H)  visual: (M, K, V)  orientation: (M, K, 4)  feature_mask: (V,)
        ->  logits (M, K + 1)
        """
        confidence = self.confidences(perception, action, visual, orientation, feature_mask, stop)
        return self.weighed(confidence, perception, action)

    def confidences(
        self,
        perception: Tensor,
        action: Tensor,
        visual: Tensor,
        orientation: Tensor,
        feature_mask: Tensor,
        stop: StopOption,
    ) -> Tensor:
        """The perception-aware and the action-aware confidence of every option  ->  (M, K + 1, 2)"""
        query_visual, query_orientation = self.query_visual(perception), self.query_orientation(action)
        by_view = dots(visual, query_visual * feature_mask)
        by_direction = dots(orientation, untiled(query_orientation))
        candidates = torch.stack([by_view, by_direction], dim=-1)
        return torch.cat([candidates, stop(query_visual, query_orientation)], dim=1)


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
        """Logits of slot k of node n at n * K + k, stop last; of nodes not known yet they mean nothing.

        grounded: (M, H)  nodes: visual (M, N, V), orientation (M, N, W)  heading: (M,)  ->  (M, N * K + 1)
        """
        perception, action = grounded.perception, grounded.action
        query_visual, query_orientation = self.query_visual(perception), self.query_orientation(action)
        of_node = torch.stack(
            [
                dots(nodes[0], self.query_node_visual(perception)),
                dots(nodes[1], self.query_node_orientation(action)),
            ],
            dim=-1,
        ).unsqueeze(2)  # (M, N, 1, 2)
        of_slot = graph.slot_scores(
            query_visual * feature_mask, rotated(untiled(query_orientation), -heading)
        )
        stop = self.stop(query_visual, query_orientation)
        confidence = torch.cat([(of_slot + of_node).flatten(1, 2), stop], dim=1)
        return dots(confidence, self.mix(torch.cat([perception, action], dim=-1)))


class CandidateScore(nn.Module):
    """p(o_k) = softmax_k(o_k^T W h) over the candidates of here (Eq. 2); the stop option is a zero row."""

    def __init__(self, width: int, visual: int) -> None:
        super().__init__()
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def forward(self, state: Tensor, visual: Tensor, orientation: Tensor, feature_mask: Tensor) -> Tensor:
        """state: (M, H)  visual: (M, K, V)  orientation: (M, K, 4)  ->  logits (M, K + 1), stop last"""
        by_view = dots(visual, self.query_visual(state) * feature_mask)
        by_direction = dots(orientation, untiled(self.query_orientation(state)))
        return nn.functional.pad(by_view + by_direction, (0, 1))


def with_stop(logits: Tensor, fits: Tensor) -> Tensor:
    """Scores with something added to the option to stop, the last one.  (M, O), (M,)  ->  (M, O)"""
    return torch.cat([logits[:, :-1], logits[:, -1:] + fits.unsqueeze(1)], dim=1)


class FrontierHints(nn.Module):
    """Facts about every node that the paper's frontier scores do not have: W_2 tanh(W_1 [facts, W_0 h]).

    The facts: is it here, how far to walk, how long ago found, the log-probability of its best open candidate
    when the agent was last there, and of stopping there.
    """

    WORST = -10.0
    """Floor for remembered log-probabilities."""

    def __init__(self, width: int, inner: int = 32) -> None:
        super().__init__()
        self.state = nn.Linear(width, inner)
        self.facts = nn.Linear(5, inner, bias=False)
        self.score = nn.Linear(inner, 1, bias=False)

    def forward(self, state: Tensor, graph: MemoryGraph, remembered: Tensor) -> Tensor:
        """state: (M, H)  remembered: (M, N, K + 1) log-probabilities of candidates and stop  ->  (M, N)"""
        inner = torch.tanh(self.state(state).unsqueeze(1) + self.facts(self.columns(graph, remembered)))
        score: Tensor = self.score(inner)
        return score.squeeze(-1)

    @classmethod
    def columns(cls, graph: MemoryGraph, remembered: Tensor) -> Tensor:
        """The facts, 0 at nodes not known yet  ->  (M, N, 5)"""
        nodes = torch.arange(graph.walk.shape[1], device=graph.walk.device)
        known = nodes < graph.count.unsqueeze(1)
        facts = [
            (nodes == graph.here.unsqueeze(1)).to(graph.walk.dtype),
            graph.walk / 10.0,
            (graph.count.unsqueeze(1) - 1 - nodes).to(graph.walk.dtype) / 10.0,
            remembered[..., :-1].masked_fill(~graph.open, cls.WORST).amax(dim=-1).clamp_min(cls.WORST),
            remembered[..., -1].clamp_min(cls.WORST),
        ]
        return torch.stack(facts, dim=-1).masked_fill(~known.unsqueeze(-1), 0.0)


class Critic(nn.Module):
    """What an agent still expects to earn: V(h) = W_2 relu(W_1 h)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> Tensor:
        """state: (..., H)  ->  (...)"""
        value: Tensor = self.layers(state)
        return value.squeeze(-1)
