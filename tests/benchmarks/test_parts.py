"""Time goes to the innermost part that runs, and the watched code is left as it was."""

from __future__ import annotations

import pytest
import scenemem.agents.trained
import torch
from scenemem.agents.collect import collect
from scenemem.agents.policy import NetworkPolicy

import scenemem.learning.trainer
from scenemem.benchmarks import parts
from scenemem.benchmarks.parts import PARTS, PartClock, watched_parts
from scenemem.benchmarks.workload import Workload
from scenemem.memory.scene_memory import SceneMemory
from scenemem.tasks.episode_set import Batches


def test_an_inner_part_does_not_count_for_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(parts, "now", lambda: now)
    clock = PartClock()

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    def read() -> None:
        pass_time(1.0)
        clock.timed("reasoning", pass_time)(3.0)
        pass_time(2.0)

    pass_time(4.0)
    clock.timed("read", read)()
    seen = {part: share for part, share in clock.shares().items() if share}
    assert seen == {"other": 0.4, "read": pytest.approx(0.3), "reasoning": pytest.approx(0.3)}
    assert clock.part == "other"


def test_a_part_ends_with_an_error_too() -> None:
    clock = PartClock()

    def fail() -> None:
        assert clock.part == "read"
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        clock.timed("read", fail)()
    assert clock.part == "other"


def test_every_part_of_a_training_step_of_the_memory_agent_takes_time(tiny_load: Workload) -> None:
    with watched_parts(tiny_load.trainer.agent, tiny_load.trainer.optimiser) as clock:
        tiny_load.run("mixed", 1)
        shares = clock.shares()
    assert list(shares) == list(PARTS)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share > 0 for share in shares.values()), shares


def test_walking_trains_nothing(tiny_load: Workload) -> None:
    with watched_parts(tiny_load.trainer.agent, tiny_load.trainer.optimiser) as clock:
        tiny_load.run("greedy", 1)
        shares = clock.shares()
    assert shares["backward"] == shares["optimiser"] == 0.0
    assert shares["world"] > 0
    assert shares["navigator"] > 0


def test_observations_are_counted_over_all_walks(tiny_load: Workload) -> None:
    with watched_parts(tiny_load.trainer.agent) as clock:
        tiny_load.run("teacher", 1)
        taught = clock.observations
    rows = next(_batches(tiny_load))
    assert taught == int(tiny_load.trainer.episodes.path_length[rows].sum())
    with watched_parts(tiny_load.trainer.agent) as clock:
        tiny_load.run("mixed", 1)
        assert clock.observations > taught, "the sampled walks as well"


def _batches(load: Workload) -> Batches:
    load.run("greedy", 0)  # back to the first batch
    return load.trainer.batches


def test_the_watched_code_is_put_back(tiny_load: Workload) -> None:
    agent, optimiser = tiny_load.trainer.agent, tiny_load.trainer.optimiser
    before = (SceneMemory.visit, NetworkPolicy.answer, torch.autograd.backward, vars(agent.network.encoder))
    with watched_parts(agent, optimiser):
        assert SceneMemory.visit is not before[0]
        assert scenemem.learning.trainer.collect is not collect  # type: ignore[attr-defined]
        assert scenemem.agents.trained.collect is not collect  # type: ignore[attr-defined]
    assert before[:3] == (SceneMemory.visit, NetworkPolicy.answer, torch.autograd.backward)
    assert scenemem.learning.trainer.collect is collect  # type: ignore[attr-defined]
    assert scenemem.agents.trained.collect is collect  # type: ignore[attr-defined]
    assert "forward" not in vars(agent.network.encoder)
    assert "step" not in vars(optimiser)
    assert "panorama" not in vars(agent.sight)
