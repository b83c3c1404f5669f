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
from tests.commands.helpers import Shell, typed

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


def test_a_preset_is_trained_by_flag_or_by_colon(plugin: Path, tmp_path: Path, shell: Shell) -> None:
    out = ("--no-replays", "--out")
    assert "unknown preset 'small-ssm'" in shell.refused("train", "small-ssm", *out, tmp_path / "0")
    shell("train", "--plugin", plugin, "small-ssm", *out, tmp_path / "1")
    shell("train", f"{plugin}:small-ssm", *out, tmp_path / "2")
    shell(f"--plugin={plugin}", "train", f"{plugin}:unregistered", *out, tmp_path / "3")
    for number, name in (("1", "small-ssm"), ("2", "small-ssm"), ("3", "unregistered")):
        described = RunFolder(tmp_path / number).describe()
        assert (described["name"], described["plugins"]) == (name, [str(plugin)])
        assert f'base = "{name}"' in (tmp_path / number / "experiment.toml").read_text()
    assert "unknown preset 'nothing'" in shell.refused("train", f"{plugin}:nothing", *out, tmp_path / "4")
    refused = shell.split("train", "small-ssm", "--plugin", code=2).err
    assert "--plugin needs a module or a .py file" in refused


def test_what_is_laid_over_a_row_goes_on_that_of_a_plugin_too(
    plugin: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell
) -> None:
    settings: dict[str, Any] = {"selection.every": 2, "selection.save_every": 2}
    words = ("--features", "tiny", "--iterations", 2, "--selection.every", 2, "--selection.save-every", 2)
    shell("train", row := f"{plugin}:small-ssm", *words, "--no-replays", "--out", tmp_path / "flags")
    where: dict[str, Any] = {"data": tiny_trainable, "out": tmp_path / "x"}
    sm.train(row, features="tiny", iterations=2, **where, **settings)
    by_flags, in_python = (RunFolder(tmp_path / name).describe() for name in ("flags", "x"))
    assert by_flags["name"] == in_python["name"] == "small-ssm-r2r-tiny"
    assert by_flags["preset"] == in_python["preset"]
    assert by_flags["preset"]["selection"]["split"] == "val_unseen"
    assert sm.preset("small-ssm", task="r4r").learning.labels == "path"
    with pytest.raises(sm.UserError, match="the row 'small-ssm' has no published recipe"):
        sm.preset("small-ssm", recipe="published")


def test_help_lists_presets_of_plugins(plugin: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCENEMEM_PLUGINS", str(plugin))
    assert "small-ssm" in shell.split("train", "--help").out


def test_a_run_names_its_plugin_and_never_loads_it(
    plugin: Path, tiny_trainable: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ("train", f"{plugin}:small-ssm", "--data", tiny_trainable, "--no-replays", "--out", out)
    assert typed(*words) == 0
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
