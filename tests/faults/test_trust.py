"""What used to pass in silence or end in a traceback: goals that are shown, odd names, too little memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scenemem import cli
from scenemem.agents.walker import WalkConfig
from scenemem.errors import DataError, SettingError
from scenemem.formats.decoding import file_digest
from scenemem.formats.features import read_store
from scenemem.runs.weights import Published
from tests.commands.helpers import typed


@pytest.fixture
def data(tiny_trainable: Path, tmp_path: Path) -> Path:
    """A data folder that a test may change."""
    return Path(shutil.copytree(tiny_trainable, tmp_path / "data"))


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_split_shows_goals_for_all_or_for_none(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = data / "r2r" / "R2R_test.json"
    records = json.loads(file.read_bytes())
    results = [
        {"instr_id": f"{record['path_id']}_{number}", "trajectory": [[record["path"][0], 0, 0]]}
        for record in records
        for number in range(len(record["instructions"]))
    ]
    (data / "results.json").write_text(json.dumps(results))
    assert all(len(record["path"]) == 1 for record in records), "its goals are secret"
    words = ("score", data / "results.json", "--split", "test", "--data", data)
    assert typed(*words) == 2
    assert "the goals of r2r test are not public" in _said(capsys)
    shown = json.loads((data / "r2r" / "R2R_val_unseen.json").read_bytes())[0]
    records[0].update(scan=shown["scan"], path=shown["path"])
    file.write_text(json.dumps(records))
    assert typed(*words) == 2
    assert "record 1 (path_id" in (told := _said(capsys))
    assert "other records show their goals; a split shows all or none" in told


@pytest.mark.parametrize("text", ["[[[", "[a]\nseeds = 3", "\xff", "[a]\nseeds = [1]\nsr = [nan]\nspl = []"])
def test_damaged_seeds_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "seeds.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"seeds\.toml: "):
        _ = Published("a", tmp_path / "a.safetensors", {}, {}, {}).seeds


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "n" * 300),
        ("eval", "weights:" + "n" * 300),
        ("report", "n" * 300),
        ("submit", "n" * 300, "--split", "val_unseen", "--out", "x.json"),
        ("score", "n" * 300, "--split", "val_unseen"),
        ("eval", "run\udcff"),
    ],
)
def test_names_that_no_file_has_are_one_line(
    tiny_trainable: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words, "--data", tiny_trainable) == 2
    assert _said(capsys).count("error:") == 1


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(_words: object) -> int:
        raise MemoryError

    monkeypatch.setattr(cli, "_dispatch", greedy)
    assert typed("weights") == 2
    assert "error: not enough memory" in _said(capsys)


def test_a_text_has_room_for_a_word_between_two_marks() -> None:
    assert WalkConfig(max_words=3).max_words == 3
    with pytest.raises(SettingError, match="max_words must be from 3 to"):
        WalkConfig(max_words=2)


def test_features_that_are_not_finite_are_found(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = data / "features" / "tiny.npy"
    info, values = read_store(file)
    spoilt = np.array(values)
    spoilt[2, 35, 1] = np.nan
    np.save(file, spoilt)
    told = json.loads(file.with_suffix(".json").read_bytes())
    file.with_suffix(".json").write_text(json.dumps({**told, "sha256": file_digest(file)}))
    assert typed("data", "check", "--data", data, "--json") == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["record"] for problem in problems] == [f"'{info.keys[2]}'"]
    assert "view 35, column 1 is nan, expected a finite number" in problems[0]["reason"]
