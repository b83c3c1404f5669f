"""Further episodes to learn from: described by a speaker while training, or read from a file."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.walker import TrainedAgent
from scenemem.errors import UserError
from scenemem.features.store import Environment
from scenemem.learning.augmentation import BackTranslation, StoredEpisodes
from scenemem.learning.distributed import SINGLE, ProcessGroup
from scenemem.learning.speaker import Speaker
from scenemem.learning.trainer import Trainer
from scenemem.models.navigator import RolloutInputs
from scenemem.models.speaker import SpeakerConfig, SpeakerNetwork
from scenemem.presets import overlaid
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import PathRule, path_pool, shortest_paths
from scenemem.tasks.vocabulary import Vocabulary

BATCH = 6
PRESET = overlaid("ssm", described=True)


@pytest.fixture(scope="module")
def agent(environment: Environment, episodes: EpisodeSet) -> TrainedAgent:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    config = replace(PRESET.model, width=16, word_width=8)
    network = AGENTS[PRESET.agent].build(config, DataSizes(len(vocabulary), environment.width))
    return TrainedAgent(network, environment, vocabulary, PRESET.walk)


@pytest.fixture(scope="module")
def translation(environment: Environment, episodes: EpisodeSet) -> BackTranslation:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    network = SpeakerNetwork(SpeakerConfig(word_width=8, width=16), len(vocabulary), environment.width)
    speaker = Speaker(network, environment, vocabulary, max_words=20)
    pool = path_pool(environment.world, ("grid", "spiral"), PathRule(2, 4, 0.0))
    return BackTranslation(speaker, pool, seed=3)


def _trainer(
    agent: TrainedAgent, episodes: EpisodeSet, augmentation: BackTranslation | StoredEpisodes | None
) -> Trainer:
    config = replace(PRESET.learning, iterations=4, batch=BATCH)
    return Trainer(agent, episodes, config, 0, SINGLE, augmentation)


MASK = torch.ones(8)


def _same(one: EpisodeSet, other: EpisodeSet) -> bool:
    return one.texts == other.texts and torch.equal(one.path, other.path)


def test_what_is_drawn_depends_on_seed_and_iteration_alone(translation: BackTranslation) -> None:
    first = translation.draw(7, BATCH, MASK, SINGLE)
    assert not _same(translation.draw(8, BATCH, MASK, SINGLE), first)
    assert _same(translation.draw(7, BATCH, MASK, SINGLE), first)
    for rank in range(2):  # a process group shares the paths of one process
        own = translation.draw(7, BATCH, MASK, ProcessGroup(rank, 2))
        assert torch.equal(own.start, first.start[rank::2])
        assert torch.equal(own.heading, first.heading[rank::2])


def test_paths_are_shortest_paths_of_the_pool(translation: BackTranslation) -> None:
    drawn = translation.draw(0, 20, MASK, SINGLE)
    world = translation.speaker.environment.world
    assert len(drawn) == len(drawn.texts) == 20
    assert torch.equal(drawn.path[:, 0], drawn.start)
    path, length = shortest_paths(world, drawn.start, drawn.goal)
    assert torch.equal(drawn.path, path)
    assert torch.equal(drawn.path_length, length)
    assert all(text.strip() for text in drawn.texts)


def test_speaker_and_agent_see_the_same_environment(
    agent: TrainedAgent, episodes: EpisodeSet, translation: BackTranslation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask the agent learns under is the one the speaker describes with, a new one every step."""
    describe = Mock(wraps=translation.speaker.describe)
    inputs = Mock(wraps=RolloutInputs)
    monkeypatch.setattr(translation.speaker, "describe", describe)
    monkeypatch.setattr("scenemem.learning.trainer.RolloutInputs", inputs)
    trainer = _trainer(agent, episodes, translation)
    for _ in range(2):
        trainer.step()
    described = [call.kwargs["feature_mask"] for call in describe.call_args_list]
    learnt = [call.args[2].feature for call in inputs.call_args_list]
    first, second = learnt[1::2]  # every step learns from its own episodes first, then from described ones
    assert torch.equal(described[0], first)
    assert torch.equal(described[1], second)
    assert not torch.equal(first, second)


def test_a_step_learns_from_both_batches(
    agent: TrainedAgent, episodes: EpisodeSet, translation: BackTranslation
) -> None:
    report = _trainer(agent, episodes, translation).step()
    names = ("teacher_forcing", "student_forcing", "a2c")
    assert set(report.losses) == {*names, *(f"augmented {name}" for name in names)}
    assert report.episodes == 4 * BATCH


def test_episodes_of_a_file_are_drawn_in_the_same_way(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    stored = StoredEpisodes(episodes, seed=1)
    first = stored.draw(2, BATCH, MASK, SINGLE)
    assert set(first.instruction_ids) <= set(episodes.instruction_ids)
    assert first.instruction_ids == stored.draw(2, BATCH, MASK, SINGLE).instruction_ids
    assert first.instruction_ids != stored.draw(3, BATCH, MASK, SINGLE).instruction_ids
    own = stored.draw(2, BATCH, MASK, ProcessGroup(1, 2))
    assert own.instruction_ids == first.instruction_ids[1::2]
    assert set(_trainer(agent, episodes, stored).step().losses) >= {"augmented teacher_forcing"}


def test_episodes_without_goals_cannot_augment_and_a_source_is_needed(
    agent: TrainedAgent, episodes: EpisodeSet
) -> None:
    secret = replace(episodes, goal=torch.full_like(episodes.goal, -1))
    for nothing in (secret, episodes.select([])):
        with pytest.raises(UserError, match="has no episode with a goal; give a file with whole paths"):
            StoredEpisodes(nothing, seed=0)
    with pytest.raises(UserError, match="learns from augmented episodes; name a `speaker` or an `augment`"):
        _trainer(agent, episodes, None)
