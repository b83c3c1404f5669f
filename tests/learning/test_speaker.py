"""Speakers: what they are shown, what they say, how they learn it, and what their checkpoints hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from scenemem.agents.walker import Sample
from scenemem.errors import DataError, SettingError, UserError
from scenemem.evaluation.bleu import corpus_bleu, describe_paths, paths_of, shuffled_bleu
from scenemem.features.store import Environment
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import read_checkpoint, write_checkpoint
from scenemem.learning.speaker import Speaker, steps_along, views_along
from scenemem.learning.speaker_trainer import SpeakerLearning, SpeakerTrainer
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS, DataConfig
from scenemem.runs.config import changed
from scenemem.runs.experiment import (
    SPEAKERS,
    SpeakerExperiment,
    SpeakerPreset,
    SpeakerSelection,
    new_experiment,
    new_speaker,
    stored_speaker,
)
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.training import Settings, run_training
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
from tests.runs.outcomes import assert_same_run, outcome

Walks = tuple[Tensor, Tensor]
"""Paths (B, T) and headings (B,)."""

SMALL = SpeakerPreset(
    words=20,
    model=SpeakerConfig(word_width=8, width=16),
    data=DataConfig(min_count=1),
    learning=SpeakerLearning(iterations=12, batch=6),
    selection=SpeakerSelection(every=4, save_every=2),
)


def _speaking(data: Path, seed: int = 0, **changes: Any) -> SpeakerExperiment:
    torch.set_num_threads(1)
    return new_speaker(replace(SMALL, **changes), DataFolder(data), seed)


def _train(data: Path, out: Path, *, seed: int = 0, stop_at: int | None = None, resume: bool = False) -> None:
    """A run on the tiny world; ``stop_at`` raises in the middle of it, as a crash would."""

    def watch(status: TrainingStatus) -> None:
        if status.iteration == stop_at:
            raise KeyboardInterrupt

    torch.set_num_threads(1)
    settings = Settings("speaker", SMALL, seed)
    run_training(settings, DataFolder(data), RunFolder(out), resume=resume, watch=watch)


@pytest.fixture(scope="module")
def opened(tiny_trainable: Path) -> tuple[Speaker, EpisodeSet]:
    experiment = _speaking(tiny_trainable, words=14)
    with torch.no_grad():
        experiment.speaker.network.decoder.words.weight *= 8  # so that texts differ from path to path
    return experiment.speaker, experiment.episodes("train")


@pytest.fixture(scope="module")
def speaker(opened: tuple[Speaker, EpisodeSet]) -> Speaker:
    return opened[0]


@pytest.fixture(scope="module")
def walks(opened: tuple[Speaker, EpisodeSet]) -> Walks:
    return opened[1].path, opened[1].heading


def test_a_path_is_described_the_same_alone_and_among_longer_ones(speaker: Speaker, walks: Walks) -> None:
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


def test_sampling_follows_the_seed(speaker: Speaker, walks: Walks) -> None:
    def sampled(seed: int) -> Tensor:
        return speaker.describe(*walks, choose=Sample(torch.Generator().manual_seed(seed))).tokens

    assert torch.equal(sampled(0), sampled(0))
    assert not torch.equal(sampled(0), sampled(1))


def test_a_description_is_as_likely_as_its_score(speaker: Speaker, walks: Walks) -> None:
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


def test_the_feature_mask_reaches_the_features(speaker: Speaker, walks: Walks) -> None:
    store = speaker.environment.store
    blind = Environment(speaker.environment.world, replace(store, values=torch.zeros_like(store.values)))
    in_the_dark = Speaker(speaker.network, blind, speaker.vocabulary, max_words=speaker.max_words)
    nothing = torch.zeros(speaker.network.visual)
    masked, unlit = speaker.describe(*walks, feature_mask=nothing), in_the_dark.describe(*walks)
    assert torch.equal(masked.tokens, unlit.tokens)
    torch.testing.assert_close(masked.log_likelihood, unlit.log_likelihood)
    assert not torch.equal(speaker.describe(*walks).log_likelihood, masked.log_likelihood)


def test_describing_leaves_training_on(speaker: Speaker, walks: Walks) -> None:
    speaker.network.train()
    described = speaker.describe(*walks)
    assert speaker.network.training
    assert not described.log_likelihood.requires_grad
    speaker.network.eval()
    assert torch.equal(speaker.describe(*walks).tokens, described.tokens), "no dropout while describing"
    assert not speaker.network.training


def test_wrong_masks_beams_and_features_are_refused(speaker: Speaker, walks: Walks) -> None:
    with pytest.raises(SettingError, match=r"the feature mask has shape \(3,\), expected \(8,\)"):
        speaker.describe(*walks, feature_mask=torch.ones(3))
    with pytest.raises(SettingError, match="the number of beams must be 1 or more, got 0"):
        speaker.describe_best(*walks, 0)
    store = speaker.environment.store
    values = torch.full_like(store.values, torch.nan)
    broken = Environment(speaker.environment.world, replace(store, values=values))
    with pytest.raises(UserError, match="what the speaker sees is not a number; look for broken features"):
        Speaker(speaker.network, broken, speaker.vocabulary, max_words=14).describe(*walks)


def _angles(pose: Pose) -> Tensor:
    """The directions of all 36 views as agents see them  ->  (B, 36, 4)"""
    views = torch.arange(VIEWS)
    heading = (views % HEADINGS - (pose.view % HEADINGS).unsqueeze(1)) * STEP
    return angle_feature(heading, view_elevation(views).expand_as(heading), width=4)


def _random_walks(world: World, count: int) -> Walks:
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


@pytest.fixture(scope="module")
def finished(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    _train(tiny_trainable, out)
    return out


def test_a_resumed_run_equals_an_uninterrupted_one_of_the_same_seed(
    tiny_trainable: Path, finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        _train(tiny_trainable, tmp_path, stop_at=4)
    _train(tiny_trainable, tmp_path, resume=True)
    assert_same_run(tmp_path, finished)
    _train(tiny_trainable, tmp_path / "other", seed=1)
    name = "network.decoder.join.weight"
    assert not torch.equal(outcome(tmp_path / "other")[0][name], outcome(finished)[0][name])


def test_the_best_weights_are_kept_by_bleu(finished: Path) -> None:
    values = [line["validation"]["bleu"] for line in RunFolder(finished).logged() if "validation" in line]
    assert len(values) == 3
    assert read_checkpoint(RunFolder(finished).best).metadata["progress"]["best"]["value"] == max(values)


def test_a_speaker_learns_what_belongs_to_which_path(tiny_trainable: Path) -> None:
    """Every path of the tiny world has words of its own, which only the features tell apart."""
    speaking = _speaking(
        tiny_trainable,
        model=SpeakerConfig(word_width=16, width=48, dropout=0.1, feature_dropout=0.0),
        learning=SpeakerLearning(iterations=150, batch=16, learning_rate=1e-2),
    )
    episodes, speaker = speaking.episodes("train"), speaking.speaker
    paths = paths_of(episodes)
    trainer = SpeakerTrainer(speaker, episodes, speaking.preset.learning, seed=0)
    before = corpus_bleu(describe_paths(speaker, paths), paths.references)
    losses = [trainer.step().losses["words"] for _ in range(150)]
    assert sum(losses[-10:]) < sum(losses[:10]) / 3
    said = describe_paths(speaker, paths)
    bleu = corpus_bleu(said, paths.references)
    assert bleu > before + 0.3
    assert bleu > shuffled_bleu(said, paths.references, seed=0) + 0.3


def test_every_batch_has_its_own_environment(tiny_trainable: Path) -> None:
    speaking = _speaking(tiny_trainable, model=SpeakerConfig(word_width=8, width=16, feature_dropout=0.5))
    trainer = SpeakerTrainer(speaking.speaker, speaking.episodes("train"), SMALL.learning, seed=0)
    masks = torch.stack([trainer._feature_mask() for _ in range(200)])
    assert set(masks.flatten().tolist()) == {0.0, 2.0}
    assert float(masks.mean()) == pytest.approx(1.0, abs=0.1)
    assert not torch.equal(masks[0], masks[1])


def test_broken_features_and_secret_paths_teach_nothing(tiny_trainable: Path) -> None:
    speaking = _speaking(tiny_trainable)
    with pytest.raises(UserError, match="'r2r test' keeps its paths secret; train on a split that shows"):
        SpeakerTrainer(speaking.speaker, speaking.episodes("test"), SMALL.learning, seed=0)
    store = speaking.environment.store
    speaking.environment.store = replace(store, values=torch.full_like(store.values, torch.nan))
    trainer = SpeakerTrainer(speaking.speaker, speaking.episodes("train"), SMALL.learning, seed=0)
    with pytest.raises(UserError, match="loss 'words' is not a finite number at step 1; the last good"):
        trainer.step()


@pytest.fixture
def experiment(tiny_trainable: Path) -> SpeakerExperiment:
    return _speaking(tiny_trainable)


def _written(experiment: SpeakerExperiment, file: Path, **metadata: object) -> Path:
    write_checkpoint(
        file, experiment.speaker.network, json.loads(json.dumps({**experiment.metadata, **metadata}))
    )
    return file


@pytest.mark.parametrize("name", SPEAKERS)
def test_presets_survive_being_written_down_and_learn(name: str, tiny_trainable: Path) -> None:
    preset = SPEAKERS[name]
    assert msgspec.json.decode(msgspec.json.encode(preset), type=SpeakerPreset) == preset
    sizes = {"speaker": (256, 0.25, 80), "speaker-paper": (512, 0.6, 120)}
    assert (preset.model.width, preset.model.dropout, preset.words) == sizes[name]
    small = replace(preset, data=DataConfig(min_count=1), learning=replace(preset.learning, batch=4))
    experiment = new_speaker(small, DataFolder(tiny_trainable), seed=0)
    trainer = SpeakerTrainer(experiment.speaker, experiment.episodes("train"), small.learning, seed=0)
    before = trainer.network.decoder.words.weight.detach().clone()
    assert [trainer.step().episodes for _ in range(2)] == [4, 4]
    assert not torch.equal(trainer.network.decoder.words.weight, before)


def test_a_stored_speaker_says_the_same(
    experiment: SpeakerExperiment, tiny_trainable: Path, tmp_path: Path
) -> None:
    file = _written(experiment, tmp_path / "speaker.safetensors")
    again = stored_speaker(file, DataFolder(tiny_trainable))
    episodes = experiment.episodes("val_unseen")
    first, second = (s.speaker.describe(episodes.path, episodes.heading) for s in (experiment, again))
    assert torch.equal(first.tokens, second.tokens)
    assert again.preset == experiment.preset
    assert again.preset.data.features == "tiny", "a run knows its store"


def test_held_out_buildings_are_neither_learnt_nor_described_for_training(
    experiment: SpeakerExperiment, tiny_trainable: Path
) -> None:
    scans = set(experiment.episodes("dev_unseen").scan.tolist())
    held_out = {experiment.environment.world.scans[number] for number in scans}
    assert len(held_out) == 1
    assert set(experiment.training_scans) | held_out == {"grid", "spiral"}
    assert not set(experiment.training_scans) & held_out
    whole = replace(SMALL, selection=SpeakerSelection(split="val_unseen"))
    assert new_speaker(whole, DataFolder(tiny_trainable), seed=0).training_scans == ["grid", "spiral"]


def test_only_speakers_are_loaded(
    experiment: SpeakerExperiment, tiny_trainable: Path, tmp_path: Path
) -> None:
    folder, file = DataFolder(tiny_trainable), tmp_path / "agent.safetensors"
    small = changed(PRESETS["basic"], {"model": {"width": 16, "word_width": 8}, "data": {"min_count": 1}})
    agent = new_experiment(small, folder, seed=0)
    write_checkpoint(file, agent.agent.network, json.loads(json.dumps(agent.metadata)))
    with pytest.raises(DataError, match="holds no speaker; train one with 'scenemem speak train'"):
        stored_speaker(file, folder)
    odd = _written(experiment, tmp_path / "odd.safetensors", vocabulary=["no", "marks"])
    with pytest.raises(DataError, match="does not describe its speaker"):
        stored_speaker(odd, folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpeakerLearning(iterations=0), "iterations must be 1 or more, got 0"),
        (lambda: SpeakerLearning(batch=0), "batch must be 1 or more, got 0"),
        (lambda: SpeakerLearning(learning_rate=0.0), "learning_rate must be positive, got 0.0"),
        (lambda: SpeakerLearning(clip=-1.0), "clip must be positive, got -1.0"),
        (lambda: SpeakerLearning(weight_decay=-0.1), "weight_decay must be 0 or more, got -0.1"),
        (lambda: SpeakerSelection(every=0), "^every must be 1 or more, got 0"),
        (lambda: SpeakerSelection(save_every=0), "^save_every must be 1 or more, got 0"),
        (lambda: SpeakerPreset(words=2), "words must be 3 or more to hold a word between two marks, got 2"),
    ],
)
def test_impossible_settings_say_what_is_wrong(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
