"""Led along the reference paths, how often would an agent have chosen what is right there?

A walk tells how one mistake leads to the next; this tells which kind of decision the mistakes begin with. The
agent sees what the teacher sees and decides nothing. Along a reference path the place of here is always the
right frontier, so for frontier decisions the share is how often the agent stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import AgentPolicy, TrainedAgent, Watcher, collect, evaluating, take_best
from scenemem.errors import UserError
from scenemem.learning.objectives import ReferencePath
from scenemem.models.navigator import RolloutInputs
from scenemem.tasks.episode_set import EpisodeSet, in_order
from scenemem.world.build import Progress


@dataclass(frozen=True)
class Agreement:
    """How often the likeliest option was the right one."""

    decisions: str  # which ones: a type of decision, and whether the right option stops
    right: int
    of: int

    @property
    def share(self) -> float:
        """Of the decisions, those that were right."""
        return self.right / self.of


def measure_following(
    agent: TrainedAgent, episodes: EpisodeSet, *, batch_size: int = 256, progress: Progress | None = None
) -> list[Agreement]:
    """Lead an agent along the reference paths and ask at every decision what it would have chosen.

    Goals must be known; ``progress`` is called with (episodes done, episodes in all).
    """
    right, of = dict[str, int](), dict[str, int]()
    for rows in in_order(len(episodes), batch_size, progress):
        for name, agrees in _asked(agent, episodes.select(rows)):
            right[name] = right.get(name, 0) + int(agrees.sum())
            of[name] = of.get(name, 0) + len(agrees)
    return [Agreement(name, right[name], of[name]) for name in sorted(of) if of[name]]


def _asked(agent: TrainedAgent, episodes: EpisodeSet) -> Iterator[tuple[str, Tensor]]:
    """Names of decisions, and whether the agent would have chosen what is right (M,)."""
    for kind, decisions in led(agent, episodes).learned.items():
        known = decisions.label >= 0
        agrees = decisions.logits.argmax(dim=1) == decisions.label
        if kind.over_nodes or kind.auxiliary:  # which neither stop nor move on
            yield f"{kind}: stay" if kind.over_nodes else str(kind), agrees[known]
            continue
        yield f"{kind}: go on", agrees[known & ~decisions.stops]
        yield f"{kind}: stop", agrees[known & decisions.stops]


def path_likelihood(agent: TrainedAgent, episodes: EpisodeSet) -> Tensor:
    """How likely an agent led along the reference paths finds what is right there.

    ->  (B,) mean log-probability of a decision
    """
    rollout = led(agent, episodes)
    total = torch.zeros(len(episodes), device=rollout.alive.device)
    taken = torch.zeros_like(total)
    for decisions in rollout.learned.values():
        known = (decisions.label >= 0).to(total)
        chances = decisions.logits.log_softmax(dim=1)
        right = chances.gather(1, decisions.label.clamp_min(0).unsqueeze(1)).squeeze(1)
        total.index_add_(0, decisions.episode, right.masked_fill(known == 0, 0.0))
        taken.index_add_(0, decisions.episode, known)
    return total / taken.clamp_min(1)


@torch.no_grad()
def led(agent: TrainedAgent, episodes: EpisodeSet, watcher: Watcher | None = None) -> Rollout:
    """The walk along the reference paths, as in teacher forcing, scored by an agent.

    Raises:
        UserError: the agent has low-level actions, so that a path does not say what is right.
    """
    network, world, longest = agent.network, agent.environment.world, int(episodes.path_length.max())
    if not network.follows_reference:
        raise UserError("this agent turns and steps; only agents that choose viewpoints are led along paths")
    with evaluating(network):
        masks = network.dropout_masks(len(episodes))
        inputs = RolloutInputs(agent.environment, agent.read(episodes.texts), masks)
        forced = torch.ones(len(episodes), dtype=torch.bool, device=world.device)
        policy = AgentPolicy(network, inputs, take_best, forced=forced, watcher=watcher)
        # a path that crosses itself is walked over known places again
        rollout = collect(
            world,
            episodes,
            network.action_space(world, len(episodes), longest, learning=True),
            policy,
            max_steps=longest * longest,
            label_rule=ReferencePath(world, episodes.path),
        )
        policy.check_scores()
    return rollout
