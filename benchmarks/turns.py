"""Two versions of SceneMem train beside each other, taking turns, so that one machine's moods hit both alike.

    python -m benchmarks.turns --before OLD_CHECKOUT --data DIR --out benchmarks/results/turns.json

Every case has a process per version that does a few training steps when it is told to and says how much processor
time they took. Ratios are of medians over the turns; a ratio above 1 means that this checkout is faster. The
worker knows the names of both versions: those of today, and those of version 0.1 (``scenemem.experiment``).
"""

from __future__ import annotations

import argparse
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
CASES = ("ssm", "basic")


def main() -> None:
    """Take turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the other version")
    parser.add_argument("--data", type=Path, required=True, help="the R2R data folder")
    parser.add_argument("--features", default="objects+rooms", help="store at everyday width")
    parser.add_argument("--widths", nargs="+", default=["everyday", "paper"])
    parser.add_argument("--presets", nargs="+", default=list(CASES))
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


def _measured(options: Any, preset: str, width: str) -> dict[str, Any]:
    arguments = [preset, width, str(options.batch), str(options.data), options.features]
    workers = {
        "before": _Worker(options.before, [*arguments, "fused"]),
        "after": _Worker(HERE, [*arguments, "fused"]),
        "after, plain autograd": _Worker(HERE, [*arguments, "autograd"]),
    }
    for worker in workers.values():
        worker.turn(2)  # warm up
    times: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(options.turns):
        for name, worker in workers.items():
            times[name].append(worker.turn(options.steps) / options.steps)
    for worker in workers.values():
        worker.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "preset": preset,
        "width": width,
        "batch": options.batch,
        "cpu_seconds_per_step": medians,
        "times_before": medians["before"] / medians["after"],
        "autograd_times_before": medians["before"] / medians["after, plain autograd"],
        "turns": times,
    }


class _Worker:
    """A process that trains when told to."""

    def __init__(self, checkout: Path, arguments: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, steps: int) -> float:
        """Processor seconds of some steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _work(preset: str, width: str, batch: str, data: str, features: str, gradient: str) -> None:
    import torch

    torch.set_num_threads(1)
    trainer = _trainer(preset, width, int(batch), Path(data), features, fused=gradient == "fused")
    for line in sys.stdin:
        begun = time.process_time()
        for _ in range(int(line)):
            trainer.step()
        print(time.process_time() - begun, flush=True)


def _trainer(name: str, width: str, batch: int, data: Path, features: str, *, fused: bool) -> Any:
    """A trainer of whichever version is on the path."""
    from scenemem.formats.folder import DataFolder
    from scenemem.learning.trainer import Trainer
    from scenemem.presets import PRESETS

    preset, folder = PRESETS[name], DataFolder(data)
    preset = replace(preset, data=replace(preset.data, features=features))
    old = hasattr(preset, "memory")
    if old:
        import scenemem.experiment as experiments

        paper = replace(preset, memory=replace(preset.memory, stream=None, orientation=128))
    else:
        import scenemem.runs.experiment as experiments

        sizes = {} if name == "basic" else {"node_width": None, "orientation_width": 128}
        paper = replace(preset, model=replace(preset.model, **sizes))
        preset = replace(preset, learning=replace(preset.learning, fused=fused))
        paper = replace(paper, learning=preset.learning)
    if width == "paper":
        preset = replace(paper, model=replace(paper.model, width=512))
        _widen_features()
    preset = replace(preset, learning=replace(preset.learning, batch=batch))
    experiment = experiments.new_experiment(preset, folder, 0)
    return Trainer(experiment.agent, experiment.episodes("train"), preset.learning, 0)


def _widen_features() -> None:
    """Made-up features of the paper's width instead of those of the store."""
    import torch

    from scenemem.features import store

    opened = store.open_store

    def wide(*arguments: Any, **options: Any) -> Any:
        real = opened(*arguments, **options)
        values = torch.rand(2000, 36, 2048, generator=torch.Generator().manual_seed(0)).half()
        info = type(real.info)(**{**_fields(real.info), "width": 2048})
        return replace(real, info=info, values=values, row=torch.arange(len(real.row)) % 2000)

    for module in list(sys.modules.values()):
        if getattr(module, "open_store", None) is opened:
            module.open_store = wide  # type: ignore[attr-defined]


def _fields(info: Any) -> dict[str, Any]:
    import msgspec

    names = getattr(info, "__struct_fields__", None) or [
        item.name for item in msgspec.inspect.type_info(type(info)).fields
    ]
    return {name: getattr(info, name) for name in names}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _work(*sys.argv[2:])
    else:
        main()
