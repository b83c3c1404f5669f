"""Results belong to the weights and the data they came from, and a run to the data it was started with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scenemem as sm
from scenemem import __version__
from scenemem.commands import train
from scenemem.formats import decoding
from scenemem.formats.connectivity import Scan, read_scan, write_scan
from scenemem.formats.decoding import code_digest, file_digest
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import read_stamp
from scenemem.formats.traces import Origin, read_trace
from scenemem.learning import precision
from scenemem.models.navigator import LSTMUpdater
from scenemem.runs import opened
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import kept_results
from tests.commands.helpers import Shell, typed

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 4),
    *("--selection.every", 2, "--selection.save-every", 2, "--no-replays"),
)


@pytest.fixture(scope="module")
def evaluated(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data folder, and a run trained on it that has walked val_unseen."""
    root = tmp_path_factory.mktemp("evaluated")
    data = Path(shutil.copytree(tiny_trainable, root / "data"))
    assert typed("train", "ssm", "--data", data, "--out", root / "run", "--iterations", 2, *SMALL) == 0
    assert typed("eval", root / "run", "--data", data, "--json") == 0
    return data, root / "run"


@pytest.fixture
def copied(evaluated: tuple[Path, Path], tmp_path: Path) -> tuple[Path, RunFolder]:
    """Copies that a test may change."""
    data, run = (shutil.copytree(place, tmp_path / place.name) for place in evaluated)
    return Path(data), RunFolder(Path(run))


def _kept(copied: tuple[Path, RunFolder]) -> bool:
    return "val_unseen" in kept_results(copied[1], "last", DataFolder(copied[0]))


def _change_episodes(data: Path) -> None:
    file = data / "r2r" / "R2R_val_unseen.json"
    records = json.loads(file.read_text(encoding="utf-8"))
    records[0]["instructions"][0] = "Go somewhere else."
    file.write_text(json.dumps(records), encoding="utf-8")


def _stretch_graph(data: Path) -> None:
    scan = read_scan(data / "connectivity" / "yard_connectivity.json")
    viewpoints = json.loads((data / "connectivity" / "yard_connectivity.json").read_bytes())
    for viewpoint in viewpoints:
        viewpoint["pose"] = [2 * value for value in viewpoint["pose"]]
    (data / "connectivity" / "yard_connectivity.json").write_text(json.dumps(viewpoints))
    assert read_scan(data / "connectivity" / "yard_connectivity.json") != scan


def _reverse_features(data: Path) -> None:
    values = np.load(data / "features" / "tiny.npy")
    np.save(data / "features" / "tiny.npy", values[::-1])


def test_results_are_kept_as_long_as_nothing_changes(copied: tuple[Path, RunFolder]) -> None:
    assert _kept(copied)
    stamp = json.loads(copied[1].stamp("val_unseen").read_bytes())
    assert stamp["versions"].keys() == {"scenemem", "torch"}
    assert {"weights", "episodes", "graphs", "features", "preset", "iteration"} <= stamp.keys()
    assert stamp["files"].keys() == {"val_unseen.json", "val_unseen.jsonl"}


def test_traces_replays_and_reports_say_what_they_come_from(copied: tuple[Path, RunFolder]) -> None:
    data, run = copied
    stamp = read_stamp(run.stamp("val_unseen"))
    assert stamp is not None
    assert stamp.weights == file_digest(run.last)
    assert stamp.features == file_digest(data / "features" / "tiny.npy")
    expected = Origin(**{name: getattr(stamp, name) for name in Origin.__struct_fields__})
    out = run.root.with_name("shown")
    assert typed("view", run.root, "--data", data, "--out", out, "--count", 1) == 0
    (trace,) = out.glob("*.trace.json")
    assert read_trace(trace).origin == expected
    assert typed("eval", run.root, "--data", data, "--traces", 1, "--out", out) == 0
    (trace,) = (out / "traces").glob("*.json")
    assert read_trace(trace).origin == expected
    page = next(file for file in out.glob("*.html") if file.name != "index.html").read_text(encoding="utf-8")
    report = run.root.with_name("report.html")
    assert typed("report", run.root, "--data", data, "--out", report, "--no-replays") == 0
    for name in ("weights", "episodes", "graphs", "features"):
        assert getattr(expected, name) in page
        assert getattr(expected, name)[:16] in report.read_text(encoding="utf-8")
    assert f"scenemem {__version__}, torch {torch.__version__}" in report.read_text(encoding="utf-8")


def test_results_of_a_newer_version_are_neither_shown_nor_replaced(
    copied: tuple[Path, RunFolder], shell: Shell
) -> None:
    data, run = copied
    stamp = run.stamp("val_unseen")
    stamp.write_text('{"version": 99}')
    told = shell.refused("report", run.root, "--data", data, "--splits", "val_unseen", "--no-replays")
    assert "is a stamp of version 99, this program reads version 1" in told
    assert stamp.read_text() == '{"version": 99}'


@pytest.mark.parametrize("change", [_change_episodes, _stretch_graph, _reverse_features])
def test_results_of_other_data_are_not_shown(
    copied: tuple[Path, RunFolder], change: Callable[[Path], None]
) -> None:
    change(copied[0])
    assert not _kept(copied)


def test_results_of_other_weights_are_not_shown(copied: tuple[Path, RunFolder]) -> None:
    data, run = copied
    other = run.root.with_name("other")
    assert typed("train", "ssm", "--data", data, "--out", other, "--iterations", 2, "--seed", 1, *SMALL) == 0
    shutil.copytree(other / "checkpoints", run.root / "checkpoints", dirs_exist_ok=True)
    assert not _kept(copied), "another seed was trained to the same iteration"


@pytest.mark.parametrize("name", ["val_unseen.json", "val_unseen.jsonl", "val_unseen.stamp.json"])
def test_results_that_were_edited_or_lost_their_stamp_are_not_shown(
    copied: tuple[Path, RunFolder], name: str
) -> None:
    file = copied[1].root / "results" / name
    file.write_bytes(file.read_bytes()[:-2] + b" \n")
    assert not _kept(copied)
    file.unlink()
    assert not _kept(copied)


@pytest.mark.filterwarnings("ignore:.*other navigation graphs")
@pytest.mark.parametrize("change", [_change_episodes, _stretch_graph])
def test_a_report_walks_again_after_the_data_changed(
    copied: tuple[Path, RunFolder], change: Callable[[Path], None]
) -> None:
    data, run = copied
    change(data)
    before = json.loads(run.stamp("val_unseen").read_bytes())
    assert typed("report", run.root, "--data", data, "--splits", "val_unseen", "--no-replays") == 0
    after = json.loads(run.stamp("val_unseen").read_bytes())
    assert (before["episodes"], before["graphs"]) != (after["episodes"], after["graphs"])
    assert _kept(copied)


def _walked(copied: tuple[Path, RunFolder], **how: Any) -> sm.Comparison:
    return sm.compare([copied[1].root], data=copied[0], **how)


def test_a_comparison_reads_what_was_kept_to_the_last_bit(copied: tuple[Path, RunFolder]) -> None:
    kept, walked = _walked(copied), _walked(copied, again=True)
    assert (kept.walked, walked.walked) == (0, 1)
    assert kept.rows == walked.rows
    assert _walked(copied, split="val_seen").walked == 1, "nobody has walked it"
    shutil.copy(copied[1].last, copied[1].best)
    assert _walked(copied, checkpoint="best").walked == 1, "it was walked as the last one"


def test_some_may_walk_and_others_not(copied: tuple[Path, RunFolder]) -> None:
    data, run = copied
    other = run.root.with_name("other")
    assert typed("train", "basic", "--data", data, "--out", other, "--iterations", 2, *SMALL) == 0
    shutil.rmtree(other / "results")
    found, expected = (
        sm.compare([run.root, other, run.root], data=data, against="ssm", again=again)
        for again in (False, True)
    )
    assert (found.walked, expected.walked) == (1, 2), "a run that is named twice counts once"
    assert (found.rows, found.distances) == (expected.rows, expected.distances)


def test_results_of_other_code_are_not_shown(
    copied: tuple[Path, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = json.loads(copied[1].stamp("val_unseen").read_bytes())
    assert stamp["code"] == code_digest()
    monkeypatch.setattr(opened, "code_digest", lambda: "other")
    assert not _kept(copied)


def test_the_sum_of_the_code_is_that_of_all_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    (package / "formats").mkdir(parents=True)
    monkeypatch.setattr(decoding, "__file__", str(package / "formats" / "decoding.py"))
    (package / "one.py").write_text("a = 1\n")
    sums = [code_digest.__wrapped__()]
    (package / "one.py").write_text("a = 2\n")
    sums.append(code_digest.__wrapped__())
    (package / "one.py").rename(package / "formats" / "one.py")
    sums.append(code_digest.__wrapped__())
    assert len(set(sums)) == 3


def test_results_on_other_features_are_not_shown(copied: tuple[Path, RunFolder]) -> None:
    run = copied[1]
    stamp = json.loads(run.stamp("val_unseen").read_bytes())
    run.stamp("val_unseen").write_text(json.dumps({**stamp, "features": "other"}))
    assert _walked(copied).walked == 1


def test_results_are_walked_in_full_precision(
    tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def walked(*_: Any, **__: Any) -> Path:
        seen.append(torch.get_float32_matmul_precision())
        return tmp_path

    monkeypatch.setattr(train, "report_on", walked)
    monkeypatch.setattr(precision, "_seconds", {"medium": 0.5, "highest": 1.0}.__getitem__)
    words = ("train", "basic", "--data", tiny_trainable, "--out", tmp_path / "run", "--iterations", 2)
    assert typed(*words, *SMALL, "--precision", "fast") == 0
    assert seen == ["highest"]


@pytest.mark.filterwarnings("ignore:.*other navigation graphs")
@pytest.mark.parametrize("change", [_change_episodes, _stretch_graph])
def test_a_comparison_walks_again_after_the_data_changed(
    copied: tuple[Path, RunFolder], change: Callable[[Path], None]
) -> None:
    change(copied[0])
    assert _walked(copied).walked == 1


def test_a_comparison_walks_again_when_other_episodes_were_kept(copied: tuple[Path, RunFolder]) -> None:
    run = copied[1]
    outcomes = run.outcomes("val_unseen")
    first, *others = outcomes.read_text(encoding="utf-8").splitlines(keepends=True)
    outcomes.write_text("".join([*others, first]), encoding="utf-8")
    stamp = json.loads(run.stamp("val_unseen").read_bytes())
    stamp["files"]["val_unseen.jsonl"] = file_digest(outcomes)
    run.stamp("val_unseen").write_text(json.dumps(stamp))
    assert _kept(copied), "whole, and of these weights"
    assert _walked(copied).walked == 1


def test_a_comparison_walks_again_with_parts_of_somebody_elses(
    copied: tuple[Path, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LSTMUpdater, "__module__", "somebody.elses")
    assert _walked(copied).walked == 1


def test_it_is_said_when_results_were_kept(copied: tuple[Path, RunFolder], shell: Shell) -> None:
    data, run = copied
    for again in ((), ("--again",)):
        told = shell("compare", run.root, "--data", data, *again)
        said = "1 of 1 runs had walked val_unseen already; --again walks with all of them" in told
        assert said is not bool(again)


def test_features_that_changed_are_refused(copied: tuple[Path, RunFolder], shell: Shell) -> None:
    _reverse_features(copied[0])
    assert "the file changed, build the store again" in shell.refused(
        "eval", copied[1].root, "--data", copied[0]
    )


def test_other_graphs_are_warned_about(copied: tuple[Path, RunFolder]) -> None:
    _stretch_graph(copied[0])
    with pytest.warns(UserWarning, match="was trained on other navigation graphs than those in"):
        assert typed("eval", copied[1].root, "--data", copied[0], "--json") == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: shutil.copy(data / "r2r/R2R_val_seen.json", data / "r2r/R2R_train.json"), ""),
        (_stretch_graph, "graphs"),
        (lambda data: _reword(data / "r2r" / "R2R_train.json"), "train"),
    ],
    ids=["other episodes", "stretched graph", "same words, another heading"],
)
def test_a_run_is_not_resumed_on_other_data(
    copied: tuple[Path, RunFolder], shell: Shell, change: Callable[[Path], None], what: str
) -> None:
    data, run = copied
    change(data)
    message = shell.refused("train", "ssm", "--data", data, "--out", run.root, "--resume", "--no-replays")
    if what:
        assert f"has changed since it was started: {what} (sha256 " in message
        assert "put the file back, or begin a new run" in message


def _reword(file: Path) -> None:
    """Change something that neither the words nor the number of episodes show."""
    records = json.loads(file.read_text(encoding="utf-8"))
    records[0]["heading"] = 1.0
    file.write_text(json.dumps(records), encoding="utf-8")


def test_an_unrelated_store_without_its_record_is_nobodys_business(copied: tuple[Path, RunFolder]) -> None:
    data, run = copied
    np.save(data / "features" / "broken.npy", np.zeros(3))
    (data / "features" / "other.npy").write_bytes(b"")
    (data / "features" / "other.json").write_text("{")
    assert typed("eval", run.root, "--data", data, "--json") == 0
    out = run.root.with_name("again")
    assert typed("train", "ssm", "--data", data, "--out", out, "--iterations", 2, *SMALL) == 0


def test_everything_that_decides_about_the_numbers_is_written_down(
    copied: tuple[Path, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = copied
    described = run.describe()
    assert described["computing"] == {"threads": 1, "precision": "full", "device": "cpu", "processes": 1}
    assert described["inputs"].keys() == {"graphs", "train"}
    assert described["begin"] is None
    assert [session["iteration"] for session in described["sessions"]] == [0]
    out = run.root.with_name("begun")
    words = ("train", "ssm", "--data", data, "--out", out, *SMALL, "--precision", "fast", "--threads", 2)
    seconds = {"medium": 0.5, "highest": 1.0}
    monkeypatch.setattr(precision, "_seconds", seconds.__getitem__)
    try:
        assert typed(*words, "--begin", run.root, "--iterations", 2) == 0
        seconds["medium"] = 2.0  # a busy moment, in which fast products look slow, does not change a run
        described = RunFolder(out).describe()
        assert described["begin"]["run"] == str(run.root)
        assert described["computing"] | {"threads": 2, "precision": "fast"} == described["computing"]
        with pytest.warns(UserWarning, match=r"other conditions \(threads 2 -> 1\)"):
            assert typed("train", "ssm", "--data", data, "--out", out, "--resume", "--threads", 1) == 0
        sessions = RunFolder(out).describe()["sessions"]
        assert [session["computing"]["threads"] for session in sessions] == [2, 1]
        assert [session["computing"]["precision"] for session in sessions] == ["fast", "fast"]
    finally:
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")


def test_a_run_killed_before_its_first_checkpoint_begins_with_what_it_was_begun_with(
    copied: tuple[Path, RunFolder], shell: Shell
) -> None:
    data, run = copied
    whole, cut = RunFolder(run.root.with_name("whole")), RunFolder(run.root.with_name("cut"))
    words = ("train", "ssm", "--data", data, *SMALL, "--begin", run.root, "--iterations", 2)
    shell(*words, "--out", whole.root)
    shutil.copytree(whole.root, cut.root)
    for file in (cut.last, cut.previous, cut.best, cut.metrics):
        file.unlink()
    resume = ("train", "ssm", "--data", data, "--out", cut.root, "--resume", "--no-replays")
    shell(*resume)
    losses = [[line["losses"] for line in one.logged()] for one in (whole, cut)]
    assert losses[0] == losses[1]
    for file in (cut.last, cut.previous, cut.metrics):
        file.unlink()
    shutil.copy(whole.last, run.last)
    assert "whose weights have changed since then" in shell.refused(*resume)


def test_a_run_that_lost_its_checkpoints_is_not_begun_again_in_silence(
    copied: tuple[Path, RunFolder], shell: Shell
) -> None:
    data, run = copied
    for file in (run.last, run.previous):
        file.unlink()
    before = run.metrics.read_bytes()
    assert "has metrics but no checkpoint to continue from" in shell.refused(
        "train", "ssm", "--data", data, "--out", run.root, "--resume"
    )
    assert run.metrics.read_bytes() == before


def test_scans_are_compared_by_content(copied: tuple[Path, RunFolder], tmp_path: Path) -> None:
    data = copied[0]
    scan = read_scan(data / "connectivity" / "grid_connectivity.json")
    write_scan(data / "connectivity", Scan("grid", scan.viewpoints))
    assert _kept(copied), "the same bytes were written again"
