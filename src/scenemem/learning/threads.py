"""Whether a number of torch threads pays on this machine right now."""

from __future__ import annotations

import os
import time

import torch

_SPIN_SECONDS = 0.05
_SIZE = 384  # of the products that are timed: long enough to be shared between threads
_BUSY = 0.8  # a thread that gets less of its cpu than this has company


def usable_cpus() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_share(seconds: float = _SPIN_SECONDS) -> float:
    """The share of a processor this thread gets when it wants all of it, by keeping it busy for a moment."""
    wall, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        pass
    return (time.thread_time() - used) / (time.perf_counter() - wall)


def speedup(threads: int, seconds: float = _SPIN_SECONDS) -> float:
    """How much faster matrix products are with ``threads`` threads than with one; may be far below 1."""
    before = torch.get_num_threads()
    try:
        one = _products_per_second(1, seconds)
        return _products_per_second(threads, seconds) / one
    finally:
        torch.set_num_threads(before)


def thread_advice(threads: int) -> str | None:
    """What to change about ``threads`` torch threads, in one sentence; None when they are fine.

    Takes a fraction of a second. Threads wait for each other after every product, so a single one that has to
    share its processor with another program slows all of them down.
    """
    cpus = usable_cpus()
    if threads > cpus:
        return f"{threads} threads for {cpus} usable cpus slow each other down; use --threads {cpus}"
    if threads > 1:
        gain = speedup(threads)
        if gain < 1:
            return (
                f"{threads} threads are {1 / gain:.1f} times slower than one, because another program is "
                "using the cpus; use --threads 1"
            )
    share = cpu_share()
    if share < _BUSY:
        return (
            f"this program gets only {share:.0%} of a cpu, because others are running; "
            "speeds will be lower than they could be"
        )
    return None


def _products_per_second(threads: int, seconds: float) -> float:
    torch.set_num_threads(threads)
    matrix = torch.rand(_SIZE, _SIZE)
    torch.mm(matrix, matrix)  # starts the threads
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        torch.mm(matrix, matrix)
        done += 1
    return done / (time.perf_counter() - begun)
