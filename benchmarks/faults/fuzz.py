"""Damaged files for every reader: ``python -m benchmarks.faults.fuzz --inputs 100000 --out FILE``.

A reader may read a file or refuse it with one clear line, and soon; anything else is counted and shown. Every
reader works in a process of its own, so that the peak of memory is its own, and a crash ends nothing else.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.faults.readers import Reader, attempt, readers, write_beside
from benchmarks.machine import this_machine
from scenemem.formats.atomic import atomic_file

LONGEST = 20.0
"""Seconds of processor time after which a reader hangs."""

_MEMORY = Path("/dev/shm")  # files that never reach a disk


class Hang(BaseException):
    """A reader took too long; no handler of ordinary errors catches it."""


def main() -> None:
    """Fuzz the readers and print what came out, one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="damaged files per reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="name of one reader")
    parser.add_argument("--out", type=Path, help="JSON file to write, or to go on with")
    chosen = parser.parse_args()
    outcome = _before(chosen.out, chosen.seed)
    signal.signal(signal.SIGPROF, _hangs)
    warnings.simplefilter("ignore")  # libraries warn of what they do not like
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
        found = readers(Path(place))
        for name in found:
            done = outcome.get(name, {"inputs": 0})["inputs"] >= chosen.inputs
            if done or chosen.only not in ("", name):
                continue
            outcome[name] = alone(name, chosen.inputs, chosen.seed, Path(place) / "work", found)
            print(f"{name}: {outcome[name]}", flush=True)
            if chosen.out is not None:
                _write(chosen.out, chosen.seed, outcome)


def _before(file: Path | None, seed: int) -> dict[str, Any]:
    """What an earlier call found with the same seed, by reader."""
    if file is None or not file.is_file():
        return {}
    known = json.loads(file.read_bytes())
    found: dict[str, Any] = known["readers"] if known["seed"] == seed else {}
    return found


def _write(file: Path, seed: int, outcome: dict[str, Any]) -> None:
    report = {
        "date": date.today().isoformat(),
        "machine": this_machine(),
        "seed": seed,
        "inputs": sum(count["inputs"] for count in outcome.values()),
        "failed": sum(count["failed"] for count in outcome.values()),
        "readers": outcome,
    }
    with atomic_file(file) as partial:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def alone(name: str, inputs: int, seed: int, work: Path, found: dict[str, Reader]) -> dict[str, Any]:
    """``fuzz`` in a process of its own, which begins with everything loaded."""
    global _readers
    _readers = found  # they hold functions that cannot be sent, but a forked process has them
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        try:
            return process.submit(_fuzz_known, name, inputs, seed, work).result()
        except BrokenProcessPool as error:
            counts = {"inputs": inputs, "read": 0, "refused": 0, "failed": 1}
            return {**counts, "failures": [f"the process of the reader ended ({error})"]}


_readers: dict[str, Reader] = {}


def _fuzz_known(name: str, inputs: int, seed: int, work: Path) -> dict[str, Any]:
    return fuzz(name, inputs, seed, work, _readers)


def fuzz(name: str, inputs: int, seed: int, work: Path, found: dict[str, Reader]) -> dict[str, Any]:
    """Read damaged copies of one file  ->  how many were read, refused, or made the reader fail."""
    reader, chance = found[name], random.Random(f"{seed} {name}")
    work.mkdir(exist_ok=True)
    for old in work.iterdir():
        old.unlink()
    write_beside(found, name, work)
    counts, slowest, failures = Counter[str](), 0.0, list[str]()
    before = _peak_megabytes()
    for _ in range(inputs):
        content = reader.damaged(chance)
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        try:
            counts[attempt(reader, content, work)] += 1
        except (Exception, Hang):
            counts["failed"] += 1
            if len(failures) < 3:
                failures.append(traceback.format_exc(limit=-2))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - started)
    return {
        "inputs": inputs,
        "read": counts["read"],
        "refused": counts["refused"],
        "failed": counts["failed"],
        "slowest_seconds": round(slowest, 3),
        "peak_megabytes": _peak_megabytes(),
        "grown_megabytes": _peak_megabytes() - before,
        "failures": failures,
    }


def _peak_megabytes() -> int:
    """The most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _hangs(_number: int, _frame: FrameType | None) -> None:
    raise Hang(f"not done after {LONGEST:.0f} s")


if __name__ == "__main__":
    main()
