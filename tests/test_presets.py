"""Presets: a variant changes its base in what it is named after, an overlay what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
import torch

from scenemem import zoo
from scenemem.agents.agent import Basic
from scenemem.agents.build import AGENTS, AgentSpec, DataSizes, ModelConfig
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.errors import UserError
from scenemem.features.store import Environment
from scenemem.formats.features import StoreInfo
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import LearningConfig, Stage
from scenemem.learning.trainer import Trainer
from scenemem.presets import (
    NO_OVERLAYS,
    PRESETS,
    PUBLISHED,
    DataConfig,
    Overlays,
    Preset,
    SelectionConfig,
    overlaid,
    preset_type,
    read_preset,
    with_agent,
)
from scenemem.runs.config import differences
from scenemem.ssm.additions import SSMPlusConfig
from scenemem.ssm.reading import SSMConfig
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary

ROWS = tuple(name for name in PRESETS if name not in zoo.rows())  # before any test registers more
PLUS = {f"model.{name}": True for name in ("hints", "restore_state", "stop_from_memory", "final_backtrack")}
SIGNS = {"learning.reward.quantised": True, "learning.reward.failure": -2.0}
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("ssm-no-grounding", "ssm", {"model.grounding": False}),
    ("ssm-no-reasoning", "ssm", {"model.reasoning_steps": 0}),
    ("ssm-local", "ssm", {"agent": "ssm-local"}),
    ("ssm-global", "ssm", {"agent": "ssm-global"}),
    ("ssm-unvisited-views", "ssm", {"model.views": "unvisited"}),
    ("ssm-all-views", "ssm", {"model.views": "all"}),
    ("ssm-all-edges", "ssm", {"model.edges": "all"}),
    ("ssm-all-edges-and-views", "ssm", {"model.edges": "all", "model.views": "all"}),
    ("ssm-way-labels", "ssm", {"learning.labels": "goal"}),
    ("ssm-sign-rewards", "ssm", SIGNS),
    ("ssm-local-revisits", "ssm-local", {"model.allow_revisits": True}),
    ("ssm-stay", "ssm", {"model.stay_score": True}),
    ("ssm-hints", "ssm", {"model.hints": True}),
    ("ssm-restore", "ssm", {"model.restore_state": True}),
    ("ssm-stop-from-memory", "ssm", {"model.stop_from_memory": True}),
    ("ssm-backtrack", "ssm", {"model.final_backtrack": True}),
    ("ssm-hop-prior", "ssm", {"model.hop_prior": True}),
    ("ssm-plus", "ssm", PLUS),
    ("ssm-plus-no-hints", "ssm-plus", {"model.hints": False}),
    ("ssm-plus-no-restore", "ssm-plus", {"model.restore_state": False}),
    ("ssm-plus-no-backtrack", "ssm-plus", {"model.final_backtrack": False}),
    ("ssm-plus-no-stop-from-memory", "ssm-plus", {"model.stop_from_memory": False}),
    ("ssm-plus-no-reasoning", "ssm-plus", {"model.reasoning_steps": 0}),
    ("basic-backtrack", "basic", {"agent": "basic-ending", "model.final_backtrack": True}),
    ("basic-hop-prior", "basic", {"agent": "basic-ending", "model.hop_prior": True}),
    ("seq2seq", "basic", {"model.panorama": False, "learning.stages": ANY}),
]
"""A row, its base, and what it changes in it, in either recipe."""

CAPTIONS, R4R = Overlays("captions"), Overlays(task="r4r")
PAPER = Overlays(recipe="published")
ON_R2R = {"learning.iterations": 1000, "selection.split": "val_unseen", "selection.every": 200}
MY = {**ON_R2R, "data.features": "my"}
WALKS = {"walk.max_decisions": 30, "walk.max_steps": 80, "walk.max_words": 160}
ON_R4R = {
    **WALKS,
    "data.task": "r4r",
    "learning.max_decisions": 20,
    "learning.max_steps": 32,
    "selection.split": "val_seen",
    "selection.metric": "sdtw",
}
BACK = {"model.allow_revisits": True}
DESCRIBED = {"learning.learning_rate": 5e-4, "learning.stages": ANY}
MORE_STEPS = {"learning.iterations": 200_000, "learning.stages": ANY}


def _store(width: int, track: str = "images") -> StoreInfo:
    return StoreInfo(keys=(), width=width, source="", encoder="", sha256="", track=track)


def _changes(base: Preset[Any], preset: Preset[Any]) -> dict[str, Any]:
    """What a preset changes in another one, by dotted names."""
    found: dict[str, Any] = {}

    def collect(values: dict[str, Any], prefix: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                collect(value, f"{prefix}{name}.")
            else:
                found[prefix + name] = value

    collect(differences(base, preset), "")
    return found


def test_there_are_few_rows_because_overlays_are_none() -> None:
    rows = {*ROWS, *zoo.rows()}
    assert len(rows) <= 60
    assert not [name for name in rows if "r2r" in name or "r4r" in name or "published" in name]
    assert {name for name, *_ in VARIANTS} == set(ROWS) - {"ssm", "basic"}
    assert (PRESETS["ssm"].data, PRESETS["ssm"].selection) == (DataConfig(), SelectionConfig())
    found = _changes(PRESETS["ssm"], PRESETS["basic"])
    assert found == {"agent": "basic", "learning.labels": "goal", **SIGNS}, "as its own code learns"


@pytest.mark.parametrize("overlays", [NO_OVERLAYS, PAPER], ids=["everyday", "published"])
@pytest.mark.parametrize(("name", "base", "changed"), VARIANTS)
def test_a_variant_changes_only_what_it_is_named_after(
    name: str, base: str, changed: dict[str, Any], overlays: Overlays
) -> None:
    before, after = overlaid(base, overlays), overlaid(name, overlays)
    if after.agent == "ssm-plus":  # which has the settings of all additions, off
        before = with_agent(before, after.agent)
    assert _changes(before, after) == changed


@pytest.mark.parametrize(
    ("row", "overlays", "more", "changed"),
    [
        ("ssm", CAPTIONS, {}, {**ON_R2R, "data.features": "captions"}),
        ("basic", Overlays("my"), {"store": _store(300)}, MY),
        ("ssm", Overlays("my", task="r2r"), {"store": _store(512)}, {**MY, "model.feature_dropout": 0.3}),
        ("ssm", Overlays("views"), {"store": _store(36, "houses")}, {"data.features": "views"}),
        ("ssm", R4R, {}, {**ON_R4R, **BACK, "learning.labels": "path"}),
        ("basic", R4R, {}, {**ON_R4R, "learning.labels": "path"}),  # which may always come back
        ("egp", R4R, {}, {**ON_R4R, "learning.labels": "best_ndtw"}),
        ("rcm", R4R, {}, ON_R4R),  # goes on heading for the goal
        ("rcm-fidelity", R4R, {}, ON_R4R),  # follows the path anyway
        ("ssm", NO_OVERLAYS, {"described": True}, DESCRIBED),
        ("basic", CAPTIONS, {"described": True}, {**ON_R2R, **DESCRIBED, "data.features": "captions"}),
        ("ssm", Overlays(recipe="everyday"), {}, {}),
        ("ssm", Overlays("my", recipe="published"), {"store": _store(2048)}, {"data.features": "my"}),
        ("ssm", PAPER, {"described": True}, MORE_STEPS),
        ("basic", PAPER, {"described": True}, {**MORE_STEPS, "model.feature_dropout": 0.4}),
        ("speaker-follower", PAPER, {"described": True}, {}),  # which learns from them anyway
    ],
)
def test_an_overlay_changes_only_what_belongs_to_it(
    row: str, overlays: Overlays, more: dict[str, Any], changed: dict[str, Any]
) -> None:
    rows = PUBLISHED if overlays.recipe == "published" else PRESETS
    assert _changes(rows[row], overlaid(row, overlays, **more)) == changed


@pytest.mark.parametrize(("overlays", "own"), [(NO_OVERLAYS, 0.2), (CAPTIONS, 1.0)])
def test_described_paths_are_weighted_beside_annotated_ones(overlays: Overlays, own: float) -> None:
    (stage,) = overlaid("basic", overlays, described=True).learning.stages
    assert stage.losses == {"teacher_forcing": own, "student_forcing": 0.3, "a2c": 1.0}
    assert stage.augmented == {**stage.losses, "teacher_forcing": 0.6}


@pytest.mark.parametrize(
    ("overlays", "described", "name"),
    [
        (NO_OVERLAYS, False, "ssm"),
        (CAPTIONS, False, "ssm-r2r-captions"),
        (Overlays("resnet-152", "r4r"), True, "ssm-r4r-resnet-152-augmented"),
        (R4R, False, "ssm-r4r"),
        (PAPER, True, "ssm-as-published-augmented"),
        (Overlays("captions", recipe="published"), False, "ssm-as-published-r2r-captions"),
    ],
)
def test_results_are_named_by_row_and_overlays_and_lead_back_to_the_command(
    overlays: Overlays, described: bool, name: str
) -> None:
    assert overlays.results_name("ssm", described=described) == name
    if name == "ssm":
        return
    words = ["scenemem train ssm", *(f"--{what} {value}" for what, value in vars(overlays).items() if value)]
    command = " ".join([*words, *(["--speaker RUN"] if described else [])])
    message = rf"unknown preset '{name}'; .* flags of a row: {command} \(in Python"
    with pytest.raises(UserError, match=message):
        PRESETS[name]


@pytest.mark.parametrize("overlays", [NO_OVERLAYS, PAPER], ids=["everyday", "published"])
def test_the_papers_agent_has_nothing_the_paper_does_not_have(overlays: Overlays) -> None:
    paper = overlaid("ssm", overlays)
    additions = {field.name for field in fields(SSMPlusConfig)} - {field.name for field in fields(SSMConfig)}
    assert len(additions) == 7
    assert not any(hasattr(paper.model, name) for name in additions)
    assert not paper.model.allow_revisits
    assert (paper.model.edges, paper.model.views) == ("visited", "navigable")
    assert paper.learning.labels == "nearest"
    reward = paper.learning.reward
    assert (reward.rule, reward.quantised, reward.failure) == ("distance", False, 0.0)


def test_the_published_experiment_is_as_the_paper_and_the_code_of_its_baseline_say() -> None:
    ours, baseline = PUBLISHED["ssm"], PUBLISHED["basic"]
    assert (ours.model.width, ours.model.node_width, ours.model.orientation_width) == (512, None, 128)
    assert (ours.model.dropout, ours.model.feature_dropout) == (0.5, 0.4)
    assert (baseline.model.dropout, baseline.model.feature_dropout) == (0.5, 0.3)
    for row in ("ssm", "basic"):
        preset = PUBLISHED[row]
        learning = preset.learning
        assert (learning.optimiser, learning.schedule) == ("rmsprop", "constant")
        assert (learning.iterations, learning.learning_rate) == (80_000, 1e-4)
        assert (learning.weight_decay, learning.clip, learning.batch) == (0.0, 40.0, 64)
        assert (learning.entropy, learning.value, learning.reward.discount) == (0.01, 0.5, 0.9)
        (stage,) = learning.stages
        assert (stage.losses["teacher_forcing"], stage.losses["a2c"]) == (0.2, 1.0)
        (more,) = overlaid(row, PAPER, described=True).learning.stages
        assert (more.losses["teacher_forcing"], more.augmented["teacher_forcing"]) == (0.2, 0.6)
        assert not preset.data.word_vectors
    assert ours.walk.max_decisions == 15
    assert ours.learning.stages[0].losses["student_forcing"] == 0.2
    assert baseline.learning.stages[0].losses.keys() == {"teacher_forcing", "a2c"}


# training


@pytest.mark.parametrize("published", [False, True], ids=["everyday", "published and described"])
@pytest.mark.parametrize("name", ROWS)
def test_every_preset_trains_two_iterations_and_walks(
    name: str, published: bool, environment: Environment, episodes: EpisodeSet
) -> None:
    torch.set_num_threads(1)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    preset = overlaid(name, PAPER, described=True) if published else PRESETS[name]
    model = replace(preset.model, width=16, word_width=8)
    learning = replace(preset.learning, iterations=2, batch=4)
    torch.manual_seed(0)
    network = AGENTS[preset.agent].build(model, DataSizes(len(vocabulary), environment.width))
    agent = TrainedAgent(network, environment, vocabulary, preset.walk)
    trainer = Trainer(agent, episodes, learning, seed=0, augmentation=StoredEpisodes(episodes, seed=0))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    reports = [trainer.step(), trainer.step()]
    stage = learning.stages[0]
    expected = {loss for loss, weight in stage.losses.items() if weight}
    expected |= {f"augmented {loss}" for loss, weight in stage.augmented.items() if weight}
    assert reports[0].losses.keys() == expected
    assert reports[0].gradient > 0
    after = network.state_dict()
    assert any(not value.equal(after[key]) for key, value in before.items())
    rollout = agent.walk(episodes.select(range(0, 40, 8)))
    assert int(rollout.length.max()) <= preset.walk.max_steps


# reading


@pytest.mark.parametrize("name", ROWS)
def test_presets_survive_being_written_down(name: str) -> None:
    laid = overlaid(name, Overlays("captions", "r4r"), described=True)
    for preset in (PRESETS[name], PUBLISHED[name], laid):
        assert type(preset.model) is AGENTS[preset.agent].config
        written = msgspec.json.encode(preset)
        assert read_preset(msgspec.json.decode(written)) == preset
        assert msgspec.json.decode(written, type=preset_type(preset.agent)) == preset


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(UserError, match="unknown agent 'ssm-locl'; did you mean ssm-local"):
        read_preset({"agent": "ssm-locl", "model": {}})
    with pytest.raises(UserError, match="unknown preset 'ssm-globl'; did you mean ssm-global"):
        PRESETS["ssm-globl"]
    with pytest.raises(UserError, match="'fast-long' has no published recipe; these rows have one: ssm, "):
        overlaid("fast-long", PAPER)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `bool`, got `str` - at `\$.model.hints`"):
        read_preset({"agent": "ssm-plus", "model": {"hints": "yes"}})


def test_an_agent_from_outside_has_presets_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class MoodyConfig(ModelConfig):
        mood: float = 0.5

    monkeypatch.setattr(AGENTS, "_objects", dict(AGENTS))
    AGENTS.register("moody", AgentSpec(Basic, MoodyConfig))
    preset: Preset[Any] = Preset("moody", MoodyConfig(mood=0.1), walk=WalkConfig(max_decisions=3))
    assert read_preset(msgspec.to_builtins(preset)) == preset
    assert msgspec.json.decode(msgspec.json.encode(preset), type=preset_type("moody")) == preset
    laid = overlaid("moody", Overlays("captions", "r4r"), preset=preset)
    assert (laid.data.features, laid.walk.max_decisions, laid.learning.labels) == ("captions", 6, "path")
    assert laid.model == preset.model


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
        (lambda: Overlays(task="rxr"), "task must be r2r or r4r, got 'rxr'"),  # type: ignore[arg-type]
        (lambda: Overlays(recipe="best"), "recipe must be everyday or published, got 'best'"),  # type: ignore[arg-type]
        (lambda: SelectionConfig(every=0), "^every must be 1 or more, got 0"),
        (lambda: SelectionConfig(save_every=-1), "^save_every must be 1 or more, got -1"),
    ],
)
def test_impossible_settings_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
