"""The one loop of every agent: observe, decide, hop - until every lane has stopped or was cut off."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from scenemem.agents.labels import LabelRule
from scenemem.agents.rollout import Question, Recorder, Rollout
from scenemem.agents.spaces import ActionSpace
from scenemem.simulator.panorama import Pose, Simulator
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World


class Policy(Protocol):
    """Whoever answers the questions of a rollout."""

    def observe(self, pose: Pose, lanes: Tensor, space: ActionSpace, /) -> None:
        """Lanes ``lanes`` (M,) have a new observation: where they stand now."""

    def answer(self, question: Question, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """The chosen option of every lane asked: (M,). ``label`` is for teachers, -1 when unknown."""


class FollowLabels:
    """The teacher: always does what is right and needs no network."""

    def observe(self, _pose: Pose, _lanes: Tensor, _space: ActionSpace, /) -> None:
        """A teacher does not look."""

    def answer(self, _question: Question, label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        """(M,) the labels"""
        return label


def collect(
    world: World,
    episodes: EpisodeSet,
    space: ActionSpace,
    policy: Policy,
    *,
    max_ticks: int | Tensor,
    label_rule: LabelRule | None = None,
) -> Rollout:
    """Walk ``episodes`` with ``policy``; nothing here loops over lanes.

    Args:
        world: the world to walk in.
        episodes: one per lane of ``space``.
        space: what can be chosen; fresh, it remembers the walk.
        policy: who chooses.
        max_ticks: a lane that has observed this often is cut off, wherever it was bound; one number, or (B,).
        label_rule: without one no labels and no distances are recorded, and goals may be unknown.
    """
    simulator, recorder = Simulator(world, check=False), Recorder()
    pose = simulator.reset(episodes.start, episodes.heading)

    def ask(question: Question) -> Tensor:
        places = torch.cat([pose.viewpoint[question.lanes].unsqueeze(1), question.place], dim=1)
        distance = torch.full(places.shape, torch.nan, device=places.device)
        label = torch.full_like(question.lanes, NONE)
        if label_rule is not None:
            distance = label_rule.metres(places, question.lanes)
            if question.kind != "last":  # which is never learnt
                label = label_rule(question, space, distance)
        choice = policy.answer(question, label, pose, space)
        recorder.decision(question, choice, label, distance)
        return choice

    limit = torch.as_tensor(max_ticks, device=world.device).expand(len(episodes))
    for tick in range(int(limit.max())):
        lanes = (~pose.done).nonzero().squeeze(1)
        if not len(lanes):
            break
        pose = space.arrive(pose, lanes)
        policy.observe(pose, lanes, space)
        if label_rule is not None:
            label_rule.arrive(pose.viewpoint[lanes], lanes)
        _record_tick(recorder, pose, space)
        lanes = lanes[limit[lanes] > tick + 1]  # what is decided at the last observation is not carried out
        if not len(lanes):
            break
        pose = simulator.step(pose, space.tick(pose, lanes, ask))
    return recorder.finished(space.memory)


def _record_tick(recorder: Recorder, pose: Pose, space: ActionSpace) -> None:
    memory = space.memory
    known = () if memory is None else (memory.here.clone(), memory.count.clone())
    recorder.tick(pose.viewpoint, pose.view, ~pose.done, space.seen.clone(), *known)
