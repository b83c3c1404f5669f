"""Experts, the random walker, and the agent that never moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scenemem.agents.scripted import ExpertAgent, RandomAgent
from scenemem.agents.walker import Walker
from scenemem.evaluation.metrics import measure
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import ClosestToGoal, ReferencePath
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World


def _agent(world: World, name: str) -> Walker:
    agents: dict[str, Walker] = {
        "shortest": ExpertAgent(world, lambda episodes: ClosestToGoal(world, episodes.goal)),
        "reference": ExpertAgent(world, lambda episodes: ReferencePath(world, episodes.path)),
        "random": RandomAgent(world, torch.Generator().manual_seed(0)),
        "stop": RandomAgent(world, torch.Generator(), hops=0),
    }
    return agents[name]


def _metrics(data: Path, split: str, agent: str) -> dict[str, float]:
    world = load_world(data / "connectivity")
    episodes = load_split(DataFolder(data), world, "r2r", split)
    return measure(world, _agent(world, agent).walk(episodes).walked, episodes.path).means()


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


def test_random_walks_repeat_with_their_seed_and_have_five_hops(world: World, episodes: EpisodeSet) -> None:
    def walks(seed: int) -> list[list[int]]:
        rollout = RandomAgent(world, torch.Generator().manual_seed(seed)).walk(episodes)
        assert rollout.stopped.all()
        return rollout.walked.tolist()

    assert walks(3) == walks(3)
    assert walks(3) != walks(4)
    assert {len([place for place in walk if place >= 0]) for walk in walks(3)} == {6}
    alone = torch.tensor([world.index_of("grid", "g-alone")])
    rollout = _agent(world, "random").walk(replace(episodes.select([0]), start=alone))
    assert rollout.walked.tolist() == [alone.tolist()], "with nowhere to go it stops"
    assert rollout.stopped.all()
