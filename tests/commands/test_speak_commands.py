"""Train a speaker, evaluate it, let it describe and augment, as a user would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from scenemem.agents.walker import TrainedAgent
from scenemem.evaluation.evaluate import Walks, walk_split
from scenemem.evaluation.following import path_likelihood
from scenemem.formats.episodes import Episode, read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import read_episode_results
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import open_run
from scenemem.runs.speakers import LoadedSpeaker, open_speaker
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes
from scenemem.world.build import load_world
from tests.commands import helpers
from tests.commands.helpers import Shell

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


def test_an_agent_that_follows_the_descriptions_shows_what_they_are_worth(
    speaker: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "basic-0"
    flags = (*helpers.SMALL, "--learning.batch", 8, "--iterations", 30)
    shell("train", "basic", "--out", agent, *flags, "--no-replays")
    people = shell.json("eval", agent)["metrics"]["sr"]
    outcomes = read_episode_results(agent / "results" / "val_unseen.jsonl")
    first = [one.sr for one in outcomes if one.instr_id.endswith("_0")]
    # a speaker that repeats the first instruction of people is followed like that instruction
    monkeypatch.setattr(
        "scenemem.runs.speakers.describe_paths", lambda _speaker, paths, **_: list(paths.episodes.texts)
    )
    walked: list[tuple[str, ...]] = []

    def spied(walker: TrainedAgent, episodes: EpisodeSet, **options: Any) -> Walks:
        walked.append(episodes.texts)
        return walk_split(walker, episodes, **options)

    monkeypatch.setattr("scenemem.runs.speakers.walk_split", spied)
    words = ("speak", "eval", speaker, "--agent", agent)
    followed = shell.json(*words)["followed"]
    assert followed.keys() == {"descriptions", "people", "shuffled"}
    assert followed["people"]["sr"] == pytest.approx(people)
    assert followed["descriptions"]["sr"] == pytest.approx(sum(first) / len(first))
    described, _, shuffled = walked
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
    packed = shell("weights", "pack", speaker, "--out", tmp_path / "hub")
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


def test_of_several_descriptions_the_likeliest_is_kept(
    speaker: Path, tiny_trainable: Path, tmp_path: Path
) -> None:
    loaded = LoadedSpeaker(open_speaker(RunFolder(speaker), DataFolder(tiny_trainable)))

    def described(**choice: Any) -> list[Episode]:
        return list(loaded.described_paths(12, seed=3, sample=True, **choice))

    def likelihood(episodes: list[Episode]) -> Tensor:
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
    def augment(name: str, *flags: object) -> tuple[Episode, ...]:
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
