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
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.errors import UserError
from scenemem.features.store import Environment, open_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import LearningConfig, Stage
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
        ("ssm-unvisited-views", "ssm", {"model.views"}),
        ("ssm-all-views", "ssm", {"model.views"}),
        ("ssm-all-edges", "ssm", {"model.edges"}),
        ("ssm-all-edges-and-views", "ssm", {"model.edges", "model.views"}),
        ("ssm-way-labels", "ssm", {"learning.labels"}),
        ("ssm-sign-rewards", "ssm", {"learning.reward.quantised", "learning.reward.failure"}),
        ("ssm-local-revisits", "ssm-local", {"model.allow_revisits"}),
        ("ssm-stay", "ssm", {"model.stay_score"}),
        ("ssm-hints", "ssm", {"model.hints"}),
        ("ssm-restore", "ssm", {"model.restore_state"}),
        ("ssm-stop-from-memory", "ssm", {"model.stop_from_memory"}),
        ("ssm-backtrack", "ssm", {"model.final_backtrack"}),
        ("ssm-hop-prior", "ssm", {"model.hop_prior"}),
        (
            "ssm-plus",
            "ssm",
            {f"model.{name}" for name in ("hints", "restore_state", "stop_from_memory", "final_backtrack")},
        ),
        ("ssm-plus-no-hints", "ssm-plus", {"model.hints"}),
        ("ssm-plus-no-restore", "ssm-plus", {"model.restore_state"}),
        ("ssm-plus-no-backtrack", "ssm-plus", {"model.final_backtrack"}),
        ("ssm-plus-no-stop-from-memory", "ssm-plus", {"model.stop_from_memory"}),
        ("ssm-plus-no-reasoning", "ssm-plus", {"model.reasoning_steps"}),
        (
            "basic",
            "ssm",
            {"agent", "learning.labels", "learning.reward.quantised", "learning.reward.failure"},
        ),
        ("basic-backtrack", "basic", {"agent"}),
        ("basic-hop-prior", "basic", {"agent"}),
        ("ssm-augmented", "ssm", {"learning.learning_rate", "learning.stages"}),
        ("ssm-plus-augmented", "ssm-plus", {"learning.learning_rate", "learning.stages"}),
        ("basic-augmented", "basic", {"learning.learning_rate", "learning.stages"}),
        ("seq2seq", "basic", {"model.panorama", "learning.stages"}),
        (
            "ssm-as-published-augmented",
            "ssm-as-published",
            {"learning.iterations", "learning.stages"},
        ),
        (
            "basic-as-published-augmented",
            "basic-as-published",
            {"model.feature_dropout", "learning.iterations", "learning.stages"},
        ),
    ],
)
def test_a_variant_changes_only_what_its_name_says(name: str, base: str, changed: set[str]) -> None:
    assert _differences(PRESETS[base], PRESETS[name]) == changed


def test_every_preset_has_the_settings_of_its_agent() -> None:
    for name, preset in PRESETS.items():
        assert type(preset.model) is AGENTS[preset.agent].config, name


ON_R2R = {"data.features", "learning.iterations", "selection.split", "selection.every"}


@pytest.mark.parametrize("track", R2R_TRACKS)
def test_the_rows_of_the_scoreboard_share_one_recipe(track: str) -> None:
    ending = f"-r2r-{track}"
    rows = {name.removesuffix(ending): row for name, row in PRESETS.items() if name.endswith(ending)}
    assert {"ssm", "ssm-plus", "basic", "ssm-local", "seq2seq"} <= rows.keys()
    for base, row in rows.items():
        assert _differences(PRESETS[base], row) == ON_R2R, base
        assert row.data.features == track
        assert row.learning.iterations == 1000


@pytest.mark.parametrize("track", R2R_TRACKS)
@pytest.mark.parametrize("base", ["ssm", "basic", "ssm-plus"])
def test_described_paths_join_a_row_of_the_scoreboard(base: str, track: str) -> None:
    row, more = PRESETS[f"{base}-r2r-{track}"], PRESETS[f"{base}-r2r-{track}-augmented"]
    assert _differences(row, more) == {"learning.learning_rate", "learning.stages"}
    (own,), (augmented,) = row.learning.stages, more.learning.stages
    assert augmented.losses == own.losses
    assert augmented.augmented == {**own.losses, "teacher_forcing": 0.6}


@pytest.mark.parametrize("track", R2R_TRACKS)
@pytest.mark.parametrize("base", ["ssm", "basic", "ssm-plus"])
def test_r4r_follows_the_path(base: str, track: str) -> None:
    row, other = PRESETS[f"{base}-r4r-{track}"], PRESETS[f"{base}-r2r-{track}"]
    assert row.data.task == "r4r"
    assert row.learning.labels == "path"
    # coming back belongs to the path; a basic agent always may
    expected = set() if base == "basic" else {"model.allow_revisits"}
    assert {name for name in _differences(row, other) if name.startswith("model")} == expected
    assert not expected or row.model.allow_revisits


@pytest.mark.parametrize("name", ["ssm", "ssm-as-published"])
def test_the_papers_agent_has_nothing_the_paper_does_not_have(name: str) -> None:
    paper = PRESETS[name]
    for addition in ("hints", "restore_state", "stop_from_memory", "final_backtrack", "allow_revisits"):
        assert not getattr(paper.model, addition), addition
    for other in ("stay_score", "read_before_update", "hop_prior"):
        assert not getattr(paper.model, other), other
    assert (paper.model.edges, paper.model.views) == ("visited", "navigable")
    assert paper.learning.labels == "nearest"
    reward = paper.learning.reward
    assert (reward.rule, reward.quantised, reward.failure) == ("distance", False, 0.0)


def test_the_published_experiment_is_as_the_paper_and_the_code_of_its_baseline_say() -> None:
    ours, baseline = PRESETS["ssm-as-published"], PRESETS["basic-as-published"]
    assert (ours.model.width, ours.model.node_width, ours.model.orientation_width) == (512, None, 128)
    assert (ours.model.dropout, ours.model.feature_dropout) == (0.5, 0.4)
    assert (baseline.model.dropout, baseline.model.feature_dropout) == (0.5, 0.3)
    for preset in (ours, baseline):
        learning = preset.learning
        assert (learning.optimiser, learning.learning_rate, learning.schedule) == (
            "rmsprop",
            1e-4,
            "constant",
        )
        assert (learning.weight_decay, learning.clip, learning.batch) == (0.0, 40.0, 64)
        assert learning.iterations == 80_000
        assert (learning.entropy, learning.value, learning.reward.discount) == (0.01, 0.5, 0.9)
        (stage,) = learning.stages
        assert (stage.losses["teacher_forcing"], stage.losses["a2c"]) == (0.2, 1.0)
        (more,) = PRESETS[f"{preset.agent}-as-published-augmented"].learning.stages
        assert (more.losses["teacher_forcing"], more.augmented["teacher_forcing"]) == (0.2, 0.6)
        assert not preset.data.word_vectors
    assert ours.walk.max_decisions == 15
    assert ours.learning.stages[0].losses["student_forcing"] == 0.2
    assert baseline.learning.stages[0].losses.keys() == {"teacher_forcing", "a2c"}


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


def test_an_unknown_agent_is_named_with_what_is_near() -> None:
    with pytest.raises(UserError, match="unknown agent 'ssm-locl'; did you mean ssm-local"):
        read_preset({"agent": "ssm-locl", "model": {}})
    with pytest.raises(UserError, match="unknown preset 'ssm-globl'; did you mean ssm-global"):
        PRESETS["ssm-globl"]


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
