"""What the benchmarks of agents share: threads, warnings, where the report goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from scenemem.benchmarks.machine import Machine
from scenemem.commands.console import console, use_threads
from scenemem.formats.atomic import atomic_file
from scenemem.learning.threads import thread_advice


def start_bench(threads: int) -> None:
    """Set the threads, and warn when they will not have the machine to themselves."""
    use_threads(threads)
    advice = thread_advice(threads)
    if advice is not None:
        console.print(f"[yellow]warning:[/] {advice}", highlight=False)


def machine_line(machine: Machine) -> str:
    """The machine in one line."""
    return f"{machine.processor}, {machine.threads} of {machine.cpus} cpus, torch {machine.torch}"


def write_report(report: Any, out: Path | None) -> None:
    """Write a report as JSON, if a file was named."""
    if out is not None:
        with atomic_file(out) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
