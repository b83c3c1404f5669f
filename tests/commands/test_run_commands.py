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
from tests.commands import helpers
from tests.commands.helpers import Shell, typed

SMALL = (*helpers.SMALL, "--iterations", 4)


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


def test_eval_prints_what_score_says_about_its_trajectories(trained: Path, shell: Shell) -> None:
    report = shell.json("eval", trained, "--split", "val_unseen")
    results = trained / "results" / "val_unseen.json"
    scored = shell.json("score", results, "--split", "val_unseen")
    assert scored == {key: report[key] for key in scored}
    assert "track" not in report, "these features belong to none"
    shown = shell("eval", trained, "--checkpoint", "best")
    assert "stopped nearer than 3 m" in shown
    assert "on r2r val_unseen, track unknown: " in shown


def test_every_result_names_the_track(
    copied_data: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.runs.weights.WEIGHTS", tmp_path)
    data, run = copied_data, tmp_path / "seeing"
    record = data / "features" / "tiny.json"
    content = {**json.loads(record.read_text()), "track": "captions", "sensor": "a camera"}
    record.write_text(json.dumps(content))
    shell("train", "basic", "--data", data, "--out", run, "--json", *SMALL)
    assert RunFolder(run).describe()["data"]["track"] == "captions"
    assert ", track captions" in (run / "report.html").read_text(encoding="utf-8")
    assert shell.json("eval", run, "--data", data)["track"] == "captions"
    assert "on r2r val_unseen, track captions: " in shell("eval", run, "--data", data)
    assert shell.json("compare", run, "--data", data, "--out", tmp_path / "table.md")["tracks"] == {
        "basic": "captions"
    }
    assert "| basic | captions | 1 |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    shell("weights", "pack", run, "--data", data, "--out", tmp_path / "packed.safetensors")
    assert ", track captions, 8 columns" in (tmp_path / "packed.md").read_text(encoding="utf-8")
    assert shell.json("weights")["packed"]["track"] == "captions"


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
    trained: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.runs.weights.WEIGHTS", tmp_path)
    trained = Path(shutil.copytree(trained, tmp_path / "augmented-0"))
    description = json.loads((trained / "preset.json").read_text())
    description["augmentation"] = {"speaker": str(tmp_path / "speaker-0")}
    (trained / "preset.json").write_text(json.dumps(description))
    shell.refused("weights", "pack", trained, "--out", tmp_path / "x.bin")
    file = tmp_path / "tiny.safetensors"
    shell("weights", "pack", trained, "--out", file)
    measured = shell.json("eval", "weights:tiny")["metrics"]
    packed = shell.json("weights")["tiny"]
    assert packed["metrics"]["val_unseen"] == measured
    assert packed["augmentation"] == {"speaker": "speaker-0"}, "not where it lay on this machine"
    assert " tiny " in shell("weights")
    card = file.with_suffix(".md").read_text()
    assert f"| val_unseen | {measured['sr']:.3f} |" in card
    assert str(tmp_path) not in card
    assert "there are: tiny" in shell.refused("eval", "weights:unknown")


def test_submit_writes_a_valid_file_for_the_secret_split(trained: Path, tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "test.json"
    assert "every start, id and edge is right" in shell("submit", trained, "--split", "test", "--out", out)
    assert "keeps its goals secret" in shell.refused("eval", trained, "--split", "test")


@pytest.mark.parametrize("agent", ["expert", "random", "stop"])
def test_scripted_agents_are_evaluated_too(agent: str, shell: Shell) -> None:
    assert (shell.json("eval", agent)["metrics"]["sr"] == 1.0) == (agent == "expert")


def test_compare_gathers_seeds_of_a_preset(trained: Path, tmp_path: Path, shell: Shell) -> None:
    other = tmp_path / "ssm-1"
    assert shell.json("train", "ssm", "--out", other, "--seed", 1, *SMALL)["iteration"] == 4
    words = ("compare", trained, other)
    rows = shell.json(*words)["rows"]
    assert rows["ssm"]["sr"]["n"] == 2
    for name in ("table.md", "table.html"):
        shell(*words, "--out", tmp_path / name)
        assert "±" in (tmp_path / name).read_text(encoding="utf-8")
    assert "expected a name ending in .md, .html or .svg" in shell.refused(
        *words, "--out", tmp_path / "table.doc"
    )
    assert "table.svg: a picture shows distances from a row; name it with" in shell.refused(
        *words, "--out", tmp_path / "table.svg"
    )


def test_compare_tells_how_far_presets_are_from_one_of_them(
    trained: Path, tmp_path: Path, shell: Shell
) -> None:
    other, table = tmp_path / "basic", tmp_path / "table.md"
    shell("train", "basic", "--out", other, "--json", *SMALL)
    words = ("compare", trained, other)
    report = shell.json(*words, "--against", "ssm", "--out", table)
    assert shell.json(*words, "--against", "ssm", "--processes", 2, "--again") == report, (
        "it does not matter how many walk"
    )
    distance = report["against"]["ssm"]["basic"]["sr"]
    means = {name: row["sr"]["mean"] for name, row in report["rows"].items()}
    assert distance["value"] == pytest.approx(means["basic"] - means["ssm"])
    assert distance["low"] <= distance["value"] <= distance["high"]
    assert "| basic | " + "{:+.3f} [".format(distance["value"]) in table.read_text(encoding="utf-8")
    assert "distance from ssm" in shell(*words, "--against", "ssm")
    assert "no such row; there are: ssm, basic" in shell.refused(*words, "--against", "seq2seq")
    assert "all runs belong to that row; name runs of another one, too" in shell.refused(
        "compare", other, "--against", "basic"
    )


def test_compare_refuses_a_run_that_does_not_say_what_it_is(
    trained: Path, tmp_path: Path, shell: Shell
) -> None:
    broken = Path(shutil.copytree(trained, tmp_path / "broken"))
    for text in ('{"name": "ssm"}', '{"name": "ssm", "preset": 3}'):
        (broken / "preset.json").write_text(text, encoding="utf-8")
        assert "does not describe a run" in shell.refused("compare", trained, broken)


def test_compare_gives_runs_from_before_a_setting_existed_its_default(
    trained: Path, tmp_path: Path, shell: Shell
) -> None:
    older = Path(shutil.copytree(trained, tmp_path / "older"))
    described = json.loads((older / "preset.json").read_text(encoding="utf-8"))
    del described["preset"]["model"]["allow_revisits"]
    (older / "preset.json").write_text(json.dumps(described), encoding="utf-8")
    assert list(shell.json("compare", trained, older)["rows"]) == ["ssm"]


def test_compare_refuses_to_mix_tasks(trained: Path, copied_data: Path, tmp_path: Path, shell: Shell) -> None:
    data, other = copied_data, tmp_path / "longer"
    shell("data", "r4r", "--data", data, "--splits", "train", "val_seen", "val_unseen")
    shell("train", "ssm", "--data", data, "--out", other, "--data.task", "r4r", *SMALL)
    assert "walks other episodes than the runs before it" in shell.refused(
        "compare", trained, other, "--data", data
    )


def test_compare_keeps_runs_with_other_settings_apart(trained: Path, tmp_path: Path, shell: Shell) -> None:
    other = tmp_path / "ssm-other"
    shell("train", "ssm", "--out", other, *SMALL, "--model.reasoning-steps", 1)
    rows = shell.json("compare", trained, other)["rows"]
    assert list(rows) == ["ssm (model.reasoning_steps 3)", "ssm (model.reasoning_steps 1)"]


def test_a_run_is_never_overwritten_but_can_be_continued(trained: Path, shell: Shell) -> None:
    words = ("train", "ssm", "--out", trained, *SMALL)
    assert "already holds a run; continue it with --resume" in shell.refused(*words)
    before = (trained / "metrics.jsonl").read_text()
    shell("train", "ssm", "--out", trained, "--resume")
    assert (trained / "metrics.jsonl").read_text() == before, "a finished run has nothing left to do"
    refused = shell.refused(*words, "--resume", "--learning.clip", 1.0)
    assert re.search(r"was started with another preset \(learning\.clip: [\d.]+ then, 1\.0 now\)", refused)


def test_a_run_that_never_began_does_not_block_its_folder(tmp_path: Path, shell: Shell) -> None:
    words = ("train", "ssm", "--out", tmp_path / "run", *SMALL)
    assert "R2R_typo.json: no such file" in shell.refused(*words, "--selection.split", "typo")
    shell(*words)


def test_a_second_feature_store_does_not_confuse_a_trained_run(
    trained: Path, copied_data: Path, tmp_path: Path, shell: Shell
) -> None:
    data = copied_data
    for name in ("another.npy", "another.json"):
        shutil.copy(data / "features" / f"tiny.{name.split('.')[1]}", data / "features" / name)
    shell("eval", trained, "--data", data, "--json")
    assert "has several feature stores (another, tiny); name one with --features" in shell.refused(
        "train", "ssm", "--data", data, "--out", tmp_path / "run", *SMALL
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--iterations", 0), "iterations must be 1 or more, got 0"),
        (("--threads", 0), "--threads must be 1 or more, got 0"),
        (("--seed", -1), "--seed must be 0 or more, got -1"),
    ],
)
def test_impossible_settings_are_one_line(
    flags: tuple[object, ...], message: str, tmp_path: Path, shell: Shell
) -> None:
    assert f"error: {message}" in shell.refused("train", "basic", "--out", tmp_path / "run", *flags)


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
def test_mistakes_are_one_line(words: tuple[str, ...], message: str, shell: Shell) -> None:
    assert message in shell.refused(*words)


def test_other_features_than_those_trained_with_are_refused(
    trained: Path, tiny_data: Path, tmp_path: Path, shell: Shell
) -> None:
    assert "no feature store 'tiny' (there is none yet)" in shell.refused(
        "eval", trained, "--data", tiny_data
    )
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    names = load_world(data / "connectivity").names
    for width, differs in ((5, "width 8, this store has 5"), (8, "sha256")):
        rows = np.zeros((len(names), 36, width), dtype=np.float16)
        store = data / "features" / "tiny.npy"
        write_store(store, names, rows, width=width, source="test", encoder="zeros")
        assert f"was trained on features with {differs}" in shell.refused("eval", trained, "--data", data)


def test_training_help_names_the_presets(shell: Shell) -> None:
    assert "ssm-no-grounding" in shell("train", "--help")
    assert "--model.width" in shell("train", "basic", "--help")


def test_training_leaves_the_thread_setting_sane(trained: Path) -> None:
    assert torch.get_num_threads() == 1
