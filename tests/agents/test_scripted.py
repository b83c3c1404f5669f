from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scenemem.learning.objectives import ClosestToGoal, ReferencePath
from scenemem.agents.scripted import Agent, ExpertAgent, RandomAgent, StopAgent
from scenemem.evaluation.evaluate import walk_split
from scenemem.evaluation.score import score_trajectories
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World


def _agent(world: World, name: str) -> Agent:
    agents: dict[str, Agent] = {
        "shortest": ExpertAgent(world, lambda episodes: ClosestToGoal(world, episodes.goal)),
        "reference": ExpertAgent(world, lambda episodes: ReferencePath(world, episodes.path)),
        "random": RandomAgent(world, torch.Generator().manual_seed(0)),
        "stop": StopAgent(world),
    }
    return agents[name]


def _metrics(data: Path, split: str, agent: str) -> dict[str, float]:
    world = load_world(data / "connectivity")
    episodes = load_split(DataFolder(data), world, "r2r", split)
    return walk_split(_agent(world, agent), episodes).measured(world).means()


@pytest.mark.parametrize("expert", ["shortest", "reference"])
@pytest.mark.parametrize("split", ["train", "val_seen", "val_unseen"])
def test_experts_succeed_by_the_shortest_way(tiny_data: Path, expert: str, split: str) -> None:
    metrics = _metrics(tiny_data, split, expert)
    # the grids have several shortest paths, so only the reference expert is sure to walk the reference
    along = ("cls", "ndtw", "sdtw") if expert == "reference" else ()
    for name in ("sr", "osr", "spl", "spl_ref", *along):
        assert metrics[name] == pytest.approx(1.0), name
    assert metrics["ne"] == 0.0


def test_the_stop_agent_never_moves(tiny_data: Path) -> None:
    metrics = _metrics(tiny_data, "train", "stop")
    assert metrics["tl"] == 0.0
    assert metrics["sr"] < 0.2


def test_random_walks_repeat_with_their_seed_and_have_five_hops(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "train")

    def walks(seed: int) -> list[list[int]]:
        agent = RandomAgent(world, torch.Generator().manual_seed(seed))
        return walk_split(agent, episodes, batch_size=7).viewpoint.tolist()

    assert walks(3) == walks(3)
    assert walks(3) != walks(4)
    assert {len(walk) for walk in walks(3)} == {6}


def test_a_random_agent_with_nowhere_to_go_stops(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "train").select([0])
    alone = torch.tensor([world.index_of("grid", "g-alone")])
    walked = walk_split(_agent(world, "random"), replace(episodes, start=alone))
    assert walked.viewpoint.tolist() == [alone.tolist()]


def test_a_negative_number_of_hops_is_refused(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    with pytest.raises(ValueError, match="hops must be 0 or more, got -1; use 0 to stop at once"):
        RandomAgent(world, torch.Generator(), hops=-1)


def test_walks_become_trajectories_that_can_be_scored(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "val_seen")
    calls: list[tuple[int, int]] = []
    walked = walk_split(
        _agent(world, "random"), episodes, batch_size=4, progress=lambda *args: calls.append(args)
    )
    assert calls[-1] == (len(episodes), len(episodes))
    scores = score_trajectories(world, episodes, walked.trajectories(world))
    assert scores.missing == 0
    assert scores.metrics.means() == walked.measured(world).means()


@pytest.mark.real_data
@pytest.mark.parametrize("split", ["train", "val_seen", "val_unseen"])
def test_reference_experts_are_perfect_on_real_r2r(real_data: Path, split: str) -> None:
    metrics = _metrics(real_data, split, "reference")
    assert metrics["sr"] == 1.0
    assert metrics["spl_ref"] == pytest.approx(1.0)
    assert metrics["cls"] == pytest.approx(1.0)
    assert metrics["ndtw"] == pytest.approx(1.0)


@pytest.mark.real_data
def test_shortest_path_experts_are_perfect_on_real_r2r(real_data: Path) -> None:
    metrics = _metrics(real_data, "val_unseen", "shortest")
    assert metrics["sr"] == 1.0
    assert metrics["spl"] == pytest.approx(1.0)
