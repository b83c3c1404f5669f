"""The mode of a network: learning, when parts of what it knows are dropped, or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside its block nothing is dropped; afterwards the network is as it was."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
