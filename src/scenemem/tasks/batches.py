"""Which rows are trained on next: seeded, the same on every machine, resumable and shardable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from scenemem.errors import UserError

_STRETCH = 32  # batches that are sorted by length together


class Batches:
    """An endless stream of row numbers: one shuffled pass over all rows (an epoch) after the other.

    Every batch is full; one that reaches the end of an epoch takes the rest from the next. The order depends
    on the seed and the epoch alone, so position and epoch are all there is to remember.

    With ``lengths`` rows of similar length come together, which saves padding: stretches of the shuffled
    order are sorted by length and cut into batches, and the batches are shuffled again.

    Args:
        count: number of rows.
        batch_size: rows per batch over all shards.
        seed: chooses the order.
        lengths: (count,) of the rows, e.g. words of their instructions; None mixes all lengths.
        rank: which shard this is; shard r gets rows r, r + world_size, ... of each batch.
        world_size: number of shards.
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
        """Continue where ``state_dict`` was taken.

        Raises:
            UserError: the state belongs to another number of rows or another seed, or is no such state.
        """
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
        return _similar_together(order, self._lengths, self.batch_size, generator)

    def _go_to(self, epoch: int, position: int) -> None:
        if epoch != self.epoch:
            self._order = self._ordered(epoch)
        self.epoch = epoch
        self.position = position


def in_order(count: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
    """All rows once, in order, for evaluation; the last batch may be short.  ->  (<= batch_size,) int64

    With several shards each row goes to exactly one of them.
    """
    rows = torch.arange(rank, count, world_size) if rank < count else torch.empty(0, dtype=torch.int64)
    return (rows[first : first + batch_size] for first in range(0, len(rows), batch_size))


def _similar_together(order: Tensor, lengths: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
    """order: (count,)  ->  the same rows, batches of similar length in random order, a short one last"""
    stretches = torch.split(order, _STRETCH * batch_size)
    sorted_rows = torch.cat([rows[lengths[rows].argsort(stable=True)] for rows in stretches])
    whole = len(sorted_rows) // batch_size * batch_size
    batches = sorted_rows[:whole].view(-1, batch_size)
    mixed = batches[torch.randperm(len(batches), generator=generator)]
    return torch.cat([mixed.flatten(), sorted_rows[whole:]])
