from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scenemem.agents.walker import Sample
from scenemem.errors import SettingError, UserError
from scenemem.features.store import Environment
from scenemem.formats.folder import DataFolder
from scenemem.learning.speaker import Speaker
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import DataConfig
from scenemem.runs.experiment import SpeakerPreset, new_speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE


@pytest.fixture(scope="module")
def opened(tiny_trainable: Path) -> tuple[Speaker, EpisodeSet]:
    preset = SpeakerPreset(
        words=14, model=SpeakerConfig(word_width=8, width=16), data=DataConfig(min_count=1)
    )
    experiment = new_speaker(preset, DataFolder(tiny_trainable), seed=0)
    with torch.no_grad():
        experiment.speaker.network.decoder.words.weight *= 8  # so that texts differ from path to path
    return experiment.speaker, experiment.episodes("train")


@pytest.fixture(scope="module")
def speaker(opened: tuple[Speaker, EpisodeSet]) -> Speaker:
    return opened[0]


@pytest.fixture(scope="module")
def walks(opened: tuple[Speaker, EpisodeSet]) -> tuple[Tensor, Tensor]:
    return opened[1].path, opened[1].heading


def test_a_path_is_described_the_same_alone_and_among_longer_ones(
    speaker: Speaker, walks: tuple[Tensor, Tensor]
) -> None:
    path, heading = walks
    lengths = (path != NONE).sum(1)
    assert int(lengths.min()) < int(lengths.max()), "paths of different lengths, or nothing is shown"
    together = speaker.texts(speaker.describe(path, heading).tokens)
    beams = speaker.texts(speaker.describe_best(path, heading, 3).tokens)
    assert len(set(together)) > 1
    for row in range(0, len(path), 4):
        length = int(lengths[row])
        alone = (path[row : row + 1, :length], heading[row : row + 1])
        assert speaker.texts(speaker.describe(*alone).tokens) == [together[row]]
        assert speaker.texts(speaker.describe_best(*alone, 3).tokens) == [beams[row]]


def test_one_beam_is_greedy_and_more_are_no_worse(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    greedy = speaker.describe(*walks)
    assert torch.equal(greedy.tokens, speaker.describe_best(*walks, 1).tokens)
    best = speaker.describe_best(*walks, 4)
    rank, better = (s.log_likelihood / (s.lengths - 1) ** 0.7 for s in (greedy, best))
    assert bool((better >= rank - 1e-5).all())


def test_sampling_follows_the_seed(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    first, same, other = (
        speaker.describe(*walks, choose=Sample(torch.Generator().manual_seed(seed))).tokens
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_description_is_as_likely_as_its_score(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    described = speaker.describe(*walks)
    scored = speaker.score(*walks, described.tokens)
    torch.testing.assert_close(scored.total, described.log_likelihood)
    assert torch.equal(scored.words, described.lengths - 1)
    again = speaker.score(*walks, speaker.tokens(speaker.texts(described.tokens)))
    torch.testing.assert_close(again.total, scored.total)


def test_routes_are_scored_by_the_words_of_their_episodes(opened: tuple[Speaker, EpisodeSet]) -> None:
    speaker, episodes = opened
    texts = speaker.tokens(episodes.texts)
    own = speaker.score_routes(episodes, episodes.path)
    torch.testing.assert_close(own, speaker.score(episodes.path, episodes.heading, texts).per_word)
    order = torch.arange(len(episodes)).flip(0)
    torch.testing.assert_close(
        speaker.score_routes(episodes.select(order), episodes.path[order]), own.flip(0)
    )
    elsewhere = speaker.score_routes(episodes, episodes.path[:, :2])
    assert not torch.allclose(elsewhere, own), "the route matters"
    longer = torch.nn.functional.pad(episodes.path, (0, 3), value=NONE)
    torch.testing.assert_close(speaker.score_routes(episodes, longer), own)


def test_the_feature_mask_reaches_the_features(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    store = speaker.environment.store
    blind = Environment(speaker.environment.world, replace(store, values=torch.zeros_like(store.values)))
    in_the_dark = Speaker(speaker.network, blind, speaker.vocabulary, max_words=speaker.max_words)
    nothing = torch.zeros(speaker.network.visual)
    masked, unlit = speaker.describe(*walks, feature_mask=nothing), in_the_dark.describe(*walks)
    assert torch.equal(masked.tokens, unlit.tokens)
    torch.testing.assert_close(masked.log_likelihood, unlit.log_likelihood)
    described = speaker.describe(*walks)
    assert not torch.equal(described.log_likelihood, masked.log_likelihood)
    scores = [speaker.score(*walks, described.tokens, feature_mask=mask).total for mask in (None, nothing)]
    assert not torch.allclose(scores[0], scores[1])
    beams = [speaker.describe_best(*walks, 2, feature_mask=mask).log_likelihood for mask in (None, nothing)]
    assert not torch.allclose(beams[0], beams[1])


def test_describing_leaves_a_training_network_in_training(
    speaker: Speaker, walks: tuple[Tensor, Tensor]
) -> None:
    speaker.network.train()
    described = speaker.describe(*walks)
    assert speaker.network.training
    assert not described.log_likelihood.requires_grad
    speaker.network.eval()
    assert torch.equal(speaker.describe(*walks).tokens, described.tokens), "no dropout while describing"
    assert not speaker.network.training


def test_wrong_masks_and_beams_are_refused(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(SettingError, match=r"the feature mask has shape \(3,\), expected \(8,\)"):
        speaker.describe(*walks, feature_mask=torch.ones(3))
    with pytest.raises(SettingError, match="the number of beams must be 1 or more, got 0"):
        speaker.describe_best(*walks, 0)


def test_broken_features_are_named(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    store = speaker.environment.store
    broken = Environment(
        speaker.environment.world, replace(store, values=torch.full_like(store.values, torch.nan))
    )
    with pytest.raises(UserError, match="what the speaker sees is not a number; look for broken features"):
        Speaker(speaker.network, broken, speaker.vocabulary, max_words=14).describe(*walks)
