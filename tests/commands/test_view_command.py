"""``scenemem view``, as a user would call it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scenemem.formats.traces import read_trace
from scenemem.runs.opened import OpenedRun
from tests.commands.helpers import Shell


def test_telling_episodes_are_chosen_and_linked(ssm: Path, shell: Shell) -> None:
    words = ("view", ssm, "--count", 2)
    found = shell.json(*words)
    index, *pages = found["pages"]
    assert index == str(ssm / "replays" / "index.html")
    assert len(pages) == len(found["replays"]) == 2
    text = Path(index).read_text(encoding="utf-8")
    for page, facts in zip(pages, found["replays"], strict=True):
        assert Path(page).name in text
        assert Path(page).stat().st_size == facts["bytes"] < 1_000_000
        trace = read_trace(Path(page).with_suffix(".ssm-0.trace.json"))
        assert trace.task.instruction_id == facts["instruction_id"]
        assert facts["scores"]["ssm-0"]["ne"] >= 0
    assert f"written to {index}" in shell(*words)


def test_what_was_walked_already_is_not_walked_again(
    basic: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("view", basic, "--out", tmp_path / "v", "--count", 2)
    shell(*words)
    first = (tmp_path / "v" / "index.html").read_text(encoding="utf-8")
    monkeypatch.setattr(OpenedRun, "record", None)
    shell(*words)
    assert (tmp_path / "v" / "index.html").read_text(encoding="utf-8") == first


def test_two_agents_on_one_episode_and_one_on_its_way_to_an_unknown_goal(
    ssm: Path, basic: Path, tmp_path: Path, shell: Shell
) -> None:
    both, one = ("view", ssm, basic), ("--episode", "2000_0", "--out")
    shell(*both, *one, tmp_path / "pair.html")
    assert read_trace(tmp_path / "pair.basic-0.trace.json").agent == "basic-0"
    shell(*both, "--out", tmp_path / "many", "--count", 1)
    assert len(list((tmp_path / "many").glob("val_unseen-*.html"))) == 1
    shell(*both, *one, tmp_path / "pair.svg")
    figure = (tmp_path / "pair.svg").read_text(encoding="utf-8")
    assert "ssm-0: " in figure
    assert "basic-0: " in figure
    namesake = shutil.copytree(basic, tmp_path / "other" / "ssm-0")
    shell("view", ssm, namesake, *one, tmp_path / "p.html")
    assert (tmp_path / "p.other_ssm-0.trace.json").is_file(), "told apart by their folders"
    shell("view", ssm, "--split", "test", "--episode", "2000_1", "--out", tmp_path / "t.html")
    assert "Walked to an unknown goal" in (tmp_path / "t.html").read_text(encoding="utf-8")


def _results(folder: Path, name: str, data: Path, stop_early: bool) -> Path:
    """A result file that follows the reference paths of val_unseen."""
    records = [
        {"instr_id": f"{episode['path_id']}_{number}", "trajectory": [[one, 0.0, 0.0] for one in way]}
        for episode in json.loads((data / "r2r" / "R2R_val_unseen.json").read_text())
        for way in [episode["path"][: 2 if stop_early else None]]
        for number in range(3)
    ]
    file = folder / f"{name}.json"
    file.write_text(json.dumps(records))
    return file


def test_routes_of_result_files_are_shown_without_any_agent(
    ssm: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    good, early = (_results(tmp_path, name, tiny_data, name == "early") for name in ("good", "early"))
    found = shell.json("view", good, early, "--count", 2)
    assert found["pages"][0] == str(Path("replays", "index.html"))
    assert [facts["scores"]["good"]["sr"] for facts in found["replays"]] == [1.0, 1.0]
    assert [facts["scores"]["early"]["sr"] for facts in found["replays"]] == [0.0, 0.0]
    page = Path(found["pages"][1]).read_text(encoding="utf-8")
    assert "good" in page
    assert "early" in page
    for name in ("f.svg", "f.png", "f.pdf", "f.html"):
        shell("view", good, "--episode", "2000_0", "--out", tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    expected = "good.json is a result file; only another one can be shown beside it"
    assert expected in shell.refused("view", ssm, good)


def test_replays_of_packaged_weights_lie_in_the_working_folder(
    ssm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(ssm.parent))  # weights:NAME are unpacked in the cache
    monkeypatch.chdir(tmp_path)
    found = shell.json("view", ssm, "--count", 1)
    assert found["pages"][0] == str(Path("replays", "index.html"))
    assert Path("replays", "index.html").is_file()
