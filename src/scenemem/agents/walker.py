"""Walking: the one loop of every agent, the policies that answer its requests, and trained agents.

Observe, decide, hop - until every episode has stopped or was cut off. Shape letters: B episodes, M episodes
that decide, O options, J decisions of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

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
from scenemem.agents.rollout import FINAL, DecisionRequest, DecisionType, Recorder, Rollout
from scenemem.errors import NotFiniteError, SettingError
from scenemem.features.store import Environment
from scenemem.models.language import Instructions
from scenemem.models.recurrent import EpisodeSelection, StateLog
from scenemem.simulator.panorama import Pose, Simulator
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, World


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
) -> Rollout:
    """Walk ``episodes`` with ``policy``; nothing here loops over episodes.

    Args:
        world: the world to walk in.
        episodes: what to walk.
        space: what can be chosen; fresh, it remembers the walk.
        policy: who chooses.
        max_steps: observations before an episode is cut off, wherever it was bound; a number, or (B,).
        label_rule: without one no labels and no distances are recorded, and goals may be unknown.
    """
    simulator = Simulator(world, check=False)
    pose = simulator.reset(episodes.start, episodes.heading)
    recorder = Recorder()

    def decide(request: DecisionRequest) -> Tensor:
        viewpoints = torch.cat([pose.viewpoint[request.episode].unsqueeze(1), request.viewpoint], dim=1)
        distance = torch.full(viewpoints.shape, torch.nan, device=viewpoints.device)
        label = torch.full_like(request.episode, NONE)
        if label_rule is not None:
            distance = label_rule.metres(viewpoints, request.episode)
            if request.type.learned:
                label = label_rule(request, space, distance)
        choice = policy.decide(request, label, pose, space)
        recorder.decision(request, choice, label, distance)
        return choice

    limit = torch.as_tensor(max_steps, device=world.device).expand_as(pose.viewpoint)
    for step in range(int(limit.max())):
        active = (~pose.done).nonzero().squeeze(1)
        if not len(active):
            break
        pose = space.arrive(pose, active)
        policy.observe(pose, active, space)
        if label_rule is not None:
            label_rule.arrive(pose.viewpoint[active], active)
        recorder.step(pose, space.state_step, space.memory)
        active = active[
            limit[active] > step + 1
        ]  # what is decided at the last observation is not carried out
        if not len(active):
            break
        pose = simulator.step(pose, space.step(pose, active, decide))
    everyone = torch.arange(len(pose.viewpoint), device=world.device)
    end = torch.full(everyone.shape, torch.nan, device=world.device)
    if label_rule is not None:
        end = label_rule.metres(pose.viewpoint.unsqueeze(1), everyone).squeeze(1)
    return recorder.finished(space.memory, end=end, allow_revisits=space.allow_revisits)


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
    own: Tensor  # (X,) the episodes that observed, without those a teacher leads
    deciding: Tensor | None = None  # (R,) those of them that may be asked for a decision
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
    ) -> None:
        self._agent = agent
        self._log = log
        self._environment = environment
        self._pick = pick
        self._forced = forced
        self._watcher = watcher
        self._selection = EpisodeSelection(log.instructions, log.masks)
        self._step: _Step | None = None
        self._stop_scores: Tensor | None = None  # (B, N) log-probability of stopping when last decided there

    @torch.no_grad()
    def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        """Update the states of ``active``; those who came back may restore theirs."""
        new = active[space.state_step[active] == space.now] if space.restores else active
        if len(new):
            self._log.observe(new, pose.viewpoint[new], pose.view[new], space.now)
        if space.restores and len(new) < len(active):
            known = active[space.state_step[active] != space.now]
            self._log.restore(known, space.state_step[known])
        own = active if self._forced is None else active[~self._forced[active]]
        self._step = None
        if len(own):
            observations = live_observations(self._environment, self._log, self._selection, pose, own)
            if space.memory is not None:
                for name, values in observations.cached(self._agent.columns).items():
                    space.memory.write(name, values, own)
            self._step = _Step(observations, own)
        if self._watcher is not None:
            self._watcher.observed(pose, active, space)

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """(M,) chosen options"""
        if self._forced is None:
            return self._decided(request, pose, space)
        own = (~self._forced[request.episode]).nonzero().squeeze(1)
        if not len(own):
            return label
        return label.index_copy(0, own, self._decided(request.select(own), pose, space))

    @torch.no_grad()
    def _decided(self, request: DecisionRequest, pose: Pose, space: ActionSpace) -> Tensor:
        """What the agent chooses.

        Raises:
            NotFiniteError: a score is not a number.
        """
        logits = self._logits(request, space)
        if bool(logits.isnan().any()):
            raise NotFiniteError(f"a score of decision '{request.type}'")
        logits = logits.masked_fill(~request.options, -torch.inf)
        if isinstance(space, MemoryActions) and space.final_backtrack and not request.type.over_nodes:
            self._note_stop(logits, request, space)
        choice = self._pick(logits, request.episode)
        if self._watcher is not None:
            explanation = self._explanation(request) if request.type.learned else Explanation()
            self._watcher.decided(Decided(request, logits, choice, explanation, pose, space))
        return choice

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
        if step.deciding is None:  # all scores of a step are computed when the first one is asked for
            step.deciding = space.deciding
            if self._forced is not None:
                step.deciding = step.deciding[~self._forced[step.deciding]]
            step.point = live_point(step.observations, step.own, step.deciding, space)
            step.scores = by_type(self._agent.score(step.point))
        if request.type not in step.scores:
            raise SettingError(
                f"{type(self._agent).__name__}.score gives no scores for decision '{request.type}'; "
                f"it gives: {', '.join(map(str, step.scores))}"
            )
        rows = torch.searchsorted(step.deciding, request.episode)
        return widened(step.scores[request.type][rows], request.options, request.type)

    def _explanation(self, request: DecisionRequest) -> Explanation:
        """Why the options of a request scored as they did: M rows."""
        step = self._step
        if step is None or step.point is None or step.deciding is None:
            return Explanation()
        whole = self._agent.explain(step.point)
        rows = torch.searchsorted(step.deciding, request.episode)
        return Explanation(
            {name: values[rows] for name, values in whole.words.items()},
            {kind: values[rows] for kind, values in whole.confidence.items()},
            {kind: values[rows] for kind, values in whole.mix.items()},
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
        for name in ("max_decisions", "max_steps", "max_words"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")


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
        """Encode instructions, one per text."""
        tokens, lengths = self.vocabulary.encode_batch(texts, self.limits.max_words)
        device = self.environment.world.device
        encoded: Instructions = self.network.encoder(tokens.to(device), lengths)
        return encoded

    @torch.no_grad()
    def walk(
        self, episodes: EpisodeSet, /, pick: Pick = take_best, watcher: Watcher | None = None
    ) -> Rollout:
        """Walk the episodes in evaluation mode.

        Args:
            episodes: what to walk.
            pick: how an option is chosen from the scores.
            watcher: told of every observation and decision.
        """
        was_training = self.network.training
        self.network.eval()
        count, world = len(episodes), self.environment.world
        log = self.network.state_log(
            self.environment, self.read(episodes.texts), self.network.dropout_masks(count)
        )
        policy = AgentPolicy(self.network, log, self.environment, pick, watcher=watcher)
        space = self.network.action_space(world, count, self.limits.max_decisions)
        rollout = collect(world, episodes, space, policy, max_steps=self.limits.max_steps)
        self.network.train(was_training)
        return rollout
