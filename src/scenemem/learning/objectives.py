"""Objectives: how long an agent learns, what would have been right, what is earned, and what it costs.

A loss is a function of a rollout and a context (paper, section 3.4); it is registered under a name, and a
stage gives it a weight. Label rules and rewards are chosen by name, too. Shape letters: B
episodes, T steps, M decisions of one type, X of all types, O options, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionRequest, Decisions, DecisionType, Rollout
from scenemem.agents.walker import LabelRule
from scenemem.errors import SettingError
from scenemem.registry import Registry
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet
from scenemem.world.graph import NONE, World


@dataclass(frozen=True)
class RewardConfig:
    """What an agent earns."""

    rule: str = "distance"
    """name of the reward rule; distance pays for getting closer to the goal"""
    quantised: bool = True
    """+1 for closer, -1 for farther, as the paper's baseline; False pays the metres, as the paper"""
    success: float = 2.0
    """for stopping within 3 m of the goal"""
    failure: float = -2.0
    """for stopping elsewhere, as the paper's baseline; 0 rewards success only, as the paper"""
    discount: float = 0.9
    """per decision"""

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise SettingError(f"discount must be in [0, 1], got {self.discount}")


@dataclass(frozen=True)
class Stage:
    """A stretch of training with its own mix of losses."""

    name: str = "mixed"
    """for logs"""
    share: float = 1.0
    """of all iterations, relative to the other stages"""
    losses: dict[str, float] = field(default_factory=lambda: {"teacher_forcing": 1.0, "a2c": 1.0})
    """weight of every loss by its name; losses that are not named are left out"""
    augmented: dict[str, float] = field(default_factory=dict)
    """the same for a further batch of augmented episodes; alone, nothing else is learnt from"""
    teacher_frontier: float = 0.2
    """weight of the frontier decisions within teacher forcing, where "stay" is always right"""
    student_frontier: float = 1.0
    """weight of the frontier decisions within student forcing"""

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise SettingError(f"the share of stage '{self.name}' must be positive, got {self.share}")
        if not any(self.losses.values()) and not any(self.augmented.values()):
            raise SettingError(
                f"stage '{self.name}' has no loss; give one a weight, for example teacher_forcing"
            )


@dataclass(frozen=True)
class LearningConfig:
    """The course of a training run."""

    iterations: int = 2000
    """optimiser steps"""
    batch: int = 64
    """episodes per step"""
    optimiser: Literal["adamw", "adam", "rmsprop"] = "adamw"
    """rmsprop is that of the paper's baseline"""
    learning_rate: float = 1e-3
    """at the start"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """whether the learning rate falls to 0 along a cosine or stays"""
    weight_decay: float = 0.01
    """of the optimiser"""
    clip: float = 40.0
    """largest norm of all gradients together"""
    average: float = 0.0
    """decay per step of the averaged weights, which are then validated and kept; 0 keeps the last ones"""
    max_decisions: int = 15
    """decisions before a walk sampled while learning is cut off; the critic says what was still to come"""
    max_steps: int = 40
    """observations before such a walk is cut off"""
    labels: str = "goal"
    """label rule on sampled walks, and of the teachers of low-level actions: goal is the shortest way to it,
    nearest the frontier and sub-node nearest to it, path the rest of the reference path"""
    teacher_hops: int = 0
    """an episode this many hops off the reference path, or more, follows its labels; 0 never intervenes"""
    entropy: float = 0.01
    """weight of the entropy bonus in A2C"""
    value: float = 0.5
    """weight of the value error in A2C"""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """what is earned"""
    stages: tuple[Stage, ...] = (Stage(),)
    """one after the other"""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "max_decisions", "max_steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.teacher_hops < 0:
            raise SettingError(f"teacher_hops must be 0 or more, got {self.teacher_hops}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.average < 1:
            raise SettingError(f"average must be in [0, 1), got {self.average}; 0 keeps the last weights")
        if not self.stages:
            raise SettingError("at least one stage is needed")
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise SettingError(f"every stage needs a name of its own, got {', '.join(names)}")

    def stage_at(self, iteration: int) -> Stage:
        """The stage that iteration number ``iteration`` (from 0) belongs to."""
        whole = sum(stage.share for stage in self.stages)
        reached = 0.0
        for stage in self.stages:
            reached += stage.share / whole * self.iterations
            if iteration < reached - 1e-9:
                return stage
        return self.stages[-1]


_DEAD_END = 1e4  # metres, more than any way; of nodes that lead nowhere the nearest is right
_WALK_PRICE = 1e-3  # per metre, only breaks ties between equally promising frontiers


class ClosestToGoal:
    """Student forcing: the place on the memory closest to the goal; stop at the goal.

    A frontier is judged by its best sub-node, because that is what going there is for; a node that is the
    goal itself comes before everything. Among the neighbours of here the one on the shortest way is right.
    """

    _counts_the_hop = True

    def __init__(self, world: World, goal: Tensor) -> None:
        self._world = world
        self._goal = goal

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Nothing to remember: only distances count."""

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """To the goal  ->  (M, P)"""
        return self._world.geodesic(viewpoints.clamp_min(0), self._goal[episodes].unsqueeze(1))

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if request.type.over_nodes:
            walk: Tensor = space.memory.walk[request.episode, space.memory.here[request.episode]]
            cost = self._promise(request, space, distance) + _WALK_PRICE * walk  # of equals the nearest
            return cost.masked_fill(~request.options, torch.inf).argmin(dim=1)
        stop = request.options.shape[1] - 1
        cost = distance[:, 1:-1].masked_fill(~request.options[:, :-1], torch.inf)
        if request.type != ACTION:
            cost = cost + _WALK_PRICE * _walk_to_parents(request, space)
        elif self._counts_the_hop:
            cost = cost + self._world.neighbour_length[request.viewpoint[:, stop]]
        # going on comes before stopping short of the goal, unless there is nowhere to go
        at_goal, nowhere = distance[:, 0] == 0.0, cost.isinf().all(dim=1)
        return torch.where((at_goal & request.options[:, stop]) | nowhere, stop, cost.argmin(dim=1))

    def _promise(self, request: DecisionRequest, space: ActionSpace, distance: Tensor) -> Tensor:
        """What is still to go from every node; the smallest is right  ->  (M, N)"""
        del distance
        episodes, memory = request.episode, space.memory
        here = memory.here[episodes]
        places = self._world.neighbour[request.viewpoint]  # (M, N, K)
        ahead = self._world.geodesic(places.clamp_min(0), self._goal[episodes, None, None])
        best_open = ahead.masked_fill(~memory.open_ways(episodes), torch.inf).amin(dim=2)
        is_goal = request.viewpoint == self._goal[episodes].unsqueeze(1)
        if space.allow_revisits:  # a goal left behind is hopped to like any other place
            is_goal &= request.viewpoint == request.viewpoint.gather(1, here.unsqueeze(1))
        return torch.where(is_goal, -1.0, best_open.clamp_max(_DEAD_END))


class NearestNode(ClosestToGoal):
    """The same sentence read word by word: the frontier nearest the goal, then its sub-node nearest the goal.

    A frontier is judged by where it is, not by what can be reached from it.
    """

    _counts_the_hop = False

    def _promise(self, request: DecisionRequest, space: ActionSpace, distance: Tensor) -> Tensor:
        metres = distance[:, 1:]
        # here may be chosen without a sub-node, but then it is right at the goal only
        useful = space.memory.open_ways(request.episode).any(dim=2) | (metres == 0.0)
        return torch.where(useful, metres, _DEAD_END)


class RestOfPath(ClosestToGoal):
    """Student forcing for tasks that reward fidelity (R4R): reach all reference points, in their order.

    The next point is the goal until the last one is reached, so an episode off the path is led back to it;
    what is still to go is the way to the next point and the rest of the path.

    Args:
        world: the world to walk in.
        reference: (B, L) viewpoints, padded with -1.
        passes_over: a point where the episode has stood before counts as reached, for agents that do not
            revisit places.
    """

    def __init__(self, world: World, reference: Tensor, *, passes_over: bool) -> None:
        super().__init__(world, reference[:, 0].clone())
        self._reference = reference
        self._passes_over = passes_over
        exists = reference != NONE
        self._last = exists.sum(dim=1) - 1
        self._next = torch.zeros_like(self._last)
        self._stood = torch.zeros_like(exists)
        step = world.geodesic(reference[:, :-1].clamp_min(0), reference[:, 1:].clamp_min(0))
        after = step.masked_fill(~exists[:, 1:], 0.0).flip(1).cumsum(dim=1).flip(1)
        self._rest = torch.nn.functional.pad(after, (0, 1))  # (B, L) metres from each point to the end

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Count the reference points reached, in order."""
        reference = self._reference[episodes]
        reached = reference_progress(reference, self._next[episodes], viewpoint)
        if self._passes_over:
            stood = self._stood[episodes] | (reference == viewpoint.unsqueeze(1))
            self._stood[episodes] = stood
            reached = _first_open(~stood & (reference != NONE), reached)
        self._next[episodes] = reached
        self._goal[episodes] = reference.gather(1, self._point(episodes).unsqueeze(1)).squeeze(1)

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """To the next point and along the rest of the path  ->  (M, P)"""
        rest = self._rest[episodes, self._point(episodes)]
        return super().metres(viewpoints, episodes) + rest.unsqueeze(1)

    def _point(self, episodes: Tensor) -> Tensor:
        """The point to go to; the last one when all are reached  ->  (M,)"""
        return torch.minimum(self._next[episodes], self._last[episodes])


class ReferencePath:
    """Teacher forcing: walk the reference path, point by point, and stop at its end.

    An agent that revisits no place passes over points it has already visited, where the path crosses itself,
    and chooses the frontier that leads on.
    """

    def __init__(self, world: World, reference: Tensor) -> None:
        self._world = world
        self._reference = reference  # (B, L) viewpoints, padded with -1
        length = (reference != NONE).sum(dim=1, keepdim=True)
        self._end = reference.gather(1, length - 1)  # (B, 1) the last viewpoint
        self._progress = torch.zeros_like(length[:, 0])  # (B,) points reached

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Count the reference points reached, in order."""
        reference, progress = self._reference[episodes], self._progress[episodes]
        self._progress[episodes] = reference_progress(reference, progress, viewpoint)

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """To the end of the path  ->  (M, P)"""
        return self._world.geodesic(viewpoints.clamp_min(0), self._end[episodes])

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        del distance
        stop = request.options.shape[1] - 1
        if request.type.auxiliary:
            return torch.full_like(request.episode, stop)
        wanted = self._wanted(request, space).unsqueeze(1)  # (M, 1) viewpoint, -1 at the end of the path
        if request.type.over_nodes:  # the nearest node that sees it; at the end of the path the goal itself
            sees = (self._world.neighbour[request.viewpoint] == wanted.unsqueeze(2)).any(dim=2)
            right = torch.where(wanted == NONE, request.viewpoint == self._end[request.episode], sees)
            right &= request.options
            right = torch.where(right.any(dim=1, keepdim=True), right, request.options)  # here is the nearest
            walk: Tensor = space.memory.walk[request.episode, space.memory.here[request.episode]]
            return walk.masked_fill(~right, torch.inf).argmin(dim=1)
        match = (request.viewpoint == wanted) & request.options
        if request.type == ACTION:
            # an episode that may not stop where the path ends goes anywhere else
            end = torch.where(request.options[:, stop], stop, request.options.int().argmax(dim=1))
            return torch.where(match.any(dim=1), match.int().argmax(dim=1), end)
        parents = _walk_to_parents(request, space).masked_fill(~match[:, :stop], torch.inf)
        return torch.where(match.any(dim=1), parents.argmin(dim=1), stop)

    def _wanted(self, request: DecisionRequest, space: ActionSpace) -> Tensor:
        """The next reference point to go to  ->  (M,) viewpoint, -1 when there is none"""
        reference = self._reference[request.episode]
        points = torch.arange(reference.shape[1], device=reference.device)
        ahead = (points >= self._progress[request.episode].unsqueeze(1)) & (reference != NONE)
        if space.memory is not None and not space.allow_revisits:
            nodes = space.memory.node[request.episode]
            ahead &= ~(reference.unsqueeze(2) == nodes.unsqueeze(1)).any(dim=2)
        first = ahead.int().argmax(dim=1, keepdim=True)
        return torch.where(ahead.any(dim=1), reference.gather(1, first).squeeze(1), NONE)


class MixedRules:
    """Two rules for one rollout: some episodes are led by a teacher, the others walk by themselves.

    Metres are those of the students; nothing is earned on the episodes with a teacher.

    Args:
        forced: (B,) bool, true at episodes with a teacher.
        teacher: labels those.
        student: labels the others.
    """

    def __init__(self, forced: Tensor, teacher: LabelRule, student: LabelRule) -> None:
        self.forced = forced
        self.teacher = teacher
        self.student = student
        self.metres = student.metres

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Both rules see every episode."""
        self.teacher.arrive(viewpoint, episodes)
        self.student.arrive(viewpoint, episodes)

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        teacher, student = (rule(request, space, distance) for rule in (self.teacher, self.student))
        return torch.where(self.forced[request.episode], teacher, student)


MakeLabelRule = Callable[[World, EpisodeSet, ActionSpace], LabelRule]
"""Makes the label rule of a batch of episodes."""

LABEL_RULES: Registry[MakeLabelRule] = Registry("label rule")
"""Label rules by the name presets call them: what is right on an agent's own walks."""


@LABEL_RULES.register("goal")
def closest_to_goal(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The shortest way to the goal."""
    del space
    return ClosestToGoal(world, episodes.goal)


@LABEL_RULES.register("nearest")
def nearest_node(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The frontier and the sub-node nearest the goal."""
    del space
    return NearestNode(world, episodes.goal)


@LABEL_RULES.register("path")
def rest_of_path(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The rest of the reference path."""
    return RestOfPath(world, episodes.path, passes_over=not space.allow_revisits)


def reference_progress(reference: Tensor, progress: Tensor, viewpoint: Tensor) -> Tensor:
    """Count reference points reached so far, in order; call once after every hop (and at the start with 0).

    reference: (B, L) padded with -1  progress: (B,)  viewpoint: (B,)  ->  (B,)
    """
    upcoming = reference.gather(1, progress.clamp_max(reference.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return progress + ((upcoming == viewpoint) & (progress < (reference != NONE).sum(dim=1)))


def _first_open(is_open: Tensor, begin: Tensor) -> Tensor:
    """The first true column from ``begin`` (M,) on; the number of columns if none.  (M, L)  ->  (M,)"""
    columns = torch.arange(is_open.shape[1], device=is_open.device)
    ahead = is_open & (columns >= begin.unsqueeze(1))
    return torch.where(ahead.any(dim=1), ahead.int().argmax(dim=1), is_open.shape[1])


def _walk_to_parents(request: DecisionRequest, space: ActionSpace) -> Tensor:
    """Metres to the node each sub-node is seen from; several nodes may see one place.  ->  (M, N * K)"""
    memory = space.memory
    walk: Tensor = memory.walk[request.episode, memory.here[request.episode]]
    return walk.repeat_interleave(memory.subnode.shape[2], dim=1)


WalkKind = Literal["teacher", "student", "all"]
"""Which walks a loss learns from: those a teacher leads, the agent's own, or both."""


@dataclass(frozen=True)
class LossContext:
    """What a loss may need beside the rollout."""

    world: World
    episodes: EpisodeSet  # B, those of the rollout
    config: LearningConfig
    stage: Stage
    decisions: float  # taken in the rollout; with several processes the mean over them
    reward: RewardRule  # what decisions earn


LossFunction = Callable[[Rollout, LossContext], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss and the walks it learns from."""

    function: LossFunction
    walks: WalkKind


LOSSES: Registry[Loss] = Registry("loss")
"""Losses by the name stages call them."""

RewardRule = Callable[[Decisions, Rollout, LossContext], Tensor]
"""What every decision of a table earned: (M,)"""

REWARDS: Registry[RewardRule] = Registry("reward rule")
"""Reward rules by the name presets call them."""


def loss(name: str, *, walks: WalkKind) -> Callable[[LossFunction], LossFunction]:
    """Register a loss under a name."""

    def register(function: LossFunction) -> LossFunction:
        LOSSES.register(name, Loss(function, walks))
        return function

    return register


@loss("teacher_forcing", walks="teacher")
def teacher_forcing(rollout: Rollout, context: LossContext) -> Tensor:
    """Imitate a teacher on the reference path; auxiliary decisions have no teacher."""
    auxiliary = {kind: 0.0 for kind in rollout.learned if kind.auxiliary}
    return imitation(rollout, {FRONTIER: context.stage.teacher_frontier, **auxiliary})


@loss("student_forcing", walks="student")
def student_forcing(rollout: Rollout, context: LossContext) -> Tensor:
    """On the agent's own walks, do what the label rule says would have been right."""
    return imitation(rollout, {FRONTIER: context.stage.student_frontier})


def imitation(rollout: Rollout, weights: Mapping[DecisionType, float]) -> Tensor:
    """Cross-entropy of the labels, summed over the decisions of an episode, averaged over episodes.

    Decision types without a weight count with 1; decisions without a label do not count.
    """
    terms = []
    for kind, table in rollout.learned.items():
        # 0 where there is no label; summed afterwards, in the order of the rows
        each = cross_entropy(table.logits, table.label, ignore_index=NONE, reduction="none")
        terms.append(each.sum() * weights.get(kind, 1.0))
    return torch.stack(terms).sum() / len(rollout.alive)


@loss("a2c", walks="student")
def a2c(rollout: Rollout, context: LossContext) -> Tensor:
    """A2C: -log p(choice) * advantage + value error - entropy, divided by the number of decisions.

    Every frontier step and every action step earns its own reward; episodes that were cut off expect what the
    critic says about their last observation.
    """
    config, reward = context.config, context.config.reward
    tables, values = list(rollout.learned.values()), rollout.heads["value"]
    episode = torch.cat([table.episode for table in tables])
    order = torch.cat([table.order for table in tables])
    value = torch.cat([values[table.episode, table.step] for table in tables])
    earned = torch.cat([context.reward(table, rollout, context) for table in tables])
    last = values.gather(1, (rollout.length - 1).unsqueeze(1)).squeeze(1).detach()
    bootstrap = last.masked_fill(rollout.stopped, 0.0)
    target = discounted_returns(earned, episode, order, bootstrap, reward.discount)

    log_p = [table.logits.log_softmax(dim=-1) for table in tables]
    chosen = torch.cat(
        [lp.gather(1, table.choice.unsqueeze(1)).squeeze(1) for lp, table in zip(log_p, tables, strict=True)]
    )
    entropy = torch.cat([-(lp.exp() * lp.masked_fill(lp.isinf(), 0.0)).sum(dim=-1) for lp in log_p])
    advantage = target - value.detach()
    policy = -(chosen * advantage)
    error = config.value * (target - value).square()
    return (policy + error - config.entropy * entropy).sum() / context.decisions


@REWARDS.register("distance")
def distance_reward(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
    """The change in metres to the goal, or the verdict at a stop  ->  (M,)"""
    del rollout
    return rewards(table.before, table.after, table.stops, context.config.reward)


def rewards(before: Tensor, after: Tensor, stops: Tensor, config: RewardConfig) -> Tensor:
    """before, after: (M,) metres to the goal  stops: (M,) bool  ->  (M,)"""
    closer = before - after
    moved = closer.sign() if config.quantised else closer
    verdict = torch.where(after < SUCCESS_METRES, config.success, config.failure)
    return torch.where(stops, verdict, moved).float()


def discounted_returns(
    reward: Tensor, episode: Tensor, order: Tensor, bootstrap: Tensor, discount: float
) -> Tensor:
    """R_j = r_j + discount * R_{j+1} along the decisions of each episode, R after the last = bootstrap.

    reward, episode, order: (X,)  bootstrap: (B,)  ->  (X,)
    """
    row = torch.argsort(episode * (int(order.max()) + 1) + order)
    length = torch.bincount(episode, minlength=len(bootstrap))
    begin = length.cumsum(0) - length
    place = torch.arange(len(row), device=row.device) - begin[episode[row]]
    padded = reward.new_zeros(len(bootstrap), int(length.max()))
    padded[episode[row], place] = reward[row]
    collected = torch.empty_like(padded)
    following = bootstrap
    for step in range(padded.shape[1] - 1, -1, -1):
        following = torch.where(step < length, padded[:, step] + discount * following, following)
        collected[:, step] = following
    result = torch.empty_like(reward)
    result[row] = collected[episode[row], place]
    return result
