"""Policies of trained agents: a network in use and a way to choose among its scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scenemem.agents.network import Acting
from scenemem.agents.rollout import Question
from scenemem.agents.spaces import ActionSpace
from scenemem.errors import NotFiniteError
from scenemem.simulator.panorama import Pose

Chooser = Callable[[Tensor], Tensor]
"""logits: (M, O), -inf where there is no option  ->  (M,) chosen option"""


def take_best(logits: Tensor) -> Tensor:
    """The option with the highest score."""
    return logits.argmax(dim=-1)


class Sample:
    """Draw an option by its probability.

    Args:
        generator: the source of randomness.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, logits: Tensor) -> Tensor:
        """(M, O)  ->  (M,)"""
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=self._generator).squeeze(-1)


class NetworkPolicy:
    """Answers questions with a network.

    Args:
        acting: the network in use.
        choose: how an option is chosen from the scores.
        taught: the first lanes follow their labels; the network only learns what it would have seen there.
    """

    def __init__(self, acting: Acting, choose: Chooser, *, taught: int = 0) -> None:
        self._acting = acting
        self._choose = choose
        self._taught = taught

    def observe(self, pose: Pose, lanes: Tensor, space: ActionSpace, /) -> None:
        """Update the states of ``lanes``."""
        self._acting.observe(pose, lanes, space)
        own = lanes[lanes >= self._taught] if self._taught else lanes
        if len(own):
            self._acting.consider(pose, own, space)

    def answer(self, question: Question, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """(M,) chosen options"""
        if not self._taught:
            return self._decided(question, pose, space)
        own = (question.lanes >= self._taught).nonzero().squeeze(1)
        if not len(own):
            return label
        return label.index_copy(0, own, self._decided(question.select(own), pose, space))

    def _decided(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """What the network chooses.

        Raises:
            NotFiniteError: a score is not a number.
        """
        logits = self._acting.logits(question, pose, space)
        if bool(logits.isnan().any()):
            raise NotFiniteError(f"a score of decision '{question.kind}'")
        return self._pick(logits.masked_fill(~question.options, -torch.inf), question.lanes)

    def _pick(self, logits: Tensor, lanes: Tensor) -> Tensor:
        """logits: (M, O)  lanes: (M,)  ->  (M,)"""
        del lanes
        return self._choose(logits)


class LanewiseSampling(NetworkPolicy):
    """Draws options by their probability, every lane with random numbers of its own.

    What a lane draws does not depend on which other lanes walk beside it, or in which process.

    Args:
        acting: the network in use.
        drawn: (J, B) in [0, 1), one number for each of the J decisions a lane can take at most.
        taught: the first lanes follow their labels.
    """

    def __init__(self, acting: Acting, drawn: Tensor, *, taught: int = 0) -> None:
        super().__init__(acting, take_best, taught=taught)
        self._drawn = drawn
        self._taken = torch.zeros(drawn.shape[1], dtype=torch.long, device=drawn.device)

    def _pick(self, logits: Tensor, lanes: Tensor) -> Tensor:
        """Where the summed probabilities pass the number drawn."""
        drawn = self._drawn[self._taken[lanes], lanes]
        self._taken[lanes] += 1
        reached = logits.softmax(dim=-1).double().cumsum(dim=-1)
        return (reached <= (drawn * reached[:, -1]).unsqueeze(-1)).sum(dim=-1)
