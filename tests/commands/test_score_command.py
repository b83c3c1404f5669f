"""The commands score, submit and data r4r, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenemem.formats.episodes import read_episodes
from scenemem.formats.results import read_trajectories
from tests.commands.helpers import Shell

METRICS = ["tl", "ne", "sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"]


def reference_results(data: Path, split: str) -> list[dict[str, Any]]:
    """Every instruction walked along its reference path, DUET style: one list per action."""
    return [
        {"instr_id": instruction_id, "trajectory": [[viewpoint] for viewpoint in episode.path]}
        for episode in read_episodes(data / "r2r" / f"R2R_{split}.json")
        for instruction_id in episode.instruction_ids
    ]


def dump(file: Path, results: list[dict[str, Any]]) -> Path:
    file.write_text(json.dumps(results), encoding="utf-8")
    return file


def test_score_prints_one_json_object_or_a_table(tiny_data: Path, tmp_path: Path, shell: Shell) -> None:
    results = reference_results(tiny_data, "val_seen")
    file, lines = dump(tmp_path / "r.json", results), tmp_path / "episodes.jsonl"
    words = ("score", file, "--split", "val_seen")
    printed = shell.json(*words)
    assert list(printed) == ["split", "n", "missing", "metrics"]
    assert (printed["split"], printed["n"], printed["missing"]) == ("val_seen", len(results), 0)
    assert list(printed["metrics"]) == METRICS
    assert printed["metrics"]["sr"] == printed["metrics"]["ndtw"] == 1.0

    results[0]["trajectory"] = results[0]["trajectory"][:1]
    dump(file, results)
    printed = shell.json(*words, "--per-episode", lines)
    episodes = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [episode["instr_id"] for episode in episodes] == [result["instr_id"] for result in results]
    assert list(episodes[0]) == ["instr_id", *METRICS]
    assert episodes[0]["tl"] == 0.0
    mean = sum(episode["ne"] for episode in episodes) / len(episodes)
    assert printed["metrics"]["ne"] == pytest.approx(mean)

    dump(file, results[1:])
    shown = shell(*words, "--partial")
    for text in ("1 missing", "TL", "SPL (reference)", "nDTW", "1.000"):
        assert text in shown
    refused = shell.refused(*words, "--json")
    assert "have no trajectory" in refused
    assert "--partial" in refused


def test_score_options_reach_the_library(tiny_data: Path, tmp_path: Path, shell: Shell) -> None:
    results = reference_results(tiny_data, "val_seen")
    for result in results:
        result["trajectory"] = [result["trajectory"][0], result["trajectory"][0], result["trajectory"][-1]]
    words = ("score", dump(tmp_path / "r.json", results), "--split", "val_seen")
    assert "no edge between" in shell.refused(*words)
    merged = shell.json(*words, "--allow-jumps")["metrics"]
    kept = shell.json(*words, "--allow-jumps", "--keep-repeats")["metrics"]
    assert merged["sr"] == kept["sr"] == 1.0
    assert merged["spl"] == pytest.approx(1.0)
    assert kept["ndtw"] <= merged["ndtw"] < 1.0


@pytest.mark.parametrize("split", ["test", "val_unseen"])
def test_submit_writes_a_complete_leaderboard_file(
    split: str, tiny_data: Path, tmp_path: Path, shell: Shell
) -> None:
    results = reference_results(tiny_data, split)
    source, target = dump(tmp_path / "r.json", results), tmp_path / "out" / "flat.json"
    shown = shell("submit", source, "--split", split, "--out", target)
    assert f"{len(results)} trajectories; every start, id and edge is right" in shown
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


def test_submit_writes_nothing_when_an_edge_is_missing(tiny_data: Path, tmp_path: Path, shell: Shell) -> None:
    results = reference_results(tiny_data, "val_unseen")
    path = results[2]["trajectory"]
    results[2]["trajectory"] = [path[0], path[2]]
    source, target = dump(tmp_path / "r.json", results), tmp_path / "out.json"
    refused = shell.refused("submit", source, "--split", "val_unseen", "--out", target)
    where = f"instruction '{results[2]['instr_id']}', step 1"
    assert f"{where}: no edge between '{path[0][0]}' and '{path[2][0]}'" in refused
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
