"""How a trace opens: the instruction word by word, and the building as places on floors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scenemem.formats.traces import Place, Scene, Task, Word
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary, split_words
from scenemem.world.graph import FULL_TURN
from scenemem.world.graph import NONE, World

_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
_MARKS = 2  # the begin and the end mark an agent reads besides the words
_LEVEL = 0.6  # metres; viewpoints this close in height make one floor
_STOREY = 1.8  # metres; floors are at least this far apart
_LEAST = 0.05  # share of the viewpoints a floor has; fewer are stairs or landings


def compass(heading: float) -> str:
    """A heading in words; radians clockwise from north."""
    return _WINDS[round(heading / (FULL_TURN / len(_WINDS))) % len(_WINDS)]


def open_task(world: World, episodes: EpisodeSet, row: int, vocabulary: Vocabulary, max_words: int) -> Task:
    """What one episode asks for."""
    goal, length = int(episodes.goal[row]), int(episodes.path_length[row])
    path = episodes.path[row, :length]
    return Task(
        split=episodes.name,
        instruction_id=episodes.instruction_ids[row],
        text=episodes.texts[row],
        words=_words(episodes.texts[row], vocabulary, max_words),
        start=int(world.local[episodes.start[row]]),
        goal=None if goal == NONE else int(world.local[goal]),
        reference=() if goal == NONE else tuple(world.local[path].tolist()),
    )


def open_scene(world: World, scan: int, goal: int) -> Scene:
    """All viewpoints of a scan and how far each is from the goal (a viewpoint, or -1)."""
    viewpoints = (world.scan_of == scan).nonzero().squeeze(1)
    position = world.position[viewpoints].cpu()
    heights, floors = _floors(position[:, 2])
    left: list[float | None] = [None] * len(viewpoints)
    if goal != NONE:
        metres = world.geodesic(viewpoints, torch.tensor(goal, device=world.device)).tolist()
        left = [round(value, 3) if math.isfinite(value) else None for value in metres]
    return Scene(
        scan=world.scans[scan],
        floors=tuple(round(height, 3) for height in heights),
        places=tuple(
            Place(world.viewpoints[number], round(x, 3), round(y, 3), round(z, 3), floor, to_goal)
            for number, (x, y, z), floor, to_goal in zip(
                viewpoints.tolist(), position.tolist(), floors, left, strict=True
            )
        ),
        edges=_edges(world, viewpoints),
    )


def _edges(world: World, viewpoints: Tensor) -> tuple[tuple[int, int], ...]:
    neighbour = world.neighbour[viewpoints]
    place, slot = (neighbour != NONE).nonzero().unbind(1)
    there = world.local[neighbour[place, slot]]
    forward = place < there
    return tuple(zip(place[forward].tolist(), there[forward].tolist(), strict=True))


def _words(text: str, vocabulary: Vocabulary, max_words: int) -> tuple[Word, ...]:
    """The words an agent reads, as they stand in the text."""
    known, end = set(vocabulary.words), 0
    words: list[Word] = []
    lowered = text.lower().replace("\n", " ")
    aligned = len(lowered) == len(text)  # a few capitals have longer small letters
    for word in split_words(text)[: max_words - _MARKS]:
        begin = lowered.find(word, end) if aligned else NONE
        if begin == NONE:
            words.append(Word(word, " " if words else "", word in known))
        else:
            words.append(Word(text[begin : begin + len(word)], text[end:begin], word in known))
            end = begin + len(word)
    return tuple(words)


def _floors(height: Tensor) -> tuple[list[float], list[int]]:
    """Group viewpoints by height: the fullest levels first, every viewpoint to the nearest level.

    height: (V,) metres  ->  heights of the floors, lowest first; floor of every viewpoint
    """
    waiting, levels = height, list[float]()
    while len(waiting):
        company = ((waiting.unsqueeze(1) - waiting).abs() < _LEVEL / 2).sum(dim=1)
        fullest = int(company.argmax())
        if levels and int(company[fullest]) < max(2, _LEAST * len(height)):
            break
        levels.append(float(waiting[(waiting - waiting[fullest]).abs() < _LEVEL / 2].mean()))
        waiting = waiting[(waiting - levels[-1]).abs() >= _STOREY]
    levels.sort()
    return levels, _nearest(levels, height)


def _nearest(levels: Sequence[float], height: Tensor) -> list[int]:
    gaps = (height.unsqueeze(1) - torch.tensor(levels, dtype=height.dtype)).abs()
    return [int(floor) for floor in gaps.argmin(dim=1)]
