"""Train a speaker, evaluate it, let it describe and augment, as a user would."""

from __future__ import annotations

import json
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
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import open_run
from scenemem.runs.speakers import LoadedSpeaker, open_speaker
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes
from scenemem.world.build import load_world
from tests.commands import helpers
from tests.commands.helpers import Shell, typed

SMALL = (*helpers.SMALL, "--iterations", 4, "--words", 20)


@pytest.fixture(scope="module")
def trained(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "speaker-0"
    assert typed("speak", "train", "--data", tiny_trainable, "--out", out, *SMALL) == 0
    return out


def test_training_fills_the_run_folder(trained: Path) -> None:
    run = RunFolder(trained)
    description = run.describe()
    assert description["name"] == "speaker"
    assert description["preset"]["model"]["width"] == 16
    lines = list(run.logged())
    assert [line["iteration"] for line in lines] == [2, 4]
    assert lines[0]["stage"] == "speaking"
    assert lines[1]["validation"].keys() == {"bleu"}
    assert run.best.is_file()


def test_a_run_is_never_overwritten_but_can_be_continued(trained: Path, shell: Shell) -> None:
    words = ("speak", "train", "speaker", "--out", trained)
    assert "already holds a run; continue it with --resume" in shell.refused(*words, *SMALL)
    assert shell.json(*words, "--resume")["iteration"] == 4
    assert "was started with another preset" in shell.refused(*words, "--resume", "--learning.clip", 1.0)


def test_the_cost_is_told_and_nothing_is_written(tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "run"
    assert "4 steps, about" in shell("speak", "train", "--out", out, *SMALL, "--dry-run", "--json")
    assert not out.exists()


def test_eval_reports_bleu_and_both_controls(trained: Path, shell: Shell) -> None:
    words = ("speak", "eval", trained)
    report = shell.json(*words, "--beam", 2)
    assert report.keys() == {"split", "n", "beam", "words", "bleu", "retrieval", "shuffled"}
    assert (report["split"], report["beam"]) == ("val_unseen", 2)
    assert all(0 <= report[name] <= 1 for name in ("bleu", "retrieval", "shuffled"))
    assert "most similar training path" in shell(*words, "--split", "train", "--checkpoint", "last")


def test_an_agent_that_follows_the_descriptions_tells_what_they_are_worth(
    trained: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, data = tmp_path / "basic-0", ("--data", tiny_trainable)
    small = ("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 8)
    shell("train", "basic", *data, "--out", agent, *small, "--iterations", 30, "--no-replays")
    people = shell.json("eval", agent, *data)["metrics"]["sr"]
    lines = (agent / "results" / "val_unseen.jsonl").read_text().splitlines()
    outcomes = [json.loads(line) for line in lines]
    first = [one["sr"] for one in outcomes if one["instr_id"].endswith("_0")]
    # a speaker that says what the first of the people said is followed as that person is
    monkeypatch.setattr(
        "scenemem.runs.speakers.describe_paths", lambda _speaker, paths, **_: list(paths.episodes.texts)
    )
    told: list[tuple[str, ...]] = []

    def spied(walker: TrainedAgent, episodes: EpisodeSet, **options: Any) -> Walks:
        told.append(episodes.texts)
        return walk_split(walker, episodes, **options)

    monkeypatch.setattr("scenemem.runs.speakers.walk_split", spied)
    words = ("speak", "eval", trained, *data, "--agent", agent)
    followed = shell.json(*words)["followed"]
    assert followed.keys() == {"descriptions", "people", "shuffled"}
    assert followed["people"]["sr"] == pytest.approx(people)
    assert followed["descriptions"]["sr"] == pytest.approx(sum(first) / len(first))
    described, _, shuffled = told
    assert sorted(shuffled) == sorted(described)
    assert all(one != other for one, other in zip(described, shuffled, strict=True))
    assert "walks the same paths by" in shell(*words)
    assert "nowhere holds no run" in shell.refused("speak", "eval", trained, *data, "--agent", "nowhere")


def test_packed_speakers_reach_what_their_card_says(
    trained: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.runs.weights.WEIGHTS", tmp_path)
    file, data = tmp_path / "voice.safetensors", ("--data", tiny_trainable)
    shell("weights", "pack", trained, *data, "--out", file, "--checkpoint", "best")
    bleu = shell.json("speak", "eval", "weights:voice", *data)["bleu"]
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "| split | bleu | retrieval | shuffled |\n|---|---|---|---|\n| val_seen | " in card
    assert f"| val_unseen | {bleu:.3f} |" in card
    assert "published speakers; 'weights:NAME' stands for a run" in shell("weights")
    assert f"next: scenemem speak eval weights:{tmp_path / 'hub'}" in shell(
        "weights", "pack", trained, *data, "--out", tmp_path / "hub"
    )
    assert "task: {type: text-generation}" in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")


def test_a_speaker_cannot_walk(trained: Path, shell: Shell) -> None:
    assert "holds a speaker, which describes paths; use it with 'scenemem speak'" in shell.refused(
        "eval", trained
    )


def test_a_listed_path_and_a_shortest_path_are_described_alike(trained: Path, shell: Shell) -> None:
    words = ("speak", "describe", trained)
    (listed,) = shell.json(*words, "--path", "s0, s1,s2")["descriptions"]
    assert listed["scan"] == "spiral"
    assert listed["path"] == ["s0", "s1", "s2"]
    assert listed["text"][0] == listed["text"][0].upper(), "written as people write"
    assert shell.json(*words, "--start", "s0", "--goal", "s2")["descriptions"] == [listed]
    (turned,) = shell.json(*words, "--path", "s0,s1,s2", "--heading", 90, "--beam", 3)["descriptions"]
    assert turned["heading"] == pytest.approx(1.5708, abs=1e-4)
    assert shell(*words, "--path", "s3"), "standing still is a path too"


def test_random_paths_are_shown_beside_what_people_said(trained: Path, shell: Shell) -> None:
    words = ("speak", "describe", trained, "--count", 2, "--split", "val_unseen")
    first = shell.json(*words)["descriptions"]
    assert len(first) == 2
    assert len(first[0]["references"]) == 3
    shown = shell(*words)
    assert first[0]["text"] in shown
    assert f"people: {first[0]['references'][0]}" in shown
    assert [entry["path"] for entry in shell.json(*words, "--seed", 1)["descriptions"]] != [
        entry["path"] for entry in first
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "say what to describe: --path A,B,C or --start A --goal B or --count N"),
        (("--path", "s0", "--count", 1), "say what to describe"),
        (("--start", "s0"), "a shortest path needs both ends"),
        (("--path", " , "), "the path is empty, expected viewpoints separated by commas"),
        (("--path", "nowhere"), "no scan has an included viewpoint 'nowhere'"),
        (("--path", "s0,nowhere"), "scan 'spiral' has no included viewpoint 'nowhere'"),
        (("--path", "g00,g01"), "several scans have a viewpoint 'g00' (grid, yard); name one with --scan"),
        (("--path", "g00,g11", "--scan", "grid"), "no edge leads from grid_g00 to grid_g11"),
        (("--path", "s0", "--scan", "attic"), "unknown scan 'attic'"),
        (("--start", "g00", "--goal", "g-alone", "--scan", "grid"), "no way leads from grid_g00"),
        (("--count", 0), "--count must be in 1.."),
        (("--count", 1, "--split", "test"), "'r2r test' shows no paths"),
        (("--path", "s0", "--beam", 0), "the number of beams must be 1 or more, got 0"),
    ],
)
def test_paths_that_cannot_be_described_are_one_line(
    flags: tuple[object, ...], message: str, trained: Path, shell: Shell
) -> None:
    assert message in shell.refused("speak", "describe", trained, *flags)


def test_augmentation_is_an_episode_file_that_follows_the_seed(
    trained: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell
) -> None:
    def augment(name: str, *flags: object) -> bytes:
        words = ("speak", "augment", trained, "--out", tmp_path / name, "--count", 50)
        assert "paths described" in shell(*words, *flags)
        return (tmp_path / name).read_bytes()

    report = shell.json("speak", "augment", trained, "--out", tmp_path / "first.json", "--count", 50)
    first = (tmp_path / "first.json").read_bytes()
    assert (report["count"], report["out"]) == (50, str(tmp_path / "first.json"))
    episodes = read_episodes(tmp_path / "first.json")
    world = load_world(tiny_trainable / "connectivity")
    bound = bind_episodes(world, episodes, "first.json", name="augmented")
    assert len(bound) == 50, "every path is a walk of the world"
    scans = {world.scans[number] for number in bound.scan.tolist()}
    assert len(scans) == 1, "the held-out building is left alone"
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
    trained: Path, tiny_trainable: Path, tmp_path: Path
) -> None:
    speaker = LoadedSpeaker(open_speaker(RunFolder(trained), DataFolder(tiny_trainable)))

    def described(**choice: Any) -> list[Episode]:
        return list(speaker.described_paths(12, seed=3, sample=True, **choice))

    def likelihood(episodes: list[Episode]) -> Tensor:
        bound = bind_episodes(speaker.world, episodes, "made", name="made")
        return speaker.speaker.score_routes(bound, bound.path)

    one, four, best = described(), described(descriptions=4), described(descriptions=4, keep=0.25)
    assert [episode.path for episode in one] == [episode.path for episode in four], "the same paths"
    assert len({episode.path_id for episode in best}) == len(best) == 12
    assert float(likelihood(four).mean()) > float(likelihood(one).mean())
    assert float(likelihood(best).mean()) > float(likelihood(four).mean())


def test_an_agent_helps_to_choose_descriptions(
    trained: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell
) -> None:
    agent = tmp_path / "agent"
    flags = ("--iterations", 2, "--learning.batch", 4, "--model.width", 8)
    shell("train", "basic", "--out", agent, *flags, "--no-replays")

    def augment(name: str, *flags: object) -> tuple[Episode, ...]:
        out = tmp_path / name
        words = ("speak", "augment", trained, "--out", out, "--count", 10)
        shell(*words, "--sample", "--descriptions", 3, "--keep", 0.5, *flags)
        return tuple(read_episodes(out))

    plain, chosen = augment("plain.json"), augment("chosen.json", "--agent", agent)
    opened = open_run(RunFolder(agent), DataFolder(tiny_trainable)).experiment.agent
    world = opened.environment.world
    plainly, by_agent = (
        path_likelihood(opened, bind_episodes(world, made, "made", name="made")).mean()
        for made in (plain, chosen)
    )
    assert plain != chosen
    assert float(by_agent) > float(plainly)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("augment", "RUN", "--out", "x.json", "--keep", 0), "--keep must be above 0 and at most 1, got 0"),
        (
            ("augment", "RUN", "--out", "x.json", "--sample", "--descriptions", 0),
            "--descriptions must be 1 or more, got 0",
        ),
        (
            ("augment", "RUN", "--out", "x.json", "--agent", "RUN"),
            "--agent helps to choose; say among what with --descriptions or --keep",
        ),
        (
            ("augment", "RUN", "--out", "x.json", "--descriptions", 2),
            "--descriptions compares texts that differ; add --sample",
        ),
        (("train", "parrot"), "unknown speaker 'parrot'; there are: speaker, speaker-paper"),
        (("train", "--iterations", 0), "iterations must be 1 or more, got 0"),
        (("train", "--seed", -1), "--seed must be 0 or more, got -1"),
        (("train", "--features", "nothing"), "no feature store 'nothing' (there are: tiny)"),
        (("eval", "nowhere"), "nowhere holds no run (no preset.json)"),
        (("eval", "RUN", "--beam", 0), "--beam must be 1 or more, got 0"),
        (("augment", "RUN", "--out", "x.json", "--count", 0), "--count must be 1 or more, got 0"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[object, ...], message: str, trained: Path, tmp_path: Path, shell: Shell
) -> None:
    filled = [trained if word == "RUN" else word for word in words]
    out = ("--out", tmp_path / "run") if words[0] == "train" else ()
    assert message in shell.refused("speak", *filled, *out)


def test_only_bleu_needs_the_extra_package(
    trained: Path, tiny_trainable: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    data = ("--data", tiny_trainable)
    for words in (("eval", trained), ("train", "--out", tmp_path / "run", *SMALL)):
        assert "BLEU needs sacrebleu; install it with: pip install 'scenemem[speak]'" in shell.refused(
            "speak", *words, *data
        )
    assert not (tmp_path / "run").exists(), "it is noticed before anything is done"
    shell("speak", "describe", trained, *data, "--count", 1)
    shell("speak", "augment", trained, *data, "--count", 1, "--out", tmp_path / "augmented.json")


def test_a_run_folder_that_describes_something_else_is_not_resumed(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "preset.json").write_text('{"preset": {"words": "many"}, "seed": 0}')
    words = ("speak", "train", "--out", tmp_path, "--resume")
    assert "does not describe a run" in shell.refused(*words)
