"""How far one training step walks through the code: functions, files, file changes, depth.

    python tools/step_walk.py [PRESET]

Counts with a profiler hook what one step of a preset calls inside the package, on the embedded houses. A
reader who reads every function when it is first called changes files as often as ``file changes`` says.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any


class StepWalk:
    """Counts the calls inside one package."""

    def __init__(self, package: Path) -> None:
        self._package = str(package)
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
            inside = code.co_filename.startswith(self._package)
            name = getattr(code, "co_qualname", f"{code.co_name}:{code.co_firstlineno}")
            is_function = not name.rpartition(".")[2].startswith("<")
            self._names[code] = (code.co_filename, name) if inside and is_function else None
        return self._names[code]

    @property
    def changes(self) -> int:
        """How often the next function lies in another file than the one before."""
        files = [file for file, _ in self.functions]
        return sum(here != there for here, there in pairwise(files))

    @property
    def files(self) -> set[str]:
        """The files walked through."""
        return {file for file, _ in self.functions}


def walk_step(trainer: Any, package: Path) -> StepWalk:
    """Count the second step of a trainer, when everything is set up."""
    trainer.step()
    walk = StepWalk(package)
    sys.setprofile(walk)
    try:
        trainer.step()
    finally:
        sys.setprofile(None)
    return walk


def main() -> None:
    """Count one step and print the numbers."""
    import scenemem
    from scenemem.formats.folder import DataFolder
    from scenemem.houses.build import default_houses
    from scenemem.learning.trainer import Trainer
    from scenemem.presets import PRESETS
    from scenemem.runs.experiment import new_experiment

    preset = PRESETS[sys.argv[1] if len(sys.argv) > 1 else "ssm"]
    experiment = new_experiment(preset, DataFolder(default_houses()), 0)
    trainer = Trainer(experiment.agent, experiment.episodes("train"), preset.learning, 0)
    walk = walk_step(trainer, Path(scenemem.__file__).parent)
    sys.stdout.write(
        f"{len(walk.functions)} functions in {len(walk.files)} files, {walk.changes} file changes, "
        f"{walk.deepest} frames deep\n"
    )


if __name__ == "__main__":
    main()
