"""Regretful: marks, regret and the block of oscillations against plain references."""

from __future__ import annotations

import pytest
import torch

from scenemem.agents.rollout import ACTION
from scenemem.agents.walker import collect
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from scenemem.zoo.place_actions import RememberingActions
from scenemem.zoo.regretful import MARKS, Regretful
from tests.zoo.helpers import Noting, Setting, roam


@torch.no_grad()
@pytest.mark.parametrize("name", ["regretful", "regretful-as-published"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    """One decision after the other, with plain loops over the walk."""
    agent = setting.loud(Regretful, name)
    walk = setting.walk(agent, roam(1), learning=True)
    table, world, progress = walk.rollout.decisions[ACTION], setting.world, walk.heads["progress"]
    checked, backs = 0, 0
    for row in range(0, len(table.episode), 7):
        episode, step = int(table.episode[row]), int(table.step[row])
        seen, own = walk.at(episode, step)
        embedded, query = agent.embedded(seen)[own], agent.query(seen)[own]
        places_walked = walk.rollout.viewpoint[episode, : step + 1].tolist()
        marks = {place: float(progress[episode, t]) for t, place in enumerate(places_walked)}
        now, before = float(progress[episode, step]), float(progress[episode, step - 1]) if step else 0.0
        places = world.neighbour[places_walked[-1]].tolist()
        stop = len(places)
        back = places.index(places_walked[-2]) if step else stop
        weights = agent.regret(torch.tensor([now - before])).softmax(0)
        move = agent.move(weights[0] * embedded[back] + weights[1] * query)
        for option in table.options[row].nonzero().squeeze(1).tolist():
            mark = 0.0 if option == stop else marks.get(places[option], 1.0)
            whole = torch.cat([embedded[option], torch.full((MARKS,), now - mark)])
            assert float(table.logits[row, option]) == pytest.approx(float(whole @ move), abs=1e-3)
            checked += 1
        backs += len(set(places_walked)) < len(places_walked)
    assert checked > 30
    assert backs > 3, "walks that came back are among them"


@pytest.mark.parametrize("block", [False, True])
def test_a_step_back_is_not_repeated_at_once(block: bool, world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 7))
    policy = Noting(lambda request, _: request.options.int().argmax(dim=1))  # back and forth
    space = RememberingActions(world, len(some), 12, block=block)
    rollout = collect(world, some, space, policy, max_steps=40)
    for episode, walk in enumerate(rollout.viewpoint.tolist()):
        for step in range(int(rollout.length[episode]) - 1):
            offered = policy.noted[step][0].options[episode]
            came_back = step >= 2 and walk[step - 2] == walk[step]
            for slot, place in enumerate(world.neighbour[walk[step]].tolist()):
                blocked = block and came_back and place == walk[step - 1]
                assert bool(offered[slot]) == (place != -1 and not blocked)
    oscillates = (rollout.viewpoint[:, 3:] == rollout.viewpoint[:, 1:-2]) & rollout.alive[:, 3:]
    again = oscillates & (rollout.viewpoint[:, 2:-1] == rollout.viewpoint[:, :-3])
    assert bool(again.any()) != block


def test_regret_and_progress_are_shown(setting: Setting) -> None:
    walk = setting.walk(setting.loud(Regretful, "regretful"), roam())
    numbers = walk.answers[1].explanation.numbers
    assert numbers.keys() == {"progress", "regret"}
    assert 0 < float(numbers["regret"].min()) < float(numbers["regret"].max()) < 1
