"""Advice about threads follows what was measured."""

from __future__ import annotations

import pytest
import torch

from scenemem.learning import threads
from scenemem.learning.threads import cpu_share, speedup, thread_advice, usable_cpus


@pytest.fixture(autouse=True)
def quiet_machine_with_four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cpus", lambda: 4)
    monkeypatch.setattr(threads, "cpu_share", lambda: 1.0)
    monkeypatch.setattr(threads, "speedup", lambda count: count * 0.9)


def test_a_quiet_machine_needs_no_advice() -> None:
    assert thread_advice(1) is None
    assert thread_advice(4) is None


def test_more_threads_than_cpus() -> None:
    assert thread_advice(5) == "5 threads for 4 usable cpus slow each other down; use --threads 4"


def test_threads_that_are_slower_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "speedup", lambda count: 0.05 * count)
    assert thread_advice(2) == (
        "2 threads are 10.0 times slower than one, because another program is using the cpus; use --threads 1"
    )
    assert thread_advice(1) is None, "one thread is not compared with itself"


def test_a_shared_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cpu_share", lambda: 0.5)
    assert thread_advice(1) == (
        "this program gets only 50% of a cpu, because others are running; "
        "speeds will be lower than they could be"
    )


def test_measurements_are_what_they_say_and_give_the_threads_back() -> None:
    before = torch.get_num_threads()
    assert usable_cpus() >= 1
    assert 0 < cpu_share(0.001) <= 1.5, "two clocks, read one after the other"
    assert speedup(2, 0.001) > 0
    assert torch.get_num_threads() == before
