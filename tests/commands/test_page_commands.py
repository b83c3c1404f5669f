"""The commands report, follow, view and serve: pages that show what agents do."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import EpisodeResult, read_episode_results
from scenemem.formats.traces import read_trace
from scenemem.houses.build import default_houses
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import LoadedAgent
from scenemem.runs.pages import open_live_state
from scenemem.runs.weights import find_run
from tests.commands.helpers import Shell

serving = pytest.mark.skipif(find_spec("fastapi") is None, reason="needs the extra 'serve'")


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
    monkeypatch.setattr(LoadedAgent, "walks", None)
    shell("report", trained, "--no-replays")  # a second one walks nothing
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
    assert "name that data folder with --data DIR" in shell.split("report", trained, code=2).err


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
    refused = shell.refused("report", ssm, trained)
    assert "were trained on different features, so their numbers cannot be compared" in refused
    description["data"] |= {"features": "scenemem.houses.features", "track": "houses"}
    file.write_text(json.dumps(description))
    monkeypatch.setattr("scenemem.houses.build.default_houses", lambda **_: tiny_trainable)
    shell.split("report", trained)  # the embedded houses need no data folder
    assert "The embedded houses, track houses" in (trained / "report.html").read_text(encoding="utf-8")
    file.write_text("{}")
    refused = shell.refused("report", trained)
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
    monkeypatch.setattr(LoadedAgent, "walks", None)
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
    page = (tmp_path / "t.html").read_text(encoding="utf-8")
    titles = (f"<title>{how} - instruction 2000_1<" for how in ("Stopped", "Cut off before it stopped"))
    assert any(title in page for title in titles), "how far from the goal is not told"


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


@serving
def test_a_live_state_is_opened(ssm: Path, basic: Path, speaker: Path, tiny_trainable: Path) -> None:
    folder = DataFolder(tiny_trainable)
    state = open_live_state([ssm, basic], speaker, folder, "last")
    assert list(state.agents) == ["ssm-0", "basic-0"]
    assert state.speaker_name == "speaker-0"
    assert state.speaker is not None
    assert state.examples.keys() == {"grid", "yard"}
    for found in state.examples.values():
        assert len(found) in (3, 8), "a few of every house"
        assert len({(item.start, item.goal) for item in found}) == len(found), "different routes"
    mute = open_live_state([ssm], None, folder, "last")
    assert mute.speaker is None, "no speaker fits the features of other buildings"
    with pytest.raises(UserError, match="is named twice"):
        open_live_state([ssm, ssm / ".." / "ssm-0"], None, folder, "last")
    with pytest.raises(UserError, match="holds no run"):
        open_live_state([ssm / "nowhere"], None, folder, "last")
    with pytest.raises(DataError, match="holds no speaker"):
        open_live_state([ssm], basic, folder, "best")


@serving
def test_a_speaker_that_fits_the_data_comes_with_the_package() -> None:
    houses = DataFolder(default_houses())
    state = open_live_state([find_run("weights:basic-houses").root], None, houses, "last")
    assert state.speaker_name == "speaker-houses"
    house = next(name for name, split in state.groups.items() if split == "val_unseen")
    example = state.examples[house][0]
    places = state.view(house).scene.places
    start, goal = (places[place].id for place in (example.start, example.goal) if place is not None)
    described = state.describe(house, start, goal, None)
    assert re.fullmatch(r"[A-Z][^<>_]+ [^<>_]+[.]", described.text), "sentences"
    assert " ." not in described.text


@serving
@pytest.mark.real_data
@pytest.mark.parametrize("agent", ["ssm-plus-r2r-captions", "basic-r2r-oracle"])
def test_the_packaged_speaker_of_r2r_serves_agents_of_any_track(agent: str, with_features: Path) -> None:
    run = find_run(f"weights:{agent}").root
    state = open_live_state([run], None, DataFolder(with_features), "last")
    assert state.speaker_name == "speaker-r2r-captions"


@serving
def test_bad_addresses_and_a_missing_extra_are_explained(
    ssm: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = shell.refused("serve", ssm, "--port", port, "--no-open")
        assert re.search(rf"cannot listen at 127.0.0.1 port {port} \(.*in use\); choose another", refused)
    refused = shell.refused("serve", ssm, "--port", 0, "--host", "no.such.host.invalid")
    assert re.search(r"cannot listen at no\.such\.host\.invalid port 0 \(.+\); choose", refused)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "install them with: pip install 'scenemem[serve]'" in shell.refused("serve", ssm)


@serving
def test_the_page_is_up_until_it_is_interrupted(ssm: Path, tiny_trainable: Path) -> None:
    words = ("serve", str(ssm), "--data", str(tiny_trainable), "--port", "0", "--no-open")
    command = [sys.executable, "-m", "scenemem", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())
            assert address is not None
            with urllib.request.urlopen(f"{address.group()}api/session", timeout=20) as answer:
                assert json.load(answer)["agents"] == ["ssm-0"]
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "")
