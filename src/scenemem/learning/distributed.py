"""The processes that train one agent together; a single process is a group of one.

Started by ``torchrun``. All processes draw the same random numbers and each takes its share, so that training
gives the same result as in one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scenemem.errors import UserError


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those of its group."""

    rank: int = 0
    """rank of this process"""
    size: int = 1
    """number of processes"""
    device: str = "cpu"
    """where this process computes"""

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """The rows that are this process's, every ``size``-th.  (G, ...)  ->  (G / size, ...)"""
        return rows[self.rank :: self.size]

    def mean(self, value: float) -> float:
        """The mean over all processes."""
        if self.size == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return float(total) / self.size

    def means(self, values: Mapping[str, float]) -> dict[str, float]:
        """The mean of every value over all processes."""
        return {name: self.mean(value) for name, value in values.items()}

    def any(self, value: bool) -> bool:
        """Whether it is true in any process."""
        return self.mean(float(value)) > 0.0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over the group."""
        if self.size == 1:
            return module
        # a stage without samples leaves the critic out, a batch without choices the frontier scores
        return DistributedDataParallel(module, find_unused_parameters=True)


SINGLE = ProcessGroup()
"""A process on its own."""


def check_device(device: str) -> str:
    """A device that this machine has.

    Raises:
        UserError: there is no such device.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UserError(f"--device {device} is no device; use cpu or cuda") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {device}, but this machine has no such device; use --device cpu")
    if kind not in ("cpu", "cuda"):
        raise UserError(f"--device {device} is not supported (it lacks 64-bit numbers); use cpu or cuda")
    return device


@contextmanager
def process_group(device: str = "cpu") -> Iterator[ProcessGroup]:
    """The group ``torchrun`` started this process in; a group of one when it did not.

    Args:
        device: ``cpu``, or ``cuda`` for one graphics card per process.

    Raises:
        UserError: the device is not there, or another process of the group is gone.
    """
    check_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ProcessGroup(device=device)
        return
    local = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    if local.startswith("cuda"):
        torch.cuda.set_device(local)  # first: NCCL would put every process on card 0
    distributed.init_process_group("nccl" if local.startswith("cuda") else "gloo")
    group = ProcessGroup(distributed.get_rank(), size, local)
    try:
        yield group
    except RuntimeError as error:
        if "peer" not in str(error).lower() and not isinstance(error, distributed.DistBackendError):
            raise
        raise UserError(
            "another process of this run is gone; the last checkpoint is kept, continue with --resume"
        ) from error
    else:
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
