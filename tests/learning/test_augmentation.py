from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scenemem.learning.team import ALONE, Team
from scenemem.models.speaker_decoding import Sayings
from torch import Tensor

from scenemem.errors import SettingError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import BackTranslation, StoredEpisodes
from scenemem.learning.objectives import Stage
from scenemem.learning.trainer import Trainer
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS, DataConfig
from scenemem.runs.experiment import Experiment, SpeakerPreset, new_experiment, new_speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import PathRule, path_pool

BATCH = 6


@pytest.fixture(scope="module")
def experiment(tiny_trainable: Path) -> Experiment:
    torch.set_num_threads(1)
    base = PRESETS["ssm-augmented"]
    preset = replace(
        base,
        model=replace(base.model, width=16, word_width=8),
        data=DataConfig(min_count=1),
        learning=replace(base.learning, iterations=4, batch=BATCH),
    )
    return new_experiment(preset, DataFolder(tiny_trainable), seed=0)


@pytest.fixture(scope="module")
def translation(tiny_trainable: Path) -> BackTranslation:
    preset = SpeakerPreset(
        words=20, model=SpeakerConfig(word_width=8, width=16), data=DataConfig(min_count=1)
    )
    speaking = new_speaker(preset, DataFolder(tiny_trainable), seed=0)
    pool = path_pool(speaking.environment.world, speaking.training_scans, PathRule(2, 4, 0.0))
    return BackTranslation(speaking.speaker, pool, seed=3)


def _mask(width: int = 8) -> Tensor:
    return torch.ones(width)


def _same(one: EpisodeSet, other: EpisodeSet) -> bool:
    return one.texts == other.texts and torch.equal(one.path, other.path)


def test_what_is_drawn_depends_on_seed_and_iteration_alone(translation: BackTranslation) -> None:
    first = translation.draw(7, BATCH, _mask(), ALONE)
    translation.draw(8, BATCH, _mask(), ALONE)
    assert _same(translation.draw(7, BATCH, _mask(), ALONE), first)
    assert not _same(translation.draw(8, BATCH, _mask(), ALONE), first)


def test_paths_are_shortest_paths_of_the_pool(translation: BackTranslation) -> None:
    drawn = translation.draw(0, 20, _mask(), ALONE)
    world = translation.speaker.environment.world
    assert len(drawn) == len(drawn.texts) == 20
    assert torch.equal(drawn.path[:, 0], drawn.start)
    for row in range(20):
        places = drawn.path[row, : int(drawn.path_length[row])].tolist()
        assert places == world.path(int(drawn.start[row]), int(drawn.goal[row]))
    assert all(text.strip() for text in drawn.texts)


def test_a_team_shares_the_paths_of_one_process(translation: BackTranslation) -> None:
    whole = translation.draw(5, BATCH, _mask(), ALONE)
    for rank in range(2):
        own = translation.draw(5, BATCH, _mask(), Team(rank, 2))
        assert torch.equal(own.start, whole.start[rank::2])
        assert torch.equal(own.heading, whole.heading[rank::2])


def test_speaker_and_agent_see_the_same_environment(
    experiment: Experiment, translation: BackTranslation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask the agent learns under is the one the speaker describes with, a new one every step."""
    described, learnt = [], []
    describe = translation.speaker.describe

    def spy_describe(path: Tensor, heading: Tensor, **options: Any) -> Sayings:
        described.append(options["feature_mask"])
        return describe(path, heading, **options)

    network = experiment.agent.network
    unrolling = network.unrolling

    def spy_unrolling(sight: Any, instructions: Any, noise: Any, **options: Any) -> Any:
        learnt.append(noise.feature)
        return unrolling(sight, instructions, noise, **options)

    monkeypatch.setattr(translation.speaker, "describe", spy_describe)
    monkeypatch.setattr(network, "unrolling", spy_unrolling)
    trainer = _trainer(experiment, translation)
    for _ in range(2):
        trainer.step()
    first, second = learnt[1::2]  # every step learns from its own episodes first, then from described ones
    assert torch.equal(described[0], first)
    assert torch.equal(described[1], second)
    assert not torch.equal(first, second)


def _trainer(experiment: Experiment, augmentation: BackTranslation | StoredEpisodes | None) -> Trainer:
    config = experiment.preset.learning
    return Trainer(experiment.agent, experiment.episodes("train"), config, 0, ALONE, augmentation)


def test_a_step_learns_from_both_batches(experiment: Experiment, translation: BackTranslation) -> None:
    report = _trainer(experiment, translation).step()
    names = ("teacher", "student", "reinforce")
    assert set(report.losses) == {*names, *(f"augmented {name}" for name in names)}
    assert report.episodes == 4 * BATCH


def test_episodes_of_a_file_are_drawn_in_the_same_way(experiment: Experiment) -> None:
    episodes = experiment.episodes("train")
    stored = StoredEpisodes(episodes, seed=1)
    first = stored.draw(2, BATCH, _mask(), ALONE)
    assert set(first.instruction_ids) <= set(episodes.instruction_ids)
    assert first.instruction_ids == stored.draw(2, BATCH, _mask(), ALONE).instruction_ids
    own = stored.draw(2, BATCH, _mask(), Team(1, 2))
    assert own.instruction_ids == first.instruction_ids[1::2]
    assert set(_trainer(experiment, stored).step().losses) >= {"augmented teacher"}


def test_episodes_without_goals_cannot_augment(experiment: Experiment) -> None:
    episodes = experiment.episodes("train")
    secret = replace(episodes, goal=torch.full_like(episodes.goal, -1))
    with pytest.raises(UserError, match="has no episode with a goal; give a file with whole paths"):
        StoredEpisodes(secret, seed=0)


def test_an_augmented_preset_needs_a_source(experiment: Experiment) -> None:
    with pytest.raises(UserError, match="learns from augmented episodes; name a --speaker or an --augment"):
        _trainer(experiment, None)


def test_a_stage_cannot_learn_from_augmented_episodes_only() -> None:
    with pytest.raises(SettingError, match="'x' learns from augmented episodes only; give teacher a weight"):
        Stage("x", teacher=0.0, augmented=0.5)
