"""A split as tensors: one row per instruction, bound to the global viewpoint index of a world."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.episodes import Episode, read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.world.graph import NONE, World, scan_mask

SUCCESS_METRES = 3.0
"""An agent that stops closer to the goal than this has succeeded."""

HELD_OUT_SHARE = 8 / 61
"""Eight of the 61 R2R training buildings are held out, and as large a share elsewhere."""


@dataclass(frozen=True, eq=False)
class EpisodeSet:
    """What has to be done in a split; N instructions, L viewpoints of the longest reference path."""

    name: str  # for people, e.g. "r2r train"
    scans: tuple[str, ...]  # all scans of the world, to be indexed with ``scan``
    instruction_ids: tuple[str, ...]
    texts: tuple[str, ...]
    record: Tensor  # (N,) int64, which record of the file; instructions of one path share it
    scan: Tensor  # (N,) int64
    start: Tensor  # (N,) int64, viewpoint
    goal: Tensor  # (N,) int64, viewpoint; -1 where it is kept secret (test splits)
    heading: Tensor  # (N,) float64, at the start, radians, clockwise from +y
    path: Tensor  # (N, L) int64, reference path, padded with -1
    path_length: Tensor  # (N,) int64, viewpoints of the reference path

    def __len__(self) -> int:
        return len(self.instruction_ids)

    @property
    def has_goals(self) -> bool:
        """Whether every goal is known."""
        return bool((self.goal != NONE).all())

    def to(self, device: torch.device | str) -> EpisodeSet:
        """The same episodes on another device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def select(self, rows: Tensor | Sequence[int]) -> EpisodeSet:
        """The given rows, in the given order."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device=self.start.device)
        numbers = rows.tolist()
        return replace(
            self,
            instruction_ids=tuple(self.instruction_ids[number] for number in numbers),
            texts=tuple(self.texts[number] for number in numbers),
            **{name: tensor[rows] for name, tensor in self._tensors().items()},
        )

    def restrict(self, scans: Collection[str]) -> EpisodeSet:
        """The rows that lie in the given scans.

        Raises:
            UserError: the world has no such scan.
        """
        chosen = scan_mask(self.scans, scans).to(self.scan.device)
        return self.select(chosen[self.scan].nonzero().squeeze(1))

    def _tensors(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def load_split(folder: DataFolder, world: World, task: str, split: str) -> EpisodeSet:
    """The episodes of one split, e.g. ``load_split(folder, world, "r2r", "val_unseen")``.

    Raises:
        DataError: the file is missing, is not an episode file or does not fit the world.
    """
    file = folder.episodes(task, split)
    if not file.is_file() and task == "r4r":
        raise DataError(file, "no such file; write R4R from R2R with 'scenemem data r4r'")
    return bind_episodes(world, read_episodes(file), file, name=f"{task} {split}")


def bind_episodes(world: World, episodes: Sequence[Episode], file: StrPath, *, name: str) -> EpisodeSet:
    """Episodes as tensors over the viewpoints of ``world``; ``file`` only names the place in errors.

    Raises:
        DataError: a scan or viewpoint is unknown, a path goes over an edge that does not exist, or a start is
            cut off from everything.
    """
    path, length = bind_paths(world, episodes, file)
    start = path[:, 0]
    last = path.gather(1, (length - 1).unsqueeze(1)).squeeze(1)
    # test splits give away nothing but the start, in every record
    goal = last if bool((length > 1).any()) else torch.full_like(last, NONE)
    texts_per_record = torch.tensor([len(episode.instructions) for episode in episodes], device=world.device)
    row = torch.repeat_interleave(texts_per_record)
    heading = torch.tensor([episode.heading for episode in episodes], dtype=torch.float64)
    return EpisodeSet(
        name=name,
        scans=world.scans,
        instruction_ids=tuple(text_id for episode in episodes for text_id in episode.instruction_ids),
        texts=tuple(text for episode in episodes for text in episode.instructions),
        record=row,
        scan=world.scan_of[start][row],
        start=start[row],
        goal=goal[row],
        heading=heading.to(world.position)[row],
        path=path[row],
        path_length=length[row],
    )


def bind_paths(world: World, episodes: Sequence[Episode], file: StrPath) -> tuple[Tensor, Tensor]:
    """The paths of E episodes  ->  viewpoints (E, L) int64 padded with -1, viewpoints per path (E,) int64

    Arguments and errors as ``bind_episodes``.
    """
    paths = [
        torch.tensor(_viewpoints(world, episode, number, file)) for number, episode in enumerate(episodes)
    ]
    path = pad_sequence(paths, batch_first=True, padding_value=NONE).to(world.device)
    _check_steps(world, path, episodes, file)
    return path, (path != NONE).sum(1)


def held_out_scans(scans: Iterable[str]) -> tuple[str, ...]:
    """The scans that form ``dev_unseen``, chosen by the hash of their names: everyone gets the same."""
    names = sorted(set(scans), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    if len(names) < 2:
        advice = "select checkpoints on another split with --selection.split"
        raise UserError(f"there is only {len(names)} training scan, so none can be held out; {advice}")
    return tuple(sorted(names[: max(1, round(len(names) * HELD_OUT_SHARE))]))


def split_off(episodes: EpisodeSet) -> tuple[EpisodeSet, EpisodeSet]:
    """The training episodes without, and only in, the held-out scans."""
    scans = [episodes.scans[number] for number in sorted(set(episodes.scan.tolist()))]
    held_out = held_out_scans(scans)
    return episodes.restrict(set(scans) - set(held_out)), episodes.restrict(held_out)


def _viewpoints(world: World, episode: Episode, number: int, file: StrPath) -> list[int]:
    """The path of an episode as global viewpoint indices."""
    indices: list[int] = []
    for step, viewpoint in enumerate(episode.path):
        try:
            indices.append(world.index_of(episode.scan, viewpoint))
        except UserError as error:
            field = f"path[{step}]" if episode.scan in world.scans else "scan"
            raise DataError(file, str(error), record=_place(episode, number), field=field) from error
    return indices


def _check_steps(world: World, path: Tensor, episodes: Sequence[Episode], file: StrPath) -> None:
    """path: (E, L), padded with -1"""
    isolated = ~world.neighbour_mask[path[:, 0]].any(1)
    if isolated.any():
        number = int(isolated.nonzero()[0, 0])
        reason = f"the start '{episodes[number].path[0]}' has no neighbour, so no way leads anywhere"
        raise DataError(file, reason, record=_place(episodes[number], number), field="path[0]")
    here, there = path[:, :-1].clamp_min(0), path[:, 1:]
    missing = (world.slot_of(here, there) == NONE) & (there != NONE)
    if missing.any():
        number, step = (int(value) for value in missing.nonzero()[0])
        here_id, there_id = episodes[number].path[step : step + 2]
        reason = f"the path goes from '{here_id}' to '{there_id}', but there is no edge between the two"
        raise DataError(file, reason, record=_place(episodes[number], number), field=f"path[{step + 1}]")


def _place(episode: Episode, number: int) -> str:
    return f"record {number} (path_id {episode.path_id})"
