"""Two checkouts train in turns: python -m benchmarks.turns --before CHECKOUT --data DIR --out turns.json

Every case has a process per version that does a few training steps when it is told to and says how much
processor time they took, so that the moods of a machine hit both alike. Weights hardly change, so that both
walk the same ways: trained, they would part after a few steps by rounding, and longer walks cost more. Ratios
are of medians over the turns; above 1 this checkout is faster. The worker handles the names of this version
and of 0.1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
MADE_UP_ROWS = 2000  # different viewpoints of made-up features
STANDSTILL = 1e-12  # learning rate


def main() -> None:
    """Take turns; print a JSON object per case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the other version")
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--features", default="oracle", help="store at everyday width")
    parser.add_argument("--widths", nargs="+", default=["everyday", "paper"])
    parser.add_argument("--presets", nargs="+", default=["ssm", "basic"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="training steps per turn")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [_measured(options, preset, width) for width in options.widths for preset in options.presets]
    for row in rows:
        print(json.dumps(row))
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _measured(options: argparse.Namespace, preset: str, width: str) -> dict[str, Any]:
    case = [preset, width, str(options.batch), str(options.data), options.features]
    workers = {"before": _worker(options.before, case), "after": _worker(HERE, case)}
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(options.turns + 1):
        steps = options.steps if turn else 2  # the first ones warm up
        for name, worker in workers.items():
            times[name].append(_turn(worker, steps) / steps)
    for worker in workers.values():
        worker.communicate()
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {
        "preset": preset,
        "width": width,
        "batch": options.batch,
        "cpu_seconds_per_step": medians,
        "times_before": medians["before"] / medians["after"],
        "turns": {name: values[1:] for name, values in times.items()},
    }


def _worker(checkout: Path, case: list[str]) -> subprocess.Popen[str]:
    """A process that trains when told to."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", *case]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _turn(worker: subprocess.Popen[str], steps: int) -> float:
    """Processor seconds of some steps."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{steps}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def _work(name: str, width: str, batch: str, data: str, features: str) -> None:
    importlib.import_module("torch").set_num_threads(1)
    trainer = _trainer(name, width, int(batch), data, features)
    for line in sys.stdin:
        begun = time.process_time()
        for _ in range(int(line)):
            trainer.step()
        print(time.process_time() - begun, flush=True)


def _trainer(name: str, width: str, batch: int, data: str, features: str) -> Any:
    """A trainer of whichever version is on the path."""

    def of(module: str, attribute: str) -> Any:
        return getattr(importlib.import_module(f"scenemem.{module}"), attribute)

    preset = of("presets", "PRESETS")[name]
    learning = replace(preset.learning, batch=batch, learning_rate=STANDSTILL)
    sizes = dict[str, int | None](width=512)
    if hasattr(preset, "memory"):  # version 0.1
        new_experiment = of("experiment", "new_experiment")
        if width == "paper":
            preset = replace(preset, memory=replace(preset.memory, stream=None, orientation=128))
    else:
        new_experiment = of("runs.experiment", "new_experiment")
        if hasattr(preset.model, "node_width"):
            sizes |= {"node_width": None, "orientation_width": 128}
    if width == "paper":
        preset = replace(preset, model=replace(preset.model, **sizes))
        _widen_features()
    preset = replace(preset, learning=learning, data=replace(preset.data, features=features))
    experiment = new_experiment(preset, of("formats.folder", "DataFolder")(Path(data)), 0)
    return of("learning.trainer", "Trainer")(experiment.agent, experiment.episodes("train"), learning, 0)


def _widen_features() -> None:
    """Made-up features of the paper's width instead of those of the store."""
    torch, store = importlib.import_module("torch"), importlib.import_module("scenemem.features.store")
    structs = importlib.import_module("msgspec.structs")
    opened = store.open_store

    def wide(*arguments: Any, **flags: Any) -> Any:
        real = opened(*arguments, **flags)
        values = torch.rand(MADE_UP_ROWS, 36, 2048, generator=torch.Generator().manual_seed(0)).half()
        change = structs.replace if hasattr(real.info, "__struct_fields__") else replace
        info = change(real.info, width=2048)
        return replace(real, info=info, values=values, row=torch.arange(len(real.row)) % MADE_UP_ROWS)

    for module in list(sys.modules.values()):
        if getattr(module, "open_store", None) is opened:
            vars(module)["open_store"] = wide


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(*sys.argv[2:])
    else:
        main()
