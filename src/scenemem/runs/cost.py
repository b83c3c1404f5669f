"""What a training will cost on this device: measured on steps that are taken and then forgotten."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from itertools import chain

import torch

from scenemem.runs.loop import Learner, random_states, restore_randomness

WORTH_MEASURING = 100
"""Steps of a training from which on its cost is measured first."""

_DAY = 86_400  # seconds
_NUMBER = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """Of a whole training, validations not counted."""

    steps: int
    seconds: float  # per step
    memory: int  # bytes, the most this process has held so far
    disk: int  # bytes of the run folder, nearly all of it checkpoints

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, about {self.seconds:.2g} s each on this device: "
            f"{duration(self.steps * self.seconds)}; memory {_size(self.memory)}, disk {_size(self.disk)}"
        )


def measured_cost(trainer: Learner) -> Cost:
    """Take two steps, time the second, and undo both: training begins as if nothing had happened."""
    network, optimiser = trainer.network, trainer.optimiser
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    random, batches = random_states(trainer), trainer.batches.state_dict()
    trainer.step()
    begun = time.perf_counter()
    trainer.step()
    seconds = time.perf_counter() - begun
    numbers = sum(value.numel() for value in weights.values())
    kept = chain.from_iterable(state.values() for state in optimiser.state.values())
    moments = sum(value.numel() for value in kept if isinstance(value, torch.Tensor))

    network.load_state_dict(weights)
    optimiser.state.clear()
    optimiser.zero_grad(set_to_none=True)
    trainer.batches.load_state_dict(batches)
    trainer.iteration = 0
    restore_randomness(random, trainer)
    # the last checkpoint and the one before it hold the optimiser as well, the best one does not
    disk = _NUMBER * (2 * (numbers + moments) + numbers)
    return Cost(trainer.config.iterations, seconds, _memory(torch.device(trainer.group.device)), disk)


def duration(seconds: float) -> str:
    """A span of time for people: ``45 s``, ``12 min``, ``3 h 05 min``, ``26 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if seconds < 2 * _DAY else f"{seconds / _DAY:.0f} days"


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"
