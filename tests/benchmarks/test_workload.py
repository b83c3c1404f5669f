"""Measured work can be repeated exactly, and made-up features stand in for real ones of any width."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scenemem.benchmarks import workload
from scenemem.benchmarks.flops import Product, ProductCounter
from scenemem.benchmarks.habits import Habit, walking_by
from scenemem.benchmarks.parts import watched_parts
from scenemem.benchmarks.workload import (
    MODES,
    Case,
    Mode,
    Workload,
    at_width,
    columns_at,
    preset_named,
    stand_in,
    training_scans,
)
from scenemem.errors import UserError
from scenemem.features.store import open_store
from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS
from scenemem.world.build import load_world


@pytest.mark.parametrize("mode", MODES)
def test_repeated_work_is_the_same_work(mode: Mode, tiny_load: Workload) -> None:
    def products() -> dict[Product, int]:
        counter = ProductCounter()
        with counter:
            assert tiny_load.run(mode, 1) == (8 if mode == "mixed" else 4)
        return counter.products

    before = [parameter.clone() for parameter in tiny_load.trainer.network.parameters()]
    assert products() == products()
    for old, new in zip(before, tiny_load.trainer.network.parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_modes_learn_from_different_losses(tiny_load: Workload) -> None:
    names = {}
    for mode in ("teacher", "sampled", "mixed"):
        tiny_load.run(mode, 0)
        names[mode] = set(tiny_load.trainer.step().losses)
    assert names == {
        "teacher": {"teacher"},
        "sampled": {"student", "reinforce"},
        "mixed": {"teacher", "student", "reinforce"},
    }


def test_at_least_one_step_fits_into_no_time(tiny_load: Workload) -> None:
    assert tiny_load.steps_within("greedy", 1e-9) == 1
    assert tiny_load.steps_within("greedy", 1e3) > 1


def test_the_width_of_the_paper() -> None:
    paper = PRESETS["ssm-paper"]
    ssm, basic = at_width(PRESETS["ssm"], "paper"), at_width(PRESETS["basic"], "paper")
    assert (ssm.model, ssm.memory, ssm.walk) == (paper.model, paper.memory, paper.walk)
    assert ssm.learning.rounds == paper.learning.rounds
    assert ssm.learning.stages == PRESETS["ssm"].learning.stages
    assert (basic.agent, basic.model) == ("basic", paper.model)
    assert at_width(PRESETS["ssm-no-reasoning"], "paper").memory.reasoning_steps == 0, "nor is an ablation"
    assert at_width(PRESETS["ssm"], "everyday") is PRESETS["ssm"]
    assert not at_width(PRESETS["seq2seq"], "paper").model.panorama, "looking ahead is no size"
    assert [columns_at("paper", None), columns_at("everyday", None), columns_at("paper", 9)] == [
        2048,
        None,
        9,
    ]


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(UserError, match=r"^unknown preset 'ssn'; there are: ssm, "):
        preset_named("ssn")


def test_made_up_features_cover_the_world_and_are_made_once(tiny_data: Path) -> None:
    made = stand_in(DataFolder(tiny_data), "r2r", 6)
    store = open_store(made.feature_file("random"), load_world(made.connectivity))
    assert store.values.shape == (32, 36, 6)
    assert store.values.float().std() > 0.1
    written = made.feature_file("random").stat().st_mtime_ns
    assert stand_in(DataFolder(tiny_data), "r2r", 6) == made
    assert made.feature_file("random").stat().st_mtime_ns == written


def test_a_stand_in_may_hold_fewer_scans(tiny_data: Path) -> None:
    folder = DataFolder(tiny_data)
    assert training_scans(folder, "r2r") == ["grid", "spiral"]
    made = stand_in(folder, "r2r", 4, scans=1)
    assert load_world(made.connectivity).scans == ("grid",)
    assert training_scans(made, "r2r") == ["grid"]
    load = Workload(Case(PRESETS["basic"], batch=4, columns=4, scans=1), folder)
    assert load.run("teacher", 1) == 4
    with pytest.raises(UserError, match=r"has 2 training scans, asked for 9$"):
        stand_in(folder, "r2r", 4, scans=9)


def test_habits_decide_how_far_agents_walk(tiny_load: Workload) -> None:
    agent, episodes = tiny_load.trainer.agent, tiny_load.trainer.episodes
    with walking_by(Habit(stop=1.0, leave=0.0)):
        assert (agent.walk(episodes).ticks == 1).all(), "who always stops sees the start alone"
    with walking_by(Habit(stop=0.0, leave=0.0)):
        restless = agent.walk(episodes)
    assert restless.ticks.float().mean() > 3
    frontier = restless.decisions["frontier"]
    assert restless.map is not None
    here = restless.map.at[frontier.lane, frontier.tick]
    assert (frontier.choice == here).all(), "who never leaves stays at every frontier decision"
    with walking_by(Habit(stop=0.0, leave=1.0)):
        leaving = agent.walk(episodes)
    for rollout in (restless, leaving):
        for table in rollout.decisions.values():
            assert table.options.gather(1, table.choice.unsqueeze(1)).all(), "habits keep to the options"


def test_habits_are_seeded_and_end_with_their_block(tiny_load: Workload) -> None:
    agent, episodes = tiny_load.trainer.agent, tiny_load.trainer.episodes
    own = agent.walk(episodes)
    walks = []
    for seed in (1, 1, 2):
        with walking_by(Habit(stop=0.2, leave=0.5), seed=seed):
            walks.append(agent.walk(episodes).ticks.tolist())
    assert walks[0] == walks[1] != walks[2]
    assert torch.equal(agent.walk(episodes).viewpoint, own.viewpoint)


def test_a_teacher_has_no_habits(tiny_load: Workload) -> None:
    agent, episodes = tiny_load.trainer.agent, tiny_load.trainer.episodes
    own = agent.walk(episodes)
    with walking_by(Habit(stop=1.0, leave=0.0), taught=3):
        walked = agent.walk(episodes)
    assert walked.ticks[:3].tolist() == own.ticks[:3].tolist()
    assert (walked.ticks[3:] == 1).all()


def test_habits_reach_the_walks_of_a_training(tiny_load: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "SAMPLED", Habit(stop=1.0, leave=0.0))
    with watched_parts(tiny_load.trainer.agent) as clock:
        episodes = tiny_load.run("sampled", 1)
    assert clock.observations == episodes


def test_agents_without_a_map_have_habits_too(tiny_trainable: Path) -> None:
    load = Workload(Case(PRESETS["basic"], batch=4), DataFolder(tiny_trainable))
    with walking_by(Habit(stop=1.0, leave=0.0)):
        assert (load.trainer.agent.walk(load.trainer.episodes).ticks == 1).all()
