"""How every episode of a split ended: its metrics, and if it failed, where.

Shape letters: N episodes.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import torch
from torch import Tensor

from scenemem.evaluation.evaluate import Walked
from scenemem.evaluation.metrics import Metrics, collapse_repeats, last_viewpoint, path_length
from scenemem.formats.results import EpisodeResult, Outcome
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.tasks.vocabulary import split_words
from scenemem.world.graph import NONE, World


def episode_results(
    world: World,
    walked: Walked,
    *,
    checkpoint: Literal["best", "last"],
    iteration: int,
) -> list[EpisodeResult]:
    """The outcome of every walk, in the order of the episodes; goals must be known."""
    metrics, episodes = walked.measured(world), walked.episodes
    columns: dict[str, list[float]] = {
        field.name: getattr(metrics, field.name).tolist() for field in fields(Metrics)
    }
    columns["reference"] = path_length(world, episodes.path).tolist()
    columns["hops"] = ((collapse_repeats(walked.viewpoint) != NONE).sum(1) - 1).tolist()
    columns["jumps"] = walked.jumps.tolist()
    return [
        EpisodeResult(
            instr_id=name,
            checkpoint=checkpoint,
            iteration=iteration,
            outcome=outcome,
            words=len(split_words(text)),
            **dict(zip(columns, values, strict=True)),
        )
        for name, text, outcome, *values in zip(
            episodes.instruction_ids,
            episodes.texts,
            _outcomes(world, walked, metrics),
            *columns.values(),
            strict=True,
        )
    ]


def _outcomes(world: World, walked: Walked, metrics: Metrics) -> list[Outcome]:
    start, goal = walked.episodes.start, walked.episodes.goal
    end = last_viewpoint(walked.viewpoint)
    detour = world.geodesic(start, end) + metrics.ne - world.geodesic(start, goal)
    # the first of these that holds
    tests: dict[Outcome, Tensor] = {
        "reached": metrics.sr > 0,
        "passed": metrics.osr > 0,
        "cut": ~walked.stopped,
        "early": detour < SUCCESS_METRES,
        "astray": torch.ones_like(walked.stopped),
    }
    names = list(tests)
    first = torch.stack(list(tests.values()), dim=1).int().argmax(dim=1)
    return [names[number] for number in first.tolist()]
