"""``scenemem report`` and ``scenemem follow``, as a user would type them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from scenemem.formats.folder import DataFolder
from scenemem.formats.results import read_episode_results
from scenemem.runs import pages
from scenemem.runs.folder import RunFolder
from tests.commands.helpers import printed_json, typed

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1),
    *("--learning.batch", 4, "--iterations", 4, "--selection.every", 2, "--selection.save-every", 2),
)


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two agents that have only just been trained."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("ssm", "basic"):
        assert typed("train", name, "--data", tiny_trainable, "--out", root / name, *SMALL) == 0
    return root / "ssm", root / "basic"


@pytest.fixture
def trained(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run of one's own, named so that a page must be careful with it."""
    return Path(shutil.copytree(runs[0], tmp_path / "<ssm>"))


def test_training_ends_with_a_report_on_what_it_selects_by(runs: tuple[Path, Path]) -> None:
    page = (runs[0] / "report.html").read_text(encoding="utf-8")
    results = read_episode_results(runs[0] / "results" / "dev_unseen.jsonl")
    assert f"dev_unseen: {len(results):,} instructions" in page
    assert {(result.checkpoint, result.iteration) for result in results} == {("last", 4)}
    last = list(RunFolder(runs[0]).logged())[-1]["validation"]
    for metric in ("sr", "spl", "ne", "cls"):
        mean = sum(getattr(result, metric) for result in results) / len(results)
        assert mean == pytest.approx(last[metric]), "the report is about the weights that were kept"


def test_training_says_where_the_report_is(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert typed("train", "basic", "--data", tiny_trainable, "--out", out, "--json", *SMALL) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["report"] == str(out / "report.html")
    assert f"The report: {out / 'report.html'}" in shown.err


def test_a_report_evaluates_what_is_missing_and_keeps_it(
    trained: Path, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("report", trained, "--data", tiny_trainable) == 0
    assert f"The report: {trained / 'report.html'}" in capsys.readouterr().err
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert typed("eval", trained, "--data", tiny_trainable, "--json") == 0
    metrics = printed_json(capsys)["metrics"]
    assert f"<td>{metrics['sr']:.3f}</td><td>{metrics['spl']:.3f}</td>" in page
    for split in ("val_seen", "val_unseen"):
        assert (trained / "results" / f"{split}.json").is_file()
    assert "Report on &lt;ssm&gt;" in page
    assert "<ssm>" not in page


def test_a_second_report_walks_nothing_and_needs_no_data(
    trained: Path, tiny_trainable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("report", trained, "--data", tiny_trainable, "--no-replays") == 0
    first = (trained / "report.html").read_text(encoding="utf-8")

    def refuse(*_args: object) -> None:
        raise AssertionError("everything has been walked")

    monkeypatch.setattr(pages, "open_run", refuse)
    assert typed("report", trained, "--no-replays") == 0
    assert (trained / "report.html").read_text(encoding="utf-8") == first


def _links(page: Path) -> list[str]:
    return re.findall(r'<h3><a href="([^"]+)">', page.read_text(encoding="utf-8"))


def test_replays_are_written_beside_the_report_and_linked(
    runs: tuple[Path, Path], trained: Path, tiny_trainable: Path, tmp_path: Path
) -> None:
    own = _links(runs[0] / "report.html")
    assert own, "training ends with them"
    assert all(link.startswith("replays/report-dev_unseen-") for link in own)
    page, rival = tmp_path / "pair" / "both.html", shutil.copytree(runs[1], tmp_path / "basic")
    words = ("report", trained, rival, "--data", tiny_trainable, "--splits", "val_unseen", "--out", page)
    assert typed(*words) == 0
    links = _links(page)
    assert 1 <= len(links) <= 4
    for link in links:
        replay = (page.parent / link).read_text(encoding="utf-8")
        assert "basic" in replay, "both agents are shown"
        assert 10_000 < len(replay) < 1_000_000
        story = link.removesuffix(".html").split("-", 3)[-1]
        assert story in ("fixed", "wrong-stop", "lost", "straight")
    assert not list((page.parent / "replays").glob("*.tmp*"))
    before = page.read_text(encoding="utf-8")
    assert typed(*words) == 0
    assert page.read_text(encoding="utf-8") == before, "the same again, over the same files"


def test_replays_can_be_left_out(trained: Path, tiny_trainable: Path, tmp_path: Path) -> None:
    page = tmp_path / "plain.html"
    assert typed("report", trained, "--data", tiny_trainable, "--no-replays", "--out", page) == 0
    assert not (tmp_path / "replays").exists()
    assert "Replays" not in page.read_text(encoding="utf-8")


def test_without_its_data_a_report_says_how_to_get_replays(
    trained: Path, tiny_data: Path, tiny_trainable: Path
) -> None:
    assert typed("report", trained, "--data", tiny_trainable) == 0
    shutil.rmtree(trained / "replays")
    told = "There are none here: the data of the runs was not named. They are written by"
    assert typed("report", trained) == 0
    assert told in (trained / "report.html").read_text(encoding="utf-8")
    assert typed("report", trained, "--data", tiny_data) == 0, "a folder without the features of the run"
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "There are none here: " in page
    assert "features" in page
    assert not (trained / "replays").exists()


def test_results_of_other_weights_are_not_used(
    trained: Path, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("eval", trained, "--data", tiny_trainable, "--checkpoint", "best") == 0
    best = read_episode_results(trained / "results" / "val_unseen.jsonl")
    assert best[0].checkpoint == "best"
    assert typed("report", trained, "--data", tiny_trainable) == 0
    assert read_episode_results(trained / "results" / "val_unseen.jsonl")[0].checkpoint == "last"
    assert typed("report", trained, "--data", tiny_trainable, "--checkpoint", "best") == 0
    assert read_episode_results(trained / "results" / "val_unseen.jsonl") == best
    capsys.readouterr()
    file = trained / "metrics.jsonl"
    file.write_text(file.read_text().replace('"iteration":4', '"iteration":6'))
    assert typed("report", trained) == 0, "training went on since"
    assert (
        "<ssm> has not walked val_seen, val_unseen; name its data folder with --data"
        in capsys.readouterr().err
    )
    assert "&lt;ssm&gt; has not walked" in (trained / "report.html").read_text(encoding="utf-8")


def test_several_runs_share_a_page(
    runs: tuple[Path, Path], tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed("report", *runs, "--data", tiny_trainable, "--splits", "val_unseen") == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Report on 2 runs" in page
    assert not (runs[1] / "results" / "val_seen.json").exists(), "only what was asked for"
    assert typed("report", *runs, "--data", tiny_trainable, "--out", tmp_path / "my" / "page.html") == 0
    assert (tmp_path / "my" / "page.html").is_file()


def test_runs_on_the_embedded_houses_need_no_data_folder(
    trained: Path, tiny_trainable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = trained / "preset.json"
    description = json.loads(file.read_text())
    description["data"] |= {"features": "scenemem.houses.features", "track": "houses"}
    file.write_text(json.dumps(description))
    monkeypatch.setattr(pages, "open_data", lambda *_: DataFolder(tiny_trainable))
    assert typed("report", trained) == 0
    assert "The embedded houses, track houses" in (trained / "report.html").read_text(encoding="utf-8")


def test_runs_on_different_data_are_not_compared(
    runs: tuple[Path, Path], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trained / "preset.json"
    description = json.loads(file.read_text())
    description["data"]["sha256"] = "0" * 64
    file.write_text(json.dumps(description))
    assert typed("report", runs[0], trained) == 2
    assert (
        "were trained on different features, so their numbers cannot be compared" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report",), "name at least one run folder: scenemem report RUN ..."),
        (("report", "nowhere"), "nowhere holds no run (no preset.json)"),
        (("follow", "expert"), "expert holds no run (no preset.json)"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], message: str, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words, "--data", tiny_trainable) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_damaged_description_is_named(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "preset.json").write_text("{}")
    assert typed("report", trained) == 2
    assert (
        "preset.json: does not describe a run (Object missing required field `name`)"
        in capsys.readouterr().err
    )


@pytest.fixture
def labelled(tiny_trainable: Path, tmp_path: Path) -> Path:
    """The tiny data with made-up labels: everywhere the second word is a landmark, the first an action."""
    data = Path(shutil.copytree(tiny_trainable, tmp_path / "labelled"))
    for split in ("train", "val_unseen"):
        episodes = json.loads((data / "r2r" / f"R2R_{split}.json").read_text())
        labels = {
            str(episode["path_id"]): {
                viewpoint: {str(number): {"landmark": [1], "action": [0]} for number in range(3)}
                for viewpoint in episode["path"]
            }
            for episode in episodes
        }
        (data / "lar2r").mkdir(exist_ok=True)
        file = data / "lar2r" / f"lar2r_{split}.json.gz"
        file.write_bytes(gzip.compress(json.dumps(labels).encode()))
    return data


def test_grounding_is_measured(
    runs: tuple[Path, Path], labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("follow", runs[0], "--data", labelled, "--grounding", "--json") == 0
    report = printed_json(capsys)
    assert (report["split"], report["iteration"]) == ("val_unseen", 4)
    quality = report["grounding"]
    assert quality["coverage"]["measured"] == quality["coverage"]["labels"] > 0
    assert {row["stream"] for row in quality["attention"]} == {"perception", "action", "navigator"}
    for row in quality["attention"]:
        assert row["lift"]["value"] == pytest.approx(row["mass"]["value"] / row["chance"])
        assert row["mass"]["low"] <= row["mass"]["value"] <= row["mass"]["high"]
    assert typed("follow", runs[1], "--data", labelled, "--grounding", "--split", "dev_unseen") == 0
    shown = capsys.readouterr().out
    assert "navigator" in shown
    assert "perception" not in shown


def test_decisions_along_the_reference_paths_are_counted(
    runs: tuple[Path, Path], tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("follow", runs[0], "--data", tiny_trainable, "--json") == 0
    report = printed_json(capsys)
    assert (report["split"], report["iteration"]) == ("val_unseen", 4)
    assert list(report["following"]) == ["action: go on", "action: stop", "frontier: stay"]
    episodes = len(json.loads((tiny_trainable / "r2r" / "R2R_val_unseen.json").read_text())) * 3
    assert report["following"]["action: stop"]["of"] == episodes
    assert typed("follow", runs[1], "--data", tiny_trainable, "--split", "dev_unseen") == 0
    shown = capsys.readouterr().out
    assert "action: stop" in shown
    assert "frontier" not in shown
    assert typed("follow", runs[0], "--data", tiny_trainable, "--split", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err


def test_grounding_needs_labels(
    runs: tuple[Path, Path], tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("follow", runs[0], "--data", tiny_trainable, "--grounding") == 2
    assert "lar2r_val_unseen.json.gz: no such file; the word labels of lar2r" in capsys.readouterr().err
