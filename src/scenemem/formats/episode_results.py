"""What came out of every episode of a split: one JSON line each, beside the trajectories of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from scenemem.errors import DataError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.decoding import read_json_lines

Outcome = Literal["reached", "passed", "cut", "early", "astray"]
"""How an episode ended:

reached: nearer than 3 m to the goal
passed: it had been nearer than 3 m to the goal and went on
cut: cut off before it decided to stop
early: stopped on the way, with less than 3 m of detour behind it
astray: stopped somewhere else
"""

Amount = Annotated[float, msgspec.Meta(ge=0.0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class EpisodeResult(msgspec.Struct, frozen=True):
    """One episode: which weights walked it, what it asked for, what came out."""

    instr_id: str
    checkpoint: Literal["best", "last"]  # of the run
    iteration: Count  # of these weights
    outcome: Outcome
    words: Count  # of the instruction
    reference: Amount  # length of the reference path, metres
    hops: Count  # moves from one viewpoint to the next
    jumps: Count  # decisions to go back to another frontier
    tl: Amount  # the metrics, see docs/evaluation.md
    ne: Amount
    sr: Amount
    osr: Amount
    spl: Amount
    spl_ref: Amount
    cls: Amount
    ndtw: Amount
    sdtw: Amount


def read_episode_results(file: str | os.PathLike[str]) -> list[EpisodeResult]:
    """Read a file that ``write_episode_results`` wrote.

    Raises:
        DataError: the file is missing, empty, damaged or mixes the results of different weights.
    """
    results = [result for _, result in read_json_lines(file, EpisodeResult)]
    if not results:
        raise DataError(file, "holds no episode; evaluate the run again with 'scenemem eval'")
    weights = {(result.checkpoint, result.iteration) for result in results}
    if len(weights) > 1:
        raise DataError(file, "mixes results of different weights; evaluate the run again")
    return results


def write_episode_results(file: str | os.PathLike[str], results: Iterable[EpisodeResult]) -> None:
    """Write one line per episode; the file appears complete or not at all."""
    with atomic_file(file) as partial, partial.open("wb") as stream:
        for result in results:
            stream.write(msgspec.json.encode(result) + b"\n")
