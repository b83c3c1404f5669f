"""The hop prior hidden in the authors' released code: an option, off by default, reported on its own row.

It encodes that R2R paths have 4 to 6 edges. Frontiers farther than 6 hops from the start are dropped,
stopping is possible only 4 to 6 hops away, and an agent that never stopped is sent to its best-scored node
in that ring.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.spaces import Ask, FrontierSpace, Rounds
from scenemem.memory.scene_memory import Weights
from scenemem.simulator.panorama import Stance
from scenemem.world.graph import NONE, World

NEAREST, FARTHEST = 4, 6  # hops from the start, counted on the known graph


class HopPriorSpace(FrontierSpace):
    """Frontier decisions that know how long R2R paths are."""

    def __init__(
        self,
        world: World,
        lanes: int,
        rounds: Rounds,
        weights: Weights = "metres",
        *,
        recalls: bool = False,
    ) -> None:
        super().__init__(world, lanes, rounds, weights, recalls=recalls)
        self._final = torch.zeros(lanes, dtype=torch.bool, device=world.device)  # on the way to the last stop

    def tick(self, stance: Stance, lanes: Tensor, ask: Ask) -> Tensor:
        """As the frontier space, and lanes without rounds walk to the best node of the ring to stop there."""
        tired = lanes[(self._rounds_left[lanes] == 0) & (self._target[lanes] == NONE) & ~self._final[lanes]]
        self._send_to_ring(tired, ask)
        action = super().tick(stance, lanes[~self._final[lanes]], ask)
        self._at_target(lanes[self._final[lanes]])
        return self._walk_on(action, stance, lanes[self._final[lanes]])

    def _send_to_ring(self, lanes: Tensor, ask: Ask) -> None:
        ring = self._ring(lanes)
        possible = ring.any(dim=1)
        if bool(possible.any()):
            sent = lanes[possible]
            self._target[sent] = ask(self._which_node(sent, ring[possible]))
            self._final[sent] = True

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
