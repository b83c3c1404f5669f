"""Two processes against two threads, with the same batch in all: python -m benchmarks.processes --data DIR

One thread, two threads, and two gloo processes of one thread each take turns. Each trains from the same seed
in a folder that is removed afterwards; speed and losses are what the last line of ``metrics.jsonl`` says.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tyro

from benchmarks.machine import Case, Options, command
from scenemem.errors import UserError

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
WAYS: dict[str, tuple[tuple[str, ...], int]] = {  # what starts a training, and its threads
    "one thread": ((), 1),
    "two threads": ((), 2),
    "two processes": (TORCHRUN, 1),
}


@dataclass(frozen=True)
class ProcessOptions(Options):
    """Train in three ways that take turns, and compare their speeds and losses."""

    preset: str = "ssm"
    """what to train"""
    steps: int = 40
    """optimiser steps of every training"""
    seconds: tyro.conf.Suppress[float] = 0.0
    threads: tyro.conf.Suppress[int] = 1
    device: tyro.conf.Suppress[str] = "cpu"


def measure_processes(options: ProcessOptions) -> list[Case]:
    """One case; ``processes_of_best_single`` is the median ratio to the faster of the other two ways."""
    lines: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(options.repeats):
        for way in WAYS:
            print(f"repetition {number + 1} of {options.repeats}: {way}", file=sys.stderr)
            lines[way].append(_last_metrics(way, options))
    speeds = {way: [line["episodes_per_second"] for line in found] for way, found in lines.items()}
    ratios = [both / max(one, two) for one, two, both in zip(*speeds.values(), strict=True)]
    return [
        {
            "preset": options.preset,
            "steps": options.steps,
            "batch": options.batch,
            "processes_of_best_single": statistics.median(ratios),
            "modes": {
                way: {"episodes_per_second": speeds[way], "losses": found[0]["losses"]}
                for way, found in lines.items()
            },
        }
    ]


def _last_metrics(way: str, options: ProcessOptions) -> dict[str, Any]:
    launcher, threads = WAYS[way]
    steps = str(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--out", f"{folder}/run", "--no-replays", "--threads", str(threads), "--iterations", steps]
        flags += ["--learning.batch", str(options.batch), "--selection.split", "val_seen"]
        flags += ["--selection.every", steps, "--selection.save-every", steps]
        flags += [] if options.data is None else ["--data", str(options.data)]
        flags += [] if options.features is None else ["--features", options.features]
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "scenemem", "train", options.preset, *flags],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise UserError(f"the training with {way} failed with exit code {done.returncode}; see above")
        return msgspec.json.decode(Path(folder, "run/metrics.jsonl").read_bytes().splitlines()[-1], type=dict)


if __name__ == "__main__":
    command(ProcessOptions, measure_processes)
