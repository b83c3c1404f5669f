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
from scenemem.formats import decoding
from scenemem.formats.decoding import code_digest, file_digest
from scenemem.formats.results import read_stamp
from scenemem.formats.traces import Origin, read_trace
from scenemem.learning import distributed
from scenemem.learning.checkpoint import NETWORK, read_checkpoint, write_tensors
from scenemem.models.navigator import LSTMUpdater
from scenemem.runs.folder import RunFolder
from tests.commands.helpers import Shell
from tests.runs.conftest import SMALL

Change = Callable[[Path, RunFolder], object]
RESULTS = ("val_unseen.json", "val_unseen.jsonl", "val_unseen.stamp.json")


@pytest.fixture
def shell(data: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types commands on the data of the run."""
    return Shell(data, capsys)


def _kept(data: Path, run: RunFolder) -> bool:
    return sm.load(run.root, data=data).kept("val_unseen") is not None


def _reword(data: Path, split: str = "train", **changed: Any) -> None:
    """Change the first record of a split."""
    file = data / "r2r" / f"R2R_{split}.json"
    records = json.loads(file.read_text(encoding="utf-8"))
    records[0].update(changed)
    file.write_text(json.dumps(records), encoding="utf-8")


def _stretch_graph(data: Path) -> None:
    file = data / "connectivity" / "yard_connectivity.json"
    viewpoints = json.loads(file.read_bytes())
    for viewpoint in viewpoints:
        viewpoint["pose"] = [2 * value for value in viewpoint["pose"]]
    file.write_text(json.dumps(viewpoints))


def _reverse_features(data: Path) -> None:
    values = np.load(data / "features" / "tiny.npy")
    np.save(data / "features" / "tiny.npy", values[::-1])


def test_traces_replays_and_reports_say_what_they_come_from(data: Path, run: RunFolder, shell: Shell) -> None:
    stamp = read_stamp(run.stamp("val_unseen"))
    assert stamp is not None
    assert stamp.versions.keys() == {"scenemem", "torch"}
    assert stamp.files.keys() == set(RESULTS[:2])
    assert stamp.weights == file_digest(run.last)
    assert stamp.features == file_digest(data / "features" / "tiny.npy")
    expected = Origin(**{name: getattr(stamp, name) for name in Origin.__struct_fields__})
    out = run.root.with_name("shown")
    shell("view", run.root, "--out", out, "--count", 1)
    (trace,) = out.glob("*.trace.json")
    assert read_trace(trace).origin == expected
    shell("eval", run.root, "--traces", 1, "--out", out)
    (trace,) = (out / "traces").glob("*.json")
    assert read_trace(trace).origin == expected
    page = next(file for file in out.glob("*.html") if file.name != "index.html").read_text(encoding="utf-8")
    report = run.root.with_name("report.html")
    shell("report", run.root, "--out", report, "--no-replays")
    for name in ("weights", "episodes", "graphs", "features"):
        assert getattr(expected, name) in page
        assert getattr(expected, name)[:16] in report.read_text(encoding="utf-8")
    assert f"scenemem {__version__}, torch {torch.__version__}" in report.read_text(encoding="utf-8")


def _edit(name: str, end: bytes = b" \n") -> Change:
    """Other bytes at the end of a result file."""

    def edit(_data: Path, run: RunFolder) -> None:
        file = run.root / "results" / name
        file.write_bytes(file.read_bytes()[:-2] + end)

    return edit


def _restamp(**changed: Any) -> Change:
    def restamp(_data: Path, run: RunFolder) -> None:
        stamp = json.loads(run.stamp("val_unseen").read_bytes())
        run.stamp("val_unseen").write_text(json.dumps({**stamp, **changed}))

    return restamp


def _change_weights(_data: Path, run: RunFolder) -> None:
    checkpoint = read_checkpoint(run.last)
    write_tensors(run.last, checkpoint.tensors, {**checkpoint.metadata, "more": 1})


@pytest.mark.filterwarnings("ignore:.*other navigation graphs")
@pytest.mark.parametrize(
    "change",
    [
        lambda data, _: _reword(data, "val_unseen", instructions=["Go somewhere else."] * 3),
        lambda data, _: _stretch_graph(data),
        lambda data, _: (data / "r2r" / "R2R_val_unseen.json").unlink(),
        _change_weights,
        *map(_edit, ("val_unseen.json", "val_unseen.jsonl", "val_unseen.stamp.json")),
        *(lambda _, run, name=name: (run.root / "results" / name).unlink() for name in RESULTS),
        *(_restamp(**{name: "other"}) for name in ("code", "features")),
        _restamp(checkpoint="best"),
        *(_restamp(files={**dict.fromkeys(RESULTS[:2], "0"), name: "0"}) for name in ("", "..", "a/b")),
    ],
)
def test_results_of_anything_else_are_not_shown(data: Path, run: RunFolder, change: Change) -> None:
    assert _kept(data, run)
    change(data, run)
    assert not _kept(data, run)


def _reorder(_data: Path, run: RunFolder) -> None:
    """Whole, and of these weights, but the outcomes of other episodes."""
    outcomes = run.results("val_unseen").with_suffix(".jsonl")
    first, *others = outcomes.read_text(encoding="utf-8").splitlines(keepends=True)
    outcomes.write_text("".join([*others, first]), encoding="utf-8")
    files = json.loads(run.stamp("val_unseen").read_bytes())["files"]
    _restamp(files={**files, outcomes.name: file_digest(outcomes)})(_data, run)


@pytest.mark.filterwarnings("ignore:.*other navigation graphs")
@pytest.mark.parametrize("change", [lambda data, _: _stretch_graph(data), _reorder, None])
def test_a_comparison_walks_again_when_anything_changed(
    data: Path, run: RunFolder, change: Change | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change is None:
        monkeypatch.setattr(LSTMUpdater, "__module__", "another.package")
    else:
        change(data, run)
    assert _walked(data, run).walked == 1


def test_other_features_are_refused_and_other_graphs_and_episodes_warned_about(
    data: Path, run: RunFolder, shell: Shell
) -> None:
    _reword(data, heading=1.0)
    for split in ("train", "dev_unseen"):
        with pytest.warns(UserWarning, match="the training episodes of r2r are not those it was trained on"):
            shell("eval", run.root, "--split", split)
    shell("eval", run.root)  # which says nothing about other splits
    _stretch_graph(data)
    with pytest.warns(UserWarning, match="was trained on other navigation graphs than those in"):
        shell("eval", run.root)
    _reverse_features(data)
    assert "the file changed, build the store again" in shell.refused("eval", run.root)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_stretch_graph, "graphs"),
        (lambda data: _reword(data, heading=1.0), "train"),
        (lambda data: _reword(data, instructions=["Fly up and away."] * 3), "train"),
    ],
    ids=["stretched graph", "same words, another heading", "other words"],
)
def test_a_run_is_not_resumed_on_other_data(
    data: Path, run: RunFolder, shell: Shell, change: Callable[[Path], None], what: str
) -> None:
    change(data)
    message = shell.refused("train", "ssm", "--out", run.root, "--resume", "--no-replays")
    assert f"has changed since it was started: {what} (sha256 " in message
    assert "put the file back, or begin a new run" in message
    assert len(message) < 600


def _walked(data: Path, run: RunFolder, **how: Any) -> sm.Comparison:
    return sm.compare([run.root], data=data, **how)


def test_a_comparison_reads_what_was_kept_to_the_last_bit(data: Path, run: RunFolder, shell: Shell) -> None:
    for again in ((), ("--again",)):
        told = shell("compare", run.root, *again)
        said = "kept results of 1 of 1 runs are shown (agents with parts of a plugin always walk); " in told
        assert said is not bool(again)
    kept, walked = _walked(data, run), _walked(data, run, again=True)
    assert (kept.walked, walked.walked) == (0, 1)
    assert kept.rows == walked.rows
    assert _walked(data, run, split="val_seen").walked == 1, "it was not walked before"
    shutil.copy(run.last, run.best)
    assert _walked(data, run, checkpoint="best").walked == 1, "it was walked as the last one"


def test_some_may_walk_and_others_not(data: Path, run: RunFolder, shell: Shell) -> None:
    other = run.root.with_name("other")
    shell("train", "basic", "--out", other, "--iterations", 2, *SMALL)
    shutil.rmtree(other / "results")
    found, expected = (
        sm.compare([run.root, other, run.root], data=data, against="ssm", again=again)
        for again in (False, True)
    )
    assert (found.walked, expected.walked) == (1, 2), "a run that is named twice counts once"
    assert (found.rows, found.distances) == (expected.rows, expected.distances)


def test_the_sum_of_the_code_is_that_of_all_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    (package / "formats").mkdir(parents=True)
    monkeypatch.setattr(decoding, "__file__", str(package / "formats" / "decoding.py"))
    sums = set()
    for name, text in (("one.py", "a = 1\n"), ("one.py", "a = 2\n"), ("formats/one.py", "a = 2\n")):
        (package / "one.py").unlink(missing_ok=True)
        (package / name).write_text(text)
        sums.add(code_digest.__wrapped__())
    assert len(sums) == 3


def test_an_unrelated_store_without_its_record_is_skipped(data: Path, run: RunFolder, shell: Shell) -> None:
    np.save(data / "features" / "broken.npy", np.zeros(3))
    (data / "features" / "other.npy").write_bytes(b"")
    (data / "features" / "other.json").write_text("{")
    shell("eval", run.root, "--json")
    out = run.root.with_name("again")
    shell("train", "ssm", "--out", out, "--iterations", 2, *SMALL)


def test_everything_that_decides_about_the_numbers_is_written_down(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    described = run.describe()
    assert described["computing"] == {"threads": 1, "precision": "full", "device": "cpu", "processes": 1}
    assert described["inputs"].keys() == {"graphs", "train"}
    assert described["begin"] is None
    assert [session["iteration"] for session in described["sessions"]] == [0]
    out = run.root.with_name("begun")
    words = ("train", "ssm", "--out", out, *SMALL, "--precision", "fast", "--threads", 2)
    seconds = {"medium": 0.5, "highest": 1.0}
    monkeypatch.setattr(distributed, "_seconds", seconds.__getitem__)
    try:
        shell(*words, "--begin", run.root, "--iterations", 2)
        seconds["medium"] = 2.0  # a busy moment, in which fast products look slow, does not change a run
        described = RunFolder(out).describe()
        assert described["begin"]["run"] == str(run.root)
        assert described["computing"] | {"threads": 2, "precision": "fast"} == described["computing"]
        with pytest.warns(UserWarning, match=r"other conditions \(threads 2 -> 1\)"):
            shell("train", "ssm", "--out", out, "--resume", "--threads", 1)
        sessions = RunFolder(out).describe()["sessions"]
        assert [session["computing"]["threads"] for session in sessions] == [2, 1]
        assert [session["computing"]["precision"] for session in sessions] == ["fast", "fast"]
    finally:
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")


def test_a_run_without_a_checkpoint_begins_as_it_was_begun(run: RunFolder, shell: Shell) -> None:
    whole, cut = RunFolder(run.root.with_name("whole")), RunFolder(run.root.with_name("cut"))
    words = ("train", "ssm", *SMALL, "--begin", run.root, "--iterations", 2)
    shell(*words, "--out", whole.root)
    shutil.copytree(whole.root, cut.root)
    for file in (cut.last, cut.previous, cut.best, cut.metrics):
        file.unlink()
    resume = ("train", "ssm", "--out", cut.root, "--resume", "--no-replays")
    shell(*resume)
    losses = [[line["losses"] for line in one.logged()] for one in (whole, cut)]
    assert losses[0] == losses[1]
    for file in (cut.last, cut.previous, cut.metrics):
        file.unlink()
    shutil.copy(whole.last, run.last)
    assert "whose weights have changed since then" in shell.refused(*resume)


def test_a_run_is_not_begun_again_in_silence(run: RunFolder, shell: Shell) -> None:
    before = run.metrics.read_bytes()
    words = ("train", "ssm", "--out", run.root, "--resume")
    begun = shell.refused(*words, "--begin", run.root, "--no-replays")
    assert f"began with fresh weights, not with {run.root}; leave out --begin" in begun
    for file in (run.last, run.previous):
        file.unlink()
    assert "has metrics but no checkpoint to continue from" in shell.refused(*words)
    assert run.metrics.read_bytes() == before


def test_a_run_that_cannot_be_written_is_shown_elsewhere(run: RunFolder, shell: Shell) -> None:
    out = run.root.with_name("out")
    shutil.rmtree(run.root / "results")
    (run.root / "results").write_text("in the way of everything that is written")
    assert "choose another place with --out" in shell.refused("eval", run.root)
    shell("eval", run.root, "--out", out / "eval", "--traces", 1)
    assert {file.name for file in (out / "eval").iterdir()} == {*RESULTS, "traces"}
    shell("view", run.root, "--out", out / "view", "--count", 1)
    shell("report", run.root, "--out", out / "report.html", "--no-replays")
    assert (out / "report.html").is_file()


def _reseed(run: RunFolder, seed: Any) -> None:
    for file in (run.last, run.best):
        checkpoint = read_checkpoint(file)
        write_tensors(file, checkpoint.tensors, {**checkpoint.metadata, "seed": seed})


def test_a_run_counts_once_in_a_comparison(data: Path, run: RunFolder) -> None:
    copy = RunFolder(Path(shutil.copytree(run.root, run.root.with_name("copy"))))
    again = RunFolder(Path(shutil.copytree(run.root, run.root.with_name("again"))))
    checkpoint = read_checkpoint(again.last)
    for tensor in checkpoint.tensors.values():
        tensor += 0  # other weights of the same seed
    write_tensors(again.last, checkpoint.tensors, {**checkpoint.metadata, "more": 1})
    found = sm.compare([run.root, run.root, copy.root, again.root], data=data)
    assert found.rows["ssm"]["sr"].n == 1
    assert found.remarks == (
        f"{run.root} is named twice, and counts once",
        f"{copy.root} has the weights of {run.root}, which count once",
        f"{again.root} has the seed 0 of {run.root}, which counts once",
    )
    _reseed(again, 1)
    found = sm.compare([run.root, again.root], data=data)
    assert found.rows["ssm"]["sr"].n == 2
    assert found.remarks == (f"{again.root} says seed 0, but its checkpoint was trained with seed 1",)


def _retype(run: RunFolder, kind: torch.dtype) -> None:
    checkpoint = read_checkpoint(run.last)
    name = next(name for name in checkpoint.tensors if name.startswith(NETWORK))
    checkpoint.tensors[name] = checkpoint.tensors[name].to(kind)
    write_tensors(run.last, checkpoint.tensors, checkpoint.metadata)


NO_SEED = "does not say how far and with which seed it was trained"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((lambda run, seed=seed: _reseed(run, seed), NO_SEED) for seed in (None, "x", 0.5, [1])),
        *(
            (lambda run, kind=kind: _retype(run, kind), "expected torch.float32")
            for kind in (torch.int64, torch.bool)
        ),
    ],
)
def test_a_checkpoint_with_another_seed_or_other_numbers_is_one_line(
    run: RunFolder, change: Callable[[RunFolder], None], message: str, shell: Shell
) -> None:
    change(run)
    assert message in shell.refused("eval", run.root)
