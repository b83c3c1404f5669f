"""Measured work can be repeated exactly, and walks are as long as those of trained agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import workload
from benchmarks.machine import Options
from benchmarks.workload import MODES, Habit, Mode, Workload, made_up_store, preset_at, walking_by
from scenemem.agents.rollout import FRONTIER, Rollout
from scenemem.errors import UserError
from scenemem.presets import PRESETS, PUBLISHED
from tests.benchmarks.conftest import repeated


@pytest.mark.parametrize("mode", MODES)
def test_repeated_work_is_the_same_work(mode: Mode, tiny_load: Workload) -> None:
    done = repeated(lambda: tiny_load.run(mode, 1), tiny_load.agent.network)
    assert done.episodes == (8 if mode == "mixed" else 4)


def test_modes_learn_from_different_losses(tiny_load: Workload) -> None:
    names = {mode: set(tiny_load.trainer(mode).step().losses) for mode in MODES if mode != "greedy"}
    assert names == {
        "teacher": {"teacher_forcing"},
        "sampled": {"student_forcing", "a2c"},
        "mixed": {"teacher_forcing", "student_forcing", "a2c"},
    }


def test_observations_are_counted_over_all_walks(tiny_load: Workload) -> None:
    taught = tiny_load.run("teacher", 1).observations
    tiny_load.run("teacher", 0)  # back to the first batch
    rows = next(tiny_load.trainer("teacher").batches)
    assert taught == int(tiny_load.episodes.path_length[rows].sum())
    assert tiny_load.run("mixed", 1).observations > taught, "the sampled walks as well"


def test_a_trace_has_a_range_per_part(tiny_load: Workload, tmp_path: Path) -> None:
    tiny_load.trace("teacher", tmp_path / "trace.json")
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"rollout", "encoder", "backward", "optimiser"} <= names


def test_the_width_of_the_paper() -> None:
    paper = PUBLISHED["ssm"]
    ssm, basic = preset_at("ssm", "paper"), preset_at("basic", "paper")
    assert (ssm.model, ssm.walk) == (paper.model, paper.walk)
    assert ssm.learning.max_decisions == paper.learning.max_decisions
    assert ssm.learning.stages == PRESETS["ssm"].learning.stages
    assert (basic.agent, basic.model.width) == ("basic", paper.model.width)
    assert preset_at("ssm-no-reasoning", "paper").model.reasoning_steps == 0, "an ablation is no size"
    assert not preset_at("seq2seq", "paper").model.panorama, "nor is looking ahead"
    assert preset_at("ssm", "everyday") is PRESETS["ssm"]
    with pytest.raises(UserError, match=r"^unknown preset 'ssn'; did you mean ssm"):
        preset_at("ssn", "paper")


def test_made_up_features_have_any_width_and_need_no_store(tiny_data: Path) -> None:
    load = Workload(PRESETS["basic"], Options(data=tiny_data, batch=4), columns=6)
    assert load.agent.environment.store.gather(torch.arange(32)).shape == (32, 36, 6)
    assert load.run("teacher", 1).episodes == 4
    shared = made_up_store(10, 4, rows=3)
    assert torch.equal(shared.gather(torch.tensor(0)), shared.gather(torch.tensor(9)))
    assert not torch.equal(shared.gather(torch.tensor(0)), shared.gather(torch.tensor(1)))


def test_habits_decide_how_far_agents_walk(tiny_load: Workload) -> None:
    def walk(stop: float, leave: float, **options: int) -> Rollout:
        with walking_by(Habit(stop=stop, leave=leave), **options):
            return tiny_load.agent.walk(tiny_load.episodes)

    assert (walk(1.0, 0.0).length == 1).all(), "always stopping is seeing the start alone"
    restless = walk(0.0, 0.0)
    assert restless.length.float().mean() > 3
    frontier = restless.decisions[FRONTIER]
    here = restless.viewpoint[frontier.episode, frontier.step]
    assert torch.equal(frontier.place, here), "never leaving is staying at every frontier decision"
    for rollout in (restless, walk(0.0, 1.0)):
        for table in rollout.decisions.values():
            assert table.options.gather(1, table.choice.unsqueeze(1)).all(), "habits keep to the options"
    first, again, other = (walk(0.2, 0.5, seed=seed).length.tolist() for seed in (1, 1, 2))
    assert first == again != other
    forced, own = walk(1.0, 0.0, forced=3), tiny_load.agent.walk(tiny_load.episodes)
    assert forced.length[:3].tolist() == own.length[:3].tolist(), "forced episodes have no habits"
    assert (forced.length[3:] == 1).all()


def test_habits_reach_the_walks_of_a_training(tiny_load: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "SAMPLED", Habit(stop=1.0, leave=0.0))
    done = tiny_load.run("sampled", 1)
    assert done.observations == done.episodes
