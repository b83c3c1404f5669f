"""The commands score, submit and data r4r, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenemem.cli import main
from scenemem.formats.episodes import read_episodes
from scenemem.formats.results import read_trajectories

METRICS = ["tl", "ne", "sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line  ->  exit code, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return call


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


def test_score_prints_one_json_object(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    results = reference_results(tiny_data, "val_seen")
    file = dump(tmp_path / "r.json", results)
    code, out, _ = run("score", file, "--data", tiny_data, "--split", "val_seen", "--json")
    assert code == 0
    printed = json.loads(out)
    assert list(printed) == ["split", "n", "missing", "metrics"]
    assert (printed["split"], printed["n"], printed["missing"]) == ("val_seen", len(results), 0)
    assert list(printed["metrics"]) == METRICS
    assert printed["metrics"]["sr"] == printed["metrics"]["ndtw"] == 1.0


def test_score_prints_a_table_for_people(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    file = dump(tmp_path / "r.json", reference_results(tiny_data, "val_seen")[1:])
    code, out, _ = run("score", file, "--data", tiny_data, "--split", "val_seen", "--partial")
    assert code == 0
    assert "1 missing" in out
    for label in ("TL", "SPL (reference)", "nDTW", "1.000"):
        assert label in out


def test_score_writes_every_episode(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    results = reference_results(tiny_data, "val_unseen")
    results[0]["trajectory"] = results[0]["trajectory"][:1]
    file, lines = dump(tmp_path / "r.json", results), tmp_path / "episodes.jsonl"
    code, out, _ = run(
        "score", file, "--data", tiny_data, "--split", "val_unseen", "--json", "--per-episode", lines
    )
    assert code == 0
    episodes = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [episode["instr_id"] for episode in episodes] == [result["instr_id"] for result in results]
    assert list(episodes[0]) == ["instr_id", *METRICS]
    assert episodes[0]["tl"] == 0.0
    mean = sum(episode["ne"] for episode in episodes) / len(episodes)
    assert json.loads(out)["metrics"]["ne"] == pytest.approx(mean)


def test_score_refuses_what_it_cannot_score(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    results = reference_results(tiny_data, "val_seen")
    file = dump(tmp_path / "r.json", results[:-1])
    code, out, err = run("score", file, "--data", tiny_data, "--split", "val_seen", "--json")
    assert (code, out) == (2, "")
    assert "have no trajectory" in err
    assert "--partial" in err
    code, _, err = run("score", file, "--data", tiny_data, "--split", "test")
    assert code == 2
    assert "the goals of r2r test are not public" in err
    code, _, err = run("score", file, "--data", tmp_path / "nowhere", "--split", "val_seen")
    assert code == 2
    assert "no such folder" in err


def test_score_options_reach_the_library(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    results = reference_results(tiny_data, "val_seen")
    for result in results:
        result["trajectory"] = [result["trajectory"][0], result["trajectory"][0], result["trajectory"][-1]]
    file = dump(tmp_path / "r.json", results)
    words = ("score", file, "--data", tiny_data, "--split", "val_seen", "--json")
    code, _, err = run(*words)
    assert code == 2
    assert "no edge between" in err
    merged = json.loads(run(*words, "--allow-jumps")[1])["metrics"]
    kept = json.loads(run(*words, "--allow-jumps", "--keep-repeats")[1])["metrics"]
    assert merged["sr"] == kept["sr"] == 1.0
    assert merged["spl"] == pytest.approx(1.0)
    assert kept["ndtw"] <= merged["ndtw"] < 1.0


def test_submit_writes_a_complete_leaderboard_file(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    results = reference_results(tiny_data, "test")
    target = tmp_path / "out" / "test.json"
    source = dump(tmp_path / "r.json", results)
    code, out, err = run("submit", source, "--data", tiny_data, "--split", "test", "--out", target)
    assert (code, out) == (0, "")
    assert f"{len(results)} trajectories" in err
    written = read_trajectories(target)
    assert [trajectory.instruction_id for trajectory in written] == [result["instr_id"] for result in results]
    assert all(None not in point for trajectory in written for point in trajectory.points)


def test_submit_flattens_what_score_accepts(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    source = dump(tmp_path / "r.json", reference_results(tiny_data, "val_unseen"))
    target = tmp_path / "flat.json"
    assert run("submit", source, "--data", tiny_data, "--split", "val_unseen", "--out", target)[0] == 0
    entry = json.loads(target.read_text())[0]["trajectory"][1]
    assert [type(part) for part in entry] == [str, float, float]
    code, out, _ = run("score", target, "--data", tiny_data, "--split", "val_unseen", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["spl_ref"] == 1.0


def test_submit_writes_nothing_when_an_edge_is_missing(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    results = reference_results(tiny_data, "val_unseen")
    path = results[2]["trajectory"]
    results[2]["trajectory"] = [path[0], path[2]]
    source, target = dump(tmp_path / "r.json", results), tmp_path / "out.json"
    code, _, err = run("submit", source, "--data", tiny_data, "--split", "val_unseen", "--out", target)
    assert code == 2
    assert (
        f"instruction '{results[2]['instr_id']}', step 1: no edge between '{path[0][0]}' and '{path[2][0]}'"
        in err
    )
    assert not target.exists()


def test_r4r_is_written_counted_and_scored(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    words = ("data", "r4r", "--data", tiny_data, "--out", tmp_path, "--splits", "train", "val_seen")
    code, out, _ = run(*words, "--positions", "pose", "--json")
    assert code == 0
    printed = json.loads(out)
    for split in ("train", "val_seen"):
        episodes = read_episodes(tmp_path / f"R4R_{split}.json")
        instructions = sum(len(episode.instructions) for episode in episodes)
        assert printed["splits"][split] == {"paths": len(episodes), "instructions": instructions}
    assert list(printed["splits"]) == ["train", "val_seen"]
    code, out, _ = run(*words)
    assert code == 0
    assert "val_seen" in out
    assert f"written to {tmp_path}" in out


def test_r4r_of_a_test_split_is_refused(run: Run, tiny_data: Path, tmp_path: Path) -> None:
    code, _, err = run("data", "r4r", "--data", tiny_data, "--out", tmp_path, "--splits", "test")
    assert code == 2
    assert "holds paths without a goal" in err
    assert list(tmp_path.iterdir()) == []
