"""The environment agents perceive: a world, and the features of its views, looked up by viewpoint.

Shape letters: M viewpoints, B episodes, N nodes, K candidate slots, D visual columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scenemem.features.store import FeatureStore
from scenemem.models.attention import rotated
from scenemem.models.reading import Places
from scenemem.world.geometry import angle_feature, view_heading
from scenemem.world.graph import World


@dataclass(frozen=True, eq=False)
class CandidateFeatures:
    """How the neighbours of where agents stand look to them."""

    visual: Tensor  # (M, K, D) of the view that looks at the neighbour
    orientation: Tensor  # (M, K, 4) relative to the agent's heading
    mask: Tensor  # (M, K) bool, true at real neighbours


class Environment:
    """A world together with the features of its views.

    Args:
        world: where one can go.
        store: what the views show.
    """

    def __init__(self, world: World, store: FeatureStore) -> None:
        self.world = world
        self.store = store
        # (V, K, 4) absolute directions of the neighbours; 0 at pads
        directions = angle_feature(world.neighbour_heading, world.neighbour_elevation, width=4)
        self._directions = directions * world.neighbour_mask.unsqueeze(-1)

    @property
    def width(self) -> int:
        """Visual columns D."""
        return self.store.width

    def panorama(self, viewpoint: Tensor) -> Tensor:
        """viewpoint: (...)  ->  (..., 36, D)"""
        return self.store.gather(viewpoint)

    def candidates(self, viewpoint: Tensor, view: Tensor) -> CandidateFeatures:
        """The neighbours as agents see them that stand at ``viewpoint`` (M,) and face ``view`` (M,)."""
        visual = self.store.gather_views(viewpoint.unsqueeze(-1), self.world.neighbour_view[viewpoint])
        orientation = rotated(self._directions[viewpoint], view_heading(view).unsqueeze(-1))
        return CandidateFeatures(visual, orientation, self.world.neighbour_mask[viewpoint])

    def places(self, node: Tensor) -> Places:
        """Everything a network reads about the nodes of some memories.

        node: (B, N) viewpoints in the order of their visits, -1 where there is none
        """
        known = node >= 0
        count = known.sum(dim=1)
        viewpoint = node[known]
        return Places(
            episode=known.nonzero()[:, 0],
            first=count.cumsum(0) - count,
            lookup=lambda place: self.panorama(viewpoint[place]),
            directions=self._directions[viewpoint],
            exists=self.world.neighbour_mask[viewpoint],
            views=self.world.neighbour_view[viewpoint],
        )
