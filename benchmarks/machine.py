"""The machine a benchmark runs on, the flags all benchmarks share, and the report they print."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import tyro
from rich.console import Console
from rich.table import Table

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import DataFolder
from scenemem.runs.experiment import open_data

MEGABYTE, GIGA = 1e6, 1e9
SQUARE = 1024
"""Rows and columns of the matrix product whose speed is taken as the speed of the machine."""
_LONG_ENOUGH = 0.015  # seconds a product is measured
_BUSY = 0.8  # a thread that gets less of its cpu than this has company
_STATUS = Path("/proc/self/status")

Case = dict[str, Any]
"""Facts about what was measured, and under ``modes`` the numbers of everything that is shown side by side."""


@dataclass(frozen=True)
class Options:
    """The flags of every benchmark."""

    data: Path | None = None
    """data folder; the embedded houses without it"""
    features: str | None = None
    """name of the feature store, when the folder has several"""
    batch: int = 64
    """episodes at once"""
    seconds: float = 2.0
    """about how long one repetition lasts; it is one step at least"""
    repeats: int = 3
    """repetitions; their median counts"""
    threads: int = 1
    """processor threads torch may use"""
    device: str = "cpu"
    """where to compute: cpu, or cuda"""
    json: bool = False
    """print one JSON object instead of tables"""
    out: Path | None = None
    """also write the JSON object to this file"""

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be 1 or more, got {getattr(self, name)}")

    @property
    def folder(self) -> DataFolder:
        """The data folder."""
        return open_data(self.data)


Flags = TypeVar("Flags", bound=Options)


def command(options: type[Flags], measure: Callable[[Flags], list[Case]]) -> None:
    """Run a benchmark from the command line; a user's mistake is one line and exit code 2."""
    try:
        report(measure, tyro.cli(options, prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def report(measure: Callable[[Flags], list[Case]], options: Flags) -> None:
    """Measure, and print or write the report."""
    with torch_threads(options.threads):
        if advice := thread_advice(options.threads):
            print(f"warning: {advice}", file=sys.stderr)
        machine = this_machine()
        cases = measure(options)
    content = {"date": date.today().isoformat(), "machine": machine, "device": options.device, "cases": cases}
    text = msgspec.json.encode(content)
    if options.out is not None:
        with atomic_file(options.out) as partial:
            partial.write_bytes(msgspec.json.format(text, indent=1) + b"\n")
    if options.json:
        print(text.decode())
    else:
        for case in msgspec.json.decode(text)["cases"]:
            Console().print(_table(case))


_SIDE_BY_SIDE = 6  # modes that fit into the width of a terminal


def _table(case: Case) -> Table:
    """A column per mode, or a row where there are many."""
    facts = ", ".join(f"{name} {_shown(value)}" for name, value in case.items() if name != "modes")
    modes = {mode: dict(_flat(values)) for mode, values in case["modes"].items()}
    names = [
        name
        for name in dict.fromkeys(name for values in modes.values() for name in values)
        if any(_shown(values.get(name)) not in ("", "0") for values in modes.values())
    ]
    if len(modes) <= _SIDE_BY_SIDE:
        table = Table("", *modes, title=facts)
        for name in names:
            table.add_row(name, *(_shown(values.get(name)) for values in modes.values()))
        return table
    table = Table("", *(name.replace("_", " ") for name in names), title=facts)
    for mode, values in modes.items():
        table.add_row(mode, *(_shown(values.get(name)) for name in names))
    return table


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def this_machine() -> dict[str, Any]:
    """A description without names or places."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": next(models, platform.processor() or "unknown"),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),  # that torch may use
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # in the minute before
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def now(device: str = "cpu") -> float:
    """Seconds: processor time of this program where torch computes with one thread, wall time otherwise.

    Processor time does not count the moments in which another program had the processor.
    """
    if device != "cpu":
        torch.cuda.synchronize(device)
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def square_gigaflops(device: str = "cpu") -> float:
    """GFLOP/s of a large square product."""
    matrix = torch.rand(SQUARE, SQUARE, device=device)
    result = matrix @ matrix
    begun, calls, taken = now(device), 0, 0.0
    while taken < _LONG_ENOUGH:
        torch.mm(matrix, matrix, out=result)
        calls, taken = calls + 1, now(device) - begun
    return 2 * SQUARE**3 * calls / taken / GIGA


def cpu_share(seconds: float = 0.05) -> float:
    """The share of a processor this thread gets when it wants all of it, by keeping it busy for a moment."""
    wall, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        pass
    return (time.thread_time() - used) / (time.perf_counter() - wall)


def speedup(threads: int) -> float:
    """How much faster a product is with ``threads`` threads than with one; may be far below 1."""
    with torch_threads(1):
        alone = square_gigaflops()
    with torch_threads(threads):
        return square_gigaflops() / alone


def usable_cpus() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_advice(threads: int) -> str | None:
    """What to change about ``threads`` torch threads, in one sentence; None when they are fine.

    Threads wait for each other after every product: one that shares its processor slows all of them down.
    """
    if threads > (cpus := usable_cpus()):
        return f"{threads} threads for {cpus} usable cpus slow each other down; use --threads {cpus}"
    if threads > 1 and (gain := speedup(threads)) < 1:
        slower = f"{threads} threads are {1 / gain:.1f} times slower than one"
        return f"{slower}, because another program is using the cpus; use --threads 1"
    if (share := cpu_share()) < _BUSY:
        seen = f"this program gets only {share:.0%} of a cpu, because others are running"
        return f"{seen}; speeds will be lower than they could be"
    return None


def reset_peak(device: str = "cpu") -> None:
    """Give unused memory back and forget the peak so far; does nothing where the system cannot."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes(device: str = "cpu") -> float | None:
    """Peak memory: allocated on a graphics card, else resident, with mapped files; None beside Linux."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / MEGABYTE
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
    return None
