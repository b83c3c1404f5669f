"""Walking: the one loop of every agent. Observe, decide, hop, until all episodes have stopped or are cut off.

Training, evaluation, traces, search and the live page walk here; with gradients on, every score is recorded
with its gradient. Shape letters: B episodes, M episodes at a step, O options, J decisions of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count
from typing import Protocol

import torch
from torch import Tensor, nn

from scenemem.agents.agent import (
    ActionSpace,
    Agent,
    Arrival,
    DecisionPoint,
    Explanation,
    Observations,
)
from scenemem.agents.rollout import ACTION, GLOBAL, DecisionRequest, DecisionType, Recorder, Rollout
from scenemem.errors import NotFiniteError, SettingError
from scenemem.features.store import Environment
from scenemem.models.navigator import Instructions, Observation, RolloutInputs, State, select_rows
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, STOP, Pose, Simulator, World

_READ_TOGETHER = 256
"""Instructions encoded at the same time; an encoder needs much memory for every one of them."""


class Walker(Protocol):
    """Anything that walks a batch of episodes."""

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes and stop."""


class Policy(Protocol):
    """Answers the requests of a rollout."""

    def observe(self, pose: Pose, arrival: Arrival, space: ActionSpace, /) -> Mapping[str, Tensor] | None:
        """Episodes have arrived where ``pose`` is  ->  the heads of their observations, (M, ...) each"""

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, Tensor | None]:
        """The chosen options (M,), and the scores (M, O) if there are any; ``label`` is -1 when unknown."""


class LabelRule(Protocol):
    """Which option is right, given the position and the memory of the episodes."""

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """The episodes (M,) have just arrived at ``viewpoint`` (M,)."""

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """How far it still is from viewpoints (M, P) where episodes (M,) could be  ->  (M, P)"""

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """distance: (M, 1 + O) metres still to go from here and from each option  ->  (M,) option"""


class Lanes:
    """Which episodes walk now: one that is over makes room for the next one that waits.

    Args:
        episodes: how many there are.
        at_once: how many may walk at the same time; all when None.
        max_steps: observations before an episode is cut off; a number, or (B,).
        device: of the indices.
    """

    def __init__(
        self, episodes: int, at_once: int | None, max_steps: int | Tensor, device: torch.device
    ) -> None:
        self.active = torch.arange(0)  # (M,) on the host, in rising order
        self.index = self.active.to(device)  # the same on the device; another tensor only when it changes
        self.begun = torch.zeros(episodes, dtype=torch.long)  # the step at which each episode began
        if at_once is not None and at_once < 1:
            raise ValueError(f"at_once must be 1 or more, got {at_once}; leave it out to walk all together")
        self._waiting = torch.arange(episodes)
        self._at_once = episodes if at_once is None else at_once
        self._limit = torch.as_tensor(max_steps).expand(episodes).cpu()

    def refill(self, pose: Pose, step: int) -> tuple[Pose, Tensor]:
        """Episodes that are done leave, others begin at ``step``.

        ->  the pose, newcomers not done; (M,) bool, the active episodes that may observe once more
        """
        over = pose.done.cpu()[self.active]
        room = self._at_once - len(self.active) + int(over.sum())
        newcomers, self._waiting = self._waiting[:room], self._waiting[room:]
        if len(newcomers) or over.any():
            self.active = torch.cat([self.active[~over], newcomers])
            self.index = self.active.to(pose.done.device)
            self.begun[newcomers] = step
            pose = replace(pose, done=pose.done.index_fill(0, self.index, False))
        return pose, self._limit[self.active] > step + 1 - self.begun[self.active]

    @property
    def over(self) -> int:
        """How many episodes have ended."""
        return len(self.begun) - len(self._waiting) - len(self.active)


def collect(
    world: World,
    episodes: EpisodeSet,
    space: ActionSpace,
    policy: Policy,
    *,
    max_steps: int | Tensor,
    label_rule: LabelRule | None = None,
    at_once: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rollout:
    """Walk ``episodes`` with ``policy``; nothing here loops over episodes.

    With ``at_once`` an episode that is over makes room for the next one, so that none waits for the longest
    walk. Every episode has rows of its own in all tables; one that waits is merely not active yet.

    Args:
        world: the world to walk in.
        episodes: what to walk.
        space: what can be chosen; fresh, it remembers the walk.
        policy: chooses.
        max_steps: observations before an episode is cut off, wherever it was bound; a number, or (B,).
        label_rule: without one no labels and no distances are recorded, and goals may be unknown.
        at_once: how many episodes walk at the same time; all without it.
        progress: called before every step with the number of episodes that are over.
    """
    simulator, recorder = Simulator(world, check=False), Recorder()
    pose = simulator.reset(episodes.start, episodes.heading)
    unknown = torch.full((1, 1), torch.nan, device=world.device)

    def decide(request: DecisionRequest) -> Tensor:
        distance = unknown.expand(len(request.episode), 1 + request.options.shape[1])
        label = torch.full_like(request.episode, NONE)
        if label_rule is not None:
            here = pose.viewpoint[request.episode].unsqueeze(1)
            distance = label_rule.metres(torch.cat([here, request.viewpoint], dim=1), request.episode)
            if request.type.learned:
                label = label_rule(request, space, distance)
        choice, logits = policy.decide(request, label, pose, space)
        recorder.decision(request, choice, label, distance, logits)
        return choice

    lanes = Lanes(len(pose.done), at_once, max_steps, world.device)
    pose = replace(pose, done=torch.ones_like(pose.done))  # until they begin
    for step in count():
        pose, goes_on = lanes.refill(pose, step)
        if progress is not None:
            progress(lanes.over)
        if not len(lanes.active):
            break
        # what is decided at the last observation is not carried out
        pose, arrival = space.arrive(pose, lanes.index, goes_on)
        recorder.poses.append(pose)
        heads = policy.observe(pose, arrival, space)
        if heads is not None:
            recorder.heads.append((arrival.episodes, heads))
        if label_rule is not None:
            label_rule.arrive(pose.viewpoint[arrival.episodes], arrival.episodes)
        action = torch.full_like(pose.viewpoint, STOP)
        if bool(goes_on.any()):
            action = space.step(pose, arrival.episodes[arrival.deciding], decide)
            action = action.index_fill(0, lanes.active[~goes_on].to(world.device), STOP)
        pose = simulator.step(pose, action)
    end = unknown[0].expand(len(pose.done))
    if label_rule is not None:
        everyone = torch.arange(len(pose.done), device=world.device)
        end = label_rule.metres(pose.viewpoint.unsqueeze(1), everyone).squeeze(1)
    return recorder.finished(lanes.begun.to(world.device), end)


class Pick(Protocol):
    """Chooses among scores."""

    def __call__(self, logits: Tensor, episode: Tensor, /) -> Tensor:
        """logits: (M, O), -inf where there is no option  episode: (M,)  ->  (M,) chosen option"""


def take_best(logits: Tensor, _episode: Tensor | None = None, /) -> Tensor:
    """The option with the highest score."""
    return logits.argmax(dim=-1)


class Sample:
    """Draws an option by its probability.

    Args:
        generator: the source of randomness.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, logits: Tensor, _episode: Tensor | None = None, /) -> Tensor:
        """(M, O)  ->  (M,)"""
        chances = logits.softmax(dim=-1).to(self._generator.device)  # which may not be where the logits are
        return torch.multinomial(chances, 1, generator=self._generator).squeeze(-1).to(logits.device)


class SamplePerEpisode:
    """Draws an option by its probability, every episode with random numbers of its own.

    What an episode draws depends neither on the rest of the batch nor on the process.

    Args:
        drawn: (J, B) in [0, 1), one number for each of the J decisions an episode can take at most.
    """

    def __init__(self, drawn: Tensor) -> None:
        self._drawn = drawn
        self._taken = torch.zeros(drawn.shape[1], dtype=torch.long, device=drawn.device)

    def __call__(self, logits: Tensor, episode: Tensor, /) -> Tensor:
        """Where the summed probabilities pass the number drawn.  (M, O), (M,)  ->  (M,)"""
        # an episode that a teacher leads may decide more often; its draws do not count
        drawn = self._drawn[self._taken[episode].clamp_max(len(self._drawn) - 1), episode]
        self._taken[episode] += 1
        reached = logits.softmax(dim=-1).double().cumsum(dim=-1)
        return (reached <= (drawn * reached[:, -1]).unsqueeze(-1)).sum(dim=-1)


class FollowLabels:
    """The teacher: always does what is right and needs no network."""

    def observe(self, _pose: Pose, _arrival: Arrival, _space: ActionSpace, /) -> None:
        """A teacher does not look."""

    def decide(
        self, _request: DecisionRequest, label: Tensor, _pose: Pose, _space: ActionSpace, /
    ) -> tuple[Tensor, None]:
        """(M,) the labels"""
        return label, None


class Rescore(Protocol):
    """Changes scores before an option is picked; request types it does not handle are returned unchanged."""

    def __call__(self, logits: Tensor, request: DecisionRequest, space: ActionSpace, /) -> Tensor:
        """logits: (M, O), anything where there is no option  ->  (M, O)"""


@dataclass(frozen=True)
class Decided:
    """A decision as a watcher sees it: M rows."""

    request: DecisionRequest
    logits: Tensor  # (M, O), -inf where there is no option
    choice: Tensor  # (M,)
    explanation: Explanation  # of the same rows; empty for decisions the agent does not score
    pose: Pose
    space: ActionSpace


class Watcher(Protocol):
    """Sees how an agent decides, for example to record a trace."""

    def observed(self, observations: Observations, pose: Pose, space: ActionSpace, /) -> None:
        """Some episodes have a new observation."""

    def decided(self, decided: Decided, /) -> None:
        """A request was answered."""


@dataclass(eq=False)
class AgentPolicy:
    """Answers requests with an agent's network, which scores all decisions of a step when it has observed."""

    agent: Agent
    inputs: RolloutInputs
    """the environment, the instructions and the dropout masks of the walks"""
    pick: Pick
    """how an option is chosen from the scores"""
    _: KW_ONLY
    forced: Tensor | None = None
    """(B,) bool, episodes that follow their labels; the agent observes and scores there, too"""
    learns: bool = False
    """keep gradients, and the heads of every observation"""
    watcher: Watcher | None = None
    """called with every observation and decision"""
    rescore: Rescore | None = None
    """changes scores before an option is picked"""

    def __post_init__(self) -> None:
        hidden = self.inputs.instructions.hidden
        self._state: State = self.agent.updater.initial_state(self.inputs.instructions)  # (B, ...) now
        self._viewpoint = torch.full_like(hidden[:, 0], NONE, dtype=torch.long)  # (B,) stood last
        self._row = torch.zeros_like(self._viewpoint)  # (B,) of an episode among those that may decide
        self._point: DecisionPoint | None = None  # those of this step
        self._scores: Mapping[DecisionType, Tensor] = {}
        self._not_numbers: list[tuple[DecisionType, Tensor]] = []  # whether a score is none, per decision

    def observe(self, pose: Pose, arrival: Arrival, space: ActionSpace, /) -> Mapping[str, Tensor] | None:
        """Update the states of what has arrived, and score the decisions of those that may decide."""
        with torch.set_grad_enabled(self.learns):
            observations = self._observed(pose, arrival, space)
            if space.memory is not None:
                for name, values in self.agent.node_features(observations).items():
                    space.memory.write(name, values, arrival.episodes)
            if self.watcher is not None:
                self.watcher.observed(observations, pose, space)
            heads = self.agent.heads(observations) if self.learns else None
            if len(arrival.deciding):
                self._row[arrival.episodes[arrival.deciding]] = torch.arange(
                    len(arrival.deciding), device=self._row.device
                )
                graph = None
                if space.memory is not None:
                    deciding = arrival.episodes[arrival.deciding]
                    graph = space.memory.recall(deciding, arrival.nodes, self.inputs.environment)
                self._point = DecisionPoint(observations, arrival.deciding, graph)
                scores = self.agent.score(self._point)
                self._scores = {ACTION: scores} if isinstance(scores, Tensor) else scores
            return heads

    def _observed(self, pose: Pose, arrival: Arrival, space: ActionSpace) -> Observations:
        """The states of all that have arrived, after what they saw; known places may restore theirs."""
        episodes = arrival.episodes
        all_arrived = len(episodes) == len(self._viewpoint)
        before = self._state if all_arrived else select_rows(self._state, episodes)
        viewpoint, view, previous = pose.viewpoint[episodes], pose.view[episodes], self._viewpoint[episodes]
        seen = Observation.of(self.inputs, episodes, viewpoint, previous, view)
        after: State = self.agent.updater(before, seen)
        if arrival.returned is not None:  # what such episodes see again changes nothing
            back = arrival.returned
            state, earlier = space.memory.remembered_state(after, episodes[back])
            after, previous = after.with_rows(back, state), previous.index_copy(0, back, earlier)
            seen = replace(seen, previous=previous)
        if space.restores:
            space.memory.remember_state(after, previous, episodes)
        self._state = after if all_arrived else self._state.with_rows(episodes, after)
        self._viewpoint = self._viewpoint.index_copy(0, episodes, viewpoint)
        return Observations(**vars(seen), state=after, earlier=before.hidden)

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, Tensor]:
        """The chosen options (M,), and the scores of all (M, O)"""
        with torch.set_grad_enabled(self.learns):
            if request.scores is not None:
                logits = request.scores
            elif (known := self._scores.get(request.type)) is not None:
                logits = known
                if len(known) != len(request.episode):
                    logits = known.index_select(0, self._row[request.episode])
            else:
                raise SettingError(
                    f"{type(self.agent).__name__}.score gives no scores for decision '{request.type}'; "
                    f"it gives: {', '.join(map(str, self._scores))}"
                )
            logits = fitted(logits, request)
            if self.rescore is not None:
                logits = fitted(self.rescore(logits, request, space), request)
            not_numbers = logits.isnan()
            self._not_numbers.append((request.type, not_numbers.any()))  # and the walk goes on anyhow
            logits = logits.masked_fill(not_numbers, 0.0)
        with torch.no_grad():
            choice = self.pick(logits.detach(), request.episode)
            if space.final_backtrack and not request.type.over_nodes:
                space.answered(request, logits)
            if self.forced is not None:
                led = self.forced[request.episode] & (label != NONE)
                choice = torch.where(led, label, choice)
            if self.watcher is not None:
                explanation = self._explanation(request)
                self.watcher.decided(Decided(request, logits, choice, explanation, pose, space))
        return choice, logits

    def check_scores(self) -> None:
        """Look at all scores of the walk; once at its end, because looking makes the host wait.

        Raises:
            NotFiniteError: a score is not a number.
        """
        if not self._not_numbers:
            return
        types, found = zip(*self._not_numbers, strict=True)
        for kind in (kind for kind, bad in zip(types, torch.stack(found).tolist(), strict=True) if bad):
            raise NotFiniteError(f"a score of decision '{kind}'")

    def _explanation(self, request: DecisionRequest) -> Explanation:
        """Why the options of a request scored as they did: M rows."""
        if self._point is None or request.scores is not None:
            return Explanation()
        return self.agent.explain(self._point).select(self._row[request.episode])


def fitted(logits: Tensor, request: DecisionRequest) -> Tensor:
    """Scores of the nodes known so far, padded to all options, -inf where there is none; stop stays last.

    logits: (M, o)  ->  (M, O)

    Raises:
        SettingError: more options are scored than there are, or not every action.
    """
    missing = request.options.shape[1] - logits.shape[1]
    if missing < 0 or (missing and request.type == ACTION):
        raise SettingError(
            f"score gives {logits.shape[1]} columns for decision '{request.type}', expected "
            f"{request.options.shape[1]}"
            + (": one per candidate slot, and stop last" * (request.type == ACTION))
        )
    if missing and request.type == GLOBAL:
        ways = nn.functional.pad(logits[:, :-1], (0, missing))
        logits = torch.cat([ways, logits[:, -1:]], dim=1)
    elif missing:
        logits = nn.functional.pad(logits, (0, missing))
    return logits.masked_fill(~request.options, -torch.inf)


LONGEST = 1000
"""Of walks and instructions; their tables take memory, and settings may come from an untrusted file."""


@dataclass(frozen=True)
class WalkConfig:
    """How long an agent may read and walk."""

    max_decisions: int = 15
    """decisions before a walk is cut off or backtracks to end; a frontier and its sub-node are one"""
    max_steps: int = 40
    """observations before a walk is cut off, walks over known places included"""
    max_words: int = 80
    """longer instructions are cut"""

    def __post_init__(self) -> None:
        # the shortest text has a word between two marks
        for name, least in (("max_decisions", 1), ("max_steps", 1), ("max_words", 3)):
            if not least <= getattr(self, name) <= LONGEST:
                raise SettingError(f"{name} must be from {least} to {LONGEST:,}, got {getattr(self, name)}")


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside its block nothing is dropped; afterwards, whatever happened, the network is back in its mode."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


class TrainedAgent:
    """An agent ready to walk: network, environment and vocabulary together; greedy unless told otherwise.

    Args:
        network: the parameters.
        environment: the world and the features of its views.
        vocabulary: the words of the network.
        limits: how long it may read and walk.
    """

    def __init__(
        self,
        network: Agent,
        environment: Environment,
        vocabulary: Vocabulary,
        limits: WalkConfig | None = None,
    ) -> None:
        self.network = network
        self.environment = environment
        self.vocabulary = vocabulary
        self.limits = limits or WalkConfig()

    def read(self, texts: tuple[str, ...]) -> Instructions:
        """Encode instructions, one per text, some at a time."""
        device, encoder = self.environment.world.device, self.network.encoder
        parts: list[Instructions] = []
        for first in range(0, len(texts), _READ_TOGETHER):
            some = texts[first : first + _READ_TOGETHER]
            tokens, lengths = self.vocabulary.encode_batch(some, self.limits.max_words)
            parts.append(encoder(tokens.to(device), lengths))
        return type(parts[0]).joined(parts)

    def rescoring(self, episodes: EpisodeSet) -> Rescore | None:
        """Optional change of scores on a walk of these episodes; None by default."""
        del episodes
        return None

    @torch.no_grad()
    def walk(
        self,
        episodes: EpisodeSet,
        /,
        pick: Pick = take_best,
        watcher: Watcher | None = None,
        *,
        at_once: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Rollout:
        """Walk the episodes in evaluation mode.

        Args:
            episodes: what to walk.
            pick: how an option is chosen from the scores.
            watcher: called with every observation and decision.
            at_once: how many episodes walk at the same time; all without it.
            progress: called before every step with the number of episodes that are over.
        """
        count, world = len(episodes), self.environment.world
        with evaluating(self.network):
            masks = self.network.dropout_masks(count)
            inputs = RolloutInputs(self.environment, self.read(episodes.texts), masks)
            rescore = self.rescoring(episodes)
            policy = AgentPolicy(self.network, inputs, pick, watcher=watcher, rescore=rescore)
            rollout = collect(
                world,
                episodes,
                self.network.action_space(world, count, self.limits.max_decisions),
                policy,
                max_steps=self.limits.max_steps,
                at_once=at_once,
                progress=progress,
            )
            policy.check_scores()
        return rollout
