"""Splits as tensors: one row per instruction, bound to the viewpoints of a world; batches of rows."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.connectivity import SUFFIX
from scenemem.formats.episodes import EpisodeRecord, read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.world.build import Progress
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

    def row_of(self, instruction_id: str) -> int:
        """The row of an instruction."""
        if instruction_id not in self._rows:
            seen = f"'{self.name}' has no instruction '{instruction_id}'"
            raise UserError(f"{seen}; its ids look like '{self.instruction_ids[0]}'")
        return self._rows[instruction_id]

    def restrict(self, scans: Collection[str]) -> EpisodeSet:
        """The rows that lie in the given scans."""
        chosen = scan_mask(self.scans, scans).to(self.scan.device)
        return self.select(chosen[self.scan].nonzero().squeeze(1))

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {instruction_id: row for row, instruction_id in enumerate(self.instruction_ids)}

    def _tensors(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Episode:
    """An instruction and the path it describes."""

    id: str
    text: str
    scan: str  # the building
    start: str  # viewpoint
    heading: float  # at the start, radians, clockwise from +y
    path: tuple[str, ...]  # viewpoints of the reference path; only the start where the goal is secret

    @property
    def goal(self) -> str | None:
        """The last viewpoint of the reference path; None where it is secret."""
        return self.path[-1] if len(self.path) > 1 else None


class EpisodeList(tuple[Episode, ...]):
    """The episodes of a split, which are also found by their ids."""

    name: str

    @classmethod
    def of(cls, world: World, bound: EpisodeSet) -> EpisodeList:
        """The episodes of a set."""
        columns = (bound.scan.tolist(), bound.start.tolist(), bound.heading.tolist(), bound.path.tolist())
        rows = zip(bound.instruction_ids, bound.texts, *columns, strict=True)
        found = cls(
            Episode(
                name,
                text,
                bound.scans[scan],
                world.viewpoints[start],
                heading,
                tuple(world.viewpoints[viewpoint] for viewpoint in path if viewpoint != NONE),
            )
            for name, text, scan, start, heading, path in rows
        )
        found.name = bound.name
        return found

    def get(self, episode_id: str) -> Episode:
        """The episode of an instruction id."""
        for episode in self:
            if episode.id == episode_id:
                return episode
        like = f"; its ids look like '{self[0].id}'" if self else ""
        raise UserError(f"'{self.name}' has no instruction '{episode_id}'{like}")

    def __repr__(self) -> str:
        return f"EpisodeList('{self.name}', {len(self)} episodes)"


def load_split(folder: DataFolder, world: World, task: str, split: str) -> EpisodeSet:
    """The episodes of one split, e.g. ``load_split(folder, world, "r2r", "val_unseen")``.

    Those in buildings of the folder that the world leaves out are left out, with a warning.
    """
    file = folder.episodes(task, split)
    if not file.is_file() and task == "r4r":
        raise DataError(file, "no such file; write R4R from R2R with 'scenemem data r4r'")
    episodes = read_episodes(file)
    scans = {episode.scan for episode in episodes} - set(world.scans)
    elsewhere = {scan for scan in scans if (folder.connectivity / f"{scan}{SUFFIX}").is_file()}
    within = [episode for episode in episodes if episode.scan not in elsewhere]
    if not within:
        seen = f"all of its {len(episodes):,} paths lie in buildings without features"
        advice = "choose another `split` (in training `selection.split='dev_unseen'`)"
        raise DataError(file, f"{seen}; {advice}, or convert features of these buildings")
    if elsewhere:
        used = f"{len(within):,} of {len(episodes):,} paths are used"
        warnings.warn(f"{file}: {used}; the others lie in buildings without features", stacklevel=2)
    return bind_episodes(world, within, file, name=f"{task} {split}")


def bind_episodes(world: World, episodes: Sequence[EpisodeRecord], file: StrPath, *, name: str) -> EpisodeSet:
    """Episodes as tensors over the viewpoints of ``world``; ``file`` only names the place in errors.

    Raises:
        DataError: a scan or viewpoint is unknown, a path goes over an edge that does not exist, or a start is
            cut off from everything.
    """
    path, length = bind_paths(world, episodes, file)
    start = path[:, 0]
    last = path.gather(1, (length - 1).unsqueeze(1)).squeeze(1)
    # test splits give away nothing but the start, in every record
    told = length > 1
    if bool(told.any()) and not bool(told.all()):
        number = int((~told).nonzero()[0, 0])
        reason = "its path is only a start, but other records show their goals; a split shows all or none"
        raise _misfit(file, episodes, number, "path", reason)
    goal = last if bool(told.any()) else torch.full_like(last, NONE)
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


def bind_paths(world: World, episodes: Sequence[EpisodeRecord], file: StrPath) -> tuple[Tensor, Tensor]:
    """The paths of E episodes  ->  viewpoints (E, L) int64 padded with -1, viewpoints per path (E,) int64

    Arguments and errors as ``bind_episodes``.
    """
    paths = [torch.tensor(_viewpoints(world, episodes, number, file)) for number in range(len(episodes))]
    path = pad_sequence(paths, batch_first=True, padding_value=NONE).to(world.device)
    _check_steps(world, path, episodes, file)
    return path, (path != NONE).sum(1)


def held_out_scans(scans: Iterable[str]) -> tuple[str, ...]:
    """The scans that form ``dev_unseen``, chosen by the hash of their names."""
    names = sorted(set(scans), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    if len(names) < 2:
        advice = "select checkpoints on another split with `selection.split`"
        raise UserError(f"there is only {len(names)} training scan, so none can be held out; {advice}")
    return tuple(sorted(names[: max(1, round(len(names) * HELD_OUT_SHARE))]))


def split_off(episodes: EpisodeSet) -> tuple[EpisodeSet, EpisodeSet]:
    """The training episodes without, and only in, the held-out scans."""
    scans = [episodes.scans[number] for number in sorted(set(episodes.scan.tolist()))]
    held_out = held_out_scans(scans)
    return episodes.restrict(set(scans) - set(held_out)), episodes.restrict(held_out)


def _viewpoints(world: World, episodes: Sequence[EpisodeRecord], number: int, file: StrPath) -> list[int]:
    """The path of an episode as global viewpoint indices."""
    indices, scan = [], episodes[number].scan
    for step, viewpoint in enumerate(episodes[number].path):
        try:
            indices.append(world.index_of(scan, viewpoint))
        except UserError as error:
            field = f"path[{step}]" if scan in world.scans else "scan"
            raise _misfit(file, episodes, number, field, str(error)) from error
    return indices


def _check_steps(world: World, path: Tensor, episodes: Sequence[EpisodeRecord], file: StrPath) -> None:
    """path: (E, L), padded with -1"""
    isolated = ~world.neighbour_mask[path[:, 0]].any(1)
    if isolated.any():
        number = int(isolated.nonzero()[0, 0])
        reason = f"the start '{episodes[number].path[0]}' has no neighbour, so no way leads anywhere"
        raise _misfit(file, episodes, number, "path[0]", reason)
    here, there = path[:, :-1].clamp_min(0), path[:, 1:]
    missing = (world.slot_of(here, there) == NONE) & (there != NONE)
    if missing.any():
        number, step = (int(value) for value in missing.nonzero()[0])
        here_id, there_id = episodes[number].path[step : step + 2]
        reason = f"the path goes from '{here_id}' to '{there_id}', but there is no edge between the two"
        raise _misfit(file, episodes, number, f"path[{step + 1}]", reason)


def _misfit(
    file: StrPath, episodes: Sequence[EpisodeRecord], number: int, field: str, reason: str
) -> DataError:
    record = f"record {number} (path_id {episodes[number].path_id})"
    return DataError(file, reason, record=record, field=field)


_STRETCH = 32  # batches that are sorted by length together


class Batches:
    """An endless stream of row numbers: one shuffled pass over all rows (an epoch) after the other.

    Every batch is full; one that reaches the end of an epoch takes the rest from the next. The order depends
    on the seed and the epoch alone, so position and epoch are all there is to remember. Of ``world_size``
    shards, ``rank`` gets rows rank, rank + world_size, ... of each batch.

    With ``lengths`` (count,), e.g. words of instructions, rows of similar length come together, which saves
    padding: stretches of the shuffled order are sorted and cut into batches, which are shuffled again.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        *,
        lengths: Tensor | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if count < 1:
            raise UserError("there is no episode to make batches of; is the split empty?")
        if batch_size < 1 or batch_size % world_size:
            expected = f"a positive multiple of the {world_size} processes"
            raise UserError(f"batch size must be {expected}, got {batch_size}")
        if not 0 <= rank < world_size:
            raise UserError(f"rank must be in 0..{world_size - 1}, got {rank}")
        self.count = count
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0  # which pass over the rows
        self.position = 0  # rows of this pass already given out
        self._lengths = lengths
        self._order = self._ordered(0)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        """The next batch of this shard  ->  (batch_size / world_size,) int64"""
        parts, wanted = [], self.batch_size
        while wanted:
            if self.position == self.count:
                self._go_to(self.epoch + 1, 0)
            part = self._order[self.position : self.position + wanted]
            self._go_to(self.epoch, self.position + len(part))
            parts.append(part)
            wanted -= len(part)
        return torch.cat(parts)[self.rank :: self.world_size]

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands; the same on every shard."""
        return {"count": self.count, "seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where ``state_dict`` was taken."""
        expected = self.state_dict()
        if state.keys() != expected.keys():
            seen = f"the state of the batches holds {sorted(state)}, expected {sorted(expected)}"
            raise UserError(f"{seen}; it was saved by another version")
        for name in ("count", "seed"):
            if state[name] != expected[name]:
                seen = f"the saved batches had {name} {state[name]}, but this run has {expected[name]}"
                raise UserError(f"{seen}; resume with the data and the seed the run was started with")
        epoch, position = state["epoch"], state["position"]
        if not (epoch >= 0 and 0 <= position <= self.count):
            raise UserError(f"epoch {epoch}, position {position} is not a place in {self.count} rows")
        self._go_to(epoch, position)

    def _ordered(self, epoch: int) -> Tensor:
        """The rows of one pass, in the order they are given out  ->  (count,)"""
        mixed = int(np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(mixed)
        order = torch.randperm(self.count, generator=generator)
        if self._lengths is None:
            return order
        stretches = torch.split(order, _STRETCH * self.batch_size)
        rows = torch.cat([rows[self._lengths[rows].argsort(stable=True)] for rows in stretches])
        whole = self.count // self.batch_size * self.batch_size
        batches = rows[:whole].view(-1, self.batch_size)
        shuffled = batches[torch.randperm(len(batches), generator=generator)]
        return torch.cat([shuffled.flatten(), rows[whole:]])

    def _go_to(self, epoch: int, position: int) -> None:
        if epoch != self.epoch:
            self._order = self._ordered(epoch)
        self.epoch = epoch
        self.position = position


def in_order(count: int, batch_size: int, progress: Progress | None = None) -> Iterator[Tensor]:
    """All rows once, in order, for evaluation; the last batch may be short.  ->  (<= batch_size,) int64

    After every batch ``progress`` is called with (rows done, rows in all).
    """
    for first in range(0, count, batch_size):
        end = min(first + batch_size, count)
        yield torch.arange(first, end)
        if progress is not None:
            progress(end, count)
