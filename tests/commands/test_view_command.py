"""``scenemem view``, as a user would call it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scenemem.formats.traces import read_trace
from scenemem.runs.opened import OpenedRun
from tests.commands.helpers import typed

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1),
    *("--learning.batch", 4, "--iterations", 2, "--selection.every", 2, "--selection.save-every", 2),
)


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("ssm", "basic"):
        assert typed("train", name, "--data", tiny_trainable, "--out", folder / f"{name}-0", *SMALL) == 0
    shutil.copytree(folder / "basic-0", folder / "other" / "ssm-0")
    return {place: folder / place for place in ("ssm-0", "basic-0", "other/ssm-0")}


def test_telling_episodes_are_chosen_and_linked(
    runs: dict[str, Path], tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("view", runs["ssm-0"], "--data", tiny_trainable, "--count", 2)
    assert typed(*words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    index, *pages = told["pages"]
    assert index == str(runs["ssm-0"] / "replays" / "index.html")
    assert len(pages) == len(told["replays"]) == 2
    text = Path(index).read_text(encoding="utf-8")
    for page, facts in zip(pages, told["replays"], strict=True):
        assert Path(page).name in text
        assert Path(page).stat().st_size == facts["bytes"] < 1_000_000
        trace = read_trace(Path(page).with_suffix(".ssm-0.trace.json"))
        assert trace.task.instruction_id == facts["instruction_id"]
        assert facts["scores"]["ssm-0"]["ne"] >= 0
    assert typed(*words) == 0
    assert f"written to {index}" in capsys.readouterr().err


def test_what_was_walked_already_is_not_walked_again(
    runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("view", runs["basic-0"], "--data", tiny_trainable, "--out", tmp_path / "v", "--count", 2)
    assert typed(*words) == 0
    first = (tmp_path / "v" / "index.html").read_text(encoding="utf-8")

    def refuse(*_args: object) -> None:
        raise AssertionError("everything has been walked")

    monkeypatch.setattr(OpenedRun, "record", refuse)
    assert typed(*words) == 0
    assert (tmp_path / "v" / "index.html").read_text(encoding="utf-8") == first


def test_two_agents_on_one_episode(runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path) -> None:
    out = tmp_path / "pair.html"
    both = ("view", runs["ssm-0"], runs["basic-0"], "--data", tiny_trainable)
    assert typed(*both, "--episode", "2000_0", "--out", out) == 0
    assert read_trace(tmp_path / "pair.basic-0.trace.json").agent == "basic-0"
    assert typed(*both, "--out", tmp_path / "many", "--count", 1) == 0
    assert len(list((tmp_path / "many").glob("val_unseen-*.html"))) == 1


def test_runs_of_the_same_name_are_told_apart(
    runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path
) -> None:
    both = ("view", runs["ssm-0"], runs["other/ssm-0"], "--data", tiny_trainable)
    assert typed(*both, "--episode", "2000_0", "--out", tmp_path / "p.html") == 0
    assert (tmp_path / "p.other_ssm-0.trace.json").is_file()


def test_secret_goals_can_be_watched_but_not_chosen(
    runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("view", runs["ssm-0"], "--data", tiny_trainable, "--split", "test")
    assert typed(*words) == 2
    assert "keeps its goals secret, so nothing can be chosen; name an --episode" in _told(capsys)
    assert typed(*words, "--episode", "2000_1", "--out", tmp_path / "t.html") == 0
    assert "Walked to an unknown goal" in (tmp_path / "t.html").read_text(encoding="utf-8")


def _told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--episode", "nope"), "'r2r val_unseen' has no instruction 'nope'; its ids look like '2000_0'"),
        (("--count", 0), "--count must be 1 or more, got 0"),
        (("--out", "x.html"), "x.html: with --episode one page is written and --out ends in .html"),
        (("--episode", "2000_0", "--out", "folder"), "folder: with --episode one page is written"),
        (
            ("--split", "nope"),
            "has no split 'nope' of r2r; there are: train, val_seen, val_unseen, test, dev_unseen",
        ),
    ],
)
def test_mistakes_are_named(
    flags: tuple[object, ...],
    message: str,
    runs: dict[str, Path],
    tiny_trainable: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed("view", runs["ssm-0"], "--data", tiny_trainable, *flags) == 2
    assert message in _told(capsys)


def test_a_folder_without_a_run_is_named(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("view", tmp_path, "--data", tiny_trainable) == 2
    assert "holds no run (no preset.json)" in _told(capsys)


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
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good, early = (_results(tmp_path, name, tiny_data, name == "early") for name in ("good", "early"))
    assert typed("view", good, early, "--data", tiny_data, "--count", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pages"][0] == str(Path("replays", "index.html"))
    assert [facts["scores"]["good"]["sr"] for facts in told["replays"]] == [1.0, 1.0]
    assert [facts["scores"]["early"]["sr"] for facts in told["replays"]] == [0.0, 0.0]
    page = Path(told["pages"][1]).read_text(encoding="utf-8")
    assert "good" in page
    assert "early" in page
    for name in ("f.svg", "f.png", "f.pdf", "f.html"):
        assert typed("view", good, "--data", tiny_data, "--episode", "2000_0", "--out", tmp_path / name) == 0
        assert (tmp_path / name).stat().st_size > 1000


def test_a_figure_of_an_agent(runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path) -> None:
    both = ("view", runs["ssm-0"], runs["basic-0"], "--data", tiny_trainable, "--episode", "2000_0")
    assert typed(*both, "--out", tmp_path / "pair.svg") == 0
    figure = (tmp_path / "pair.svg").read_text(encoding="utf-8")
    assert "ssm-0: " in figure
    assert "basic-0: " in figure


def test_a_run_is_not_shown_beside_a_file(
    runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _results(tmp_path, "good", tiny_trainable, stop_early=False)
    assert typed("view", runs["ssm-0"], file, "--data", tiny_trainable) == 2
    assert "good.json is a result file; only another one can be shown beside it" in _told(capsys)
    assert typed("view", tmp_path / "none.json", "--data", tiny_trainable) == 2
    assert "none.json: no such file" in _told(capsys)


def test_replays_of_packaged_weights_lie_where_one_stands(
    runs: dict[str, Path],
    tiny_trainable: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(runs["ssm-0"].parent))  # weights:NAME are unpacked in the cache
    monkeypatch.chdir(tmp_path)
    assert typed("view", runs["ssm-0"], "--data", tiny_trainable, "--count", 1, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pages"][0] == str(Path("replays", "index.html"))
    assert Path("replays", "index.html").is_file()
