"""How far one training step of the paper's agent walks through the code."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import scenemem
from scenemem.formats.folder import DataFolder
from scenemem.learning.trainer import Trainer
from scenemem.presets import PRESETS
from scenemem.runs.experiment import new_experiment
from tools.step_walk import StepWalk, walk_step

PACKAGE = Path(scenemem.__file__).parent
MOST_FILES, MOST_CHANGES = 16, 91


@pytest.fixture(scope="module")
def walk(tiny_trainable: Path) -> StepWalk:
    base = PRESETS["ssm"]
    preset = replace(
        base,
        data=replace(base.data, min_count=1),
        learning=replace(base.learning, batch=8),
    )
    experiment = new_experiment(preset, DataFolder(tiny_trainable), seed=0)
    trainer = Trainer(experiment.agent, experiment.episodes("train"), preset.learning, 0)
    return walk_step(trainer, PACKAGE)


def test_a_step_stays_in_few_files(walk: StepWalk) -> None:
    files = {str(Path(file).relative_to(PACKAGE)) for file in walk.files}
    assert {"learning/trainer.py", "agents/ssm.py", "memory/scene_memory.py"} <= files, "it is the whole step"
    assert len(files) <= MOST_FILES, sorted(files)


def test_a_reader_of_a_step_seldom_changes_files(walk: StepWalk) -> None:
    assert len(walk.functions) > 100, "it is the whole step"
    assert walk.changes <= MOST_CHANGES
    assert walk.deepest < 30


def test_functions_are_counted_once_where_they_are_first_called(tmp_path: Path) -> None:
    for name, text in (("a.py", "def f():\n    g()\n    h()\n    g()\n"), ("b.py", "def g():\n    pass\n")):
        (tmp_path / name).write_text(text)
    space: dict[str, object] = {}
    for name in ("a.py", "b.py"):
        exec(compile((tmp_path / name).read_text(), str(tmp_path / name), "exec"), space)
    exec("def h(): [len(str(i)) for i in 'x']", space)  # outside of the package
    walk = StepWalk(tmp_path)
    outer = sys.getprofile()
    sys.setprofile(walk)
    try:
        space["f"]()  # type: ignore[operator]
    finally:
        sys.setprofile(outer)
    assert [(Path(file).name, name.partition(":")[0]) for file, name in walk.functions] == [
        ("a.py", "f"),
        ("b.py", "g"),
    ]
    assert (walk.changes, len(walk.files), walk.deepest) == (1, 2, 2)
