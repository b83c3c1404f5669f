"""Two processes against two threads: the same training, with the same batch for the whole team.

    python benchmarks/processes.py --data DIR > benchmarks/results/processes-<date>.json

Three ways to use a machine of two cores take turns: one thread, two threads, and two gloo processes of one
thread each. A round trains all of them from the same seed, each in a folder that is removed afterwards; speed
and losses are what ``metrics.jsonl`` says at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from scenemem.benchmarks.machine import this_machine

PYTHON = [sys.executable, "-m"]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
WAYS = {
    "one thread": (PYTHON, "1"),
    "two threads": (PYTHON, "2"),
    "two processes": ([*PYTHON, *TORCHRUN], "1"),
}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--preset", default="ssm-r2r-objects")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    machine = asdict(this_machine())
    lines: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS:
            print(f"round {number + 1} of {options.rounds}: {way}", file=sys.stderr)
            lines[way].append(last_metrics(way, options))
    speeds = {way: [line["episodes_per_second"] for line in found] for way, found in lines.items()}
    rounds = zip(*speeds.values(), strict=True)
    ratios = [processes / max(one, two) for one, two, processes in rounds]
    losses = {way: found[0]["losses"] for way, found in lines.items()}
    report = {
        "date": date.today().isoformat(),
        "machine": machine,
        "preset": options.preset,
        "steps": options.steps,
        "batch": options.batch,
        "episodes_per_second": speeds,
        "processes_of_best_single": round(statistics.median(ratios), 3),
        "losses": losses,
    }
    print(json.dumps(report, indent=2))


def last_metrics(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a training says of itself in the end."""
    launcher, threads = WAYS[way]
    steps = str(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, "scenemem", "train", options.preset, "--data", str(options.data)]
        command += ["--out", f"{folder}/run", "--no-replays", "--threads", threads]
        command += ["--iterations", steps, "--learning.batch", str(options.batch)]
        command += ["--selection.every", steps, "--selection.save-every", steps]
        subprocess.run(
            [*command, "--selection.split", "val_seen"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
        metrics: dict[str, Any] = json.loads(
            Path(folder, "run", "metrics.jsonl").read_text().splitlines()[-1]
        )
        return metrics


if __name__ == "__main__":
    main()
