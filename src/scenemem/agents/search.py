"""Search: action spaces that look before they go, wrapped around agents that choose among neighbours.

An agent searches only when it is evaluated; it learns as the local agent it is. Everything is really walked,
so trajectories hold every metre. Coming back to a place restores the state the agent had there, which is what
"snapshot and restore" means for states that belong to places. Shape letters: B episodes, M some of them, N
nodes of a memory, K candidate slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.actions import Decide, Limit, MemoryActions, WalkOptions
from scenemem.errors import SettingError
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.graph import NONE, World


class AcceptActions(MemoryActions):
    """Progress inference of Self-Monitoring: step into the likeliest neighbour, and stay if it helped.

    A neighbour is accepted when the column ``column`` is larger there than at the last accepted place.
    Otherwise the agent goes back and tries the next one, up to ``tries``; then it takes the best it tried.
    Choosing to stop ends the episode.

    Args:
        world: the world to walk in.
        episodes: their number B.
        max_decisions: accepted moves before an episode is cut off; one number, or (B,).
        column: (X, 1), written by the agent at every place.
        tries: neighbours tried before the best one of them is taken.
    """

    def __init__(
        self, world: World, episodes: int, max_decisions: Limit, *, column: str, tries: int = 5
    ) -> None:
        if tries < 1:
            raise SettingError(f"tries must be 1 or more, got {tries}")
        limit = torch.as_tensor(max_decisions, device=world.device)
        # every try may find a new place
        super().__init__(world, episodes, limit * tries, WalkOptions(restore_state=True, allow_revisits=True))
        self._decisions_left = limit.repeat(episodes)[:episodes].clone()
        self._column = column
        self._tries = tries
        self._trying = torch.zeros(episodes, dtype=torch.bool, device=world.device)  # has just stepped out
        self._tried = torch.zeros(episodes, world.neighbour.shape[1], dtype=torch.bool, device=world.device)
        self._base = torch.zeros_like(self._target)  # (B,) node it tries from
        self._accepted = torch.full((episodes,), -torch.inf, device=world.device)  # value at the base
        self._best = torch.full_like(self._accepted, -torch.inf)  # value of the best place tried
        self._best_node = torch.full_like(self._target, NONE)

    def choose(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Not used: ``step`` is another loop."""
        raise NotImplementedError

    def step(self, pose: Pose, active: Tensor, decide: Decide) -> Tensor:
        """Accept or go back; who stands at an accepted place tries a neighbour, or stops."""
        self._judge(active)
        self._settle(active)
        asking = active[(self._target[active] == NONE) & ~self._trying[active]]
        fresh = asking[~self._tried[asking].any(dim=1)]
        out = fresh[self._decisions_left[fresh] == 0]
        self._decisions_left[fresh] -= 1
        asking = self.deciding = asking[~torch.isin(asking, out)]
        action = torch.full_like(pose.viewpoint, STOP)
        if len(asking):
            here = pose.viewpoint[asking]
            open_slots = self.world.neighbour_mask[here] & ~self._tried[asking]
            chosen = self.as_action(decide(self.candidates_or_stop(asking, here, open_slots)))
            action[asking] = chosen
            goes = chosen != STOP
            self._tried[asking[goes], chosen[goes]] = True
            self._trying[asking[goes]] = True
        return self._walk_on(action, pose, active)

    def _judge(self, active: Tensor) -> None:
        """Of those that have stepped out: who stays, who goes back, and who takes the best place tried."""
        trying = active[self._trying[active]]
        self._trying[trying] = False
        here = self.memory.here[trying]
        value = self.memory.columns[self._column][trying, here, 0]
        better = value > self._best[trying]
        self._best[trying] = torch.where(better, value, self._best[trying])
        self._best_node[trying] = torch.where(better, here, self._best_node[trying])
        accepted = value > self._accepted[trying]
        self._accept(trying[accepted])
        rest = trying[~accepted]
        base = self.memory.node[rest, self._base[rest]]
        left = (self.world.neighbour_mask[base] & ~self._tried[rest]).any(dim=1)
        again = left & (self._tried[rest].sum(dim=1) < self._tries)
        self._target[rest] = torch.where(again, self._base[rest], self._best_node[rest])

    def _settle(self, active: Tensor) -> None:
        """Those that have got back: at their base they try again, at the best place tried they stay."""
        begins = active[self._accepted[active] == -torch.inf]
        self._accept(begins[self._target[begins] == NONE])
        arrived = self._at_target(active)
        self._accept(arrived[self.memory.here[arrived] != self._base[arrived]])

    def _accept(self, episodes: Tensor) -> None:
        """The episodes (M,) go on from where they stand."""
        here = self.memory.here[episodes]
        self._base[episodes] = here
        self._accepted[episodes] = self.memory.columns[self._column][episodes, here, 0]
        self._tried[episodes] = False
        self._best[episodes] = -torch.inf
        self._best_node[episodes] = NONE
