from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from scenemem.evaluation.evaluate import Walked
from scenemem.experiment import Experiment
from scenemem.viewer.stories import Chosen, instructive
from scenemem.world.graph import NONE

Make = Callable[..., Experiment]


def _walked(made: Experiment, walks: dict[int, str], jumps: dict[int, int]) -> Walked:
    """Walks of the first instruction of every route: there, past the goal and back, or nowhere."""
    episodes = made.episodes("train")
    rows = torch.arange(0, len(episodes), 3)
    episodes = episodes.select(rows)
    path = episodes.path
    viewpoint = torch.full((len(episodes), 2 * path.shape[1]), NONE)
    for row in range(len(episodes)):
        there = path[row, : episodes.path_length[row]]
        back = there.flip(0)[1:]
        walk = {"there": there, "past": torch.cat([there, back]), "nowhere": there[:1]}[
            walks.get(row, "there")
        ]
        viewpoint[row, : len(walk)] = walk
    jumped = torch.tensor([jumps.get(row, 0) for row in range(len(episodes))])
    return Walked(episodes, viewpoint, torch.zeros_like(viewpoint), jumped)


def test_each_kind_of_story_gets_its_turn(experiment: Make) -> None:
    made = experiment("basic")
    walked = _walked(made, {1: "past", 2: "nowhere", 4: "nowhere"}, {0: 1, 3: 2})
    chosen = instructive(walked, made.sight.world, 10)
    assert [item.story for item in chosen[:3]] == ["fixed", "wrong stop", "lost"]
    assert chosen[0] == Chosen(0, "fixed"), "one return is plainer than two"
    assert Chosen(3, "fixed") in chosen
    assert {item.row for item in chosen if item.story == "lost"} == {2, 4}
    assert len(chosen) == 5, "who went straight there has no story"
    assert instructive(walked, made.sight.world, 2) == chosen[:2]


def test_where_two_agents_differ_comes_first(experiment: Make) -> None:
    made = experiment("basic")
    walked = _walked(made, {}, {0: 1, 3: 2})
    rival = _walked(made, {3: "nowhere"}, {})
    assert instructive(walked, made.sight.world, 1, rival) == [Chosen(3, "fixed")]


def test_a_route_is_shown_once(experiment: Make) -> None:
    made = experiment("basic")
    episodes = made.episodes("val_unseen")  # three instructions per route
    start = episodes.start.unsqueeze(1)
    walked = Walked(episodes, start, torch.zeros_like(start), torch.zeros(len(episodes), dtype=torch.long))
    chosen = instructive(walked, made.sight.world, 1000)
    assert len(chosen) == len(set(episodes.record.tolist()))
    assert {item.story for item in chosen} == {"lost"}


@pytest.mark.parametrize("name", ["ssm"])
def test_nothing_to_tell_is_nothing(name: str, experiment: Make) -> None:
    made = experiment(name)
    assert instructive(_walked(made, {}, {}), made.sight.world, 3) == []
