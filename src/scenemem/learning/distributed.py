"""Where and how training computes: the processes of a group, their devices, the precision of products.

A single process is a group of one. ``torchrun`` starts several: all draw the same random numbers and each
takes its share, so that training gives the same result as in one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scenemem.errors import UserError

Precision = Literal["full", "fast"]
"""Of matrix products."""

_SIZE, _PRODUCTS = 512, 5  # of the matrices that are timed, and how many


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
    """A device that this machine has."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UserError(f"`device={device!r}` is no device; use cpu or cuda") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"`device={device!r}`, but this machine has no such device; use `device='cpu'`")
    if kind not in ("cpu", "cuda"):
        raise UserError(f"`device={device!r}` is not supported (it lacks 64-bit numbers); use cpu or cuda")
    return device


@contextmanager
def process_group(device: str = "cpu") -> Iterator[ProcessGroup]:
    """The group ``torchrun`` started this process in; a group of one when it did not."""
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
            "another process of this run is gone; the last checkpoint is kept, continue with `resume=True`"
        ) from error
    else:
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def use_precision(precision: Precision, device: str, *, tried: bool = False) -> str | None:
    """Let products use TF32 or bfloat16 inside (``fast``), or not; weights and gradients stay as they are.

    A processor without units for bfloat16 converts every number and is slower, so it is tried first.

    A run that was begun with ``fast`` goes on with it: it is ``tried``.  ->  why ``fast`` is not used
    """
    torch.set_float32_matmul_precision("highest")
    if precision == "full":
        return None
    slower = 1.0 if tried or device != "cpu" else _seconds("medium") / _seconds("highest")
    if slower > 1.0:
        return f"--precision fast makes products {slower:.1f} times slower on this processor; full is used"
    torch.set_float32_matmul_precision("medium")
    return None


def _seconds(precision: str) -> float:
    """Of a square product, the fastest of some; the precision is full again afterwards."""
    matrix = torch.rand(_SIZE, _SIZE)
    torch.set_float32_matmul_precision(precision)
    try:
        taken = []
        for _ in range(_PRODUCTS + 1):  # the first one prepares
            begun = time.perf_counter()
            torch.mm(matrix, matrix)
            taken.append(time.perf_counter() - begun)
    finally:
        torch.set_float32_matmul_precision("highest")
    return min(taken[1:])
