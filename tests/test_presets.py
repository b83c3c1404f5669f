"""Presets: each differs from its base where its name says, trains, and is read from files of any version."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from scenemem.agents.basic import Basic
from scenemem.agents.build import AGENTS, AgentSpec, DataSizes, ModelConfig
from scenemem.agents.ssm import SSMConfig
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.errors import UserError
from scenemem.features.store import Environment, open_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import LearningConfig, RewardConfig, Stage
from scenemem.learning.trainer import Trainer
from scenemem.presets import (
    PRESETS,
    R2R_TRACKS,
    DataConfig,
    Preset,
    SelectionConfig,
    preset_type,
    read_preset,
)
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    """Where two presets differ; of the settings of two agents those that both have are compared."""
    if is_dataclass(one) and is_dataclass(other):
        names = {item.name for item in fields(one)} & {item.name for item in fields(other)}
        return {
            name
            for item in names
            for name in _differences(getattr(one, item), getattr(other, item), f"{path}.{item}".strip("."))
        }
    return set() if one == other else {path}


@pytest.mark.parametrize(
    ("name", "base", "changed"),
    [
        ("ssm-no-grounding", "ssm", {"model.grounding"}),
        ("ssm-no-reasoning", "ssm", {"model.reasoning_steps"}),
        ("ssm-local", "ssm", {"agent"}),
        ("ssm-global", "ssm", {"agent"}),
        ("ssm-no-hints", "ssm", {"model.hints"}),
        ("ssm-no-restore", "ssm", {"model.restore_state"}),
        ("ssm-no-backtrack", "ssm", {"model.final_backtrack"}),
        ("ssm-no-stop-from-memory", "ssm", {"model.stop_from_memory"}),
        ("ssm-no-memory", "ssm", {"agent"}),
        ("ssm-hop-prior", "ssm-no-backtrack", {"model.hop_prior"}),
        ("ssm-paper-no-grounding", "ssm-paper", {"model.grounding"}),
        ("ssm-paper-no-reasoning", "ssm-paper", {"model.reasoning_steps"}),
        ("ssm-paper-local", "ssm-paper", {"agent"}),
        ("ssm-paper-global", "ssm-paper", {"agent"}),
        ("ssm-paper-stay", "ssm-paper", {"model.stay_score"}),
        ("ssm-paper-stay-restore", "ssm-paper", {"model.stay_score", "model.restore_state"}),
        ("ssm-paper-hints", "ssm-paper", {"model.hints"}),
        ("ssm-paper-restore", "ssm-paper", {"model.restore_state"}),
        ("ssm-paper-stop-from-memory", "ssm-paper", {"model.stop_from_memory"}),
        ("ssm-paper-backtrack", "ssm-paper", {"model.final_backtrack"}),
        ("ssm-paper-hop-prior", "ssm-paper", {"model.hop_prior"}),
        ("ssm-released", "ssm-paper-hop-prior", {"model.read_before_update", "learning.stages"}),
        ("basic", "ssm-paper", {"agent"}),
        ("basic-backtrack", "basic", {"agent"}),
        ("basic-hop-prior", "basic", {"agent"}),
        ("ssm-augmented", "ssm", {"learning.learning_rate", "learning.stages"}),
        ("basic-augmented", "basic", {"learning.learning_rate", "learning.stages"}),
        ("seq2seq", "basic", {"model.panorama", "learning.stages"}),
    ],
)
def test_a_variant_changes_only_what_its_name_says(name: str, base: str, changed: set[str]) -> None:
    assert _differences(PRESETS[base], PRESETS[name]) == changed


def test_the_released_code_learns_by_imitation_alone() -> None:
    (imitation,), (mixed,) = PRESETS["ssm-released"].learning.stages, PRESETS["ssm-paper"].learning.stages
    assert imitation.losses == {name: mixed.losses[name] for name in ("teacher_forcing", "student_forcing")}


def test_every_preset_has_the_settings_of_its_agent() -> None:
    for name, preset in PRESETS.items():
        assert type(preset.model) is AGENTS[preset.agent].config, name


ON_R2R = {"data.features", "learning.iterations", "selection.split", "selection.every"}


@pytest.mark.parametrize("track", R2R_TRACKS)
def test_the_rows_of_the_scoreboard_share_one_recipe(track: str) -> None:
    ending = f"-r2r-{track}"
    rows = {name.removesuffix(ending): row for name, row in PRESETS.items() if name.endswith(ending)}
    assert {"ssm-paper", "ssm", "basic", "ssm-local", "ssm-paper-local", "seq2seq"} <= rows.keys()
    for base, row in rows.items():
        assert _differences(PRESETS[base], row) == ON_R2R, base
        assert row.data.features == track
        assert row.learning.iterations == 1000


@pytest.mark.parametrize("track", R2R_TRACKS)
@pytest.mark.parametrize("base", ["ssm-paper", "basic", "ssm"])
def test_described_paths_join_a_row_of_the_scoreboard(base: str, track: str) -> None:
    row, more = PRESETS[f"{base}-r2r-{track}"], PRESETS[f"{base}-r2r-{track}-augmented"]
    assert _differences(row, more) == {"learning.learning_rate", "learning.stages"}
    (own,), (augmented,) = row.learning.stages, more.learning.stages
    assert augmented.losses == own.losses
    assert augmented.augmented == {**own.losses, "teacher_forcing": 0.6}


@pytest.mark.parametrize("track", R2R_TRACKS)
@pytest.mark.parametrize("base", ["ssm-paper", "basic", "ssm"])
def test_r4r_follows_the_path(base: str, track: str) -> None:
    row, other = PRESETS[f"{base}-r4r-{track}"], PRESETS[f"{base}-r2r-{track}"]
    assert row.data.task == "r4r"
    assert row.learning.labels == "path"
    # coming back belongs to the path; a basic agent always may
    expected = set() if base == "basic" else {"model.allow_revisits"}
    assert {name for name in _differences(row, other) if name.startswith("model")} == expected
    assert not expected or row.model.allow_revisits


def test_the_faithful_preset_has_nothing_the_paper_does_not_have() -> None:
    everyday, wide = PRESETS["ssm-paper"], PRESETS["ssm-paper-width"]
    assert wide.model == SSMConfig()
    for paper in (everyday, wide):
        for addition in ("hints", "restore_state", "stop_from_memory", "final_backtrack", "allow_revisits"):
            assert not getattr(paper.model, addition), addition
        assert not paper.model.read_before_update
        assert not paper.model.hop_prior
    assert wide.model.node_width is None
    assert wide.model.orientation_width == 128
    assert wide.model.width == 512


# training


@dataclass(frozen=True)
class Setting:
    """The tiny world, its training episodes and their words."""

    environment: Environment
    episodes: EpisodeSet
    vocabulary: Vocabulary


@pytest.fixture(scope="module")
def setting(tiny_trainable: Path) -> Setting:
    torch.set_num_threads(1)
    world = load_world(tiny_trainable / "connectivity")
    environment = Environment(world, open_store(tiny_trainable / "features" / "tiny.npy", world))
    episodes = load_split(DataFolder(tiny_trainable), world, "r2r", "train")
    return Setting(environment, episodes, Vocabulary.build(episodes.texts, min_count=1))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_two_iterations_and_walks(name: str, setting: Setting) -> None:
    preset = PRESETS[name]
    model = replace(preset.model, width=16, word_width=8)
    learning = replace(preset.learning, iterations=2, batch=4)
    torch.manual_seed(0)
    sizes = DataSizes(len(setting.vocabulary), setting.environment.width)
    network = AGENTS[preset.agent].build(model, sizes)
    agent = TrainedAgent(network, setting.environment, setting.vocabulary, preset.walk)
    trainer = Trainer(
        agent, setting.episodes, learning, seed=0, augmentation=StoredEpisodes(setting.episodes, seed=0)
    )
    before = {key: value.clone() for key, value in network.state_dict().items()}
    reports = [trainer.step(), trainer.step()]
    stage = learning.stages[0]
    expected = {loss for loss, weight in stage.losses.items() if weight}
    expected |= {f"augmented {loss}" for loss, weight in stage.augmented.items() if weight}
    assert reports[0].losses.keys() == expected
    assert reports[0].gradient > 0
    after = network.state_dict()
    assert any(not value.equal(after[key]) for key, value in before.items())
    rollout = agent.walk(setting.episodes.select(range(0, 40, 8)))
    assert int(rollout.length.max()) <= preset.walk.max_steps


# reading


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_being_written_down(name: str) -> None:
    written = msgspec.json.encode(PRESETS[name])
    assert read_preset(msgspec.json.decode(written)) == PRESETS[name]
    assert msgspec.json.decode(written, type=preset_type(PRESETS[name].agent)) == PRESETS[name]


# as the runs and published weights of earlier versions hold them
OLD_WALK = {"rounds": 15, "ticks": 40, "words": 80}
OLD_MODEL = {"word_width": 256, "width": 256, "dropout": 0.3, "feature_dropout": 0.2, "panorama": True}
OLD_PLAIN_MEMORY = {
    "grounding": True,
    "reasoning_steps": 3,
    "stream": None,
    "orientation": 128,
    "hints": False,
    "weights": "metres",
    "recalls": False,
    "stop_reads": False,
    "goes_back": False,
    "revisits": False,
    "read_before": False,
    "hop_prior": False,
}
OLD_MEMORY = {
    **OLD_PLAIN_MEMORY,
    "stream": 64,
    "orientation": 32,
    "hints": True,
    "recalls": True,
    "stop_reads": True,
    "goes_back": True,
}
OLD_STAGE = {
    "name": "mixed",
    "share": 1.0,
    "teacher": 1.0,
    "student": 0.3,
    "reinforce": 1.0,
    "augmented": 0.0,
    "teacher_frontier": 0.2,
    "student_frontier": 1.0,
}
OLD_LEARNING = {
    "iterations": 2000,
    "batch": 64,
    "learning_rate": 0.001,
    "weight_decay": 0.01,
    "clip": 40.0,
    "rounds": 10,
    "ticks": 16,
    "labels": "goal",
    "entropy": 0.01,
    "value": 0.5,
    "reward": {"quantised": True, "success": 2.0, "discount": 0.9},
    "stages": [OLD_STAGE],
}
OLD_DATA = {"task": "r2r", "features": None, "min_count": 5, "word_vectors": True}
OLD_SELECTION = {"split": "dev_unseen", "metric": "sr", "every": 400, "save_every": 100}
OLD_SSM = {
    "agent": "frontier",
    "model": OLD_MODEL,
    "memory": OLD_MEMORY,
    "walk": OLD_WALK,
    "data": OLD_DATA,
    "learning": OLD_LEARNING,
    "selection": OLD_SELECTION,
}
OLD_R2R = {
    "data": {**OLD_DATA, "features": "objects+rooms"},
    "selection": {**OLD_SELECTION, "split": "val_unseen", "every": 200},
}
OLD_PRESETS: dict[str, dict[str, Any]] = {
    "ssm": OLD_SSM,
    "ssm-no-memory": {**OLD_SSM, "agent": "local"},
    "ssm-no-backtrack": {**OLD_SSM, "memory": {**OLD_MEMORY, "goes_back": False}},
    "ssm-no-restore": {**OLD_SSM, "memory": {**OLD_MEMORY, "recalls": False}},
    "ssm-no-stop-from-memory": {**OLD_SSM, "memory": {**OLD_MEMORY, "stop_reads": False}},
    "basic": {**OLD_SSM, "agent": "basic", "memory": OLD_PLAIN_MEMORY},
    "seq2seq": {
        **OLD_SSM,
        "agent": "basic",
        "model": {**OLD_MODEL, "panorama": False},
        "memory": OLD_PLAIN_MEMORY,
        "learning": {
            **OLD_LEARNING,
            "stages": [{**OLD_STAGE, "name": "student", "teacher": 0.0, "student": 1.0, "reinforce": 0.0}],
        },
    },
    "ssm-r2r-oracle-augmented": {
        **OLD_SSM,
        **OLD_R2R,
        "learning": {
            **OLD_LEARNING,
            "iterations": 1000,
            "learning_rate": 0.0005,
            "stages": [{**OLD_STAGE, "name": "augmented", "augmented": 0.6}],
        },
    },
    "ssm-paper-width": {
        **OLD_SSM,
        "model": {**OLD_MODEL, "width": 512, "dropout": 0.5, "feature_dropout": 0.4},
        "memory": OLD_PLAIN_MEMORY,
        "learning": {
            **OLD_LEARNING,
            "iterations": 80000,
            "learning_rate": 0.0001,
            "rounds": 15,
            "ticks": 40,
            "stages": [{**OLD_STAGE, "teacher": 0.2, "student": 0.2, "teacher_frontier": 1.0}],
        },
    },
    "ssm-r4r-oracle": {
        **OLD_SSM,
        "memory": {**OLD_MEMORY, "revisits": True},
        "walk": {"rounds": 30, "ticks": 80, "words": 160},
        "data": {**OLD_DATA, "task": "r4r", "features": "objects+rooms"},
        "learning": {**OLD_LEARNING, "iterations": 1000, "rounds": 20, "ticks": 32, "labels": "path"},
        "selection": {**OLD_SELECTION, "split": "val_seen", "metric": "sdtw", "every": 200},
    },
}


@pytest.mark.parametrize("name", OLD_PRESETS)
def test_presets_of_earlier_versions_are_understood(name: str) -> None:
    assert read_preset(OLD_PRESETS[name]) == PRESETS[name]


def test_every_setting_of_an_old_memory_has_its_place() -> None:
    old = {
        **OLD_PLAIN_MEMORY,
        "grounding": False,
        "reasoning_steps": 1,
        "stream": 5,
        "orientation": 8,
        "weights": "hops",
        "read_before": True,
        "hop_prior": True,
    }
    assert read_preset({**OLD_SSM, "memory": old}).model == SSMConfig(
        word_width=256,
        width=256,
        dropout=0.3,
        feature_dropout=0.2,
        grounding=False,
        reasoning_steps=1,
        node_width=5,
        orientation_width=8,
        walk_cost="hops",
        read_before_update=True,
        hop_prior=True,
    )


def test_what_an_old_preset_leaves_out_is_what_it_was_then() -> None:
    """Runs of even earlier versions hold fewer settings."""
    preset = read_preset({"memory": {}, "learning": {"stages": [{}], "reward": {"success": 5.0}}})
    assert preset == Preset(
        "ssm",
        SSMConfig(),
        learning=LearningConfig(
            stages=(Stage(losses={"teacher_forcing": 1.0, "a2c": 1.0}),),
            reward=RewardConfig(success=5.0, failure=-5.0),
        ),
    )


@pytest.mark.parametrize("old", [False, True])
def test_an_unknown_agent_is_named_with_what_is_near(old: bool) -> None:
    values: dict[str, Any] = {"agent": "ssm-locl", "model": {}}
    with pytest.raises(UserError, match="unknown agent 'ssm-locl'; did you mean ssm-local"):
        read_preset({**values, "memory": {}} if old else values)
    with pytest.raises(UserError, match="unknown preset 'ssm-papr'; did you mean ssm-paper"):
        PRESETS["ssm-papr"]


def test_settings_of_another_agent_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `bool`, got `str` - at `\$.model.hints`"):
        read_preset({"agent": "ssm", "model": {"hints": "yes"}})


def test_an_agent_from_outside_has_presets_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class MoodyConfig(ModelConfig):
        mood: float = 0.5

    monkeypatch.setattr(AGENTS, "_objects", dict(AGENTS))
    AGENTS.register("moody", AgentSpec(Basic.build, MoodyConfig))
    preset: Preset[Any] = Preset("moody", MoodyConfig(mood=0.1), walk=WalkConfig(max_decisions=3))
    assert read_preset(msgspec.to_builtins(preset)) == preset
    assert msgspec.json.decode(msgspec.json.encode(preset), type=preset_type("moody")) == preset


# settings


def test_stages_follow_each_other_by_their_shares() -> None:
    first, second = Stage("first", share=1.0), Stage("second", share=3.0)
    config = LearningConfig(iterations=8, stages=(first, second))
    assert [config.stage_at(i).name for i in range(9)] == ["first"] * 2 + ["second"] * 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearningConfig(iterations=0), "iterations must be 1 or more, got 0"),
        (lambda: LearningConfig(batch=0), "batch must be 1 or more, got 0"),
        (lambda: LearningConfig(max_decisions=0), "max_decisions must be 1 or more, got 0"),
        (lambda: LearningConfig(max_steps=0), "max_steps must be 1 or more, got 0"),
        (lambda: LearningConfig(learning_rate=0.0), "learning_rate must be positive, got 0.0"),
        (lambda: LearningConfig(clip=float("nan")), "clip must be positive, got nan"),
        (lambda: LearningConfig(stages=()), "at least one stage is needed"),
        (lambda: Stage("x", losses={}), "stage 'x' has no loss; give one a weight, for example teacher_forc"),
        (lambda: Stage("x", losses={"a2c": 0.0}), "stage 'x' has no loss"),
        (lambda: Stage("x", share=0), "the share of stage 'x' must be positive, got 0"),
        (lambda: SelectionConfig(every=3, save_every=2), "every must be a positive multiple of save_every"),
    ],
)
def test_impossible_settings_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_presets_learn_from_r2r_unless_they_say_otherwise() -> None:
    assert PRESETS["ssm"].data == DataConfig()
    assert PRESETS["ssm"].selection == SelectionConfig()
