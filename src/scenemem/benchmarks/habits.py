"""Makes walks of a fresh network as long as those of a trained one, which their cost depends on.

A network that has learnt nothing stops early or wanders; speeds measured on its walks would mean little and
would change with the weights. Here the network computes every score as always, and then the choice is drawn
by a habit, whose numbers come from trained agents on R2R.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.policy import NetworkPolicy
from scenemem.agents.rollout import Question
from scenemem.agents.spaces import ActionSpace
from scenemem.benchmarks.parts import replaced
from scenemem.simulator.panorama import Pose


@dataclass(frozen=True)
class Habit:
    """How an agent walks, whatever its scores say."""

    stop: float  # probability of stopping at an action decision
    leave: float  # probability of going elsewhere at a frontier decision


GREEDY = Habit(stop=0.12, leave=0.08)
"""About 7 action decisions and 7.5 observations per episode, as `ssm` has when it walks greedily."""

SAMPLED = Habit(stop=0.045, leave=0.45)
"""About 8 action decisions and 14 observations per episode, as `ssm` has when it samples."""


@contextmanager
def walking_by(habit: Habit, *, taught: int = 0, seed: int = 0) -> Iterator[None]:
    """Inside the block, policies score their options and then choose by ``habit``.

    Args:
        habit: how to choose.
        taught: the first lanes have a teacher, who has no habits.
        seed: of the choices.
    """
    decide, random = NetworkPolicy.answer, torch.Generator().manual_seed(seed)

    def answer(
        policy: NetworkPolicy, question: Question, label: Tensor, pose: Pose, space: ActionSpace
    ) -> Tensor:
        decided = decide(policy, question, label, pose, space)
        has_teacher = question.lanes < taught
        if bool(has_teacher.all()):
            return decided
        return torch.where(has_teacher, decided, _choice(question, space, habit, random))

    with replaced(NetworkPolicy, "answer", answer):
        yield


def _choice(question: Question, space: ActionSpace, habit: Habit, random: torch.Generator) -> Tensor:
    """(M,) one of the options of every lane"""
    options, rows = question.options, torch.arange(len(question.lanes))
    if question.stop is None and space.memory is not None:
        usual, probability = space.memory.here[question.lanes], 1 - habit.leave
    else:
        usual, probability = torch.full_like(rows, options.shape[1] - 1), habit.stop
    others = options.float()
    others[rows, usual] = 0.0
    forced = others.sum(dim=1) == 0
    others[forced, 0] = 1.0  # anything; it is not used
    other = torch.multinomial(others, 1, generator=random).squeeze(1)
    wanted = torch.rand(len(rows), generator=random) < probability
    return torch.where(forced | (wanted & options[rows, usual]), usual, other)
