"""Train a speaker, evaluate it, let it describe and augment, and help agents to choose, as a user would."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch import Tensor

from scenemem.evaluation.evaluate import walk_split
from scenemem.evaluation.following import path_likelihood
from scenemem.formats.decoding import file_digest
from scenemem.formats.episodes import EpisodeRecord, read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import read_episode_results
from scenemem.formats.traces import read_trace
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import open_run
from scenemem.runs.speakers import LoadedSpeaker, open_speaker
from scenemem.tasks.episode_set import bind_episodes
from scenemem.world.build import load_world
from tests.commands import helpers
from tests.commands.helpers import Shell, write_features

SMALL = (*helpers.SMALL, "--iterations", 4, "--words", 20)
REPORTED = {"split", "n", "beam", "words", "bleu", "retrieval", "shuffled"}


def test_a_speaker_is_described_and_selected_by_bleu(speaker: Path) -> None:
    description, lines = RunFolder(speaker).describe(), list(RunFolder(speaker).logged())
    assert (description["name"], description["preset"]["model"]["width"]) == ("speaker", 16)
    assert lines[0]["stage"] == "speaking"
    assert lines[1]["validation"].keys() == {"bleu"}


def test_the_cost_is_printed_and_nothing_is_written(tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "run"
    assert "4 steps, about" in shell("speak", "train", "--out", out, *SMALL, "--dry-run", "--json")
    assert not out.exists()


def test_eval_reports_bleu_and_both_controls(speaker: Path, shell: Shell) -> None:
    words = ("speak", "eval", speaker)
    report = shell.json(*words, "--beam", 2)
    assert report.keys() == REPORTED
    assert (report["split"], report["beam"]) == ("val_unseen", 2)
    assert all(0 <= report[name] <= 1 for name in ("bleu", "retrieval", "shuffled"))
    assert "most similar training path" in shell(*words, "--split", "train", "--checkpoint", "last")


def test_an_agent_that_follows_descriptions_shows_what_they_are_worth(
    speaker: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "basic-0"
    flags = (*helpers.SMALL, "--learning.batch", 8, "--iterations", 30)
    shell("train", "basic", "--out", agent, *flags, "--no-replays")
    people = shell.json("eval", agent)["metrics"]["sr"]
    outcomes = read_episode_results(agent / "results" / "val_unseen.jsonl")
    first = [one.sr for one in outcomes if one.instr_id.endswith("_0")]
    # a speaker that repeats the first instruction of people is followed like that instruction
    describe, walk = "scenemem.runs.speakers.describe_paths", Mock(wraps=walk_split)
    monkeypatch.setattr(describe, lambda _speaker, paths, **_: list(paths.episodes.texts))
    monkeypatch.setattr("scenemem.runs.speakers.walk_split", walk)
    words = ("speak", "eval", speaker, "--agent", agent)
    followed = shell.json(*words)["followed"]
    assert followed.keys() == {"descriptions", "people", "shuffled"}
    assert followed["people"]["sr"] == pytest.approx(people)
    assert followed["descriptions"]["sr"] == pytest.approx(sum(first) / len(first))
    described, _, shuffled = (called.args[1].texts for called in walk.call_args_list)
    assert sorted(shuffled) == sorted(described)
    assert all(one != other for one, other in zip(described, shuffled, strict=True))
    assert "walks the same paths by" in shell(*words)


def test_packed_speakers_reach_their_card(
    speaker: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.runs.weights.WEIGHTS", tmp_path)
    file = tmp_path / "voice.safetensors"
    shell("weights", "pack", speaker, "--out", file, "--checkpoint", "best")
    bleu = shell.json("speak", "eval", "weights:voice")["bleu"]
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "| split | bleu | retrieval | shuffled |\n|---|---|---|---|\n| val_seen | " in card
    assert f"| val_unseen | {bleu:.3f} |" in card
    assert "published speakers; 'weights:NAME' stands for a run" in shell("weights")
    packed = shell("weights", "pack", speaker, "--out", tmp_path / "hub", "--licence", "mit")
    assert f"next: scenemem speak eval weights:{tmp_path / 'hub'}" in packed
    assert "task: {type: text-generation}" in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")


def test_a_listed_path_and_a_shortest_path_are_described_alike(speaker: Path, shell: Shell) -> None:
    words = ("speak", "describe", speaker)
    (listed,) = shell.json(*words, "--path", "s0, s1,s2")["descriptions"]
    assert listed["scan"] == "spiral"
    assert listed["path"] == ["s0", "s1", "s2"]
    assert listed["text"][0] == listed["text"][0].upper(), "written as people write"
    assert shell.json(*words, "--start", "s0", "--goal", "s2")["descriptions"] == [listed]
    (turned,) = shell.json(*words, "--path", "s0,s1,s2", "--heading", 90, "--beam", 3)["descriptions"]
    assert turned["heading"] == pytest.approx(1.5708, abs=1e-4)
    assert shell(*words, "--path", "s3"), "standing still is a path too"


def test_random_paths_are_shown_beside_what_people_said(speaker: Path, shell: Shell) -> None:
    words = ("speak", "describe", speaker, "--count", 2, "--split", "val_unseen")
    first, other = (shell.json(*words, "--seed", seed)["descriptions"] for seed in (0, 1))
    assert len(first) == 2
    assert len(first[0]["references"]) == 3
    shown = shell(*words)
    assert first[0]["text"] in shown
    assert f"people: {first[0]['references'][0]}" in shown
    assert [entry["path"] for entry in other] != [entry["path"] for entry in first]


def test_augmentation_is_an_episode_file_that_follows_the_seed(
    speaker: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell
) -> None:
    def augment(name: str, *flags: object) -> bytes:
        words = ("speak", "augment", speaker, "--out", tmp_path / name, "--count", 50)
        assert "paths described" in shell(*words, *flags)
        return (tmp_path / name).read_bytes()

    file = tmp_path / "first.json"
    report = shell.json("speak", "augment", speaker, "--out", file, "--count", 50)
    assert (report["count"], report["out"]) == (50, str(file))
    first, episodes = file.read_bytes(), read_episodes(file)
    world = load_world(tiny_trainable / "connectivity")
    bound = bind_episodes(world, episodes, "first.json", name="augmented")
    assert len(bound) == 50, "every path is a walk of the world"
    assert len(set(bound.scan.tolist())) == 1, "the held-out building is left alone"
    assert all(4 <= len(episode.path) - 1 <= 6 for episode in episodes)
    fresh = min(50, report["pool"])
    assert len({(episode.scan, episode.path) for episode in episodes[:fresh]}) == fresh
    assert "<UNK>" not in first.decode()
    assert augment("again.json") == first
    assert augment("other.json", "--seed", 1) != first
    sampled = augment("sampled.json", "--sample")
    assert sampled != first
    assert augment("sampled-again.json", "--sample") == sampled
    augment("packed.json.gz")
    assert read_episodes(tmp_path / "packed.json.gz") == episodes


def test_the_likeliest_description_is_kept(speaker: Path, tiny_trainable: Path, tmp_path: Path) -> None:
    loaded = LoadedSpeaker(open_speaker(RunFolder(speaker), DataFolder(tiny_trainable)))

    def described(**choice: Any) -> list[EpisodeRecord]:
        return list(loaded.described_paths(12, seed=3, sample=True, **choice))

    def likelihood(episodes: list[EpisodeRecord]) -> Tensor:
        bound = bind_episodes(loaded.world, episodes, "made", name="made")
        return loaded.speaker.score_routes(bound, bound.path)

    one, four, best = described(), described(descriptions=4), described(descriptions=4, keep=0.25)
    assert [episode.path for episode in one] == [episode.path for episode in four], "the same paths"
    assert len({episode.path_id for episode in best}) == len(best) == 12
    assert float(likelihood(four).mean()) > float(likelihood(one).mean())
    assert float(likelihood(best).mean()) > float(likelihood(four).mean())


def test_an_agent_helps_to_choose_descriptions(
    speaker: Path, basic: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell
) -> None:
    def augment(name: str, *flags: object) -> tuple[EpisodeRecord, ...]:
        out = tmp_path / name
        words = ("speak", "augment", speaker, "--out", out, "--count", 10)
        shell(*words, "--sample", "--descriptions", 3, "--keep", 0.5, *flags)
        return tuple(read_episodes(out))

    plain, chosen = augment("plain.json"), augment("chosen.json", "--agent", basic)
    opened = open_run(RunFolder(basic), DataFolder(tiny_trainable)).experiment.agent
    world = opened.environment.world
    plainly, by_agent = (
        path_likelihood(opened, bind_episodes(world, made, "made", name="made")).mean()
        for made in (plain, chosen)
    )
    assert plain != chosen
    assert float(by_agent) > float(plainly)


def test_only_bleu_needs_the_extra_package(
    speaker: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    expected = "BLEU needs sacrebleu; install it with: pip install 'scenemem[speak]'"
    for words in (("eval", speaker), ("train", "--out", tmp_path / "run", *SMALL)):
        assert expected in shell.refused("speak", *words)
    assert not (tmp_path / "run").exists(), "it is noticed before anything is done"
    shell("speak", "describe", speaker, "--count", 1)
    shell("speak", "augment", speaker, "--count", 1, "--out", tmp_path / "augmented.json")


def test_a_run_folder_that_describes_something_else_is_not_resumed(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "preset.json").write_text('{"preset": {"words": "many"}, "seed": 0}')
    words = ("speak", "train", "--out", tmp_path, "--resume")
    assert "does not describe a run" in shell.refused(*words)


@pytest.fixture(scope="module")
def two_stores(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with two feature stores."""
    root = Path(shutil.copytree(tiny_trainable, tmp_path_factory.mktemp("two") / "data"))
    write_features(root, "other", 8)
    return root


def test_candidates_are_reranked_and_all_that_is_walked_is_reported(
    ssm: Path, speaker: Path, two_stores: Path, tmp_path: Path, shell: Shell
) -> None:
    agent, data, other = ssm, two_stores, tmp_path / "other"
    words: tuple[object, ...] = ("eval", agent, "--data", data)
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

    shell("speak", "train", "--data", data, "--out", other, *SMALL, "--features", "other")
    expected = f"{other} sees other features than the agent; train both with the same --features"
    assert expected in shell.refused("eval", agent, "--data", data, "--speaker", other, "--candidates", 2)


def test_a_speaker_chooses_where_a_search_ends(
    speaker: Path, two_stores: Path, tmp_path: Path, shell: Shell
) -> None:
    agent, data = tmp_path / "search", two_stores
    flags = (*helpers.SMALL, "--iterations", 2, "--features", "tiny")
    shell("train", "speaker-follower-search", "--data", data, "--out", agent, *flags)
    words = ("eval", agent, "--data", data)
    found = {}
    for weight in (0.0, 1.0):
        found[weight] = shell.json(*words, "--speaker", speaker, "--speaker-weight", weight, "--traces", 1)
        assert found[weight].pop("reranking") == {"speaker": str(speaker), "weight": weight}
    kept = agent / "results" / "reranked"
    traced = [read_trace(file) for file in (kept / "traces").iterdir()]
    assert [trace.agent for trace in traced] == ["search with speaker-0"]
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
    assert "search with speaker-0" in pages[1.0]
    shell("view", agent, "--data", data, "--speaker", speaker, "--count", 1)
    assert len(list((agent / "replays" / "with-speaker").glob("*.html"))) == 2
    assert not (agent / "replays" / "index.html").exists(), "ordinary replays lie apart"
    expected = f"{agent} searches, and a speaker chooses among the routes of one search; leave out --candid"
    assert expected in shell.refused(*words, "--speaker", speaker, "--candidates", 2)
