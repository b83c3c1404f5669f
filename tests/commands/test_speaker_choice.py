"""``scenemem eval --speaker``: re-rank candidate routes, as a user would."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from scenemem.formats.decoding import file_digest
from scenemem.formats.features import write_store
from scenemem.formats.traces import read_trace
from scenemem.runs.folder import RunFolder
from scenemem.world.build import load_world
from tests.commands import helpers
from tests.commands.helpers import Shell, typed

SMALL = (*helpers.SMALL, "--iterations", 2, "--features", "tiny")
Choosing = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def data(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with two feature stores."""
    root = Path(shutil.copytree(tiny_trainable, tmp_path_factory.mktemp("two") / "data"))
    names = load_world(root / "connectivity").names
    rows = np.random.default_rng(1).normal(size=(len(names), 36, 8)).astype(np.float16)
    write_store(root / "features" / "other.npy", names, rows, width=8, source="test", encoder="other")
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


def test_one_candidate_is_the_ordinary_evaluation(choosing: Choosing, data: Path, shell: Shell) -> None:
    agent, speaker, _ = choosing
    plain = shell.json("eval", agent, "--data", data)
    alone = shell.json("eval", agent, "--data", data, "--speaker", speaker)
    reranking = alone.pop("reranking")
    assert alone == plain
    assert reranking["candidates"] == 1
    assert reranking["all_walked"] == {"tl": plain["metrics"]["tl"], "spl": plain["metrics"]["spl"]}
    ordinary, reranked = agent / "results" / "val_unseen.json", agent / "results" / "reranked"
    assert (reranked / ordinary.name).read_bytes() == ordinary.read_bytes()


def test_everything_walked_is_reported_and_ordinary_results_stay(
    choosing: Choosing, data: Path, shell: Shell
) -> None:
    agent, speaker, _ = choosing
    plain = shell.json("eval", agent, "--data", data)
    files = [agent / "results" / name for name in ("val_unseen.json", "val_unseen.jsonl")]
    before = [file.read_bytes() for file in files]
    words = ("eval", agent, "--data", data, "--speaker", speaker, "--candidates", 5)
    report = shell.json(*words, "--speaker-weight", 1, "--seed", 3)
    assert report["metrics"] != plain["metrics"]
    facts = report["reranking"]
    assert {name: facts[name] for name in ("speaker", "candidates", "weight", "seed")} == {
        "speaker": str(speaker),
        "candidates": 5,
        "weight": 1.0,
        "seed": 3,
    }
    assert facts["all_walked"]["tl"] > report["metrics"]["tl"]
    assert facts["all_walked"]["spl"] <= report["metrics"]["spl"]
    assert [file.read_bytes() for file in files] == before
    assert not list((agent / "results" / "reranked").glob("*.jsonl")), "reports show ordinary walks only"
    kept = agent / "results" / "reranked" / "val_unseen.json"
    scored = shell.json("score", kept, "--data", data, "--split", "val_unseen")
    assert scored == {key: report[key] for key in scored}
    assert shell.json(*words, "--speaker-weight", 1, "--seed", 3) == report, "the same seed, the same answers"
    shown = shell(*words)
    assert "TL, all walked" in shown
    assert "not comparable with agents that walk once" in shown


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


def test_a_speaker_that_sees_other_features_is_refused(choosing: Choosing, data: Path, shell: Shell) -> None:
    agent, _, other = choosing
    expected = f"{other} sees other features than the agent; train both with the same --features"
    assert expected in shell.refused("eval", agent, "--data", data, "--speaker", other, "--candidates", 2)
