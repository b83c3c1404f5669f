"""Train, evaluate, compare and submit, as a user would."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from scenemem.formats.features import write_store
from scenemem.runs.folder import RunFolder
from scenemem.world.build import load_world
from tests.commands.helpers import printed_json, typed

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1),
    *("--learning.batch", 4, "--iterations", 4, "--selection.every", 2, "--selection.save-every", 2),
)


@pytest.fixture(scope="module")
def trained(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ssm-0"
    assert typed("train", "ssm", "--data", tiny_trainable, "--out", out, *SMALL) == 0
    return out


def test_training_fills_the_run_folder(trained: Path) -> None:
    run = RunFolder(trained)
    description = run.describe()
    assert description["name"] == "ssm"
    assert description["preset"]["model"]["width"] == 16
    assert [line["iteration"] for line in run.logged()] == [2, 4]
    assert run.best.is_file()
    assert run.last.is_file()


def test_eval_prints_what_score_says_about_its_trajectories(
    trained: Path, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("eval", trained, "--data", tiny_trainable, "--split", "val_unseen", "--json") == 0
    report = printed_json(capsys)
    results = trained / "results" / "val_unseen.json"
    assert typed("score", results, "--data", tiny_trainable, "--split", "val_unseen", "--json") == 0
    scored = printed_json(capsys)
    assert scored == {key: report[key] for key in scored}
    assert "track" not in report, "these features belong to none"
    assert typed("eval", trained, "--data", tiny_trainable, "--checkpoint", "best") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "stopped nearer than 3 m" in shown
    assert "on r2r val_unseen, track unknown: " in shown


def test_every_result_names_the_track(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.runs.folder.WEIGHTS", tmp_path)
    data, run = Path(shutil.copytree(tiny_trainable, tmp_path / "data")), tmp_path / "seeing"
    record = data / "features" / "tiny.json"
    content = {**json.loads(record.read_text()), "track": "captions", "sensor": "a camera"}
    record.write_text(json.dumps(content))
    assert typed("train", "basic", "--data", data, "--out", run, "--json", *SMALL) == 0
    assert RunFolder(run).describe()["data"]["track"] == "captions"
    assert ", track captions" in (run / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert typed("eval", run, "--data", data, "--json") == 0
    assert printed_json(capsys)["track"] == "captions"
    assert typed("eval", run, "--data", data) == 0
    assert "on r2r val_unseen, track captions: " in " ".join(capsys.readouterr().out.split())
    assert typed("compare", run, "--data", data, "--json", "--out", tmp_path / "table.md") == 0
    assert printed_json(capsys)["tracks"] == {"basic": "captions"}
    assert "| basic | captions | 1 |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert typed("weights", "pack", run, "--data", data, "--out", tmp_path / "packed.safetensors") == 0
    assert ", track captions, 8 columns" in (tmp_path / "packed.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert typed("weights", "--json") == 0
    assert printed_json(capsys)["packed"]["track"] == "captions"


def test_fast_products_are_allowed_only_when_asked_for(
    tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def told(precision: str, device: str, *, tried: bool = False) -> None:
        assert not tried, "a new run"
        asked.append((precision, device))

    monkeypatch.setattr("scenemem.commands.train.use_precision", told)
    for number, flags in enumerate(((), ("--precision", "fast"))):
        out = tmp_path / str(number)
        assert typed("train", "basic", "--data", tiny_trainable, "--out", out, *SMALL, *flags) == 0
    assert asked == [("full", "cpu"), ("full", "cpu"), ("fast", "cpu"), ("full", "cpu")], "a report is full"


def test_packed_weights_stand_for_a_run_and_reach_what_their_card_says(
    trained: Path,
    tiny_trainable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scenemem.runs.folder.WEIGHTS", tmp_path)
    trained = Path(shutil.copytree(trained, tmp_path / "augmented-0"))
    description = json.loads((trained / "preset.json").read_text())
    description["augmentation"] = {"speaker": str(tmp_path / "speaker-0")}
    (trained / "preset.json").write_text(json.dumps(description))
    assert typed("weights", "pack", trained, "--data", tiny_trainable, "--out", tmp_path / "x.bin") == 2
    file = tmp_path / "tiny.safetensors"
    assert typed("weights", "pack", trained, "--data", tiny_trainable, "--out", file) == 0
    capsys.readouterr()
    assert typed("eval", "weights:tiny", "--data", tiny_trainable, "--json") == 0
    measured = printed_json(capsys)["metrics"]
    assert typed("weights", "--json") == 0
    packed = printed_json(capsys)["tiny"]
    assert packed["metrics"]["val_unseen"] == measured
    assert packed["augmentation"] == {"speaker": "speaker-0"}, "not where it lay on this machine"
    assert typed("weights") == 0
    assert " tiny " in capsys.readouterr().out
    card = file.with_suffix(".md").read_text()
    assert f"| val_unseen | {measured['sr']:.3f} |" in card
    assert str(tmp_path) not in card
    assert typed("eval", "weights:unknown", "--data", tiny_trainable) == 2
    assert "there are: tiny" in capsys.readouterr().err


def test_submit_writes_a_valid_file_for_the_secret_split(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "test.json"
    assert typed("submit", trained, "--data", tiny_trainable, "--split", "test", "--out", out) == 0
    assert "every start, id and edge is right" in capsys.readouterr().err
    assert typed("eval", trained, "--data", tiny_trainable, "--split", "test") == 2
    assert "keeps its goals secret" in capsys.readouterr().err


@pytest.mark.parametrize("agent", ["expert", "random", "stop"])
def test_scripted_agents_are_evaluated_too(
    agent: str, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("eval", agent, "--data", tiny_trainable, "--json") == 0
    assert (printed_json(capsys)["metrics"]["sr"] == 1.0) == (agent == "expert")


def test_compare_gathers_seeds_of_a_preset(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "ssm-1"
    assert typed("train", "ssm", "--data", tiny_trainable, "--out", other, "--seed", 1, "--json", *SMALL) == 0
    assert printed_json(capsys)["iteration"] == 4
    words = ("compare", trained, other, "--data", tiny_trainable)
    assert typed(*words, "--json") == 0
    rows = printed_json(capsys)["rows"]
    assert rows["ssm"]["sr"]["n"] == 2
    for name in ("table.md", "table.html"):
        assert typed(*words, "--out", tmp_path / name) == 0
        assert "±" in (tmp_path / name).read_text(encoding="utf-8")
    capsys.readouterr()
    assert typed(*words, "--out", tmp_path / "table.doc") == 2
    assert "expected a name ending in .md, .html or .svg" in capsys.readouterr().err
    assert typed(*words, "--out", tmp_path / "table.svg") == 2
    assert "table.svg: a picture shows distances from a row; name it with" in capsys.readouterr().err


def test_compare_tells_how_far_presets_are_from_one_of_them(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, table = tmp_path / "basic", tmp_path / "table.md"
    assert typed("train", "basic", "--data", tiny_trainable, "--out", other, "--json", *SMALL) == 0
    capsys.readouterr()
    words = ("compare", trained, other, "--data", tiny_trainable)
    assert typed(*words, "--against", "ssm", "--json", "--out", table) == 0
    report = printed_json(capsys)
    assert typed(*words, "--against", "ssm", "--json", "--processes", 2, "--again") == 0
    assert printed_json(capsys) == report, "it does not matter how many walk"
    distance = report["against"]["ssm"]["basic"]["sr"]
    means = {name: row["sr"]["mean"] for name, row in report["rows"].items()}
    assert distance["value"] == pytest.approx(means["basic"] - means["ssm"])
    assert distance["low"] <= distance["value"] <= distance["high"]
    assert "| basic | " + "{:+.3f} [".format(distance["value"]) in table.read_text(encoding="utf-8")
    assert typed(*words, "--against", "ssm") == 0
    assert "distance from ssm" in capsys.readouterr().out
    assert typed(*words, "--against", "seq2seq") == 2
    assert "no such row; there are: ssm, basic" in capsys.readouterr().err
    assert typed("compare", other, "--data", tiny_trainable, "--against", "basic") == 2
    assert "all runs belong to that row; name runs of another one, too" in capsys.readouterr().err


def test_compare_refuses_a_run_that_does_not_say_what_it_is(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(shutil.copytree(trained, tmp_path / "broken"))
    for text in ('{"name": "ssm"}', '{"name": "ssm", "preset": 3}'):
        (broken / "preset.json").write_text(text, encoding="utf-8")
        assert typed("compare", trained, broken, "--data", tiny_trainable) == 2
        assert "does not describe a run" in capsys.readouterr().err


def test_compare_gives_runs_from_before_a_setting_existed_its_default(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = Path(shutil.copytree(trained, tmp_path / "older"))
    described = json.loads((older / "preset.json").read_text(encoding="utf-8"))
    del described["preset"]["model"]["allow_revisits"]
    (older / "preset.json").write_text(json.dumps(described), encoding="utf-8")
    assert typed("compare", trained, older, "--data", tiny_trainable, "--json") == 0
    assert list(printed_json(capsys)["rows"]) == ["ssm"]


def test_compare_refuses_to_mix_tasks(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, other = Path(shutil.copytree(tiny_trainable, tmp_path / "data")), tmp_path / "longer"
    assert typed("data", "r4r", "--data", data, "--splits", "train", "val_seen", "val_unseen") == 0
    assert typed("train", "ssm", "--data", data, "--out", other, "--data.task", "r4r", *SMALL) == 0
    capsys.readouterr()
    assert typed("compare", trained, other, "--data", data) == 2
    assert "walks other episodes than the runs before it" in capsys.readouterr().err


def test_compare_keeps_runs_with_other_settings_apart(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "ssm-other"
    words = ("train", "ssm", "--data", tiny_trainable, "--out", other, "--json", *SMALL)
    assert typed(*words, "--model.reasoning-steps", 1) == 0
    capsys.readouterr()
    assert typed("compare", trained, other, "--data", tiny_trainable, "--json") == 0
    rows = printed_json(capsys)["rows"]
    assert list(rows) == ["ssm (model.reasoning_steps 3)", "ssm (model.reasoning_steps 1)"]


def test_a_run_is_never_overwritten_but_can_be_continued(
    trained: Path, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "ssm", "--data", tiny_trainable, "--out", trained, *SMALL)
    assert typed(*words) == 2
    assert "already holds a run; continue it with --resume" in capsys.readouterr().err
    before = (trained / "metrics.jsonl").read_text()
    assert typed("train", "ssm", "--data", tiny_trainable, "--out", trained, "--resume") == 0, "no flag again"
    assert (trained / "metrics.jsonl").read_text() == before, "a finished run has nothing left to do"
    assert typed(*words, "--resume", "--learning.clip", 1.0) == 2
    refused = " ".join(capsys.readouterr().err.split())
    assert re.search(r"was started with another preset \(learning\.clip: [\d.]+ then, 1\.0 now\)", refused)


def test_a_run_that_never_began_does_not_block_its_folder(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "ssm", "--data", tiny_trainable, "--out", tmp_path / "run", *SMALL)
    assert typed(*words, "--selection.split", "typo") == 2
    assert "R2R_typo.json: no such file" in capsys.readouterr().err
    assert typed(*words) == 0


def test_a_second_feature_store_does_not_confuse_a_trained_run(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(tiny_trainable, tmp_path / "data"))
    for name in ("another.npy", "another.json"):
        shutil.copy(data / "features" / f"tiny.{name.split('.')[1]}", data / "features" / name)
    assert typed("eval", trained, "--data", data, "--json") == 0
    capsys.readouterr()
    assert typed("train", "ssm", "--data", data, "--out", tmp_path / "run", *SMALL) == 2
    assert "has several feature stores (another, tiny); name one with --features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--iterations", 0), "iterations must be 1 or more, got 0"),
        (("--threads", 0), "--threads must be 1 or more, got 0"),
        (("--seed", -1), "--seed must be 0 or more, got -1"),
    ],
)
def test_impossible_settings_are_one_line(
    flags: tuple[object, ...],
    message: str,
    tiny_trainable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed("train", "basic", "--data", tiny_trainable, "--out", tmp_path / "run", *flags) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train",), "name a preset first: scenemem train PRESET; there are: ssm"),
        (("train", "hal9000"), "unknown preset 'hal9000'; there are: ssm"),
        (("eval", "nowhere"), "holds no run (no preset.json); start one with 'scenemem train'"),
        (("compare",), "name at least one run folder"),
        (("compare", "RUN", "--processes", "0"), "--processes must be 1 or more, got 0"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], message: str, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = () if words[0] == "train" else ("--data", tiny_trainable)
    assert typed(*words, *data) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_other_features_than_those_trained_with_are_refused(
    trained: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("eval", trained, "--data", tiny_data) == 2
    assert "no feature store 'tiny' (there is none yet)" in capsys.readouterr().err
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    names = load_world(data / "connectivity").names
    for width, differs in ((5, "width 8, this store has 5"), (8, "sha256")):
        rows = np.zeros((len(names), 36, width), dtype=np.float16)
        store = data / "features" / "tiny.npy"
        write_store(store, names, rows, width=width, source="test", encoder="zeros")
        assert typed("eval", trained, "--data", data) == 2
        assert f"was trained on features with {differs}" in capsys.readouterr().err


def test_training_help_names_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("train", "--help") == 0
    assert "ssm-no-grounding" in capsys.readouterr().out
    assert typed("train", "basic", "--help") == 0
    assert "--model.width" in capsys.readouterr().out


def test_training_leaves_the_thread_setting_sane(trained: Path) -> None:
    assert torch.get_num_threads() == 1
