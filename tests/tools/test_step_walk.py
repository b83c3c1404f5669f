"""How far one training step, evaluation and replay of the paper's agent walk through the code."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scenemem
from scenemem.agents.agent import with_last
from scenemem.houses import build
from scenemem.presets import PRESETS
from tools import step_walk
from tools.step_walk import KINDS, StepWalk, counted, one

PACKAGE = Path(scenemem.__file__).parent
CEILINGS = {  # functions, files, file changes, frames deep; of an evaluation and a replay the first two
    "train": (136, 13, 71, 14),  # the design has 120, 9, 30, 12
    "eval": (205, 24),  # 150, 20
    "view": (275, 33),  # 220, 30
}
WHOLE = {
    "train": {"learning/trainer.py", "ssm/agent.py", "ssm/graph.py", "agents/walker.py"},
    "eval": {"runs/opened.py", "agents/walker.py", "evaluation/metrics.py", "formats/results.py"},
    "view": {"runs/opened.py", "agents/walker.py", "viewer/traces.py", "viewer/replay.py"},
}
"""Files without which it would not be all of it."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_meets_few_functions_in_few_files(kind: str, tiny_trainable: Path, tmp_path: Path) -> None:
    base = PRESETS["ssm"]
    preset = replace(
        base,
        model=replace(base.model, width=16, word_width=8),
        data=replace(base.data, min_count=1),
        learning=replace(base.learning, batch=8),
    )
    walk = counted(one(kind, preset, tiny_trainable, tmp_path), PACKAGE)
    found = (len(walk.functions), len(walk.files), walk.changes, walk.deepest)
    assert walk.files >= WHOLE[kind]
    over = [f"{count} of {most}" for count, most in zip(found, CEILINGS[kind], strict=False) if count > most]
    assert not over, f"{walk}\n{walk.path}"


@pytest.fixture
def walk(tmp_path: Path) -> StepWalk:
    """Of a package with two files, from one of which another package is called."""
    for name, text in (("a.py", "def f():\n    g()\n    h()\n    g()\n"), ("b.py", "def g():\n    pass\n")):
        (tmp_path / name).write_text(text)
    space: dict[str, object] = {}
    for name in ("a.py", "b.py"):
        exec(compile((tmp_path / name).read_text(), str(tmp_path / name), "exec"), space)
    exec("def h(): [len(str(i)) for i in 'x']", space)  # outside of the package
    return counted(lambda: space["f"](), tmp_path)  # type: ignore[operator]


def test_functions_are_counted_once_where_they_are_first_called(walk: StepWalk) -> None:
    assert [(file, name.partition(":")[0]) for file, name in walk.functions] == [("a.py", "f"), ("b.py", "g")]
    assert str(walk) == "2 functions in 2 files, 1 file changes, 2 frames deep"
    assert [line.split()[0] for line in walk.path.splitlines()] == ["a.py", "b.py"]
    assert sys.getprofile() is not walk


@pytest.mark.parametrize("words", [(), ("eval", "basic", "--path")])
def test_the_command_prints_the_numbers_and_the_path(
    words: tuple[str, ...],
    tiny_trainable: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[str, str, str | None]] = []

    def nothing(kind: str, preset: object, data: Path, _out: Path, run: str | None) -> object:
        assert data == tiny_trainable
        asked.append((kind, next(name for name, row in PRESETS.items() if row is preset), run))
        return lambda: with_last(torch.zeros(1, 1), torch.zeros(1))

    monkeypatch.setattr(build, "default_houses", lambda: tiny_trainable)
    monkeypatch.setattr(step_walk, "one", nothing)
    monkeypatch.setattr(sys, "argv", ["step_walk.py", *words])
    step_walk.main()
    assert asked == [("eval", "basic", "weights:basic-houses") if words else ("train", "ssm", None)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 functions in 1 files, 0 file changes, 1 frames deep"
    assert lines[:-1] == (["agents/agent.py  with_last", ""] if words else [])
