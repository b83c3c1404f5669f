from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scenemem.agents.walker import Sample
from scenemem.errors import SettingError, UserError
from scenemem.features.store import Environment
from scenemem.formats.folder import DataFolder
from scenemem.learning.speaker import Speaker, steps_along, views_along
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import DataConfig
from scenemem.runs.experiment import SpeakerPreset, new_speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import (
    HEADINGS,
    NONE,
    STEP,
    STOP,
    VIEWS,
    Pose,
    Simulator,
    World,
    angle_feature,
    view_elevation,
)


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


def test_sampling_follows_the_seed(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    first, same, other = (
        speaker.describe(*walks, choose=Sample(torch.Generator().manual_seed(seed))).tokens
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_description_is_as_likely_as_its_score(speaker: Speaker, walks: tuple[Tensor, Tensor]) -> None:
    described = speaker.describe(*walks)
    assert torch.equal(described.tokens, speaker.describe_best(*walks, 1).tokens)
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
    assert not torch.equal(speaker.describe(*walks).log_likelihood, masked.log_likelihood)


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


def _angles(pose: Pose) -> Tensor:
    """The directions of all 36 views as agents see them  ->  (B, 36, 4)"""
    views = torch.arange(VIEWS)
    heading = (views % HEADINGS - (pose.view % HEADINGS).unsqueeze(1)) * STEP
    return angle_feature(heading, view_elevation(views).expand_as(heading), width=4)


def _random_walks(world: World, count: int) -> tuple[Tensor, Tensor]:
    """Walks of different lengths that also turn back  ->  (count, 7), headings (count,)"""
    generator = torch.Generator().manual_seed(0)
    starts = world.neighbour_mask.any(1).nonzero().squeeze(1)
    here = starts[torch.randint(len(starts), (count,), generator=generator)]
    columns = [here]
    for _ in range(6):
        slot = torch.rand(count, generator=generator).mul(world.degree[here]).long()
        here = world.neighbour[here, slot]
        columns.append(here)
    lengths = torch.randint(1, 8, (count, 1), generator=generator)
    path = torch.stack(columns, dim=1).masked_fill(torch.arange(7) >= lengths, NONE)
    return path, torch.rand(count, generator=generator, dtype=torch.float64) * 2 * math.pi


def test_a_walk_is_what_the_simulator_makes_of_it(environment: Environment) -> None:
    """Everything a speaker is shown, step by step, against the simulator and the store."""
    world, simulator = environment.world, Simulator(environment.world)
    path, heading = _random_walks(world, 40)
    steps = steps_along(world, path, heading)
    views, step_number = views_along(environment, steps), 0
    for row in range(len(path)):
        pose = simulator.reset(path[row, :1], heading[row : row + 1])
        length = int((path[row] != NONE).sum())
        for time in range(length):
            assert pose.viewpoint.item() == path[row, time]
            assert pose.view.item() == steps.view[row, time]
            panorama = environment.store.gather(pose.viewpoint)[0]
            assert torch.equal(views.panoramas[step_number], panorama)
            torch.testing.assert_close(views.angles[step_number : step_number + 1], _angles(pose))
            slot, seen = int(steps.slot[row, time]), simulator.candidates(pose)
            if time == length - 1:
                assert slot == STOP
                assert not views.chosen[row, time].any()
                assert not views.direction[row, time].any()
            else:
                assert torch.equal(views.chosen[row, time], panorama[seen.view[0, slot]])
                expected = angle_feature(seen.heading[0, slot], seen.elevation[0, slot], width=4)
                torch.testing.assert_close(views.direction[row, time], expected)
            pose = simulator.step(pose, steps.slot[row, time : time + 1])
            step_number += 1
        assert bool((steps.slot[row, length:] == STOP).all())
    assert step_number == len(views.panoramas)


def test_selected_walks_lose_the_columns_nobody_reaches(environment: Environment) -> None:
    path, heading = _random_walks(environment.world, 40)
    rows = ((path != NONE).sum(1) <= 3).nonzero().squeeze(1)
    chosen = steps_along(environment.world, path, heading).select(rows)
    again = steps_along(environment.world, path[rows, :3], heading[rows])
    assert all(torch.equal(getattr(chosen, name), getattr(again, name)) for name in vars(chosen))


def test_impossible_paths_are_refused(environment: Environment) -> None:
    world, heading = environment.world, torch.zeros(2, dtype=torch.float64)
    a, b = (world.index_of("grid", name) for name in ("g00", "g11"))
    with pytest.raises(UserError, match="no edge leads from grid_g00 to grid_g11; list every viewpoint"):
        steps_along(world, torch.tensor([[a, NONE], [a, b]]), heading)
    with pytest.raises(UserError, match="a path is empty, expected at least one viewpoint"):
        steps_along(world, torch.tensor([[a, NONE], [NONE, NONE]]), heading)
    with pytest.raises(UserError, match="a path is empty"):
        steps_along(world, torch.empty(2, 0, dtype=torch.int64), heading)
