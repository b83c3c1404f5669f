from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scenemem.agents.scripted import Agent, RandomAgent, ReferenceExpert, ShortestPathExpert, StopAgent
from scenemem.evaluation.score import score_trajectories
from scenemem.evaluation.walk import walk_episodes
from scenemem.formats.folder import DataFolder
from scenemem.simulator.panorama import STOP, Stance
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world


def _metrics(data: Path, split: str, agent_name: str) -> dict[str, float]:
    world = load_world(data / "connectivity")
    agents: dict[str, Agent] = {
        "shortest": ShortestPathExpert(world),
        "reference": ReferenceExpert(world),
        "random": RandomAgent(world, torch.Generator().manual_seed(0)),
        "stop": StopAgent(),
    }
    episodes = load_split(DataFolder(data), world, "r2r", split)
    return score_trajectories(world, episodes, walk_episodes(world, episodes, agents[agent_name])).means()


@pytest.mark.parametrize("expert", ["shortest", "reference"])
@pytest.mark.parametrize("split", ["train", "val_seen", "val_unseen"])
def test_experts_succeed_by_the_shortest_way(tiny_data: Path, expert: str, split: str) -> None:
    metrics = _metrics(tiny_data, split, expert)
    for name in ("sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"):
        assert metrics[name] == pytest.approx(1.0), name
    assert metrics["ne"] == 0.0


def test_the_stop_agent_never_moves(tiny_data: Path) -> None:
    metrics = _metrics(tiny_data, "train", "stop")
    assert metrics["tl"] == 0.0
    assert metrics["sr"] < 0.2


def test_random_walks_repeat_with_their_seed_and_have_five_hops(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "train")

    def walks(seed: int) -> list[list[str]]:
        agent = RandomAgent(world, torch.Generator().manual_seed(seed))
        return [[p.viewpoint for p in t.points] for t in walk_episodes(world, episodes, agent, batch_size=7)]

    assert walks(3) == walks(3)
    assert walks(3) != walks(4)
    assert {len(walk) for walk in walks(3)} == {6}


def test_a_random_agent_with_nowhere_to_go_stops(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    alone = torch.tensor([world.index_of("grid", "g-alone")])
    agent = RandomAgent(world, torch.Generator().manual_seed(0))
    agent.begin(load_split(DataFolder(tiny_data), world, "r2r", "train").select([0]))
    assert agent.act(Stance(alone, torch.zeros_like(alone), alone < 0)).tolist() == [STOP]


def test_a_negative_number_of_hops_is_refused(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    with pytest.raises(ValueError, match="hops must be 0 or more, got -1; use 0 to stop at once"):
        RandomAgent(world, torch.Generator(), hops=-1)


def test_an_agent_that_never_stops_is_stopped(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "val_seen")
    endless = RandomAgent(world, torch.Generator().manual_seed(0), hops=1000)
    calls: list[tuple[int, int]] = []
    walked = walk_episodes(
        world, episodes, endless, max_hops=9, batch_size=4, progress=lambda *args: calls.append(args)
    )
    assert {len(trajectory.points) for trajectory in walked} == {10}
    assert calls[-1] == (len(episodes), len(episodes))


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
