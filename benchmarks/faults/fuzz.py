"""Damaged files for every reader: ``python -m benchmarks.faults.fuzz --inputs 100000``.

A reader may refuse a file with one clear line; anything else it raises is counted and shown.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from benchmarks.faults.readers import Reader, attempt, beside, damaged, readers


def main() -> None:
    """Fuzz the readers and print what came out as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="damaged files per reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="name of one reader")
    chosen = parser.parse_args()
    outcome = {}
    with tempfile.TemporaryDirectory() as place:
        found = readers(Path(place))
        for name in found:
            if chosen.only not in ("", name):
                continue
            outcome[name] = fuzz(name, chosen.inputs, chosen.seed, Path(place), found)
            print(f"{name}: {outcome[name]}", flush=True)
    print(json.dumps(outcome))


def fuzz(name: str, inputs: int, seed: int, folder: Path, found: dict[str, Reader]) -> dict[str, object]:
    """Read damaged copies of one file  ->  how many were read, refused, or made the reader fail."""
    reader, chance = found[name], random.Random(f"{seed} {name}")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for old in work.iterdir():
        old.unlink()
    other = beside(found, name)
    counts, slowest, failures = Counter[str](), 0.0, list[str]()
    for _ in range(inputs):
        content = damaged(reader.good, chance)
        started = time.perf_counter()
        try:
            counts[attempt(reader, content, work, other)] += 1
        except Exception:
            counts["failed"] += 1
            if len(failures) < 3:
                failures.append(traceback.format_exc(limit=-2))
        slowest = max(slowest, time.perf_counter() - started)
    return {**counts, "slowest seconds": round(slowest, 3), "failures": failures}


if __name__ == "__main__":
    main()
