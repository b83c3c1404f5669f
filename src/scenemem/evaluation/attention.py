"""Which words an agent listens to while it is led along the reference path.

Shape letters: B lanes, T ticks, L tokens of the longest instruction, H state width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scenemem.agents.collect import FollowLabels, collect
from scenemem.agents.grounded import GroundedNetwork
from scenemem.agents.labels import ReferencePath
from scenemem.agents.network import States, follow
from scenemem.agents.rollout import Rollout
from scenemem.agents.trained import TrainedAgent
from scenemem.models.language import Instructions
from scenemem.tasks.batches import in_order
from scenemem.tasks.episode_set import EpisodeSet

Stream = Literal["perception", "action", "listening"]
STREAMS: tuple[Stream, ...] = ("perception", "action", "listening")
"""The two attentions of the paper's Eq. 5, and the one that every agent has: the navigator's own."""


@dataclass(frozen=True, eq=False)
class Listened:
    """Word attention along the reference paths of a batch."""

    episodes: EpisodeSet
    viewpoint: Tensor  # (B, T) where the agent stood
    alive: Tensor  # (B, T) bool, false after the end of the walk
    tokens: Tensor  # (B,) tokens it could listen to, marks and punctuation included
    words: dict[Stream, Tensor]  # (B, T, L) each, 1 in all over the tokens


def listen_along_reference(
    agent: TrainedAgent,
    episodes: EpisodeSet,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Listened]:
    """Lead an agent along the reference paths (teacher forcing) and note what it listens to on the way.

    Args:
        agent: whose attention, in evaluation mode.
        episodes: goals must be known.
        batch_size: episodes at once.
        progress: called with (episodes done, episodes in all).
    """
    done = 0
    for rows in in_order(len(episodes), batch_size):
        yield _listened(agent, episodes.select(rows))
        done += len(rows)
        if progress is not None:
            progress(done, len(episodes))


@torch.no_grad()
def _listened(agent: TrainedAgent, episodes: EpisodeSet) -> Listened:
    network, rollout = agent.network, _led(agent, episodes)
    was_training = network.training
    network.eval()
    states, heard = _unrolled(agent, rollout, agent.read(episodes.texts))
    words: dict[Stream, Tensor] = {}
    if isinstance(network, GroundedNetwork):
        grounded = network.ground(states)
        if grounded.perception_words is not None and grounded.action_words is not None:
            words = {"perception": grounded.perception_words, "action": grounded.action_words}
    words["listening"] = heard
    network.train(was_training)
    return Listened(episodes, rollout.viewpoint, rollout.alive, states.instructions.mask.sum(1), words)


def _led(agent: TrainedAgent, episodes: EpisodeSet) -> Rollout:
    """The walk along the reference path, as in teacher forcing."""
    world, longest = agent.sight.world, int(episodes.path_length.max())
    space = agent.network.space(world, len(episodes), longest, returns=False)
    rule = ReferencePath(world, episodes.path)
    # a path that crosses itself is walked over known places again
    return collect(world, episodes, space, FollowLabels(), max_ticks=longest * longest, label_rule=rule)


def _unrolled(agent: TrainedAgent, rollout: Rollout, instructions: Instructions) -> tuple[States, Tensor]:
    """The navigator over a walk  ->  its states, its attention over the words (B, T, L)"""
    noise = agent.network.noise(len(rollout.alive))
    unrolling = agent.network.unrolling(agent.sight, instructions, noise, keeps=True)
    follow(unrolling, rollout)
    seating = unrolling.seating
    hidden = torch.cat([step.hidden for step in unrolling.steps])
    heard = torch.cat([step.heard for step in unrolling.steps])
    return States(hidden, seating, instructions, noise), seating.table(heard)
