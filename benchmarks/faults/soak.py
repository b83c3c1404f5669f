"""Long work in one process: ``python -m benchmarks.faults.soak trainings`` or ``... soak walks --data DIR``.

Short trainings one after the other on a tiny world, each evaluated and thrown away; or all instructions of a
split (R4R val_unseen has 45,162) walked by an agent, measured and written. Memory, open files and threads are
noted all along and have to stay flat.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

import scenemem as sm
from benchmarks.faults.world import write_world
from benchmarks.machine import this_machine
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import write_trajectories
from scenemem.runs.experiment import stored_experiment
from scenemem.runs.weights import find_run
from scenemem.tasks.episode_set import load_split

GROWTH = 0.05
"""Share of the memory by which the last fifth may exceed the second one."""

_SETTINGS = {"model.width": 16, "model.word_width": 8, "learning.batch": 4, "data.min_count": 1}
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run one of the two, print what came out, and leave with 1 when anything grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("trainings", "walks"))
    parser.add_argument("--count", type=int, default=1000, help="trainings")
    parser.add_argument("--run", default="weights:basic-r2r-captions", help="who walks")
    parser.add_argument("--data", type=Path, help="data folder of the walks")
    parser.add_argument("--task", default="r4r")
    parser.add_argument("--split", default="val_unseen")
    parser.add_argument("--out", type=Path, help="also write what came out to this file, as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        if chosen.what == "trainings":
            found = trainings(chosen.count, Path(place))
        else:
            found = walks(chosen.run, DataFolder(chosen.data), chosen.task, chosen.split, Path(place))
    report = {"date": date.today().isoformat(), "machine": this_machine(), "soak": chosen.what, **found}
    print(json.dumps(report))
    if chosen.out is not None:
        with atomic_file(chosen.out) as partial:
            partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(not found["flat"])


def trainings(count: int, place: Path) -> dict[str, Any]:
    """Train, evaluate and throw away, again and again."""
    os.environ["SCENEMEM_CACHE"] = str(place / "cache")
    data, seen = write_world(place / "data"), Watch()
    for number in range(count):
        out = place / "run"
        changes: dict[str, Any] = {**_SETTINGS, "selection.every": 2, "selection.save_every": 2}
        sm.train("ssm", iterations=2, seed=number, data=data, out=out, **changes)
        sm.load(out, data=data).evaluate("val_unseen")
        shutil.rmtree(out)
        gc.collect()
        seen.note(number + 1)
    return seen.summary("trainings")


def walks(source: str, folder: DataFolder, task: str, split: str, place: Path) -> dict[str, Any]:
    """Walk, measure and write a split."""
    run = find_run(source)
    experiment, _ = stored_experiment(run.last, folder)
    world = experiment.environment.world
    episodes, seen = load_split(folder, world, task, split), Watch()
    walked = walk_split(
        experiment.agent, episodes, batch_size=256, progress=lambda done, _: seen.note(done, every=512)
    )
    metrics = walked.measured(world).means()
    write_trajectories(place / "results.json", walked.trajectories(world))
    seen.note(len(episodes))
    facts = {"run": source, "task": task, "split": split, "metrics": metrics}
    return {**facts, **seen.summary("instructions")}


class Watch:
    """Memory, open files and threads of this process, noted on the way."""

    def __init__(self) -> None:
        self.started = time.process_time()
        self.noted: list[tuple[int, float, int, int]] = []  # done, megabytes, files, threads

    def note(self, done: int, every: int = 1) -> None:
        """Note how things stand when so much is done, unless that was noted a moment ago."""
        if self.noted and done - self.noted[-1][0] < every:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
        self.noted.append((done, pages * _PAGE / 1e6, files, threads))
        if len(self.noted) % 50 == 0:
            print(*self.noted[-1], file=sys.stderr, flush=True)

    def summary(self, what: str) -> dict[str, Any]:
        """The second fifth beside the last one; the first one warms up."""
        fifth = max(1, len(self.noted) // 5)
        early, late = self.noted[fifth : 2 * fifth], self.noted[-fifth:]

        def middle(rows: Sequence[tuple[int, float, int, int]], column: int) -> float:
            return statistics.median(row[column] for row in rows)

        names = ("megabytes", "files", "threads")
        columns = {name: (middle(early, 1 + n), middle(late, 1 + n)) for n, name in enumerate(names)}
        memory, files, threads = columns.values()
        flat = memory[1] <= memory[0] * (1 + GROWTH) and files[1] <= files[0] and threads[1] <= threads[0]
        return {
            what: self.noted[-1][0],
            "seconds": round(time.process_time() - self.started, 1),
            "early_and_late": {name: [round(value, 1) for value in pair] for name, pair in columns.items()},
            "peak_megabytes": round(max(row[1] for row in self.noted), 1),
            "flat": flat,
        }


if __name__ == "__main__":
    main()
