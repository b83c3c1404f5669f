"""Networks that only walk or judge for a while, in the midst of learning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside its block nothing is dropped; afterwards, whatever happened, the network is back in its mode."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
