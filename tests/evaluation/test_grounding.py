"""Grounding quality: attention is what the network really computes, and the measures are what they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scenemem.agents.build import Kind, WalkConfig, build_network
from scenemem.agents.collect import FollowLabels, collect
from scenemem.agents.grounded import MemoryConfig
from scenemem.agents.network import NetworkConfig
from scenemem.agents.sight import Sight
from scenemem.agents.trained import TrainedAgent
from scenemem.evaluation.attention import Listened, Stream, listen_along_reference
from torch import Tensor

from scenemem.learning.objectives import ReferencePath
from scenemem.errors import UserError
from scenemem.evaluation import grounding
from scenemem.evaluation.grounding import GroundingQuality, WordAttention, measure_grounding
from scenemem.features.store import open_store
from scenemem.formats.annotations import (
    LandmarkLabels,
    WordLabels,
    landmark_label_file,
    read_landmark_labels,
)
from scenemem.formats.episodes import read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary, split_words
from scenemem.world.build import load_world
from scenemem.world.graph import NONE


@pytest.fixture(scope="module")
def sight(tiny_trainable: Path) -> Sight:
    world = load_world(tiny_trainable / "connectivity")
    return Sight(world, open_store(tiny_trainable / "features" / "tiny.npy", world))


@pytest.fixture(scope="module")
def episodes(tiny_trainable: Path, sight: Sight) -> EpisodeSet:
    return load_split(DataFolder(tiny_trainable), sight.world, "r2r", "val_unseen")


def _agent(kind: Kind, sight: Sight, episodes: EpisodeSet, **memory: Any) -> TrainedAgent:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    config, walk = NetworkConfig(word_width=6, width=8), WalkConfig(rounds=4, ticks=9, words=30)
    settings = MemoryConfig(stream=4, **memory)
    network = build_network(kind, config, settings, walk, vocabulary, sight.width)
    return TrainedAgent(network, sight, vocabulary, max_words=walk.words, max_ticks=walk.ticks)


@pytest.mark.parametrize("kind", ["basic", "local", "frontier", "anywhere"])
def test_the_agent_is_led_along_the_reference_path(kind: Kind, sight: Sight, episodes: EpisodeSet) -> None:
    agent = _agent(kind, sight, episodes)
    agent.network.train()
    told: list[tuple[int, int]] = []
    batches = list(
        listen_along_reference(
            agent, episodes, batch_size=7, progress=lambda done, total: told.append((done, total))
        )
    )
    assert agent.network.training, "as it was before"
    assert told[-1] == (len(episodes), len(episodes))
    walks = [row[alive] for batch in batches for row, alive in zip(batch.viewpoint, batch.alive, strict=True)]
    for walk, path in zip(walks, episodes.path, strict=True):
        assert walk.tolist() == path[path != NONE].tolist()
    streams = ["listening"] if kind == "basic" else ["perception", "action", "listening"]
    for batch in batches:
        assert list(batch.words) == streams
        for weights in batch.words.values():
            assert torch.allclose(weights[batch.alive].sum(-1), torch.ones(int(batch.alive.sum())))


@pytest.mark.parametrize("kind", ["local", "frontier", "anywhere"])
def test_word_attention_is_that_of_the_network_when_it_replays_the_walk(
    kind: Kind, sight: Sight, episodes: EpisodeSet
) -> None:
    agent = _agent(kind, sight, episodes)
    network = agent.network.eval()
    (listened,) = listen_along_reference(agent, episodes)
    longest = int(episodes.path_length.max())
    space = network.space(sight.world, len(episodes), longest)
    rule = ReferencePath(sight.world, episodes.path)
    rollout = collect(
        sight.world, episodes, space, FollowLabels(), max_ticks=longest * longest, label_rule=rule
    )
    seen: list[Any] = []
    handle = network.get_submodule("grounding").register_forward_hook(lambda *call: seen.append(call[2]))
    network.replay(rollout, sight, agent.read(episodes.texts), network.noise(len(episodes)))
    handle.remove()
    alive, grounded = rollout.alive, seen[0]
    assert torch.allclose(listened.words["perception"][alive], grounded.perception_words[alive], atol=1e-6)
    assert torch.allclose(listened.words["action"][alive], grounded.action_words[alive], atol=1e-6)


def test_without_fine_grained_grounding_there_is_only_the_navigators_listening(
    sight: Sight, episodes: EpisodeSet
) -> None:
    agent = _agent("frontier", sight, episodes, grounding=False)
    labels = {
        name: _labels(sight, episodes, row, (0, 1), (2,)) for row, name in enumerate(episodes.instruction_ids)
    }
    quality = measure_grounding(agent, episodes, labels, draws=20)
    assert [(row.stream, row.words) for row in quality.attention] == [
        ("listening", "landmark"),
        ("listening", "action"),
    ]
    assert quality.own_minus_other == {}


def _labels(
    sight: Sight,
    episodes: EpisodeSet,
    row: int,
    landmark: tuple[int, ...],
    action: tuple[int, ...],
    step: int = 0,
) -> dict[str, WordLabels]:
    """Labels of one viewpoint of an episode's path."""
    viewpoint = sight.world.viewpoints[int(episodes.path[row, step])]
    return {viewpoint: WordLabels(landmark=landmark, action=action)}


def _measured(
    monkeypatch: pytest.MonkeyPatch,
    sight: Sight,
    episodes: EpisodeSet,
    labels: LandmarkLabels,
    attention: dict[Stream, list[int]],
) -> GroundingQuality:
    """Grounding of made-up attention: every stream listens to the given tokens, to each as much."""
    agent = _agent("frontier", sight, episodes)
    tokens = torch.tensor([len(split_words(text)) + 2 for text in episodes.texts])

    def listen(*_args: object, **_options: object) -> Iterator[Listened]:
        shape = (*episodes.path.shape, int(tokens.max()))
        words: dict[Stream, Tensor] = {}
        for stream, chosen in attention.items():
            words[stream] = torch.zeros(shape)
            words[stream][:, :, chosen] = 1 / len(chosen)
        alive = episodes.path != NONE
        yield Listened(episodes, episodes.path.clamp_min(0), alive, tokens, words)

    monkeypatch.setattr(grounding, "listen_along_reference", listen)
    return measure_grounding(agent, episodes, labels, draws=50)


def _row(quality: GroundingQuality, stream: Stream, words: str) -> WordAttention:
    (row,) = (row for row in quality.attention if (row.stream, row.words) == (stream, words))
    return row


def test_mass_lift_and_pointing_are_what_they_say(
    monkeypatch: pytest.MonkeyPatch, sight: Sight, episodes: EpisodeSet
) -> None:
    some = episodes.select(range(6))
    labels = {name: _labels(sight, some, row, (0, 1), (2,)) for row, name in enumerate(some.instruction_ids)}
    attention: dict[Stream, list[int]] = {"perception": [1, 2, 5, 6], "action": [3], "listening": [0]}
    quality = _measured(monkeypatch, sight, some, labels, attention)
    tokens = [len(split_words(text)) + 2 for text in some.texts]
    chance = sum(2 / count for count in tokens) / len(tokens)
    perception = _row(quality, "perception", "landmark")
    assert perception.chance == pytest.approx(chance)
    assert perception.mass.value == pytest.approx(0.5), "the first two of four words"
    assert perception.lift.value == pytest.approx(0.5 / chance)
    assert perception.pointing.value == 1.0, "the first of its four words is a landmark"
    assert perception.elsewhere is None, "nothing was said about other viewpoints"
    assert _row(quality, "perception", "action").mass.value == 0.0
    assert _row(quality, "action", "action").mass.value == 1.0
    assert _row(quality, "listening", "landmark").pointing.value == 0.0
    assert quality.own_minus_other["landmark"].value == pytest.approx(0.5)
    assert quality.own_minus_other["action"].value == pytest.approx(1.0)
    assert quality.viewpoints == {"landmark": 6, "action": 6}
    assert (quality.episodes, quality.paths) == (6, len(set(some.record.tolist())))


def test_uniform_attention_has_a_lift_of_one(
    monkeypatch: pytest.MonkeyPatch, sight: Sight, episodes: EpisodeSet
) -> None:
    counts = [len(split_words(text)) for text in episodes.texts]
    some = episodes.select([row for row, count in enumerate(counts) if count == counts[0]])
    labels = {
        name: _labels(sight, some, row, (row % 3, 3), (1,)) for row, name in enumerate(some.instruction_ids)
    }
    everywhere = list(range(counts[0] + 2))
    quality = _measured(monkeypatch, sight, some, labels, {"listening": everywhere})
    for row in quality.attention:
        assert row.lift.value == pytest.approx(1.0)
        assert (row.lift.low, row.lift.high) == pytest.approx((1.0, 1.0))


def test_words_about_other_viewpoints_are_measured_apart(
    monkeypatch: pytest.MonkeyPatch, sight: Sight, episodes: EpisodeSet
) -> None:
    one = episodes.select([0])
    labels = {
        one.instruction_ids[0]: {**_labels(sight, one, 0, (0,), ()), **_labels(sight, one, 0, (1,), (), 1)}
    }
    quality = _measured(monkeypatch, sight, one, labels, {"listening": [1]})
    row = _row(quality, "listening", "landmark")
    tokens = len(split_words(one.texts[0])) + 2
    assert row.mass.value == 0.5, "right at the first viewpoint, wrong at the second"
    assert row.elsewhere is not None
    assert row.elsewhere.value == pytest.approx(0.5 * tokens), "and the other way round"
    assert quality.coverage.empty == 2


def test_every_label_is_measured_whole_or_counted_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, sight: Sight, episodes: EpisodeSet
) -> None:
    one = episodes.select([0])
    name, length = one.instruction_ids[0], len(split_words(one.texts[0]))
    on_path = [sight.world.viewpoints[int(place)] for place in one.path[0] if int(place) != NONE]
    labels = {
        name: {
            on_path[0]: WordLabels(landmark=(0,), action=(0, length)),
            on_path[1]: WordLabels(landmark=()),
            "somewhere else": WordLabels(action=(1,)),
        },
        "another instruction": {on_path[0]: WordLabels(action=(1,))},
    }
    coverage = _measured(monkeypatch, sight, one, labels, {"listening": [1]}).coverage
    assert (coverage.labels, coverage.measured) == (4, 1)
    assert (coverage.empty, coverage.beyond, coverage.unvisited, coverage.cut) == (1, 1, 1, 0)


def test_words_the_agent_does_not_read_are_not_held_against_it(sight: Sight, episodes: EpisodeSet) -> None:
    agent = _agent("basic", sight, episodes)
    agent.max_words = 5  # three words and the two marks
    labels = {
        name: {**_labels(sight, episodes, row, (2,), ()), **_labels(sight, episodes, row, (3,), (), 1)}
        for row, name in enumerate(episodes.instruction_ids)
    }
    quality = measure_grounding(agent, episodes, labels, draws=20)
    assert quality.coverage.cut == quality.coverage.measured == len(episodes)


def test_labels_of_another_split_are_refused(sight: Sight, episodes: EpisodeSet) -> None:
    with pytest.raises(UserError, match="no word label fits 'r2r val_unseen'; are they"):
        measure_grounding(_agent("basic", sight, episodes), episodes, {})


@pytest.mark.real_data
def test_real_labels_count_words_as_we_do(real_data: Path) -> None:
    """A label begins with a word; one token further left or right would often be punctuation."""
    labels = read_landmark_labels(landmark_label_file(real_data, "val_unseen"))
    marks: Counter[int] = Counter()
    total = 0
    for episode in read_episodes(real_data / "r2r" / "R2R_val_unseen.json"):
        for name, text in zip(episode.instruction_ids, episode.instructions, strict=True):
            tokens = split_words(text)
            for label in labels[name].values():
                for words in (label.landmark, label.action):
                    if words and 0 < words[0] < len(tokens) - 1:
                        total += 1
                        marks.update(
                            shift for shift in (-1, 0, 1) if not tokens[words[0] + shift][0].isalnum()
                        )
    assert marks[0] < 0.001 * total
    assert min(marks[-1], marks[1]) > 0.01 * total
