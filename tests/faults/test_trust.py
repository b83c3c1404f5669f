"""What used to pass in silence or end in a traceback: runs named twice, data that changed, odd names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scenemem as sm
from scenemem import cli
from scenemem.agents.walker import WalkConfig
from scenemem.errors import DataError, SettingError
from scenemem.formats.decoding import file_digest
from scenemem.formats.features import read_store
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import read_stamp
from scenemem.learning.checkpoint import NETWORK, read_checkpoint, write_tensors
from scenemem.runs.folder import Published, RunFolder
from scenemem.runs.opened import kept_results
from tests.commands.helpers import typed

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 4),
    *("--selection.every", 2, "--selection.save-every", 2, "--no-replays"),
)


@pytest.fixture(scope="module")
def evaluated(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data folder, and a run trained on it."""
    root = tmp_path_factory.mktemp("evaluated")
    data = Path(shutil.copytree(tiny_trainable, root / "data"))
    assert typed("train", "basic", "--data", data, "--out", root / "run", "--iterations", 2, *SMALL) == 0
    return data, root / "run"


@pytest.fixture
def copied(evaluated: tuple[Path, Path], tmp_path: Path) -> tuple[Path, RunFolder]:
    """Copies that a test may change."""
    data, run = (shutil.copytree(place, tmp_path / place.name) for place in evaluated)
    return Path(data), RunFolder(Path(run))


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_run_that_cannot_be_written_is_shown_elsewhere(
    copied: tuple[Path, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = copied
    out = run.root.with_name("out")
    shutil.rmtree(run.root / "results", ignore_errors=True)
    (run.root / "results").write_text("in the way of everything that is written")
    assert typed("eval", run.root, "--data", data) == 2
    assert "choose another place with --out" in _said(capsys)
    assert typed("eval", run.root, "--data", data, "--out", out / "eval", "--traces", 1) == 0
    names = {"val_unseen.json", "val_unseen.jsonl", "val_unseen.stamp.json", "traces"}
    assert {file.name for file in (out / "eval").iterdir()} == names
    assert typed("view", run.root, "--data", data, "--out", out / "view", "--count", 1) == 0
    assert typed("report", run.root, "--data", data, "--out", out / "report.html", "--no-replays") == 0
    assert (out / "report.html").is_file()


def _reseed(run: RunFolder, seed: Any) -> None:
    for file in (run.last, run.best):
        checkpoint = read_checkpoint(file)
        write_tensors(file, checkpoint.tensors, {**checkpoint.metadata, "seed": seed})


def test_a_run_counts_once_in_a_comparison(copied: tuple[Path, RunFolder]) -> None:
    data, run = copied
    copy = RunFolder(Path(shutil.copytree(run.root, run.root.with_name("copy"))))
    again = RunFolder(Path(shutil.copytree(run.root, run.root.with_name("again"))))
    checkpoint = read_checkpoint(again.last)
    for tensor in checkpoint.tensors.values():
        tensor += 0  # other weights of the same seed
    write_tensors(again.last, checkpoint.tensors, {**checkpoint.metadata, "more": 1})
    found = sm.compare([run.root, run.root, copy.root, again.root], data=data)
    assert found.rows["basic"]["sr"].n == 1
    assert found.remarks == (
        f"{run.root} is named twice, and counts once",
        f"{copy.root} has the weights of {run.root}, which count once",
        f"{again.root} has the seed 0 of {run.root}, which counts once",
    )
    _reseed(again, 1)
    found = sm.compare([run.root, again.root], data=data)
    assert found.rows["basic"]["sr"].n == 2
    assert found.remarks == (f"{again.root} says seed 0, but its checkpoint was trained with seed 1",)


def test_a_split_shows_goals_for_all_or_for_none(
    copied: tuple[Path, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    data, _ = copied
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


def test_other_training_episodes_are_noticed(copied: tuple[Path, RunFolder]) -> None:
    data, run = copied
    file = data / "r2r" / "R2R_train.json"
    records = json.loads(file.read_bytes())
    records[0]["heading"] = 1.0
    file.write_text(json.dumps(records))
    for split in ("train", "dev_unseen"):
        with pytest.warns(UserWarning, match="the training episodes of r2r are not those it was trained on"):
            assert typed("eval", run.root, "--data", data, "--split", split, "--json") == 0
    assert typed("eval", run.root, "--data", data, "--json") == 0, "it says nothing about other splits"


def test_a_run_is_not_resumed_on_other_words(
    copied: tuple[Path, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = copied
    file = data / "r2r" / "R2R_train.json"
    file.write_text(file.read_text(encoding="utf-8").replace("Walk from", "Fly up from"), encoding="utf-8")
    assert typed("train", "basic", "--data", data, "--out", run.root, "--resume", "--no-replays") == 2
    told = _said(capsys)
    assert "has changed since it was started: train (sha256 " in told
    assert len(told) < 600


def test_a_run_does_not_begin_again_with_other_weights(
    copied: tuple[Path, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = copied
    words = ("train", "basic", "--data", data, "--out", run.root, "--resume", "--begin", run.root)
    assert typed(*words, "--no-replays") == 2
    assert f"began with fresh weights, not with {run.root}; leave out --begin" in _said(capsys)


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_stamp_that_names_no_file_is_no_stamp(copied: tuple[Path, RunFolder], name: str) -> None:
    data, run = copied
    assert typed("eval", run.root, "--data", data, "--json") == 0
    file = run.stamp("val_unseen")
    stamp = json.loads(file.read_bytes())
    file.write_text(json.dumps({**stamp, "files": {**stamp["files"], name: "0"}}))
    assert read_stamp(file) is None
    assert "val_unseen" not in kept_results(run, "last", DataFolder(data))


@pytest.mark.parametrize("seed", [None, "x", 0.5, [1]])
def test_a_seed_that_is_no_number_is_one_line(
    copied: tuple[Path, RunFolder], seed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = copied
    _reseed(run, seed)
    assert typed("eval", run.root, "--data", data) == 2
    assert "does not say how far and with which seed it was trained" in _said(capsys)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_weights_that_are_no_fractions_are_refused(
    copied: tuple[Path, RunFolder], kind: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = copied
    checkpoint = read_checkpoint(run.last)
    name = next(name for name in checkpoint.tensors if name.startswith(NETWORK))
    checkpoint.tensors[name] = checkpoint.tensors[name].to(kind)
    write_tensors(run.last, checkpoint.tensors, checkpoint.metadata)
    assert typed("eval", run.root, "--data", data) == 2
    assert "expected torch.float32" in _said(capsys)


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


def test_features_that_are_not_finite_are_found(
    copied: tuple[Path, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    data, _ = copied
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
