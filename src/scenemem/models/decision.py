"""Scores of what to do next (paper, Eqs. 10, 11, 13 and 14): visual and orientation confidence, weighed.

Shape letters: M decisions, O options, H state width, V visual width, 128 orientation width; R decisions
over the whole map, N nodes, S node states, K neighbour slots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.models.attention import dots, rotated, rows_of, untiled
from scenemem.models.collect_read import Graphs, Places
from scenemem.models.grounding import Grounded
from scenemem.models.place_attention import score_places
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
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_orientation = nn.Linear(width, orientation, bias=False)
        self.weigh = nn.Linear(2 * width, 2, bias=False)

    def weighed(self, confidence: Tensor, perception: Tensor, action: Tensor) -> Tensor:
        """confidence: (M, O, 2)  perception, action: (M, H)  ->  logits (M, O)"""
        return dots(confidence, self.weigh(torch.cat([perception, action], dim=-1)))


class FrontierScore(WeighedScore):
    """Eq. 13 on the nodes of a memory."""

    def forward(self, perception: Tensor, action: Tensor, visual: Tensor, orientation: Tensor) -> Tensor:
        """perception, action: (M, H)  visual: (M, O, V)  orientation: (M, O, 128)  ->  logits (M, O)"""
        confidence = self.confidences(perception, action, visual, orientation)
        return self.weighed(confidence, perception, action)

    def confidences(self, perception: Tensor, action: Tensor, visual: Tensor, orientation: Tensor) -> Tensor:
        """The perception-aware and the action-aware confidence of every option  ->  (M, O, 2)"""
        by_sight = dots(visual, self.ask_visual(perception))
        by_direction = dots(orientation, self.ask_orientation(action))
        return torch.stack([by_sight, by_direction], dim=-1)


class StopOption(nn.Module):
    """The learned features of the option to stop; they are never dropped."""

    def __init__(self, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.visual = nn.Parameter(torch.zeros(visual))
        self.orientation = nn.Parameter(torch.zeros(orientation))

    def forward(self, sight: Tensor, direction: Tensor) -> Tensor:
        """How well stopping fits what is asked for.  sight: (M, V)  direction: (M, 128)  ->  (M, 1, 2)"""
        return torch.stack([sight @ self.visual, direction @ self.orientation], dim=-1).unsqueeze(1)


class StopRead(nn.Module):
    """How well what the memory says about a place fits stopping there (an option; not in the paper).

    f^_v . W_f h^p + r^_v . W_r h^a, the terms that Eqs. 10 and 11 have for the parent of a sub-node. Both W
    begin at 0.
    """

    def __init__(self, width: int, visual: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_orientation = nn.Linear(width, orientation, bias=False)
        nn.init.zeros_(self.ask_visual.weight)
        nn.init.zeros_(self.ask_orientation.weight)

    def forward(self, grounded: Grounded, nodes: tuple[Tensor, Tensor], here: Tensor) -> Tensor:
        """grounded: (R, H)  nodes: visual (R, N, V), orientation (R, N, W)  here: (R,) a node  ->  (R,)"""
        moment = torch.arange(len(here), device=here.device)
        asked = (self.ask_visual(grounded.perception), self.ask_orientation(grounded.action))
        fits = [
            (states[moment, here] * wanted).sum(dim=-1) for states, wanted in zip(nodes, asked, strict=True)
        ]
        return torch.stack(fits).sum(dim=0)


class ActionScore(WeighedScore):
    """Eq. 14 on the neighbours of here and on stopping.

    Directions come as four numbers instead of 128; folding what is asked for is exact (see ``untiled``).
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
        sight, direction = self.ask_visual(perception), self.ask_orientation(action)
        by_sight = dots(visual, sight * feature_mask)
        by_direction = dots(orientation, untiled(direction))
        return torch.cat([torch.stack([by_sight, by_direction], dim=-1), stop(sight, direction)], dim=1)


class OneStepScore(nn.Module):
    """All sub-nodes of the map at once (Eqs. 10, 11).

    q^f = [f_{v,k}, f^_v] . W_f h^p and q^r = [r_{v,k}, r^_v] . W_r h^a: how the sub-node itself looks, and
    what its parent node was read as. Both halves of each W are separate layers here.
    """

    def __init__(self, width: int, visual: int, stream: int, orientation: int = ANGLE_WIDTH) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_orientation = nn.Linear(width, ANGLE_WIDTH, bias=False)
        self.ask_node_visual = nn.Linear(width, stream, bias=False)
        self.ask_node_orientation = nn.Linear(width, orientation, bias=False)
        self.weigh = nn.Linear(2 * width, 2, bias=False)
        self.stop = StopOption(visual)

    def forward(
        self,
        grounded: Grounded,
        places: Places,
        nodes: tuple[Tensor, Tensor],
        heading: Tensor,
        feature_mask: Tensor,
        graphs: Graphs,
    ) -> Tensor:
        """Logits of slot k of node n at n * K + k, stop last; of nodes not known yet they mean nothing.

        grounded: (R, H)  nodes: visual (R, N, V), orientation (R, N, 128)  heading: (R,)
        ->  (R, N * K + 1)
        """
        perception, action = grounded.asks
        sight, direction = self.ask_visual(perception), self.ask_orientation(action)
        of_node = torch.stack(
            [
                dots(nodes[0], self.ask_node_visual(perception)),
                dots(nodes[1], self.ask_node_orientation(action)),
            ],
            dim=-1,
        ).unsqueeze(2)  # (R, N, 1, 2)
        wanted = rotated(untiled(direction), -heading)
        of_slot = _slots(sight * feature_mask, wanted, places, graphs)
        confidence = torch.cat([(of_slot + of_node).flatten(1, 2), self.stop(sight, direction)], dim=1)
        return dots(confidence, self.weigh(torch.cat([perception, action], dim=-1)))


def _slots(sight: Tensor, direction: Tensor, places: Places, graphs: Graphs) -> Tensor:
    """How every neighbour slot itself looks and where it leads.

    sight: (R, V)  direction: (R, 4) absolute  ->  (R, N, K, 2)
    """
    row, node = graphs.states()
    place = places.first[graphs.seating.lane[row]] + node
    views = score_places(rows_of(sight, row), place, places.look)  # (S, 36)
    by_sight = views.gather(1, places.views[place])
    by_direction = dots(places.directions[place], direction[row])
    table = sight.new_zeros(*graphs.edge.shape[:2], places.views.shape[1], 2)
    return table.index_put((row, node), torch.stack([by_sight, by_direction], dim=-1))


def with_stop(logits: Tensor, fits: Tensor) -> Tensor:
    """Scores with something added to the option to stop, the last one.  (M, O), (M,)  ->  (M, O)"""
    return torch.cat([logits[:, :-1], logits[:, -1:] + fits.unsqueeze(1)], dim=1)


class Critic(nn.Module):
    """What an agent still expects to earn: V(h) = W_2 relu(W_1 h)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> Tensor:
        """state: (..., H)  ->  (...)"""
        value: Tensor = self.layers(state)
        return value.squeeze(-1)
