"""Action spaces: what an agent may choose at a step, and the walk that gets it there.

Every space works on episodes, one hop per episode and step: one that walks does not hold up one that decides.
Shape letters: B episodes, M episodes that have arrived, R episodes that decide, K candidate slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION, DecisionRequest
from scenemem.features.store import Environment
from scenemem.simulator.panorama import STOP, Pose
from scenemem.world.graph import World

Decide = Callable[[DecisionRequest], Tensor]
"""Answers a request with the chosen option of every episode: (M,)."""

Limit = int | Tensor
"""How often episodes may decide: one number, or (B,)."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """Episodes that arrived at a step, and those that may decide; read from the device in one transfer."""

    episodes: Tensor  # (M,) that have just arrived somewhere, in rising order
    deciding: Tensor  # (R,) rows of them that may decide at this step
    nodes: Tensor | None = None  # (R,) node counts of their memories, on the host
    returned: Tensor | None = None  # (m,) rows of them that have again the state they had here, if any


class ActionSpace(ABC):
    """What can be chosen, and how a choice becomes hops.

    Args:
        world: the world to walk in.
        episodes: their number B.
        max_decisions: an episode that has decided this often is cut off where it stands; one number, or (B,).
    """

    memory: Any = None  # a ``SceneMemory`` in spaces that have one
    restores = False  # whether agents that come back to a place have the state again that they had there
    allow_revisits = True  # whether agents may hop to places where they have been before
    further_requests = 0  # to an episode, beyond two for every decision it may take

    def __init__(self, world: World, episodes: int, max_decisions: Limit) -> None:
        self.world = world
        limit = torch.as_tensor(max_decisions, device=world.device)
        self.decisions_left = limit.expand(episodes).clone()  # (B,)

    def arrive(self, pose: Pose, episodes: Tensor, goes_on: Tensor) -> tuple[Pose, Arrival]:
        """Some episodes (M,) have arrived where ``pose`` is.

        goes_on: (M,) bool, on the host: false where a walk ends here whatever is decided

        Returns:
            where the agents look from now on, and which episodes decide.
        """
        may = (self.decisions_left[episodes] > 0).cpu() & goes_on
        return pose, Arrival(episodes, may.nonzero().squeeze(1).to(episodes.device))

    @abstractmethod
    def step(self, pose: Pose, episodes: Tensor, decide: Decide) -> Tensor:
        """Let the deciding episodes (R,) choose  ->  (B,) slot to hop to, or STOP"""

    def recall(self, arrival: Arrival, environment: Environment) -> Any:
        """The ``MemoryGraph`` of the episodes that decide; None without a memory."""
        del arrival, environment

    def answered(self, request: DecisionRequest, logits: Tensor) -> None:
        """A hook: a request was scored.  logits: (M, O), -inf where there is no option"""
        del request, logits

    def candidates_or_stop(
        self, episodes: Tensor, here: Tensor, open_slots: Tensor, may_stop: Tensor | None = None
    ) -> DecisionRequest:
        """Options: the open candidate slots (R, K), then stop, unless ``may_stop`` (R,) forbids it."""
        stop = open_slots.new_ones(len(episodes)) if may_stop is None else may_stop
        viewpoint = with_last(self.world.neighbour[here], here)
        return DecisionRequest(ACTION, episodes, with_last(open_slots, stop), viewpoint)

    def as_action(self, choice: Tensor) -> Tensor:
        """An answer to ``candidates_or_stop`` as a slot or STOP."""
        return torch.where(choice == self.world.neighbour.shape[1], STOP, choice)


class LocalActions(ActionSpace):
    """The neighbours of here, or stop."""

    def step(self, pose: Pose, episodes: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        self.decisions_left[episodes] -= 1
        here = pose.viewpoint[episodes]
        action = torch.full_like(pose.viewpoint, STOP)
        request = self.candidates_or_stop(episodes, here, self.open_slots(episodes, here))
        return action.index_copy_(0, episodes, self.as_action(decide(request)))

    def open_slots(self, episodes: Tensor, here: Tensor) -> Tensor:
        """The candidate slots that may be taken at ``here`` (R,)  ->  (R, K) bool"""
        del episodes
        return self.world.neighbour_mask[here]


def with_last(columns: Tensor, last: Tensor) -> Tensor:
    """columns: (M, O)  last: (M,)  ->  (M, O + 1)"""
    return torch.cat([columns, last.unsqueeze(1)], dim=1)
