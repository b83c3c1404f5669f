"""How well a speaker can tell an instruction from the walk it led to: as a reward, and to rank routes.

Shape letters: B episodes, T steps, M routes, R decision steps, N nodes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from scenemem.agents.agent import DecisionPoint
from scenemem.agents.rollout import Decisions, Outputs, Rollout
from scenemem.agents.search import routes_to
from scenemem.features.store import Environment
from scenemem.learning.objectives import Loss, LossContext, a2c
from scenemem.learning.speaker import Steps, views_along
from scenemem.models.modes import evaluating
from scenemem.models.speaker import PathViews, SpeakerNetwork
from scenemem.models.telling import spelled
from scenemem.simulator.panorama import STOP
from scenemem.world.graph import NONE

_AT_ONCE = 512  # routes told together, so that their panoramas are never all in memory


def views_of_walk(environment: Environment, rollout: Rollout) -> PathViews:
    """What was seen along walks, as a speaker wants it; every step of a walk is a hop."""
    return views_along(environment, _hops(environment, rollout.walked, rollout.view))


def _hops(environment: Environment, place: Tensor, view: Tensor) -> Steps:
    """Walks hop by hop.  place: (B, T) viewpoints, padded with -1  view: (B, T) faced there"""
    there = torch.nn.functional.pad(place[:, 1:], (0, 1), value=NONE)
    slot = environment.world.slot_of(place.clamp_min(0), there).masked_fill(there == NONE, STOP)
    return Steps(place, view, slot)


def match_of_routes(speaker: SpeakerNetwork, point: DecisionPoint, row: Tensor, node: Tensor) -> Tensor:
    """Mean log-likelihood of a word of the instruction, given the route of a search to some of its nodes.

    row: (M,) decision steps  node: (M,)  ->  (M,)
    """
    if not len(row):
        return point.state.hidden.new_zeros(0)
    graph, packed = point.memory(), point.observations.instructions
    environment, tokens = point.observations.environment, spelled(packed.instructions).tokens
    text = packed.packing.episode[point.row[row]]
    route = routes_to(graph, row, node)
    place = graph.viewpoint[row].gather(1, route.clamp_min(0)).masked_fill(route == NONE, NONE)
    view = graph.column("view").squeeze(-1).round().long()[row].gather(1, route.clamp_min(0))
    steps, found = _hops(environment, place, view), []
    with torch.no_grad(), evaluating(speaker):
        for part in torch.split(torch.arange(len(row), device=row.device), _AT_ONCE):
            views = views_along(environment, steps.select(part))
            found.append(speaker.likelihood(views, point.feature_mask, tokens[text[part]]).per_word)
    return torch.cat(found)


def matching_critic(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """The critic learns from reference paths: minus the log-likelihood of a word, head ``match``."""
    del rollout, context
    return -outputs.heads["match"][:, 0].mean()


def matched_a2c(rollout: Rollout, outputs: Outputs, context: LossContext) -> Tensor:
    """A2C whose reward for stopping has what the critic says added, head ``intrinsic``."""
    intrinsic = outputs.heads["intrinsic"][:, 0].detach()

    def reward(table: Decisions, rollout: Rollout, inner: LossContext) -> Tensor:
        earned = context.reward(table, rollout, inner)
        return earned + intrinsic[table.episode] * table.stops

    return a2c(rollout, outputs, replace(context, reward=reward))


MATCHING_CRITIC = Loss(matching_critic, walks="teacher")
MATCHED_A2C = Loss(matched_a2c, walks="student")
