"""Every episode ends in exactly one way, and its facts are those of the walk."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from scenemem.agents.agent import LocalActions
from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import FollowLabels, collect
from scenemem.evaluation.evaluate import Walks, episode_results, walk_split
from scenemem.formats.episodes import EpisodeRecord
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import ClosestToGoal
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes, load_split
from scenemem.world.graph import NONE, World

ROUTE = ("g00", "g10", "g20", "g30")  # 2 m steps; the goal is 6 m away

# walk -> whether the agent stopped itself, how it ended
WALKS: dict[tuple[str, ...], tuple[bool, str]] = {
    ROUTE: (True, "reached"),
    ROUTE[:3]: (True, "reached"),
    (*ROUTE, "g20", "g10"): (True, "passed"),
    ("g00",): (True, "early"),
    ("g00", "g10"): (True, "early"),
    ("g00", "g01", "g02"): (True, "astray"),
    ("g00", "g10", "g00", "g10"): (False, "cut"),
    (*ROUTE, "g20", "g10", "g00"): (False, "passed"),
    ("g00", "g00", "g10", "g20", "g30"): (False, "reached"),
}


@pytest.fixture(scope="module")
def walks(world: World) -> Walks:
    episode = EpisodeRecord(
        scan="grid",
        path_id=1,
        path=ROUTE,
        heading=0.0,
        instructions=tuple(f"Walk {number}, please." for number in range(len(WALKS))),
        instruction_ids=tuple(f"1_{number}" for number in range(len(WALKS))),
    )
    episodes = bind_episodes(world, [episode], "test", name="test")
    places = [torch.tensor([world.index_of("grid", name) for name in walk]) for walk in WALKS]
    viewpoint = torch.nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=NONE)
    stopped = torch.tensor([stopped for stopped, _ in WALKS.values()])
    return Walks(episodes, viewpoint, torch.zeros_like(viewpoint), torch.arange(len(WALKS)), stopped)


def test_results_are_those_of_the_walk_and_the_instruction(world: World, walks: Walks) -> None:
    results = episode_results(world, walks, checkpoint="best", iteration=7)
    metrics = walks.measured(world)
    assert [result.outcome for result in results] == [outcome for _, outcome in WALKS.values()]
    assert [result.instr_id for result in results] == [f"1_{number}" for number in range(len(WALKS))]
    assert {(result.checkpoint, result.iteration) for result in results} == {("best", 7)}
    assert [result.hops for result in results] == [sum(a != b for a, b in pairwise(walk)) for walk in WALKS]
    assert [result.jumps for result in results] == list(range(len(WALKS)))
    assert {result.words for result in results} == {5}, "words, numbers and punctuation"
    for name in ("tl", "ne", "sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw"):
        assert [getattr(result, name) for result in results] == getattr(metrics, name).tolist()
    assert results[0].reference == pytest.approx(results[0].tl)


class _Expert:
    """Walks to the goal, as far as it may."""

    def __init__(self, world: World, max_decisions: int, max_steps: int) -> None:
        self.world, self.max_decisions, self.max_steps = world, max_decisions, max_steps

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        space = LocalActions(self.world, len(episodes), self.max_decisions)
        rule = ClosestToGoal(self.world, episodes.goal)
        return collect(self.world, episodes, space, FollowLabels(), max_steps=self.max_steps, label_rule=rule)


@pytest.mark.parametrize(("max_decisions", "max_steps"), [(2, 40), (40, 3)])
def test_episodes_that_are_cut_off_did_not_stop(
    max_decisions: int, max_steps: int, world: World, tiny_data: Path
) -> None:
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "val_unseen")
    cut, whole = (
        walk_split(_Expert(world, *limits), episodes, batch_size=5)
        for limits in ((max_decisions, max_steps), (40, 40))
    )
    assert bool(((cut.viewpoint != NONE).sum(dim=1) == 3).all())
    assert not cut.stopped.any()
    assert whole.stopped.tolist() == [True] * len(episodes), "over all batches"
