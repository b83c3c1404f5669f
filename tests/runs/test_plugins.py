"""Presets of plugins on the command line, and runs that need a plugin."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import scenemem as sm
from scenemem import registry
from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import read_checkpoint, write_tensors
from scenemem.presets import PRESETS
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import open_run
from tests.commands.helpers import typed

PLUGIN = """
from dataclasses import replace
import scenemem as sm

def small(name):
    preset = sm.preset(name)
    return replace(
        preset,
        model=replace(preset.model, width=16, word_width=8),
        data=replace(preset.data, min_count=1),
        learning=replace(preset.learning, iterations=2, batch=4),
        selection=replace(preset.selection, every=2, save_every=2),
    )

sm.register("preset", "small-ssm", small("ssm"))
unregistered = small("basic")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin with two presets; none is loaded before or after."""
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_installed_are_loaded", False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    monkeypatch.setattr(PRESETS, "_objects", dict(PRESETS._objects))
    file = tmp_path / "my_plugin.py"
    file.write_text(PLUGIN, encoding="utf-8")
    return file


def test_a_preset_of_a_plugin_is_trained_by_flag_or_by_colon(
    plugin: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--data", tiny_trainable, "--no-replays", "--out")
    assert typed("train", "small-ssm", *flags, tmp_path / "0") == 2
    assert "unknown preset 'small-ssm'" in capsys.readouterr().err
    assert typed("train", "--plugin", plugin, "small-ssm", *flags, tmp_path / "1") == 0
    assert typed("train", f"{plugin}:small-ssm", *flags, tmp_path / "2") == 0
    assert typed(f"--plugin={plugin}", "train", f"{plugin}:unregistered", *flags, tmp_path / "3") == 0
    for number, name in (("1", "small-ssm"), ("2", "small-ssm"), ("3", "unregistered")):
        described = RunFolder(tmp_path / number).describe()
        assert (described["name"], described["plugins"]) == (name, [str(plugin)])
        assert f'base = "{name}"' in (tmp_path / number / "experiment.toml").read_text()
    capsys.readouterr()
    assert typed("train", f"{plugin}:nothing", *flags, tmp_path / "4") == 2
    assert "unknown preset 'nothing'" in capsys.readouterr().err
    assert typed("train", "small-ssm", "--plugin") == 2
    assert "--plugin needs a module or a .py file" in capsys.readouterr().err


def test_what_is_laid_over_a_row_goes_on_that_of_a_plugin_too(
    plugin: Path, tiny_trainable: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"selection.every": 2, "selection.save_every": 2}
    words = ("--features", "tiny", "--iterations", 2, "--selection.every", 2, "--selection.save-every", 2)
    flags = ("--data", tiny_trainable, "--no-replays", "--out", tmp_path / "flags")
    assert typed("train", f"{plugin}:small-ssm", *words, *flags) == 0
    sm.train(
        f"{plugin}:small-ssm",
        features="tiny",
        data=tiny_trainable,
        iterations=2,
        out=tmp_path / "x",
        **settings,
    )
    by_flags, in_python = (RunFolder(tmp_path / name).describe() for name in ("flags", "x"))
    assert by_flags["name"] == in_python["name"] == "small-ssm-r2r-tiny"
    assert by_flags["preset"] == in_python["preset"]
    assert by_flags["preset"]["selection"]["split"] == "val_unseen"
    assert sm.preset("small-ssm", task="r4r").learning.labels == "path"
    with pytest.raises(sm.UserError, match="the row 'small-ssm' has no published recipe"):
        sm.preset("small-ssm", recipe="published")


def test_help_lists_the_presets_of_plugins(
    plugin: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCENEMEM_PLUGINS", str(plugin))
    assert typed("train", "--help") == 0
    assert "small-ssm" in capsys.readouterr().out


def test_a_run_names_the_plugin_it_needs_but_never_loads_it(
    plugin: Path, tiny_trainable: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = ("--data", tiny_trainable, "--no-replays", "--out")
    assert typed("train", f"{plugin}:small-ssm", *flags, out) == 0
    run = RunFolder(Path(shutil.copytree(out, tmp_path / "copy")))
    described = json.loads(run.description.read_text())
    described["preset"]["agent"] = "explorer"
    described["plugins"] = ["explorers.py"]
    run.description.write_text(json.dumps(described))
    checkpoint = read_checkpoint(run.last)
    checkpoint.metadata["preset"]["agent"] = "explorer"
    write_tensors(run.last, checkpoint.tensors, checkpoint.metadata)
    with pytest.raises(DataError, match=r"was made with explorers\.py; if you trust that code, add --plugin"):
        open_run(run, DataFolder(tiny_trainable))
    (tmp_path / "explorers.py").write_text("")
    registry.load_plugin(str(tmp_path / "explorers.py"))
    with pytest.raises(DataError, match="trained with the agent 'explorer', which no loaded plugin has"):
        open_run(run, DataFolder(tiny_trainable))
