"""The machine a benchmark runs on, and the threads torch may use there."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """Where the numbers come from."""

    system: str
    processor: str
    cpus: int
    threads: int  # that torch may use
    load: float | None  # processes that wanted a cpu in the minute before; None where unknown
    python: str
    torch: str


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def this_machine() -> Machine:
    """A description without names or places."""
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cpus=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        python=platform.python_version(),
        torch=str(torch.__version__),
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")
