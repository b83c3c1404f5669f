"""Configurations in TOML: what they change, what they refuse, and the one every run writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from scenemem.agents.build import AGENTS
from scenemem.errors import DataError, SettingError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS, Preset, read_preset
from scenemem.runs.config import changed, differences, nested, read_config
from scenemem.runs.experiment import SPEAKERS
from scenemem.runs.folder import RunFolder
from scenemem.runs.training import Settings, choose_preset, run_training
from tests.commands.helpers import Shell, typed

SMALL: dict[str, dict[str, Any]] = {
    "model": {"width": 16, "word_width": 8},
    "data": {"min_count": 1},
    "learning": {"batch": 4},
    "selection": {"every": 2, "save_every": 2},
}
TOML = tomli_w.dumps({**SMALL, "model": {**SMALL["model"], "node_width": "none"}})


def _file(folder: Path, text: str) -> Path:
    file = folder / "my.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_configuration_changes_what_it_names(tmp_path: Path) -> None:
    settings = choose_preset(
        PRESETS, None, _file(tmp_path, f'base = "ssm"\nseed = 7\niterations = 4\n{TOML}')
    )
    assert (settings.name, settings.seed) == ("ssm", 7)
    expected = changed(changed(PRESETS["ssm"], SMALL), {"model": {"node_width": "none"}})
    assert settings.preset == replace(expected, learning=replace(expected.learning, iterations=4))
    assert settings.preset.model.node_width is None
    assert settings.preset.learning.clip == PRESETS["ssm"].learning.clip


@pytest.mark.parametrize("name", PRESETS)
def test_differences_are_what_has_to_be_changed(name: str) -> None:
    changes = differences(PRESETS["ssm"], PRESETS[name])
    assert changed(PRESETS["ssm"], json.loads(json.dumps(changes))) == PRESETS[name]
    assert differences(PRESETS[name], PRESETS[name]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\nwidht = 3", "unknown key 'model.widht'; did you mean 'model.width'?"),
        ("sed = 3", "unknown key 'sed'; did you mean 'seed'?"),
        ("reasoning_steps = 3", "unknown key 'reasoning_steps'; did you mean 'model.reasoning_steps'?"),
        ("[zzz]\nqqq = 3", "unknown key 'zzz'; there are: agent, model.word_width"),
        ("model = 3", "'model' is a table of settings, got 3"),
        ('[model]\nwidth = "wide"', "model.width: expected int, got str"),
        ("[learning]\nclip = -1.0", "clip must be positive, got -1.0"),
        ("[[learning.stages]]\nshare = true", "learning.stages: expected float, got bool"),
        (
            "[[learning.stages]]\nteacher = 1.0",
            "unknown key 'learning.stages[0].teacher'; there are: name, share, losses",
        ),
        ('agent = "basick"', "unknown agent 'basick'; did you mean basic"),
        ('agent = "basic"\n[model]\nhints = false', "unknown key 'model.hints'; did you mean 'model.width'?"),
        ('plugins = ["shed.py"]', "was made with shed.py; if you trust that code, add"),
        ("base = 3", "field 'base': expected str | null, got int"),
        ("base = [", "is no TOML ("),
        ('base = "ssmm"', "unknown preset 'ssmm'; did you mean ssm"),
        *(
            (f'base = "{name}"', f"unknown preset '{name}'; features, tasks and recipes are flags")
            for name in ("ssm-r4r-captions-augmented", "ssm-as-published")
        ),
    ],
)
def test_what_cannot_be_changed_names_file_and_key(text: str, message: str, tmp_path: Path) -> None:
    file = _file(tmp_path, text if "base =" in text else 'base = "ssm"\n' + text)
    with pytest.raises(UserError) as refused:
        choose_preset(PRESETS, None, file)
    place = "" if message.startswith(("unknown preset", "unknown agent")) else f"{file}: "
    assert str(refused.value).startswith(place + message)


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'my\.toml: names no base; add base = "PRESET"'):
        choose_preset(PRESETS, None, _file(tmp_path, "seed = 3"))
    with pytest.raises(DataError, match="no such file; expected a configuration in TOML"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(UserError, match="changes the preset 'ssm', not 'basic'; name one of them"):
        choose_preset(PRESETS, "basic", _file(tmp_path, 'base = "ssm"'))
    with pytest.raises(UserError, match="recipes are of agents; the published one of the speaker is"):
        choose_preset(SPEAKERS, None, _file(tmp_path, 'base = "speaker"\nrecipe = "published"'))
    with pytest.raises(SettingError, match=r"'model' is given a value and, in 'model\.width', a part of it"):
        nested({"model": 3, "model.width": 4})


def _losses(run: Path) -> list[Any]:
    return [(line["iteration"], line["losses"], line.get("validation")) for line in RunFolder(run).logged()]


def test_the_configuration_of_a_run_repeats_it(tiny_trainable: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    flags = ("--data", tiny_trainable, "--no-replays")
    own = _file(tmp_path, f'base = "ssm-plus-no-hints"\nseed = 3\n{TOML}')
    assert (
        typed("train", "--config", own, "--out", first, "--iterations", 4, "--model.width", 12, *flags) == 0
    )
    described = RunFolder(first).describe()
    assert (described["name"], described["seed"]) == ("ssm-plus-no-hints", 3)
    assert described["preset"]["model"]["width"] == 12, "flags go last"
    text = (first / "experiment.toml").read_text(encoding="utf-8")
    base = 'base = "ssm-plus-no-hints"'
    for line in (base, "seed = 3", "iterations = 4", 'features = "tiny"', "width = 12"):
        assert line in text
    assert "hints" not in text.replace(base, ""), "only what differs from the base"
    assert str(tmp_path) not in text

    assert typed("train", f"--config={first / 'experiment.toml'}", "--out", second, *flags) == 0
    assert _losses(second) == _losses(first)
    assert RunFolder(second).describe()["preset"] == described["preset"]


@pytest.mark.parametrize(
    ("overlays", "name"),
    [
        ({"features": "tiny"}, "ssm-r2r-tiny"),
        ({"features": "tiny", "recipe": "published"}, "ssm-as-published-r2r-tiny"),
        ({"augment": "r2r/R2R_train.json"}, "ssm-augmented"),
    ],
)
def test_flags_and_configurations_lay_the_same_over_a_row(
    overlays: dict[str, str], name: str, tiny_trainable: Path, tmp_path: Path
) -> None:
    if "augment" in overlays:
        overlays = {"augment": str(tiny_trainable / overlays["augment"])}
    data = ("--data", tiny_trainable, "--no-replays")
    laid = "".join(f'{key} = "{value}"\n' for key, value in overlays.items())
    flags = [word for key, value in overlays.items() for word in (f"--{key}", value)]
    found = []
    for number, (more, words) in enumerate([(laid, []), ("", ["ssm", *flags])]):
        out, config = tmp_path / str(number), f'base = "ssm"\niterations = 2\n{more}{TOML}'
        assert typed("train", *words, "--config", _file(tmp_path, config), *data, "--out", out) == 0
        found.append(RunFolder(out).describe())
    assert (found[0]["name"], found[0]["preset"]) == (name, found[1]["preset"])
    assert found[1]["name"] == name
    again = choose_preset(PRESETS, None, out / "experiment.toml", data=lambda: DataFolder(tiny_trainable))
    assert (again.name, again.preset) == (name, read_preset(found[1]["preset"]))
    text = (out / "experiment.toml").read_text(encoding="utf-8")
    assert 'base = "ssm"' in text
    for setting in ("feature_dropout", "learning_rate", "stages", "val_unseen"):
        assert setting not in text, "what an overlay chooses is not repeated"


def test_a_configuration_wants_the_data_it_was_written_for(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataFolder(tiny_trainable)
    monkeypatch.setattr("scenemem.commands.train.open_data", lambda *_, **__: folder)
    file = _file(tmp_path, f'base = "ssm"\nfolder = "r2r"\niterations = 2\n{TOML}')
    assert typed("train", "--config", file, "--out", tmp_path / "run") == 2
    assert "this configuration was written for the data folder 'r2r'; name --data" in capsys.readouterr().err
    assert typed("train", "--config", file, "--out", tmp_path / "run", "--data", tiny_trainable) == 0


def test_a_speaker_is_repeated_as_well(tiny_trainable: Path, tmp_path: Path) -> None:
    preset = replace(changed(SPEAKERS["speaker"], SMALL), words=20)
    preset = replace(preset, learning=replace(preset.learning, iterations=2))
    run_training(Settings("speaker", preset, 1), DataFolder(tiny_trainable), RunFolder(tmp_path / "one"))
    words = ("speak", "train", "--config", tmp_path / "one" / "experiment.toml", "--data", tiny_trainable)
    assert typed(*words, "--out", tmp_path / "two") == 0
    assert _losses(tmp_path / "two") == _losses(tmp_path / "one")


def test_ones_own_preset_is_told_as_a_change_of_the_nearest(tiny_trainable: Path, tmp_path: Path) -> None:
    preset: Preset[Any] = changed(PRESETS["basic"], {**SMALL, "learning": {"batch": 4, "iterations": 2}})
    run_training(Settings("mine", preset), DataFolder(tiny_trainable), RunFolder(tmp_path))
    settings = choose_preset(PRESETS, None, tmp_path / "experiment.toml")
    assert settings.preset == replace(preset, data=replace(preset.data, features="tiny"))


def test_another_agent_keeps_the_settings_both_have(tmp_path: Path) -> None:
    text = 'base = "ssm"\nagent = "basic"\n[model]\nwidth = 32'
    preset = choose_preset(PRESETS, None, _file(tmp_path, text)).preset
    assert (preset.agent, type(preset.model)) == ("basic", AGENTS["basic"].config)
    assert (preset.model.width, preset.model.dropout) == (32, PRESETS["ssm"].model.dropout)
    assert differences(PRESETS["ssm"], preset) == {"agent": "basic", "model": {"width": 32}}


def test_an_agent_is_not_trained_with_the_settings_of_another(tmp_path: Path, shell: Shell) -> None:
    refused = shell.refused("train", "ssm", "--agent", "basic", "--out", tmp_path / "run")
    assert "the agent 'basic' has the settings ModelConfig, got SSMConfig" in refused
    assert not (tmp_path / "run").exists()
