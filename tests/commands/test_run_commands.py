"""Train, evaluate, compare, score and submit, as a user would."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from scenemem.formats.episodes import read_episodes
from scenemem.formats.results import read_trajectories
from scenemem.runs.folder import RunFolder
from tests.commands import helpers
from tests.commands.helpers import Shell, typed, write_features

SMALL = (*helpers.SMALL, "--iterations", 4)


def _description(run: Path) -> Any:
    return json.loads((run / "preset.json").read_text(encoding="utf-8"))


def _describe(run: Path, description: Any) -> None:
    (run / "preset.json").write_text(json.dumps(description), encoding="utf-8")


def test_eval_score_and_submit_agree(ssm: Path, tmp_path: Path, shell: Shell) -> None:
    report = shell.json("eval", ssm, "--split", "val_unseen")
    results = ssm / "results" / "val_unseen.json"
    scored = shell.json("score", results, "--split", "val_unseen")
    assert scored == {key: report[key] for key in scored}
    assert "track" not in report, "these features belong to none"
    shown = shell("eval", ssm, "--checkpoint", "best")
    assert "stopped nearer than 3 m" in shown
    assert "on r2r val_unseen, track unknown: " in shown
    submit = ("submit", ssm, "--split", "test", "--out", tmp_path / "test.json")
    assert "every start, id and edge is right" in shell(*submit)


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
    compare = ("compare", run, "--data", data, "--out", tmp_path / "table.md")
    assert shell.json(*compare)["tracks"] == {"basic": "captions"}
    assert "| basic | captions | 1 |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    shell("weights", "pack", run, "--data", data, "--out", tmp_path / "packed.safetensors")
    assert ", track captions, 8 columns" in (tmp_path / "packed.md").read_text(encoding="utf-8")
    assert shell.json("weights")["packed"]["track"] == "captions"


def test_fast_products_are_allowed_only_by_their_flag(
    tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, str]] = []

    def record(precision: str, device: str, *, tried: bool = False) -> None:
        assert not tried, "a new run"
        used.append((precision, device))

    monkeypatch.setattr("scenemem.commands.train.use_precision", record)
    for number, flags in enumerate(((), ("--precision", "fast"))):
        out = tmp_path / str(number)
        assert typed("train", "basic", "--data", tiny_trainable, "--out", out, *SMALL, *flags) == 0
    assert used == [("full", "cpu"), ("full", "cpu"), ("fast", "cpu"), ("full", "cpu")], "a report is full"


def test_packed_weights_stand_for_a_run_and_reach_their_card(
    ssm: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.runs.weights.WEIGHTS", tmp_path)
    augmented = Path(shutil.copytree(ssm, tmp_path / "augmented-0"))
    speaker = {"speaker": str(tmp_path / "speaker-0")}
    _describe(augmented, {**_description(augmented), "augmentation": speaker})
    file = tmp_path / "tiny.safetensors"
    shell("weights", "pack", augmented, "--out", file)
    measured = shell.json("eval", "weights:tiny")["metrics"]
    packed = shell.json("weights")["tiny"]
    assert packed["metrics"]["val_unseen"] == measured
    assert packed["augmentation"] == {"speaker": "speaker-0"}, "not where it lay on this machine"
    assert " tiny " in shell("weights")
    card = file.with_suffix(".md").read_text()
    assert f"| val_unseen | {measured['sr']:.3f} |" in card
    assert str(tmp_path) not in card
    assert "there are: tiny" in shell.refused("eval", "weights:unknown")


def test_compare_gathers_seeds_and_keeps_settings_apart(ssm: Path, tmp_path: Path, shell: Shell) -> None:
    seed, fewer = tmp_path / "ssm-1", tmp_path / "ssm-fewer"
    assert shell.json("train", "ssm", "--out", seed, "--seed", 1, *SMALL)["iteration"] == 4
    shell("train", "ssm", "--out", fewer, *SMALL, "--model.reasoning-steps", 1)
    rows = shell.json("compare", ssm, seed, fewer)["rows"]
    counts = {name: row["sr"]["n"] for name, row in rows.items()}
    assert counts == {"ssm (model.reasoning_steps 3)": 2, "ssm (model.reasoning_steps 1)": 1}
    for name in ("table.md", "table.html"):
        shell("compare", ssm, seed, "--out", tmp_path / name)
        assert "±" in (tmp_path / name).read_text(encoding="utf-8")


def test_compare_measures_distances(ssm: Path, basic: Path, tmp_path: Path, shell: Shell) -> None:
    words, table = ("compare", ssm, basic, "--against", "ssm"), tmp_path / "table.md"
    report = shell.json(*words, "--out", table)
    again = shell.json(*words, "--processes", 2, "--again")
    assert again == report, "the number of processes does not matter"
    distance = report["against"]["ssm"]["basic"]["sr"]
    means = {name: row["sr"]["mean"] for name, row in report["rows"].items()}
    assert distance["value"] == pytest.approx(means["basic"] - means["ssm"])
    assert distance["low"] <= distance["value"] <= distance["high"]
    assert "| basic | " + "{:+.3f} [".format(distance["value"]) in table.read_text(encoding="utf-8")
    assert "difference from ssm" in shell(*words)
    unknown = shell.refused("compare", ssm, basic, "--against", "seq2seq")
    assert "no such row; there are: ssm, basic" in unknown
    alone = shell.refused("compare", basic, "--against", "basic")
    assert "all runs belong to that row; name runs of another one, too" in alone


def test_compare_reads_other_versions_and_refuses_broken_ones(
    ssm: Path, tmp_path: Path, shell: Shell
) -> None:
    other = Path(shutil.copytree(ssm, tmp_path / "other"))
    described = _description(other)
    del described["preset"]["model"]["allow_revisits"]
    _describe(other, described)
    assert list(shell.json("compare", ssm, other)["rows"]) == ["ssm"], "a new setting has its default"
    for broken in ({"name": "ssm"}, {"name": "ssm", "preset": 3}):
        _describe(other, broken)
        assert "does not describe a run" in shell.refused("compare", ssm, other)


def test_compare_refuses_to_mix_tasks(ssm: Path, copied_data: Path, tmp_path: Path, shell: Shell) -> None:
    data, other = copied_data, tmp_path / "longer"
    shell("data", "r4r", "--data", data, "--splits", "train", "val_seen", "val_unseen")
    shell("train", "ssm", "--data", data, "--out", other, "--data.task", "r4r", *SMALL)
    refused = shell.refused("compare", ssm, other, "--data", data)
    assert "walks other episodes than the runs before it" in refused


@pytest.mark.parametrize(
    ("words", "flags"), [("train ssm", SMALL), ("speak train speaker", (*SMALL, "--words", 20))]
)
def test_a_run_is_never_overwritten_but_can_be_continued(
    words: str, flags: tuple[object, ...], runs: Path, shell: Shell
) -> None:
    run = runs / f"{words.split()[-1]}-0"
    again = (*words.split(), "--out", run)
    assert "already holds a run; continue it with --resume" in shell.refused(*again, *flags)
    before = (run / "metrics.jsonl").read_text()
    assert shell.json(*again, "--resume")["iteration"] == 4
    assert (run / "metrics.jsonl").read_text() == before, "a finished run has nothing left to do"
    refused = shell.refused(*again, *flags, "--resume", "--learning.clip", 1.0)
    assert re.search(r"was started with another preset \(learning\.clip: [\d.]+ then, 1\.0 now\)", refused)


def test_a_run_that_never_began_does_not_block_its_folder(tmp_path: Path, shell: Shell) -> None:
    words = ("train", "ssm", "--out", tmp_path / "run", *SMALL)
    assert "has no split 'typo' of r2r; there are: train" in shell.refused(
        *words, "--selection.split", "typo"
    )
    shell(*words)


def test_a_run_keeps_to_the_features_it_was_trained_with(
    ssm: Path, copied_data: Path, tiny_data: Path, tmp_path: Path, shell: Shell
) -> None:
    assert "no feature store 'tiny' (there is none yet)" in shell.refused("eval", ssm, "--data", tiny_data)
    where = ("--data", copied_data)
    write_features(copied_data, "another", 8)
    shell("eval", ssm, *where, "--json")
    refused = shell.refused("train", "ssm", *where, "--out", tmp_path / "run", *SMALL)
    assert "has several feature stores (another, tiny); name one with --features" in refused
    for width, differs in ((5, "width 8, this store has 5"), (8, "sha256")):
        write_features(copied_data, "tiny", width)
        assert f"was trained on features with {differs}" in shell.refused("eval", ssm, *where)


METRICS = ["tl", "ne", "sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"]


def _reference_results(data: Path, split: str) -> list[dict[str, Any]]:
    """Every instruction walked along its reference path, DUET style: one list per action."""
    return [
        {"instr_id": instruction_id, "trajectory": [[viewpoint] for viewpoint in episode.path]}
        for episode in read_episodes(data / "r2r" / f"R2R_{split}.json")
        for instruction_id in episode.instruction_ids
    ]


def _dump(file: Path, results: list[dict[str, Any]]) -> Path:
    file.write_text(json.dumps(results), encoding="utf-8")
    return file


def test_score_prints_one_json_object_or_a_table(tiny_data: Path, tmp_path: Path, shell: Shell) -> None:
    results = _reference_results(tiny_data, "val_seen")
    file, lines = _dump(tmp_path / "r.json", results), tmp_path / "episodes.jsonl"
    words = ("score", file, "--split", "val_seen")
    printed = shell.json(*words)
    assert list(printed) == ["split", "n", "missing", "metrics"]
    assert (printed["split"], printed["n"], printed["missing"]) == ("val_seen", len(results), 0)
    assert list(printed["metrics"]) == METRICS
    assert printed["metrics"]["sr"] == printed["metrics"]["ndtw"] == 1.0

    results[0]["trajectory"] = results[0]["trajectory"][:1]
    _dump(file, results)
    printed = shell.json(*words, "--per-episode", lines)
    episodes = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [episode["instr_id"] for episode in episodes] == [result["instr_id"] for result in results]
    assert list(episodes[0]) == ["instr_id", *METRICS]
    assert episodes[0]["tl"] == 0.0
    mean = sum(episode["ne"] for episode in episodes) / len(episodes)
    assert printed["metrics"]["ne"] == pytest.approx(mean)

    _dump(file, results[1:])
    shown = shell(*words, "--partial")
    for text in ("1 missing", "TL", "SPL (reference)", "nDTW", "1.000"):
        assert text in shown
    refused = shell.refused(*words, "--json")
    assert "have no trajectory" in refused
    assert "--partial" in refused


def test_score_options_reach_the_library(tiny_data: Path, tmp_path: Path, shell: Shell) -> None:
    results = _reference_results(tiny_data, "val_seen")
    for result in results:
        result["trajectory"] = [result["trajectory"][0], result["trajectory"][0], result["trajectory"][-1]]
    words = ("score", _dump(tmp_path / "r.json", results), "--split", "val_seen")
    assert "no edge between" in shell.refused(*words)
    merged = shell.json(*words, "--allow-jumps")["metrics"]
    kept = shell.json(*words, "--allow-jumps", "--keep-repeats")["metrics"]
    assert merged["sr"] == kept["sr"] == 1.0
    assert merged["spl"] == pytest.approx(1.0)
    assert kept["ndtw"] <= merged["ndtw"] < 1.0


@pytest.mark.parametrize("split", ["test", "val_unseen"])
def test_submit_writes_the_leaderboard_file(
    split: str, tiny_data: Path, tmp_path: Path, shell: Shell
) -> None:
    results = _reference_results(tiny_data, split)
    source, target = _dump(tmp_path / "r.json", results), tmp_path / "out" / "flat.json"
    told = f"{len(results)} trajectories; every start, id and edge is right"
    assert f"{source}: {told}" in shell("submit", source, "--split", split, "--check")
    assert list(tmp_path.iterdir()) == [source]
    assert f"{target}: {told}" in shell("submit", source, "--split", split, "--out", target)
    written = read_trajectories(target)
    assert [trajectory.instruction_id for trajectory in written] == [result["instr_id"] for result in results]
    for entry in json.loads(target.read_text()):
        for point in entry["trajectory"]:
            assert [type(part) for part in point] == [str, float, float]
    score = ("score", target, "--split", split)
    if split == "test":
        assert "the goals of r2r test are not public" in shell.refused(*score)
    else:
        assert shell.json(*score)["metrics"]["spl_ref"] == 1.0


def test_submit_writes_nothing_when_an_edge_or_a_trajectory_is_missing(
    tiny_data: Path, tmp_path: Path, shell: Shell
) -> None:
    results = _reference_results(tiny_data, "val_unseen")
    less = _dump(tmp_path / "less.json", results[1:])
    refused = shell.refused("submit", less, "--split", "val_unseen", "--check")
    assert refused.rstrip().endswith(f"the first is '{results[0]['instr_id']}'; add them")
    path = results[2]["trajectory"]
    results[2]["trajectory"] = [path[0], path[2]]
    source, target = _dump(tmp_path / "r.json", results), tmp_path / "out.json"
    where = f"instruction '{results[2]['instr_id']}', step 1"
    for flags in (("--out", target), ("--check",)):
        refused = shell.refused("submit", source, "--split", "val_unseen", *flags)
        assert f"{where}: no edge between '{path[0][0]}' and '{path[2][0]}'; list every" in refused
        assert "--" not in refused, "flags of 'scenemem score' are none of 'scenemem submit'"
    assert not target.exists()


def test_r4r_is_written_counted_and_scored(tmp_path: Path, shell: Shell) -> None:
    words = ("data", "r4r", "--out", tmp_path, "--splits")
    printed = shell.json(*words, "train", "val_seen", "--positions", "pose")
    assert list(printed["splits"]) == ["train", "val_seen"]
    for split, counted in printed["splits"].items():
        episodes = read_episodes(tmp_path / f"R4R_{split}.json")
        instructions = sum(len(episode.instructions) for episode in episodes)
        assert counted == {"paths": len(episodes), "instructions": instructions}
    shown = shell(*words, "train", "val_seen")
    assert "val_seen" in shown
    assert f"written to {tmp_path}" in shown
    assert "holds paths without a goal" in shell.refused(*words, "test")
    assert not (tmp_path / "R4R_test.json").exists()
