"""Expected speed of several processes, from a report of benchmarks.train: python -m benchmarks.scaling REPORT

A step of b episodes costs a process ``fixed + b * each`` seconds, the straight line through the batch sizes
that were measured. Then the processes exchange their gradients around a ring, which moves ``2 (N - 1) / N``
times their size through every link. Real groups also wait for the process whose episodes walk farthest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

BYTES_PER_PARAMETER = 4
WALKS_PER_EPISODE = 2  # of a mixed step: a teacher's and the agent's own


def main() -> None:
    """Print a table for one batch shared by the group, and for one batch per process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="of benchmarks.train, mode mixed, with several --batches")
    parser.add_argument("--preset", default="ssm")
    parser.add_argument("--batch", type=int, default=64, help="episodes of the group, and of each process")
    parser.add_argument("--link", type=float, default=1.0, help="GB/s between two neighbours of the ring")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    options = parser.parse_args()
    measured = json.loads(options.report.read_text())["cases"]
    cases = [case for case in measured if case["preset"] == options.preset]
    batches = np.array([case["batch"] for case in cases])
    if len(set(batches.tolist())) < 2:
        seen = f"{options.report} has '{options.preset}' at batch sizes {batches.tolist()}"
        parser.error(f"{seen}; measure two or more")
    mixed = [case["modes"]["mixed"] for case in cases]
    speeds = np.array(
        [mode.get("speed", mode)["episodes_per_second"] for mode in mixed]
    )  # or as once written
    each, fixed = np.polyfit(batches, WALKS_PER_EPISODE * batches / speeds, deg=1)
    size = cases[0]["parameters"] * BYTES_PER_PARAMETER / 1e9
    print(f"step of b episodes: {fixed:.3f} s + b x {1000 * each:.2f} ms; gradients {1000 * size:.1f} MB")
    print("\n| processes | one batch for all: speed-up | one batch each: speed-up |\n|---|---|---|")
    alone = fixed + options.batch * each
    for count in options.processes:
        waits = 2 * (count - 1) / count * size / options.link
        shared = alone / (fixed + options.batch / count * each + waits)
        print(f"| {count} | {shared:.1f} | {count * alone / (alone + waits):.1f} |")


if __name__ == "__main__":
    main()
