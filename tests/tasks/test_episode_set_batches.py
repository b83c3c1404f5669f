"""Batches: every row once per epoch, the same order everywhere, resumable, and the same when sharded."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.errors import UserError
from scenemem.tasks.episode_set import Batches, in_order


def rows(batches: Batches, count: int) -> list[list[int]]:
    return [batch.tolist() for batch in islice(batches, count)]


@given(count=st.integers(1, 40), batch_size=st.integers(1, 50), seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_each_epoch_gives_every_row_once(count: int, batch_size: int, seed: int) -> None:
    batches = Batches(count, batch_size, seed)
    epochs = 3
    stream = [row for batch in rows(batches, -(-count * epochs // batch_size)) for row in batch]
    for epoch in range(epochs):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 30),
    before=st.integers(0, 9),
    seed=st.integers(0, 99),
    bucketed=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_resumed_stream_goes_on_as_if_nothing_happened(
    count: int, batch_size: int, before: int, seed: int, bucketed: bool
) -> None:
    lengths = torch.arange(count) % 7 if bucketed else None
    whole = Batches(count, batch_size, seed, lengths=lengths)
    rows(whole, before)
    resumed = Batches(count, batch_size, seed, lengths=lengths)
    resumed.load_state_dict(whole.state_dict())
    assert rows(resumed, 7) == rows(whole, 7)
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_shards_together_see_the_batches_of_one_process(world_size: int) -> None:
    whole = rows(Batches(20, 6, seed=3), 8)
    shards = [rows(Batches(20, 6, 3, rank=rank, world_size=world_size), 8) for rank in range(world_size)]
    for number, batch in enumerate(whole):
        merged = [0] * 6
        for rank in range(world_size):
            merged[rank::world_size] = shards[rank][number]
        assert merged == batch


def test_the_order_is_the_same_on_every_machine_and_differs_by_seed_and_epoch() -> None:
    before = torch.get_rng_state()
    assert rows(Batches(8, 8, 5), 2) == [[7, 1, 4, 3, 0, 5, 2, 6], [5, 6, 4, 1, 7, 2, 3, 0]]
    assert rows(Batches(50, 50, 1), 2) != rows(Batches(50, 50, 2), 2)
    assert torch.equal(torch.get_rng_state(), before)


REFUSED: dict[str, tuple[dict[str, int], dict[str, Any], str]] = {
    "no row": ({"count": 0}, {}, "there is no episode to make batches of"),
    "no batch": ({"batch_size": 0}, {}, "batch size must be a positive multiple of the 1 processes, got 0"),
    "uneven": ({"world_size": 3}, {}, "batch size must be a positive multiple of the 3 processes, got 4"),
    "rank": ({"rank": 2, "world_size": 2}, {}, "rank must be in 0..1, got 2"),
    "seed": ({}, {"seed": 9}, "the saved batches had seed 9, but this run has 0; resume with"),
    "count": ({}, {"count": 9}, "the saved batches had count 9, but this run has 8; resume with"),
    "position": ({}, {"position": 9}, "epoch 0, position 9 is not a place in 8 rows"),
    "epoch": ({}, {"epoch": -1}, "epoch -1, position 0 is not a place in 8 rows"),
    "version": ({}, {"extra": 1}, "the state of the batches holds .*extra.* saved by another version"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_batches_and_foreign_states_are_refused(case: str) -> None:
    arguments, saved, message = REFUSED[case]

    def make() -> None:
        batches = Batches(**{"count": 8, "batch_size": 4, "seed": 0, **arguments})  # type: ignore[arg-type]
        batches.load_state_dict({**batches.state_dict(), **saved})

    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("count", [10, 8, 2, 0])
def test_evaluation_sees_every_row_once_in_order_and_says_how_far_it_is(count: int) -> None:
    told: list[tuple[int, int]] = []
    batches = [rows.tolist() for rows in in_order(count, 4, lambda *seen: told.append(seen))]
    assert all(len(batch) <= 4 for batch in batches)
    assert [row for batch in batches for row in batch] == list(range(count))
    assert told == [(batch[-1] + 1, count) for batch in batches]


def test_rows_of_similar_length_come_together_and_nothing_is_lost() -> None:
    lengths = torch.arange(1000) * 7919 % 80

    def spread(batches: list[list[int]]) -> int:
        return sum(int(lengths[rows].max() - lengths[rows].min()) for rows in batches)

    bucketed = rows(Batches(1000, 10, seed=3, lengths=lengths), 100)
    assert spread(bucketed) < 0.2 * spread(rows(Batches(1000, 10, seed=3), 100))
    assert sorted(row for batch in bucketed for row in batch) == list(range(1000))
