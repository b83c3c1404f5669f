from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import LearningConfig, Stage
from scenemem.learning.trainer import Trainer
from scenemem.presets import PRESETS, SCOREBOARD, Preset, SelectionConfig
from scenemem.runs.experiment import new_experiment


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    if is_dataclass(one) and type(one) is type(other):
        return {
            name
            for field in fields(one)
            for name in _differences(
                getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}".strip(".")
            )
        }
    return set() if one == other else {path}


@pytest.mark.parametrize(
    ("name", "base", "changed"),
    [
        ("ssm-no-grounding", "ssm", {"memory.grounding"}),
        ("ssm-no-reasoning", "ssm", {"memory.reasoning_steps"}),
        ("ssm-local", "ssm", {"agent"}),
        ("ssm-global", "ssm", {"agent"}),
        ("ssm-no-hints", "ssm", {"memory.hints"}),
        ("ssm-no-recall", "ssm", {"memory.recalls"}),
        ("ssm-no-return", "ssm", {"memory.goes_back"}),
        ("ssm-no-stop-read", "ssm", {"memory.stop_reads"}),
        (
            "basic",
            "ssm",
            {"agent"}
            | {f"memory.{name}" for name in ("stream", "orientation", "hints", "recalls")}
            | {"memory.stop_reads", "memory.goes_back"},
        ),
        ("ssm-augmented", "ssm", {"learning.learning_rate", "learning.stages"}),
        ("basic-augmented", "basic", {"learning.learning_rate", "learning.stages"}),
        ("seq2seq", "basic", {"model.panorama", "learning.stages"}),
    ],
)
def test_a_variant_changes_only_what_its_name_says(name: str, base: str, changed: set[str]) -> None:
    assert _differences(PRESETS[base], PRESETS[name]) == changed


ON_R2R = {"data.features", "learning.iterations", "selection.split", "selection.every"}


@pytest.mark.parametrize("base", SCOREBOARD)
def test_the_rows_of_the_scoreboard_share_one_recipe(base: str) -> None:
    row, more = PRESETS[f"{base}-r2r-objects"], PRESETS[f"{base}-r2r-objects-augmented"]
    assert _differences(PRESETS[base], row) <= ON_R2R
    assert _differences(row, more) == {"learning.learning_rate", "learning.stages"}
    assert more.learning.stages[0].augmented == 0.6
    assert row.learning.iterations == PRESETS["ssm-r2r-objects"].learning.iterations


@pytest.mark.parametrize("base", ["basic", "ssm"])
def test_r4r_follows_the_path(base: str) -> None:
    row = PRESETS[f"{base}-r4r-objects"]
    assert row.data.task == "r4r"
    assert row.memory.revisits == (base == "ssm"), "coming back belongs to the path; a basic agent always may"
    assert row.learning.labels == "path"
    assert row.model == PRESETS[f"{base}-r2r-objects"].model


def test_the_faithful_preset_has_nothing_the_paper_does_not_have() -> None:
    paper = PRESETS["ssm-paper"]
    assert not paper.memory.hints
    assert not paper.memory.recalls
    assert not paper.memory.stop_reads
    assert not paper.memory.goes_back
    assert not paper.memory.revisits
    assert paper.memory.stream is None
    assert paper.model.width == 512


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_two_iterations(name: str, tiny_trainable: Path) -> None:
    preset = PRESETS[name]
    small = replace(
        preset,
        model=replace(preset.model, width=16, word_width=8),
        data=replace(preset.data, min_count=1, features="tiny", task="r2r"),
        learning=replace(preset.learning, iterations=2, batch=4),
    )
    experiment = new_experiment(small, DataFolder(tiny_trainable), seed=0)
    episodes = experiment.episodes("train")
    more = StoredEpisodes(episodes, seed=0)
    trainer = Trainer(experiment.agent, episodes, small.learning, seed=0, augmentation=more)
    before = {key: value.clone() for key, value in trainer.network.state_dict().items()}
    reports = [trainer.step(), trainer.step()]
    stage = small.learning.stages[0]
    weighted = {"teacher": stage.teacher, "student": stage.student, "reinforce": stage.reinforce}
    expected = {loss for loss, weight in weighted.items() if weight}
    expected |= {f"augmented {loss}" for loss in expected if stage.augmented}
    assert reports[0].losses.keys() == expected
    assert reports[0].gradient > 0
    after = trainer.network.state_dict()
    assert any(not value.equal(after[key]) for key, value in before.items())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_being_written_down(name: str) -> None:
    written = msgspec.json.encode(PRESETS[name])
    assert msgspec.json.decode(written, type=Preset) == PRESETS[name]


def test_stages_follow_each_other_by_their_shares() -> None:
    first, second = Stage("first", share=1.0), Stage("second", share=3.0)
    config = LearningConfig(iterations=8, stages=(first, second))
    assert [config.stage_at(i).name for i in range(9)] == ["first"] * 2 + ["second"] * 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearningConfig(iterations=0), "iterations must be 1 or more, got 0"),
        (lambda: LearningConfig(learning_rate=0.0), "learning_rate must be positive, got 0.0"),
        (lambda: LearningConfig(stages=()), "at least one stage is needed"),
        (lambda: Stage("x", teacher=0, student=0, reinforce=0), "stage 'x' has no loss"),
        (lambda: Stage("x", share=0), "the share of stage 'x' must be positive"),
        (lambda: SelectionConfig(every=3, save_every=2), "every must be a positive multiple of save_every"),
    ],
)
def test_impossible_settings_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
