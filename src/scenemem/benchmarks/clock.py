"""The clock of all benchmarks of agents."""

from __future__ import annotations

import time

import torch


def now() -> float:
    """Seconds: processor time of this program when torch uses one thread, wall time otherwise.

    On a quiet machine both are the same for one thread. On a busy one, processor time does not count the
    moments in which another program had the processor.
    """
    return time.process_time() if clock_is_processor_time() else time.perf_counter()


def clock_is_processor_time() -> bool:
    """Whether ``now`` counts processor time."""
    return torch.get_num_threads() == 1
