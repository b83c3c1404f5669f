from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem.errors import UserError
from scenemem.evaluation.bleu import corpus_bleu, describe_paths, paths_of, shuffled_bleu
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.learning.speaker_trainer import SpeakerLearning, SpeakerTrainer
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import DataConfig
from scenemem.runs.experiment import SpeakerExperiment, SpeakerPreset, SpeakerSelection, new_speaker
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.training import Settings, run_training
from tests.runs.outcomes import assert_same_run, outcome

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


def test_broken_features_stop_the_run(tiny_trainable: Path) -> None:
    speaking = _speaking(tiny_trainable)
    store = speaking.environment.store
    speaking.environment.store = replace(store, values=torch.full_like(store.values, torch.nan))
    trainer = SpeakerTrainer(speaking.speaker, speaking.episodes("train"), SMALL.learning, seed=0)
    with pytest.raises(UserError, match="loss 'words' is not a finite number at step 1; the last good"):
        trainer.step()


def test_a_split_without_paths_teaches_nothing(tiny_trainable: Path) -> None:
    speaking = _speaking(tiny_trainable)
    with pytest.raises(
        UserError, match="'r2r test' keeps its paths secret; train on a split that shows them"
    ):
        SpeakerTrainer(speaking.speaker, speaking.episodes("test"), SMALL.learning, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations must be 1 or more, got 0"),
        ({"batch": 0}, "batch must be 1 or more, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"clip": -1.0}, "clip must be positive, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more, got -0.1"),
    ],
)
def test_impossible_courses_say_what_is_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeakerLearning(**settings)
