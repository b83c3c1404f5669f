"""OAAM: what each score may see, and the path loss against a plain reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scenemem.agents.agent import recorded_observations
from scenemem.agents.rollout import ACTION, Outputs
from scenemem.features.store import CandidateFeatures
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from scenemem.zoo.fidelity import metres_to_path, negative_entropy, path_loss
from scenemem.zoo.oaam import OAAM
from tests.zoo.helpers import Setting, roam


def test_objects_are_scored_by_looks_and_actions_by_directions(setting: Setting) -> None:
    agent = setting.loud_agent("oaam")
    assert isinstance(agent, OAAM)
    rollout, log = setting.walk(agent, roam())
    with torch.no_grad():
        seen = recorded_observations(setting.environment, log, rollout)
        plain = agent.decouple(seen)
        found: CandidateFeatures = seen.candidates

        def other(**changes: torch.Tensor) -> torch.Tensor:
            observations = replace(seen, cache={})
            observations.__dict__["candidates"] = replace(found, **changes)
            return agent.decouple(observations).confidence

        looks = other(visual=torch.randn_like(found.visual))
        lies = other(orientation=torch.randn_like(found.orientation))
    torch.testing.assert_close(looks[..., 1], plain.confidence[..., 1])
    torch.testing.assert_close(lies[..., 0], plain.confidence[..., 0])
    assert not torch.allclose(looks[..., 0], plain.confidence[..., 0])
    assert not torch.allclose(lies[..., 1], plain.confidence[..., 1])
    assert not plain.confidence[:, -1].any(), "stop is a row of zeros"
    torch.testing.assert_close(plain.mix.sum(1), torch.ones(len(plain.mix)))
    logits = agent.action_logits(seen)
    torch.testing.assert_close(logits, (plain.confidence * plain.mix.unsqueeze(1)).sum(-1))


def test_metres_to_a_path_are_those_to_its_nearest_viewpoint(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 11))
    places = world.neighbour[some.start]
    found = metres_to_path(world, places, some.path)
    for row in range(len(some)):
        path = some.path[row, : int(some.path_length[row])]
        for slot, place in enumerate(places[row].tolist()):
            expected = 0.0 if place == -1 else float(world.geodesic(torch.tensor(place), path).min())
            assert float(found[row, slot]) == pytest.approx(expected)


def test_the_path_loss_is_the_expected_distance_of_the_next_place(setting: Setting) -> None:
    agent = setting.loud_agent("oaam")
    rollout, log = setting.walk(agent, roam(2))
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    table, world, terms = rollout.decisions[ACTION], setting.world, []
    for row, logits in enumerate(outputs.logits[ACTION].detach()):
        episode = int(table.episode[row])
        here = int(rollout.viewpoint[episode, table.step[row]])
        path = setting.episodes.path[episode, : int(setting.episodes.path_length[episode])]
        chance = logits.softmax(0).tolist()
        places = [*world.neighbour[here].tolist(), here]
        terms.append(
            sum(
                p * float(world.geodesic(torch.tensor(place), path).min())
                for p, place in zip(chance, places, strict=True)
                if place != -1
            )
        )
    loss = path_loss(rollout, outputs, setting.context(rollout))
    assert float(loss.detach()) == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert loss.requires_grad


def test_the_entropy_bonus_is_largest_for_doubt(setting: Setting) -> None:
    agent = setting.loud_agent("oaam")
    rollout, log = setting.walk(agent, roam(2))
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    options = rollout.decisions[ACTION].options
    even = torch.zeros_like(options, dtype=torch.float).masked_fill(~options, -torch.inf)
    doubt = negative_entropy(rollout, Outputs({ACTION: even}, {}), setting.context(rollout))
    expected = -options.sum(1).float().log().sum() / len(rollout.alive)
    torch.testing.assert_close(doubt, expected)
    assert float(negative_entropy(rollout, outputs, setting.context(rollout)).detach()) > float(doubt)
