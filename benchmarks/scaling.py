"""Expected speed of a team of processes, computed from the measured cost of a training step.

    python benchmarks/scaling.py benchmarks/results/train-batches-<date>.json

A step of b episodes costs a process ``fixed + b * each`` seconds, the straight line through the batch sizes
that ``scenemem bench train`` has measured. Then all processes exchange their gradients around a ring, which
moves ``2 (N - 1) / N`` times their size through every link. Real teams are slower for one reason left out:
they wait for the process whose episodes walk farthest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

BYTES_PER_PARAMETER = 4
WALKS_PER_EPISODE = 2  # of a mixed step: a teacher's and the agent's own


def exchange_seconds(processes: int, gigabytes: float, gigabytes_per_second: float) -> float:
    """What a ring exchange takes."""
    return 2 * (processes - 1) / processes * gigabytes / gigabytes_per_second


def main() -> None:
    """Print a table for one batch shared by the team, and for one batch per process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path, help="of scenemem bench train, with several --batches")
    parser.add_argument("--preset", default="ssm")
    parser.add_argument("--batch", type=int, default=64, help="episodes of the team, and of each process")
    parser.add_argument("--link", type=float, default=1.0, help="GB/s between two neighbours of the ring")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    options = parser.parse_args()
    measured = json.loads(options.result.read_text())["cases"]
    cases = [case for case in measured if case["preset"] == options.preset]
    batches = [case["batch"] for case in cases]
    if len(set(batches)) < 2:
        parser.error(f"{options.result} has '{options.preset}' at batch sizes {batches}; measure two or more")
    speeds = np.array([case["modes"]["mixed"]["speed"]["episodes_per_second"] for case in cases])
    each, fixed = np.polyfit(batches, WALKS_PER_EPISODE * np.array(batches) / speeds, deg=1)
    gigabytes = cases[0]["parameters"] * BYTES_PER_PARAMETER / 1e9
    print(
        f"step of b episodes: {fixed:.3f} s + b x {1000 * each:.2f} ms; gradients {1000 * gigabytes:.1f} MB"
    )
    print("\n| processes | one batch for all: speed-up | one batch each: speed-up |\n|---|---|---|")
    alone = fixed + options.batch * each
    for processes in options.processes:
        waits = exchange_seconds(processes, gigabytes, options.link)
        shared = alone / (fixed + options.batch / processes * each + waits)
        own = processes * alone / (alone + waits)
        print(f"| {processes} | {shared:.1f} | {own:.1f} |")


if __name__ == "__main__":
    main()
