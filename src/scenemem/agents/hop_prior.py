"""The hop prior hidden in the authors' released code: an option, off by default, reported on its own row.

It encodes that R2R paths have 4 to 6 edges. Frontiers farther than 6 hops from the start are dropped,
stopping is possible only 4 to 6 hops away, and an agent that never stopped is sent to its best-scored node
in that ring.
"""

from __future__ import annotations

from torch import Tensor

from scenemem.agents.rollout import Question
from scenemem.agents.spaces import FrontierSpace

NEAREST, FARTHEST = 4, 6  # hops from the start, counted on the known graph


class HopPriorSpace(FrontierSpace):
    """Frontier decisions that know how long R2R paths are."""

    def _last_places(self, lanes: Tensor) -> Tensor:
        return self._ring(lanes)

    def _last_question(self, lanes: Tensor, options: Tensor) -> Question:
        """The best node of the ring is a frontier like any other."""
        return self._which_node("frontier", lanes, options)

    def _frontiers(self, lanes: Tensor) -> Tensor:
        return super()._frontiers(lanes) & (self.memory.hops_from_start(lanes) <= FARTHEST)

    def _may_stop(self, lanes: Tensor, open_slots: Tensor) -> Tensor:
        here = self.memory.here[lanes].unsqueeze(1)
        in_ring = self._ring(lanes).gather(1, here).squeeze(1)
        return in_ring | ~open_slots.any(dim=1)  # whoever can go nowhere else may stop anywhere

    def _ring(self, lanes: Tensor) -> Tensor:
        """(M, N) bool, nodes at the distance where R2R paths end"""
        hops = self.memory.hops_from_start(lanes)
        return (hops >= NEAREST) & (hops <= FARTHEST)
