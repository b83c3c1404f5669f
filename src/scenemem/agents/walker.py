"""Walking: the one loop of every agent, the policies that answer its requests, and trained agents.

Observe, decide, hop - until every episode has stopped or was cut off. Shape letters: B episodes, M episodes
that decide, O options, J decisions of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, MemoryActions
from scenemem.agents.agent import (
    Agent,
    DecisionPoint,
    Explanation,
    Observations,
    by_type,
    live_observations,
    live_point,
    widened,
)
from scenemem.agents.rollout import (
    FINAL,
    DecisionRequest,
    DecisionType,
    EpisodeIndex,
    Lanes,
    Recorder,
    Rollout,
)
from scenemem.errors import NotFiniteError, SettingError
from scenemem.features.store import Environment
from scenemem.models.language import Instructions
from scenemem.models.modes import evaluating
from scenemem.models.recurrent import StateLog
from scenemem.simulator.panorama import STOP, Pose, Simulator
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, World

_READ_TOGETHER = 256
"""Instructions encoded at the same time; an encoder needs much memory for every one of them."""


class Walker(Protocol):
    """Whoever can walk a batch of episodes."""

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes and stop."""


class Policy(Protocol):
    """Whoever answers the requests of a rollout."""

    def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        """The episodes ``active`` (M,) have a new observation: where they stand now."""

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """The chosen option of every episode: (M,). ``label`` is for teachers, -1 when unknown."""


class LabelRule(Protocol):
    """Says which option is right, from where the episodes stand and what they know."""

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """The episodes (M,) have just arrived at ``viewpoint`` (M,)."""

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """How far it still is from viewpoints (M, P) where episodes (M,) could be  ->  (M, P)"""

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """distance: (M, 1 + O) metres still to go from here and from each option  ->  (M,) option"""


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

    With ``at_once`` an episode that is over makes room for the next one, so that nobody waits for the longest
    walk. Every episode has rows of its own in all tables; who waits is merely not active yet.

    Args:
        world: the world to walk in.
        episodes: what to walk.
        space: what can be chosen; fresh, it remembers the walk.
        policy: who chooses.
        max_steps: observations before an episode is cut off, wherever it was bound; a number, or (B,).
        label_rule: without one no labels and no distances are recorded, and goals may be unknown.
        at_once: how many episodes walk at the same time; all without it.
        progress: called with the number of episodes that are over whenever some are.
    """
    simulator = Simulator(world, check=False)
    pose = simulator.reset(episodes.start, episodes.heading)
    recorder = Recorder()

    unknown = torch.full((1, 1), torch.nan, device=world.device)

    def decide(request: DecisionRequest) -> Tensor:
        distance = unknown.expand(len(request.episode), 1 + request.options.shape[1])
        label = torch.full_like(request.episode, NONE)
        if label_rule is not None:
            here = pose.viewpoint[request.episode].unsqueeze(1)
            distance = label_rule.metres(torch.cat([here, request.viewpoint], dim=1), request.episode)
            if request.type.learned:
                label = label_rule(request, space, distance)
        choice = policy.decide(request, label, pose, space)
        recorder.decision(request, choice, label, distance)
        return choice

    lanes = Lanes(len(episodes), at_once, max_steps, world.device)
    pose = replace(pose, done=torch.ones_like(pose.done))  # until they begin
    for step in count():
        pose = replace(pose, done=lanes.refilled(pose.done, step))
        active = lanes.active
        if progress is not None:
            progress(lanes.over)
        if not len(active):
            break
        space.active = active
        pose = space.arrive(pose, active.index)
        policy.observe(pose, active.index, space)
        if label_rule is not None:
            label_rule.arrive(pose.viewpoint[active.index], active.index)
        recorder.step(pose, space.state_step, space.memory, space.notes)
        # what is decided at the last observation is not carried out
        goes_on = lanes.not_cut_off(step)
        action = torch.full_like(pose.viewpoint, STOP)
        if len(goes_on):
            action = space.step(pose, goes_on.index, decide)
        pose = simulator.step(pose, action)
    everyone = torch.arange(len(pose.viewpoint), device=world.device)
    end = torch.full(everyone.shape, torch.nan, device=world.device)
    if label_rule is not None:
        end = label_rule.metres(pose.viewpoint.unsqueeze(1), everyone).squeeze(1)
    return recorder.finished(space.memory, lanes.begun, end=end, allow_revisits=space.allow_revisits)


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

    What an episode draws does not depend on which others walk beside it, or in which process.

    Args:
        drawn: (J, B) in [0, 1), one number for each of the J decisions an episode can take at most.
    """

    def __init__(self, drawn: Tensor) -> None:
        self._drawn = drawn
        self._taken = torch.zeros(drawn.shape[1], dtype=torch.long, device=drawn.device)

    def __call__(self, logits: Tensor, episode: Tensor, /) -> Tensor:
        """Where the summed probabilities pass the number drawn.  (M, O), (M,)  ->  (M,)"""
        drawn = self._drawn[self._taken[episode], episode]
        self._taken[episode] += 1
        reached = logits.softmax(dim=-1).double().cumsum(dim=-1)
        return (reached <= (drawn * reached[:, -1]).unsqueeze(-1)).sum(dim=-1)


class FollowLabels:
    """The teacher: always does what is right and needs no network."""

    def observe(self, _pose: Pose, _active: Tensor, _space: ActionSpace, /) -> None:
        """A teacher does not look."""

    def decide(self, _request: DecisionRequest, label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        """(M,) the labels"""
        return label


class Rescore(Protocol):
    """Changes the scores of requests before an option is picked; leaves alone those it does not know."""

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
    """Whoever wants to see how an agent decides, for example to record a trace."""

    def observed(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        """The episodes ``active`` (M,) have a new observation."""

    def decided(self, decided: Decided, /) -> None:
        """A request was answered."""


@dataclass
class _Step:
    """What an agent knows at one step, and its scores once they were asked for."""

    observations: Observations
    own: EpisodeIndex  # those that observed, without those a teacher leads
    decides: EpisodeIndex | None = None  # those of them that may be asked for a decision
    point: DecisionPoint | None = None
    scores: Mapping[DecisionType, Tensor] = field(default_factory=dict)


class AgentPolicy:
    """Answers requests with an agent's network.

    Args:
        agent: the parameters.
        log: the states of the walks.
        environment: what can be seen.
        pick: how an option is chosen from the scores.
        forced: (B,) bool, episodes that follow their labels; the agent only observes what they see.
        watcher: told of every observation and decision.
        rescore: changes scores before an option is picked.
    """

    def __init__(
        self,
        agent: Agent,
        log: StateLog,
        environment: Environment,
        pick: Pick,
        *,
        forced: Tensor | None = None,
        watcher: Watcher | None = None,
        rescore: Rescore | None = None,
    ) -> None:
        self._agent = agent
        self._log = log
        self._environment = environment
        self._pick = pick
        self._forced = None if forced is None else forced.cpu().numpy()
        self._watcher = watcher
        self._rescore = rescore
        self._of_active: tuple[EpisodeIndex, EpisodeIndex] | None = None  # who observed last, its own ones
        self._step: _Step | None = None
        self._not_numbers: list[tuple[DecisionType, Tensor]] = []  # whether a score is none, per decision
        self._stop_scores: Tensor | None = None  # (B, N) log-probability of stopping when last decided there

    @torch.no_grad()
    def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        """Update the states of ``active``; those who came back may restore theirs."""
        everyone, new = space.active, space.renewed
        if len(new):
            self._log.observe(new.index, pose.viewpoint[new.index], pose.view[new.index], space.now)
        if len(new) < len(everyone):
            known = everyone.where(~np.isin(everyone.number, new.number)).index
            self._log.restore(known, space.state_step[known])
        own, self._step = self._own(everyone), None
        if len(own):
            observations = live_observations(self._environment, self._log, pose, own.index)
            if space.memory is not None:
                for name, values in observations.cached(self._agent.columns).items():
                    space.memory.write(name, values, own.index)
            self._step = _Step(observations, own)
        if self._watcher is not None:
            self._watcher.observed(pose, active, space)

    def _own(self, episodes: EpisodeIndex) -> EpisodeIndex:
        """Those that no teacher leads; the same list again as long as nothing changes."""
        if self._forced is None:
            return episodes
        if self._of_active is None or self._of_active[0] is not episodes:
            self._of_active = episodes, episodes.where(~self._forced[episodes.number])
        return self._of_active[1]

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """(M,) chosen options"""
        if self._forced is None:
            return self._decided(request, pose, space)
        own = request.episodes.where(~self._forced[request.episodes.number])
        if not len(own):
            return label
        rows = request.episodes.rows_of(own)
        if rows is None:
            return self._decided(request, pose, space)
        mine = replace(request.select(rows), listed=own)
        return label.index_copy(0, rows, self._decided(mine, pose, space))

    @torch.no_grad()
    def _decided(self, request: DecisionRequest, pose: Pose, space: ActionSpace) -> Tensor:
        """What the agent chooses."""
        logits = self._logits(request, space)
        if self._rescore is not None:
            logits = self._rescore(logits, request, space)
        not_numbers = logits.isnan()
        self._not_numbers.append((request.type, not_numbers.any()))  # and the walk goes on anyhow
        logits = logits.masked_fill(not_numbers, 0.0).masked_fill(~request.options, -torch.inf)
        if isinstance(space, MemoryActions) and space.final_backtrack and not request.type.over_nodes:
            self._note_stop(logits, request, space)
        choice = self._pick(logits, request.episode)
        if self._watcher is not None:
            explanation = self._explanation(request) if request.type.learned else Explanation()
            self._watcher.decided(Decided(request, logits, choice, explanation, pose, space))
        return choice

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

    def _logits(self, request: DecisionRequest, space: ActionSpace) -> Tensor:
        """(M, O); an episode ends where stopping seemed best when it decided there

        Raises:
            SettingError: the agent does not score such decisions.
        """
        if request.type == FINAL:
            if self._stop_scores is None:
                raise ValueError("a final place was asked for before anything was decided")
            return self._stop_scores[request.episode]
        step = self._step
        if step is None:
            raise ValueError(f"decision '{request.type}' was asked for before anything was observed")
        if step.decides is None:  # all scores of a step are computed when the first one is asked for
            step.decides = self._own(space.decides)
            step.point = live_point(step.observations, step.own, step.decides, space)
            step.scores = by_type(self._agent.score(step.point))
        if request.type not in step.scores:
            raise SettingError(
                f"{type(self._agent).__name__}.score gives no scores for decision '{request.type}'; "
                f"it gives: {', '.join(map(str, step.scores))}"
            )
        rows, scores = step.decides.rows_of(request.episodes), step.scores[request.type]
        return widened(scores if rows is None else scores[rows], request.options, request.type)

    def _explanation(self, request: DecisionRequest) -> Explanation:
        """Why the options of a request scored as they did: M rows."""
        step = self._step
        if step is None or step.point is None or step.decides is None:
            return Explanation()
        whole = self._agent.explain(step.point)
        rows = step.decides.rows_of(request.episodes)
        if rows is None:
            return whole
        return Explanation(
            {name: values[rows] for name, values in whole.words.items()},
            {kind: values[rows] for kind, values in whole.confidence.items()},
            {kind: values[rows] for kind, values in whole.mix.items()},
            {name: values[rows] for name, values in whole.numbers.items()},
        )

    def _note_stop(self, logits: Tensor, request: DecisionRequest, space: MemoryActions) -> None:
        """Remember how likely stopping was where the episodes stand.  logits: (M, O)"""
        memory = space.memory
        if self._stop_scores is None:
            lowest = torch.finfo(logits.dtype).min
            self._stop_scores = torch.full(
                memory.node.shape, lowest, dtype=logits.dtype, device=logits.device
            )
        likely = logits.log_softmax(dim=-1)[:, -1]
        self._stop_scores[request.episode, memory.here[request.episode]] = likely


LONGEST = 1000
"""Of walks and instructions; their tables take memory, and settings may come from the file of a stranger."""


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


class TrainedAgent:
    """An agent ready to walk: network, environment and vocabulary together; greedy unless told otherwise.

    Args:
        network: the parameters.
        environment: the world and the features of its views.
        vocabulary: the words the network knows.
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
        """Who changes the scores of the network on a walk of these episodes; nobody does here."""
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
            watcher: told of every observation and decision.
            at_once: how many episodes walk at the same time; all without it.
            progress: called with the number of episodes that are over whenever some are.
        """
        count, world = len(episodes), self.environment.world
        with evaluating(self.network):
            log = self.network.state_log(
                self.environment, self.read(episodes.texts), self.network.dropout_masks(count)
            )
            rescore = self.rescoring(episodes)
            policy = AgentPolicy(self.network, log, self.environment, pick, watcher=watcher, rescore=rescore)
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
