"""How far one training step, one evaluation or one replay walks through the code.

    python tools/step_walk.py [train|eval|view] [PRESET] [--path]

Counts with a profiler hook what is called inside the package, on the embedded houses, when everything is set
up: functions, files, file changes and depth. A reader who reads every function when it is first called
changes files as often as ``file changes`` says; ``--path`` prints the functions in that order. Evaluations
and replays are those of the packaged weights of a preset, or of an agent that has learned for one step.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

KINDS = ("train", "eval", "view")


class StepWalk:
    """Counts the calls inside one package."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._names: dict[Any, tuple[str, str] | None] = {}
        self.functions: dict[tuple[str, str], None] = {}  # file and name, in the order of their first call
        self.deepest = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """A profiler hook."""
        if event != "call":
            return
        here = self._name(frame)
        if here is None:
            return
        self.functions[here] = None
        depth, outer = 1, frame.f_back
        while outer is not None:
            depth += self._name(outer) is not None
            outer = outer.f_back
        self.deepest = max(self.deepest, depth)

    def _name(self, frame: FrameType) -> tuple[str, str] | None:
        code = frame.f_code
        if code not in self._names:
            file = Path(code.co_filename)
            name = getattr(code, "co_qualname", f"{code.co_name}:{code.co_firstlineno}")
            is_function = not name.rpartition(".")[2].startswith("<")
            inside = is_function and file.is_relative_to(self._package)
            self._names[code] = (str(file.relative_to(self._package)), name) if inside else None
        return self._names[code]

    @property
    def changes(self) -> int:
        """How often the next function lies in another file than the one before."""
        return sum(here != there for (here, _), (there, _) in pairwise(self.functions))

    @property
    def files(self) -> set[str]:
        """The files walked through, relative to the package."""
        return {file for file, _ in self.functions}

    @property
    def path(self) -> str:
        """A line per file change: the file, and the functions that are first called there."""
        parts = groupby(self.functions, key=lambda function: function[0])
        return "\n".join(f"{file}  {', '.join(name for _, name in found)}" for file, found in parts)

    def __str__(self) -> str:
        return (
            f"{len(self.functions)} functions in {len(self.files)} files, {self.changes} file changes, "
            f"{self.deepest} frames deep"
        )


def counted(work: Callable[[], object], package: Path) -> StepWalk:
    """Count the second time that something is done, when everything is set up."""
    work()
    walk, outer = StepWalk(package), sys.getprofile()
    sys.setprofile(walk)
    try:
        work()
    finally:
        sys.setprofile(outer)
    return walk


def one(kind: str, preset: Any, data: Path, out: Path, run: str | None = None) -> Callable[[], object]:
    """A training step, an evaluation or a replay page of a preset.

    Args:
        kind: one of ``KINDS``.
        preset: its settings.
        data: the data folder.
        out: an empty folder for runs and pages.
        run: evaluated or shown; without it a run of a single step.
    """
    from scenemem import api
    from scenemem.formats.folder import DataFolder
    from scenemem.learning.trainer import Trainer
    from scenemem.runs.experiment import new_experiment

    if kind == "train":
        experiment = new_experiment(preset, DataFolder(data), 0)
        return Trainer(experiment.agent, experiment.episodes("train"), preset.learning, 0).step
    if run is None:
        settings: dict[str, Any] = {"learning.batch": 4, "learning.max_steps": 8}
        run = str(api.train(preset, iterations=1, out=out / "run", data=data, **settings).path)
    agent = api.load(run, data=data)
    if kind == "eval":
        return lambda: agent.evaluate("val_unseen")
    episode = agent.episodes("val_unseen")[0]
    return lambda: agent.walk(episode).save(out / "replay.html")


def main() -> None:
    """Count one of them and print the numbers."""
    import scenemem
    from scenemem.houses.build import default_houses
    from scenemem.presets import PRESETS

    parser = ArgumentParser(description="How far one step walks through the code.")
    parser.add_argument("kind", nargs="?", choices=KINDS, default="train")
    parser.add_argument("preset", nargs="?", default="ssm")
    parser.add_argument("--path", action="store_true", help="print the functions, file by file")
    words = parser.parse_args()
    package = Path(scenemem.__file__).parent
    packaged = (package / "weights" / f"{words.preset}-houses.safetensors").is_file()
    run = f"weights:{words.preset}-houses" if packaged else None
    with tempfile.TemporaryDirectory() as out:
        work = one(words.kind, PRESETS[words.preset], default_houses(), Path(out), run)
        walk = counted(work, package)
    sys.stdout.write(f"{walk.path}\n\n" if words.path else "")
    sys.stdout.write(f"{walk}\n")


if __name__ == "__main__":
    main()
