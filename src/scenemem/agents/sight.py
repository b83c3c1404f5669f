"""What can be seen: view features and directions, looked up by viewpoint.

Shape letters: M places, K neighbour slots, D visual columns.
"""

from __future__ import annotations

from torch import Tensor

from scenemem.features.store import FeatureStore
from scenemem.models.attention import rotated
from scenemem.models.collect_read import Places
from scenemem.world.geometry import angle_feature, view_heading
from scenemem.world.graph import World


class Sight:
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

    def places(self, node: Tensor) -> Places:
        """Everything a network reads about the places of some memories.

        node: (B, N) viewpoints in the order of their visits, -1 where there is none
        """
        known = node >= 0
        count = known.sum(dim=1)
        viewpoint = node[known]
        return Places(
            lane=known.nonzero()[:, 0],
            first=count.cumsum(0) - count,
            look=lambda place: self.panorama(viewpoint[place]),
            directions=self._directions[viewpoint],
            exists=self.world.neighbour_mask[viewpoint],
            views=self.world.neighbour_view[viewpoint],
        )

    def neighbours(self, viewpoint: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        """How the neighbours look to an agent that stands at ``viewpoint`` and faces ``view``.

        viewpoint, view: (M,)  ->  visual (M, K, D), orientation (M, K, 4) relative to the agent's heading
        """
        visual = self.store.gather_views(viewpoint.unsqueeze(-1), self.world.neighbour_view[viewpoint])
        return visual, rotated(self._directions[viewpoint], view_heading(view).unsqueeze(-1))
