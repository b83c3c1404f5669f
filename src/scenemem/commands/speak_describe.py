"""``scenemem speak describe RUN``: put any path into words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from scenemem.commands.console import output, print_json, use_threads
from scenemem.commands.speak_eval import open_speaker
from scenemem.errors import UserError
from scenemem.evaluation.bleu import paths_of
from scenemem.speaking import Speaking
from scenemem.tasks.paths import shortest_paths
from scenemem.world.graph import NONE, World


@dataclass(frozen=True)
class Asked:
    """Paths to describe, and what people said about them where that is known."""

    path: Tensor  # (B, T) int64, padded with -1
    heading: Tensor  # (B,) radians
    references: tuple[tuple[str, ...], ...]


def speak_describe(
    run: Annotated[Path, tyro.conf.Positional],
    data: Path | None = None,
    *,
    path: str | None = None,
    scan: str | None = None,
    start: str | None = None,
    goal: str | None = None,
    heading: float | None = None,
    count: int | None = None,
    split: str = "val_unseen",
    seed: int = 0,
    beam: int = 1,
    checkpoint: Literal["best", "last"] = "best",
    threads: int = 1,
    json: bool = False,
) -> None:
    """Describe a path: one you list, the shortest one between two viewpoints, or some of a split.

    Args:
        run: the run folder of a speaker.
        data: the data folder; the embedded houses when left out.
        path: the viewpoints of a path, separated by commas.
        scan: where they are; only needed when their names occur in several scans.
        start: first viewpoint of a shortest path.
        goal: last viewpoint of a shortest path.
        heading: where the walker looks at the start, degrees clockwise from +y; along the path when left out.
        count: how many random paths of a split, shown beside what people said about them.
        split: where those come from.
        seed: chooses them.
        beam: texts kept at once in beam search; 1 takes the most likely word each time.
        checkpoint: the weights that did best on the run's selection split, or its last ones.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        json: print one JSON object instead of text.
    """
    use_threads(threads)
    if (path is not None) + (start is not None or goal is not None) + (count is not None) != 1:
        raise UserError("say what to describe: --path A,B,C or --start A --goal B or --count N")
    speaking = open_speaker(run, data, checkpoint)
    world = speaking.sight.world
    if count is not None:
        asked = _from_split(speaking, split, count, seed)
    elif path is not None:
        asked = _one(world, _viewpoints(world, scan, path.split(",")), heading)
    elif start is None or goal is None:
        raise UserError("a shortest path needs both ends: --start A --goal B")
    else:
        ends = _viewpoints(world, scan, [start, goal])
        asked = _one(world, shortest_paths(world, ends[:1], ends[1:])[0].squeeze(0), heading)
    descriptions = described(speaking, asked, beam)
    if json:
        print_json({"descriptions": descriptions})
    else:
        _show(descriptions)


def described(speaking: Speaking, asked: Asked, beams: int) -> list[dict[str, Any]]:
    """What ``--json`` prints about every path."""
    speaker, world = speaking.speaker, speaking.sight.world
    sayings = speaker.describe_best(asked.path, asked.heading, beams)
    columns = (
        asked.path.tolist(),
        asked.heading.tolist(),
        speaker.texts(sayings.tokens),
        sayings.log_likelihood.tolist(),
        asked.references,
    )
    return [
        {
            "scan": world.scans[int(world.scan_of[places[0]])],
            "path": [world.viewpoints[place] for place in places if place != NONE],
            "heading": heading,
            "text": text,
            "log_likelihood": log_likelihood,
            "references": references,
        }
        for places, heading, text, log_likelihood, references in zip(*columns, strict=True)
    ]


def _viewpoints(world: World, scan: str | None, names: list[str]) -> Tensor:
    """(T,) int64"""
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise UserError("the path is empty, expected viewpoints separated by commas")
    scan = _scan_of(world, names[0]) if scan is None else scan
    return torch.tensor([world.index_of(scan, name) for name in names], device=world.device)


def _scan_of(world: World, viewpoint: str) -> str:
    found = [int(world.scan_of[number]) for number, name in enumerate(world.viewpoints) if name == viewpoint]
    if not found:
        raise UserError(f"no scan has an included viewpoint '{viewpoint}'")
    if len(found) > 1:
        names = ", ".join(world.scans[number] for number in found)
        raise UserError(f"several scans have a viewpoint '{viewpoint}' ({names}); name one with --scan")
    return world.scans[found[0]]


def _one(world: World, path: Tensor, degrees: float | None) -> Asked:
    """path: (T,); without a heading the walker looks where it will go"""
    if degrees is not None:
        heading = torch.tensor(math.radians(degrees), dtype=torch.float64)
    elif len(path) > 1:
        slot = world.slot_of(path[0], path[1])
        heading = world.neighbour_heading[path[0], slot.clamp_min(0)].double()
    else:
        heading = torch.zeros((), dtype=torch.float64)
    return Asked(path.unsqueeze(0), heading.unsqueeze(0).to(path.device), ((),))


def _from_split(speaking: Speaking, split: str, count: int, seed: int) -> Asked:
    paths = paths_of(speaking.episodes(split))
    if not 1 <= count <= len(paths):
        raise UserError(f"--count must be in 1..{len(paths)}, the paths of {split}, got {count}")
    rows = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:count]
    references = tuple(paths.references[row] for row in rows.tolist())
    return Asked(paths.episodes.path[rows], paths.episodes.heading[rows], references)


def _show(descriptions: list[dict[str, Any]]) -> None:
    for entry in descriptions:
        output.print(f"[dim]{entry['scan']}, {len(entry['path'])} viewpoints[/]", highlight=False)
        output.print(entry["text"], markup=False, highlight=False, soft_wrap=True)
        for text in entry["references"]:
            output.print(f"    people: {text.strip()}", markup=False, highlight=False, soft_wrap=True)
