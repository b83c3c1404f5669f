"""Which episodes are worth watching, and how each came out in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

import torch
from torch import Tensor

from scenemem.evaluation.evaluate import Walked
from scenemem.formats.traces import Trace
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.world.graph import World

Story = Literal["fixed", "wrong stop", "lost"]

TITLES: dict[Story, str] = {
    "fixed": "Turned back and arrived",
    "wrong stop": "Was there and did not stop",
    "lost": "Got lost",
}


@dataclass(frozen=True)
class Chosen:
    """An episode to show."""

    row: int  # of the split
    story: Story


def instructive(walked: Walked, world: World, count: int, rival: Walked | None = None) -> list[Chosen]:
    """Up to ``count`` telling episodes: mended by turning back, stopped in the wrong place, lost.

    The three kinds take turns, each with its plainest case first: the shortest way after one single return,
    the farthest stop from a goal that had been reached, the farthest end. With a ``rival`` on the same
    episodes those come first where the two came out differently. No route is shown twice.
    """
    scores = walked.measured(world)
    arrived, passed = scores.sr > 0, scores.osr > 0
    returned = walked.jumps > 0
    differ = torch.zeros_like(arrived) if rival is None else arrived != (rival.measured(world).sr > 0)
    kinds: dict[Story, tuple[Tensor, Tensor]] = {  # who, and how telling
        "fixed": (arrived & returned, scores.spl - walked.jumps),
        "wrong stop": (~arrived & passed, scores.ne),
        "lost": (~arrived & ~passed, scores.ne),
    }
    ranked = [
        [Chosen(row, story) for row in _ranked(who, telling + 1e4 * differ, walked)]
        for story, (who, telling) in kinds.items()
    ]
    return [chosen for chosen in chain(*zip_longest(*ranked)) if chosen is not None][:count]


def _ranked(who: Tensor, telling: Tensor, walked: Walked) -> list[int]:
    """Rows of ``who`` (N,), the most telling first, one per route."""
    order = telling.masked_fill(~who, -torch.inf).argsort(descending=True, stable=True)
    routes: dict[int, int] = {}
    for row in order[: int(who.sum())].tolist():
        routes.setdefault(int(walked.episodes.record[row]), row)
    return list(routes.values())


def headline(trace: Trace) -> str:
    """How an episode came out, in a few words."""
    ending = trace.ending
    if ending is None or ending.to_goal is None or ending.scores is None:
        return "On its way" if ending is None else "Walked to an unknown goal"
    if ending.to_goal < SUCCESS_METRES:
        returned = any(turn.back_to is not None for turn in trace.rounds)
        return TITLES["fixed"] if returned else "Arrived"
    if ending.scores.osr > 0:
        return TITLES["wrong stop"]
    return TITLES["lost"] if ending.stopped else "Ran out of rounds"
