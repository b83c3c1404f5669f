"""``scenemem eval --speaker``: re-rank candidate routes, as a user would."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenemem.formats.decoding import file_digest
from scenemem.formats.traces import read_trace
from scenemem.runs.folder import RunFolder
from tests.commands import helpers
from tests.commands.helpers import Shell, typed, write_features

SMALL = (*helpers.SMALL, "--iterations", 2, "--features", "tiny")
Choosing = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def data(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with two feature stores."""
    root = Path(shutil.copytree(tiny_trainable, tmp_path_factory.mktemp("two") / "data"))
    write_features(root, "other", 8)
    return root


@pytest.fixture(scope="module")
def choosing(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Choosing:
    """An agent, a speaker that sees what it sees, and one that does not."""
    root = tmp_path_factory.mktemp("runs")
    assert typed("train", "ssm", "--data", data, "--out", root / "ssm", "--model.node-width", 8, *SMALL) == 0
    for name in ("tiny", "other"):
        words = ("--data", data, "--out", root / name, *SMALL, "--features", name)
        assert typed("speak", "train", *words) == 0
    return root / "ssm", root / "tiny", root / "other"


def test_candidates_are_reranked_and_all_that_is_walked_is_reported(
    choosing: Choosing, data: Path, shell: Shell
) -> None:
    agent, speaker, other = choosing
    words = ("eval", agent, "--data", data)
    plain = shell.json(*words)
    results, kept = agent / "results", agent / "results" / "reranked"
    before = {name: (results / name).read_bytes() for name in ("val_unseen.json", "val_unseen.jsonl")}
    words = (*words, "--speaker", speaker)
    alone = shell.json(*words)
    one = alone.pop("reranking")
    assert alone == plain, "one candidate is the ordinary evaluation"
    assert one["candidates"] == 1
    assert one["all_walked"] == {"tl": plain["metrics"]["tl"], "spl": plain["metrics"]["spl"]}
    assert (kept / "val_unseen.json").read_bytes() == before["val_unseen.json"]

    words = (*words, "--candidates", 5)
    choice = ("--speaker-weight", 1, "--seed", 3)
    report = shell.json(*words, *choice)
    assert report["metrics"] != plain["metrics"]
    walked = report["reranking"]["all_walked"]
    assert walked["tl"] > report["metrics"]["tl"]
    assert walked["spl"] <= report["metrics"]["spl"]
    said = {"speaker": str(speaker), "candidates": 5, "weight": 1.0, "seed": 3}
    assert {name: report["reranking"][name] for name in said} == said
    assert {name: (results / name).read_bytes() for name in before} == before
    assert not list(kept.glob("*.jsonl")), "reports show ordinary walks only"
    scored = shell.json("score", kept / "val_unseen.json", "--data", data, "--split", "val_unseen")
    assert scored == {key: report[key] for key in scored}
    assert shell.json(*words, *choice) == report, "the same seed, the same answers"
    shown = shell(*words)
    assert "TL, all walked" in shown
    assert "not comparable with agents that walk once" in shown

    expected = f"{other} sees other features than the agent; train both with the same --features"
    assert expected in shell.refused("eval", agent, "--data", data, "--speaker", other, "--candidates", 2)


def test_of_a_search_the_speaker_chooses_the_end(
    choosing: Choosing, data: Path, tmp_path: Path, shell: Shell
) -> None:
    _, speaker, _ = choosing
    agent = tmp_path / "search"
    shell("train", "speaker-follower-search", "--data", data, "--out", agent, *SMALL)
    words = ("eval", agent, "--data", data)
    found = {}
    for weight in (0.0, 1.0):
        found[weight] = shell.json(*words, "--speaker", speaker, "--speaker-weight", weight, "--traces", 1)
        assert found[weight].pop("reranking") == {"speaker": str(speaker), "weight": weight}
    kept = agent / "results" / "reranked"
    traced = [read_trace(file) for file in (kept / "traces").iterdir()]
    assert [trace.agent for trace in traced] == ["search with tiny"]
    origin = traced[0].origin
    assert origin is not None
    assert origin.reranking == {"weight": 1.0, "speaker": file_digest(RunFolder(speaker).best)}
    assert [trace.moves[-1].decisions[-1].kind for trace in traced] == ["final"]
    scored = shell.json("score", kept / "val_unseen.json", "--data", data, "--split", "val_unseen")
    assert scored == {key: found[1.0][key] for key in scored}, "every metre of the search is there"
    plain = shell.json(*words)
    assert plain == found[0.0]
    assert plain["metrics"] != found[1.0]["metrics"]
    both = plain["metrics"]["osr"], found[1.0]["metrics"]["osr"]
    assert both[0] == pytest.approx(both[1]), "it has seen the same places"
    shown = shell("eval", agent, "--data", data, "--speaker", speaker)
    assert "all walked" not in shown
    assert "helped to choose where searches end" in shown
    pages = {}
    for weight in (0.0, 1.0):
        beside = ("--speaker", speaker, "--speaker-weight", weight)
        page, first = tmp_path / f"{weight}.html", traced[0].task.instruction_id
        shell("view", agent, "--data", data, "--episode", first, "--out", page, *beside)
        pages[weight] = page.read_text(encoding="utf-8")
    assert pages[0.0] != pages[1.0], "replays show how the speaker chooses"
    assert "search with tiny" in pages[1.0]
    shell("view", agent, "--data", data, "--speaker", speaker, "--count", 1)
    assert len(list((agent / "replays" / "with-speaker").glob("*.html"))) == 2
    assert not (agent / "replays" / "index.html").exists(), "ordinary replays lie apart"
    expected = f"{agent} searches, and a speaker chooses among the routes of one search; leave out --candid"
    assert expected in shell.refused(*words, "--speaker", speaker, "--candidates", 2)
