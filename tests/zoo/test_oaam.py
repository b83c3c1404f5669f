"""OAAM: what each score may see, and the path loss against a plain reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from scenemem.agents.rollout import ACTION
from scenemem.zoo.fidelity import negative_entropy, path_loss
from scenemem.zoo.oaam import OAAM
from tests.zoo.helpers import Setting, Walk, places_of, roam, with_logits


@pytest.fixture(scope="module")
def agent(setting: Setting) -> OAAM:
    return setting.loud(OAAM, "oaam")


@pytest.fixture(scope="module")
def walk(agent: OAAM, setting: Setting) -> Walk:
    return setting.walk(agent, roam(2))


@torch.no_grad()
def test_objects_are_scored_by_looks_and_actions_by_directions(agent: OAAM, walk: Walk) -> None:
    seen = walk.seen[1]
    plain, found = agent.decouple(seen), seen.candidates

    def other(**changes: Tensor) -> Tensor:
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
    expected = (plain.confidence * plain.mix.unsqueeze(1)).sum(-1)
    torch.testing.assert_close(agent.action_logits(seen), expected)


def test_the_path_loss_is_the_expected_distance_of_the_next_place(setting: Setting, walk: Walk) -> None:
    table, world, terms = walk.rollout.decisions[ACTION], setting.world, []
    for episode, step, logits in zip(table.episode, table.step, table.logits.detach(), strict=True):
        here, path = int(walk.rollout.viewpoint[episode, step]), places_of(setting.episodes.path[episode])
        places = [*world.neighbour[here].tolist(), here]
        chances = zip(logits.softmax(0).tolist(), places, strict=True)
        metres = {
            place: world.geodesic(torch.tensor(place), torch.tensor(path))
            for place in places_of(torch.tensor(places))
        }
        terms.append(sum(p * float(metres[place].min()) for p, place in chances if place != -1))
    loss = path_loss(walk.rollout, setting.context(walk.rollout))
    assert float(loss.detach()) == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert loss.requires_grad


def test_the_entropy_bonus_is_largest_for_doubt(setting: Setting, walk: Walk) -> None:
    context, options = setting.context(walk.rollout), walk.rollout.decisions[ACTION].options
    even = torch.zeros(options.shape).masked_fill(~options, -torch.inf)
    doubt = negative_entropy(with_logits(walk.rollout, ACTION, even), context)
    torch.testing.assert_close(doubt, -options.sum(1).float().log().sum() / len(walk.rollout.alive))
    assert float(negative_entropy(walk.rollout, context).detach()) > float(doubt)
