"""What the family learns from: label rules, rewards and losses, in tables by name as those of the toolkit.

Shape letters: B episodes, T steps, M decisions, O options, N nodes of a memory, K candidate slots, L
viewpoints of a reference path.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, pad

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import ACTION, GLOBAL, DecisionRequest, Decisions, Rollout
from scenemem.evaluation.metrics import at_end, distances, warped, warping
from scenemem.features.store import Environment
from scenemem.learning.objectives import (
    ClosestToGoal,
    Loss,
    LossContext,
    MakeLabelRule,
    RestOfPath,
    RewardRule,
    a2c,
    distance_reward,
)
from scenemem.learning.speaker import Steps, views_along
from scenemem.models.speaker import DecoderState, EncodedPaths, PathViews, WordDecoder
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.tasks.vocabulary import PAD, UNK
from scenemem.world.graph import NONE, STOP, World, angle_feature, rotated, view_heading
from scenemem.zoo.exploring import EXPLORE, GATE
from scenemem.zoo.low_level import FORWARD, RIGHT, LowLevelActions, low_level_expert

EXPLORATION_COST = 0.1
"""In units of the reward for a step."""


class ShortestDetour(ClosestToGoal):
    """DUET's pseudo expert: argmin_v d(here, v) + d(v, goal) over the known map; stop at the goal.

    d(here, v) is walked over known edges, so a place behind the agent costs the way back.
    """

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if request.type != GLOBAL:
            return super().__call__(request, space, distance)
        memory, node = space.memory, space.memory.node[request.episode].clamp_min(0)
        walk = memory.walk[request.episode, memory.here[request.episode]].double()
        ways = (walk.unsqueeze(-1) + self._world.neighbour_length[node]).flatten(1)  # (M, N * K)
        cost = (ways + distance[:, 1:-1]).masked_fill(~request.options[:, :-1], torch.inf)
        ends = (distance[:, 0] == 0.0) | cost.isinf().all(dim=1)
        return torch.where(ends, request.stop, cost.argmin(dim=1))


class _AlongPath(ClosestToGoal):
    """A rule that compares options with a reference path."""

    def __init__(self, world: World, reference: Tensor, goal: Tensor) -> None:
        super().__init__(world, goal)
        self._reference = reference


class ReferenceIndex(_AlongPath):
    """EGP: the option whose place comes last on the reference path; stop at the goal.

    Where no option lies on the path, the one closest to the goal is right.
    """

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        closest = super().__call__(request, space, distance)
        if request.type != GLOBAL:
            return closest
        reference = self._reference[request.episode]
        match = request.viewpoint[:, :-1].unsqueeze(2) == reference.unsqueeze(1)  # (M, O, L)
        match &= (reference != NONE).unsqueeze(1) & request.options[:, :-1].unsqueeze(2)
        place = torch.arange(1, reference.shape[1] + 1, device=reference.device)
        best, option = (match * place).amax(dim=2).max(dim=1)  # 0 off the path
        return torch.where((closest == request.stop) | (best == 0), closest, option)


class BestNDTW(_AlongPath):
    """EGP on R4R: the option after which the walk so far, gone on to it over known places, has the best nDTW.

    Stopping is one of the options: its walk is the one so far.
    """

    def __init__(self, world: World, reference: Tensor, goal: Tensor) -> None:
        super().__init__(world, reference, goal)
        # (B, L) cost of warping the walk so far onto every beginning of the path; begins before the start
        self._cost = torch.full(reference.shape, torch.inf, dtype=torch.double, device=reference.device)

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """One more place of the walk."""
        away = self._away(viewpoint.unsqueeze(1), episodes).squeeze(1)
        before = self._cost[episodes]
        begins = before.isinf().all(dim=1, keepdim=True)
        self._cost[episodes] = torch.where(begins, away.cumsum(dim=1), warped(before, away))

    def _away(self, viewpoints: Tensor, episodes: Tensor) -> Tensor:
        """Metres to every point of the path, 0 at padding.  viewpoints: (M, P)  ->  (M, P, L)"""
        return distances(self._world, viewpoints, self._reference[episodes], pad=0.0).double()

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if request.type != GLOBAL:
            return super().__call__(request, space, distance)
        episodes, memory = request.episode, space.memory
        here, rows = memory.here[episodes], torch.arange(len(episodes), device=request.episode.device)
        now = self._cost[episodes]  # (M, L)
        # the known way from here to a node ends with the node that the way back begins with
        before = memory.first[episodes, :, here].clamp_min(0)  # (M, N)
        away = self._away(memory.node[episodes], episodes)  # (M, N, L)
        at_node = torch.full_like(away, torch.inf)
        at_node[rows, here] = now
        for _ in range(int(memory.count[episodes].max()) - 1):
            at_node = warped(at_node.gather(1, before.unsqueeze(2).expand_as(away)), away)
            at_node[rows, here] = now
        ways = self._away(request.viewpoint[:, :-1], episodes)  # (M, N * K, L)
        cost = warped(at_node.repeat_interleave(memory.subnode.shape[2], dim=1), ways)
        final = at_end(torch.cat([cost, now.unsqueeze(1)], dim=1), self._reference[episodes])
        final[:, -1] -= 1e-6  # of equals stopping is right: going on gains nothing
        return final.masked_fill(~request.options, torch.inf).argmin(dim=1)


class LowLevelExpert(ClosestToGoal):
    """Turn to the next place of the shortest path, tilt to it, walk to it; stop at the goal."""

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        del distance
        if not isinstance(space, LowLevelActions):
            raise TypeError(f"{type(space).__name__} has no low-level actions to label")
        here = request.viewpoint[:, -1]
        label = low_level_expert(self._world, here, space.view[request.episode], self._goal[request.episode])
        # a step forward that would lead nowhere: the next place hides behind another one, so turn on
        blocked = (label == FORWARD) & ~request.options[:, FORWARD]
        return torch.where(blocked, RIGHT, label)


class LowLevelPath(LowLevelExpert, RestOfPath):
    """The same towards the next point of the reference path."""


class ExplorerLabels(ClosestToGoal):
    """Active Perception: moves and explorations towards the goal; gates have no label.

    An exploration enters the neighbour with the shortest way to the goal, and comes back from the goal.
    """

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option; -1 for gates"""
        if request.type == GATE:
            return torch.full_like(request.episode, NONE)
        if request.type != EXPLORE:
            return super().__call__(request, space, distance)
        here = space.memory.node[request.episode, space.memory.here[request.episode]]
        cost = distance[:, 1:-1] + self._world.neighbour_length[here]
        cost = cost.masked_fill(~request.options[:, :-1], torch.inf)
        comes_back = (distance[:, 0] == 0.0) & request.options[:, -1]
        return torch.where(comes_back, request.stop, cost.argmin(dim=1))


def prefix_ndtw(world: World, walked: Tensor, reference: Tensor) -> Tensor:
    """NDTW of every beginning of a walk: exp(-DTW / (3 m * reference viewpoints)).

    walked: (B, T) viewpoints; what follows the end may be anything  reference: (B, L)  ->  (B, T)
    """
    cost = at_end(warping(world, walked, reference), reference)
    return torch.exp(-cost / (SUCCESS_METRES * (reference != NONE).sum(dim=1, keepdim=True)))


def ndtw_reward(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
    """What a decision adds to nDTW, a jump counted whole; at a stop the verdict of success  ->  (M,)"""
    config = context.config.reward
    values = prefix_ndtw(context.world, rollout.viewpoint, context.episodes.path)
    decided = torch.zeros_like(rollout.alive)
    for decisions in rollout.decisions.values():
        decided[decisions.episode, decisions.step] = True
    steps = torch.arange(decided.shape[1], device=decided.device)
    end = (rollout.length - 1).unsqueeze(1)
    here = torch.where(decided, steps, end)
    following = torch.cat([here[:, 1:], end], dim=1).flip(1).cummin(dim=1).values.flip(1)
    gained = (values.gather(1, following) - values)[table.episode, table.step]
    verdict = torch.where(table.after < SUCCESS_METRES, config.success, config.failure)
    return torch.where(table.stops, verdict, gained.to(verdict)).float()


def exploration_reward(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
    """Moves earn what they earn without explorations; opening the gate has a cost  ->  (M,)

    What an exploration was good for is what the moves after it earn.
    """
    (kind,) = (kind for kind, found in rollout.decisions.items() if found is table)
    if not kind.auxiliary:
        return distance_reward(table, rollout, context)
    opened = (table.choice == 0) & (kind == GATE)
    return torch.where(opened, -EXPLORATION_COST, 0.0)


def metres_done(metres: Tensor) -> Tensor:
    """(d_0 - d_t) / d_0, and 1 within 3 m of the goal; may be negative.  metres: (B, T)  ->  (B, T)"""
    start = metres[:, :1].clamp_min(1e-6)
    return torch.where(metres <= SUCCESS_METRES, 1.0, (start - metres) / start)


def hops_done(hops: Tensor) -> Tensor:
    """1 - hops_t / hops_0; falls below 0 off the route.  hops to the goal (B, T)  ->  (B, T)"""
    return 1.0 - hops / hops[:, :1].clamp_min(1)


def squared_error(progress: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """Squared errors, summed over the counted steps of an episode, averaged over episodes; as imitation is.

    (B, T) each, counted bool  ->  ()
    """
    error = (progress - target.to(progress)).square() * counted
    return error.sum() / len(progress)


def progress_in_metres(rollout: Rollout, context: LossContext) -> Tensor:
    """Self-Monitoring: squared error of the head ``progress``, without the first step."""
    target = metres_done(context.world.geodesic(rollout.viewpoint, context.episodes.goal.unsqueeze(1)))
    counted = rollout.alive.clone()
    counted[:, 0] = False
    return squared_error(rollout.heads["progress"], target, counted)


def progress_in_hops(rollout: Rollout, context: LossContext) -> Tensor:
    """Tactical Rewind: the same with hops, at all steps."""
    target = hops_done(context.world.hops(rollout.viewpoint, context.episodes.goal.unsqueeze(1)))
    return squared_error(rollout.heads["progress"], target, rollout.alive)


def path_loss(rollout: Rollout, context: LossContext) -> Tensor:
    """OAAM: sum_k p_k d_k, how far from the path the next place is expected to be, per decision."""
    table = rollout.decisions[ACTION]
    here = rollout.viewpoint[table.episode, table.step]
    places = torch.cat([context.world.neighbour[here], here.unsqueeze(1)], dim=1)  # (M, K + 1)
    path = context.episodes.path[table.episode]
    metres = distances(context.world, places, path, pad=torch.inf).amin(dim=2)
    metres = metres.masked_fill(places == NONE, 0.0).to(table.logits)
    return (table.logits.softmax(dim=-1) * metres).sum(dim=-1).mean()


def negative_entropy(rollout: Rollout, _: LossContext) -> Tensor:
    """A bonus for doubt: p log p, summed over the decisions of an episode, averaged over episodes."""
    terms = []
    for table in rollout.learned.values():
        log_p = table.logits.log_softmax(dim=-1)
        terms.append((log_p.exp() * log_p.masked_fill(log_p.isinf(), 0.0)).sum())
    return torch.stack(terms).sum() / len(rollout.alive)


def gate_imitation(rollout: Rollout, _: LossContext) -> Tensor:
    """Explore where the navigator is unsure: cross-entropy of the gate, averaged over episodes.

    The agent's head ``unsure`` (B, T) is 1 where it is, 0 elsewhere.
    """
    if GATE not in rollout.decisions:
        return rollout.heads["unsure"].sum() * 0.0
    table = rollout.decisions[GATE]
    label = 1 - rollout.heads["unsure"][table.episode, table.step].long()
    return cross_entropy(table.logits, label, reduction="sum") / len(rollout.alive)


def views_of_walk(environment: Environment, rollout: Rollout) -> PathViews:
    """What was seen along walks, as a speaker reads it; every step of a walk is a hop."""
    place = rollout.walked
    there = pad(place[:, 1:], (0, 1), value=NONE)
    slot = environment.world.slot_of(place.clamp_min(0), there).masked_fill(there == NONE, STOP)
    return views_along(environment, Steps(place, rollout.view, slot))


def matching_critic(rollout: Rollout, _: LossContext) -> Tensor:
    """The critic learns from reference paths: minus the log-likelihood of a word, head ``match``."""
    return -rollout.heads["match"][:, 0].mean()


def matched_a2c(rollout: Rollout, context: LossContext) -> Tensor:
    """A2C whose reward for stopping has the verdict of the critic added, head ``intrinsic``."""
    intrinsic = rollout.heads["intrinsic"][:, 0].detach()

    def reward(table: Decisions, rollout: Rollout, inner: LossContext) -> Tensor:
        earned = context.reward(table, rollout, inner)
        return earned + intrinsic[table.episode] * table.stops

    return a2c(rollout, replace(context, reward=reward))


def retelling_cost(decoder: WordDecoder, states: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of a word when a decoder repeats the instruction from the states of a walk.

    states: (B, T, H)  mask: (B, T) bool  tokens: (B, L) ``<BOS> words <EOS>``, padded  ->  (B,)
    """
    strongest = states.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
    walks = EncodedPaths(states, mask, DecoderState(torch.tanh(strongest), strongest))
    read, target = tokens[:, :-1], tokens[:, 1:]
    counted = (target != PAD) & (target != UNK)
    logits = decoder.word_logits(decoder(read, walks)[counted])
    cost = cross_entropy(logits, target[counted], reduction="none")
    total = torch.zeros_like(strongest[:, 0]).index_add(0, counted.nonzero()[:, 0], cost)
    return total / counted.sum(dim=1).clamp_min(1)


def retelling(rollout: Rollout, _: LossContext) -> Tensor:
    """AuxRN: the head ``retelling`` is the cost of repeating an instruction, the same at all steps."""
    return rollout.heads["retelling"][:, 0].mean()


def step_progress(rollout: Rollout, _: LossContext) -> Tensor:
    """Binary cross-entropy of the logit ``step_progress`` against t / T, T the last step of the walk."""
    alive, logits = rollout.alive, rollout.heads["step_progress"]
    step = torch.arange(alive.shape[1], device=alive.device)
    target = step / (rollout.length - 1).clamp_min(1).unsqueeze(1)
    return binary_cross_entropy_with_logits(logits[alive], target.to(logits)[alive])


def matching(rollout: Rollout, _: LossContext) -> Tensor:
    """The logits ``matching`` (B, T, 2) at the end: its own instruction is right, another's is wrong."""
    last = (rollout.length - 1).view(-1, 1, 1).expand(-1, 1, 2)
    logits = rollout.heads["matching"].gather(1, last).squeeze(1)
    target = torch.tensor([1.0, 0.0], device=logits.device).expand_as(logits)
    return binary_cross_entropy_with_logits(logits, target)


def next_angle(rollout: Rollout, context: LossContext) -> Tensor:
    """Squared error of the four numbers ``angle`` against the direction walked next; ends do not count."""
    target, moves = next_directions(context.world, rollout)
    error = (rollout.heads["angle"] - target.to(rollout.heads["angle"])).square().sum(dim=-1)
    return (error * moves).sum() / moves.sum().clamp_min(1)


def next_directions(world: World, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """The direction of every hop, relative to the view faced before it, and where there is a hop.

    ->  (B, T, 4), 0 where there is none; (B, T) bool
    """
    moves = torch.zeros_like(rollout.alive)
    moves[:, :-1] = rollout.alive[:, 1:]
    here, there = rollout.viewpoint, rollout.viewpoint.roll(-1, dims=1)
    slot = world.slot_of(here, there).clamp_min(0)
    towards = angle_feature(world.neighbour_heading[here, slot], world.neighbour_elevation[here, slot], 4)
    relative = rotated(towards, view_heading(rollout.view))
    return relative.masked_fill(~moves.unsqueeze(-1), 0.0), moves


def environment_model(rollout: Rollout, _: LossContext) -> Tensor:
    """RPA: mean of the head ``model_error`` over all steps of the agent's own walks."""
    return rollout.heads["model_error"].sum() / rollout.alive.sum()


LABEL_RULES: dict[str, MakeLabelRule] = {
    "shortest_detour": lambda world, episodes, _: ShortestDetour(world, episodes.goal),
    "reference_index": lambda world, episodes, _: ReferenceIndex(world, episodes.path, episodes.goal),
    "best_ndtw": lambda world, episodes, _: BestNDTW(world, episodes.path, episodes.goal),
    "low_level": lambda world, episodes, _: LowLevelExpert(world, episodes.goal),
    "low_level_path": lambda world, episodes, _: LowLevelPath(world, episodes.path, passes_over=False),
    "exploration": lambda world, episodes, _: ExplorerLabels(world, episodes.goal),
}
REWARDS: dict[str, RewardRule] = {"ndtw": ndtw_reward, "exploration": exploration_reward}
LOSSES = {
    "progress_metres": Loss(progress_in_metres, walks="student"),
    "progress_hops": Loss(progress_in_hops, walks="student"),
    "path": Loss(path_loss, walks="student"),
    "negative_entropy": Loss(negative_entropy, walks="student"),
    "gate": Loss(gate_imitation, walks="student"),
    "matching_critic": Loss(matching_critic, walks="teacher"),
    "matched_a2c": Loss(matched_a2c, walks="student"),
    "retelling": Loss(retelling, walks="teacher"),
    "step_progress": Loss(step_progress, walks="teacher"),
    "matching": Loss(matching, walks="teacher"),
    "next_angle": Loss(next_angle, walks="teacher"),
    "environment_model": Loss(environment_model, walks="student"),
}
