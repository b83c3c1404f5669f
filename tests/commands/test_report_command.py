"""``scenemem report`` and ``scenemem follow``, as a user would type them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from scenemem.formats.folder import DataFolder
from scenemem.formats.results import EpisodeResult, read_episode_results
from scenemem.runs import pages
from scenemem.runs.folder import RunFolder
from tests.commands.helpers import Shell


@pytest.fixture
def trained(ssm: Path, tmp_path: Path) -> Path:
    """A copy of a run that a test may change, named so that a page must be careful with it."""
    return Path(shutil.copytree(ssm, tmp_path / "<ssm>"))


def test_training_ends_with_a_report_on_what_it_selects_by(ssm: Path) -> None:
    page = (ssm / "report.html").read_text(encoding="utf-8")
    results = read_episode_results(ssm / "results" / "dev_unseen.jsonl")
    assert f"dev_unseen: {len(results):,} instructions" in page
    assert {(result.checkpoint, result.iteration) for result in results} == {("last", 4)}
    last = list(RunFolder(ssm).logged())[-1]["validation"]
    for metric in ("sr", "spl", "ne", "cls"):
        mean = sum(getattr(result, metric) for result in results) / len(results)
        assert mean == pytest.approx(last[metric]), "the report is about the weights that were kept"


def test_a_report_evaluates_what_is_missing_and_keeps_it(
    trained: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"The report: {trained / 'report.html'}" in shell("report", trained, "--no-replays")
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "Replays" not in page
    metrics = shell.json("eval", trained)["metrics"]
    assert f"<td>{metrics['sr']:.3f}</td><td>{metrics['spl']:.3f}</td>" in page
    for split in ("val_seen", "val_unseen"):
        assert (trained / "results" / f"{split}.json").is_file()
    assert "Report on &lt;ssm&gt;" in page
    assert "<ssm>" not in page
    monkeypatch.setattr(pages, "open_run", None)
    shell.split("report", trained, "--no-replays")  # a second one walks nothing and needs no data
    assert (trained / "report.html").read_text(encoding="utf-8") == page


def _links(page: Path) -> list[str]:
    return re.findall(r'<h3><a href="([^"]+)">', page.read_text(encoding="utf-8"))


def test_replays_are_written_beside_the_report_and_linked(
    ssm: Path, basic: Path, trained: Path, tmp_path: Path, shell: Shell
) -> None:
    own = _links(ssm / "report.html")
    assert own, "training ends with them"
    assert all(link.startswith("replays/report-dev_unseen-") for link in own)
    page, rival = tmp_path / "pair" / "both.html", shutil.copytree(basic, tmp_path / "basic")
    words = ("report", trained, rival, "--splits", "val_unseen", "--out", page)
    shell(*words)
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
    shell(*words)
    assert page.read_text(encoding="utf-8") == before, "the same again, over the same files"


def test_without_its_data_a_report_names_the_way_to_replays(
    trained: Path, tiny_data: Path, shell: Shell
) -> None:
    shell("report", trained)
    shutil.rmtree(trained / "replays")
    shell.split("report", trained)
    expected = "There are none here: the data of the runs was not named. They are written by"
    assert expected in (trained / "report.html").read_text(encoding="utf-8")
    shell("report", trained, "--data", tiny_data)  # a folder without the features of the run
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "There are none here: " in page
    assert "features" in page
    assert not (trained / "replays").exists()


def test_results_of_other_weights_are_not_used(trained: Path, shell: Shell) -> None:
    def kept() -> Sequence[EpisodeResult]:
        return read_episode_results(trained / "results" / "val_unseen.jsonl")

    shell("eval", trained, "--checkpoint", "best")
    best = kept()
    assert best[0].checkpoint == "best"
    shell("report", trained, "--no-replays")
    assert kept()[0].checkpoint == "last"
    shell("report", trained, "--checkpoint", "best", "--no-replays")
    assert kept() == best
    file = trained / "metrics.jsonl"
    file.write_text(file.read_text().replace('"iteration":4', '"iteration":6'))  # training went on since
    remark = "<ssm> has not walked val_seen, val_unseen; name its data folder with --data"
    assert remark in shell.split("report", trained).err
    assert "&lt;ssm&gt; has not walked" in (trained / "report.html").read_text(encoding="utf-8")


def test_several_runs_share_a_page(
    ssm: Path, basic: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell("report", ssm, basic, "--splits", "val_unseen", "--no-replays")
    assert "Report on 2 runs" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (basic / "results" / "val_seen.json").exists(), "only the named splits"
    shell("report", ssm, basic, "--no-replays", "--out", tmp_path / "my" / "page.html")
    assert (tmp_path / "my" / "page.html").is_file()


def test_a_report_depends_on_what_runs_were_trained_on(
    ssm: Path, trained: Path, tiny_trainable: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = trained / "preset.json"
    description = json.loads(file.read_text())
    file.write_text(json.dumps({**description, "data": {**description["data"], "sha256": "0" * 64}}))
    refused = shell.split("report", ssm, trained, code=2).err
    assert "were trained on different features, so their numbers cannot be compared" in refused
    description["data"] |= {"features": "scenemem.houses.features", "track": "houses"}
    file.write_text(json.dumps(description))
    monkeypatch.setattr(pages, "open_data", lambda *_: DataFolder(tiny_trainable))
    shell.split("report", trained)  # the embedded houses need no data folder
    assert "The embedded houses, track houses" in (trained / "report.html").read_text(encoding="utf-8")
    file.write_text("{}")
    refused = shell.split("report", trained, code=2).err
    assert "preset.json: does not describe a run (Object missing required field `name`)" in refused


@pytest.fixture
def labelled(copied_data: Path) -> Path:
    """The tiny data with made-up labels: everywhere the second word is a landmark, the first an action."""
    (copied_data / "lar2r").mkdir()
    for split in ("train", "val_unseen"):
        labels = {
            str(episode["path_id"]): {
                viewpoint: {str(number): {"landmark": [1], "action": [0]} for number in range(3)}
                for viewpoint in episode["path"]
            }
            for episode in json.loads((copied_data / "r2r" / f"R2R_{split}.json").read_text())
        }
        file = copied_data / "lar2r" / f"lar2r_{split}.json.gz"
        file.write_bytes(gzip.compress(json.dumps(labels).encode()))
    return copied_data


def test_grounding_and_decisions_along_the_reference_paths_are_measured(
    ssm: Path, basic: Path, labelled: Path, shell: Shell
) -> None:
    report = shell.json("follow", ssm, "--data", labelled, "--grounding")
    assert (report["split"], report["iteration"]) == ("val_unseen", 4)
    quality = report["grounding"]
    assert quality["coverage"]["measured"] == quality["coverage"]["labels"] > 0
    assert {row["stream"] for row in quality["attention"]} == {"perception", "action", "navigator"}
    for row in quality["attention"]:
        assert row["lift"]["value"] == pytest.approx(row["mass"]["value"] / row["chance"])
        assert row["mass"]["low"] <= row["mass"]["value"] <= row["mass"]["high"]
    shown = shell("follow", basic, "--data", labelled, "--grounding", "--split", "dev_unseen")
    assert "navigator" in shown
    assert "perception" not in shown
    refused = shell.refused("follow", ssm, "--grounding")
    assert "lar2r_val_unseen.json.gz: no such file; the word labels of lar2r" in refused

    report = shell.json("follow", ssm)
    assert (report["split"], report["iteration"]) == ("val_unseen", 4)
    assert list(report["following"]) == ["action: go on", "action: stop", "frontier: stay"]
    episodes = len(json.loads((labelled / "r2r" / "R2R_val_unseen.json").read_text())) * 3
    assert report["following"]["action: stop"]["of"] == episodes
    shown = shell("follow", basic, "--split", "dev_unseen")
    assert "action: stop" in shown
    assert "frontier" not in shown
    assert "nowhere" in shell.refused("follow", ssm, "--split", "nowhere")
