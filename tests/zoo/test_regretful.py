"""Regretful: marks, regret and the block of oscillations against plain references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION
from scenemem.agents.walker import Decided, collect
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from scenemem.zoo.place_actions import RememberingActions
from scenemem.zoo.regretful import MARKS, Regretful
from tests.zoo.helpers import Setting, roam


@pytest.mark.parametrize("name", ["regretful", "regretful-as-published"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    """One decision after the other, with plain loops over the walk."""
    agent = setting.loud_agent(name)
    assert isinstance(agent, Regretful)
    rollout, log = setting.walk(agent, roam(1), learning=True)
    with torch.no_grad():
        outputs = agent.evaluate_actions(rollout, log, setting.environment)
        table, world = rollout.decisions[ACTION], setting.world
        progress = outputs.heads["progress"]
        from scenemem.agents.agent import recorded_observations

        observations = recorded_observations(setting.environment, log, rollout)
        embedded, query = agent.embedded(observations), agent.query(observations)
        checked, backs = 0, 0
        for row in range(0, len(table.episode), 7):
            episode, step = int(table.episode[row]), int(table.step[row])
            walk = rollout.viewpoint[episode, : step + 1].tolist()
            marks = {place: float(progress[episode, t]) for t, place in enumerate(walk)}
            now, before = float(progress[episode, step]), float(progress[episode, step - 1]) if step else 0.0
            places = world.neighbour[walk[-1]].tolist()
            stop = len(places)
            back = places.index(walk[-2]) if step else stop
            own = int(log.row_at[episode, step])
            weights = agent.regret(torch.tensor([now - before])).softmax(0)
            move = agent.move(weights[0] * embedded[own, back] + weights[1] * query[own])
            for option in range(stop + 1):
                if not bool(table.options[row, option]):
                    continue
                mark = 0.0 if option == stop else marks.get(places[option], 1.0)
                whole = torch.cat([embedded[own, option], torch.full((MARKS,), now - mark)])
                expected = float(whole @ move)
                assert float(outputs.logits[ACTION][row, option]) == pytest.approx(expected, abs=1e-3)
                checked += 1
            backs += len(set(walk)) < len(walk)
    assert checked > 30
    assert backs > 3, "walks that came back are among them"


class _BackAndForth:
    """Always takes the first option there is, and notes what was offered."""

    def __init__(self) -> None:
        self.offered: list[Tensor] = []

    def observe(self, *_: object) -> None:
        pass

    def decide(self, request: object, *_: object) -> Tensor:
        options: Tensor = request.options  # type: ignore[attr-defined]
        self.offered.append(options)
        return options.int().argmax(dim=1)


@pytest.mark.parametrize("block", [False, True])
def test_a_step_back_is_not_repeated_at_once(block: bool, world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 7))
    space = RememberingActions(world, len(some), 12, block=block)
    policy = _BackAndForth()
    rollout = collect(world, some, space, policy, max_steps=40)
    for episode, walk in enumerate(rollout.viewpoint.tolist()):
        length = int(rollout.length[episode])
        for step in range(length - 1):
            offered = policy.offered[step][episode]
            came_back = step >= 2 and walk[step - 2] == walk[step]
            for slot, place in enumerate(world.neighbour[walk[step]].tolist()):
                blocked = block and came_back and place == walk[step - 1]
                assert bool(offered[slot]) == (place != -1 and not blocked)
    oscillates = (rollout.viewpoint[:, 3:] == rollout.viewpoint[:, 1:-2]) & rollout.alive[:, 3:]
    again = oscillates & (rollout.viewpoint[:, 2:-1] == rollout.viewpoint[:, :-3])
    assert bool(again.any()) != block


def test_regret_and_progress_are_shown(setting: Setting) -> None:
    agent = setting.loud_agent("regretful")
    seen: list[Decided] = []

    class Watcher:
        def observed(self, *_: object) -> None:
            pass

        def decided(self, decided: Decided, /) -> None:
            seen.append(decided)

    setting.walk(agent, roam(), watcher=Watcher())
    numbers = seen[1].explanation.numbers
    assert numbers.keys() == {"progress", "regret"}
    assert 0 < float(numbers["regret"].min()) < float(numbers["regret"].max()) < 1
