"""What the tests of the family share: small networks of every system, and walks through the tiny world."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.agent import ActionSpace, Agent, DecisionPoint, Observations
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.rollout import DecisionType, Rollout
from scenemem.agents.walker import AgentPolicy, Decided, Pick, TrainedAgent, WalkConfig, collect
from scenemem.features.store import Environment
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import ClosestToGoal, LearningConfig, LossContext, Stage, distance_reward
from scenemem.learning.trainer import Trainer
from scenemem.models.navigator import Instructions, RolloutInputs
from scenemem.presets import PRESETS, PUBLISHED, Preset
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, World
from scenemem.zoo.exploring import ExploringActions
from scenemem.zoo.low_level import LowLevelActions
from scenemem.zoo.objectives import ExplorerLabels, LowLevelExpert
from tests.agents.helpers import known_graph

SMALL: dict[str, Any] = {
    "width": 16,
    "word_width": 8,
    "action_width": 12,
    "map_width": 12,
    "critic_width": 8,
    "layers": 1,
    "panorama_layers": 1,
    "text_layers": 1,
    "heads": 2,
}
"""Settings that make any network of the family small; each has some of them."""


def named(results: str) -> Preset[Any]:
    """A row; with the ending ``-as-published`` its published recipe."""
    row = results.removesuffix("-as-published")
    return PRESETS[row] if row == results else PUBLISHED[row]


def small_settings(preset: Preset[Any]) -> dict[str, Any]:
    """Those of the settings that the agent of a preset has, and has not switched off."""
    own = {item.name for item in fields(preset.model)}
    return {name: value for name, value in SMALL.items() if name in own and getattr(preset.model, name)}


def small(preset: Preset[Any], **changes: Any) -> Preset[Any]:
    """A preset with a small network."""
    return replace(preset, model=replace(preset.model, **{**small_settings(preset), **changes}))


RULES = {LowLevelActions: LowLevelExpert, ExploringActions: ExplorerLabels}
"""Label rules of the action spaces that have one of their own."""


@dataclass
class Walk:
    """A watcher that keeps everything about one walk of all episodes."""

    inputs: RolloutInputs = field(init=False)
    rollout: Rollout = field(init=False)
    space: Any = None
    seen: list[Observations] = field(default_factory=list)
    points: list[DecisionPoint] = field(default_factory=list)
    answers: list[Decided] = field(default_factory=list)

    def observed(self, observations: Observations, _pose: object, space: ActionSpace, /) -> None:
        self.seen.append(observations)
        self.space = space

    def decided(self, decided: Decided, /) -> None:
        self.answers.append(decided)

    @property
    def heads(self) -> dict[str, Tensor]:
        return self.rollout.heads

    def arrivals(self) -> Iterator[tuple[int, int, Tensor]]:
        """Every episode, place and state (H,), in the order of arrival."""
        for seen in self.seen:
            yield from zip(seen.episode.tolist(), seen.viewpoint.tolist(), seen.state.hidden, strict=True)

    def at(self, episode: int, step: int) -> tuple[Observations, int]:
        """The observations of a step, and the row of an episode there."""
        seen = self.seen[step]
        return seen, seen.episode.tolist().index(episode)


@dataclass(frozen=True)
class Setting:
    """The tiny world with random features, and episodes to learn from."""

    environment: Environment
    episodes: EpisodeSet
    vocabulary: Vocabulary

    @property
    def world(self) -> World:
        return self.environment.world

    def agent(self, name: str, *, seed: int = 0, **changes: Any) -> TrainedAgent:
        """The agent of a preset with a small network and fresh weights."""
        preset = small(named(name), **changes)
        torch.manual_seed(seed)
        sizes = DataSizes(len(self.vocabulary), self.environment.width)
        network = AGENTS[preset.agent].build(preset.model, sizes)
        return TrainedAgent(network, self.environment, self.vocabulary, preset.walk)

    def loud(self, kind: type[Any], name: str, *, seed: int = 4, **changes: Any) -> Any:
        """An agent of that kind with weights so large that scores differ clearly from option to option."""
        agent = self.agent(name, **changes).network
        assert isinstance(agent, kind)
        torch.manual_seed(seed)
        for parameter in agent.parameters():
            nn.init.normal_(parameter, std=0.25)
        return agent.eval()

    def walker(self, name: str, *limits: int, seed: int = 4, **changes: Any) -> TrainedAgent:
        """A loud agent, ready to walk so many decisions, steps and words."""
        network = self.loud(Agent, name, seed=seed, **changes)
        return TrainedAgent(network, self.environment, self.vocabulary, WalkConfig(*limits))

    def trainer(self, agent: TrainedAgent, preset: Preset[Any], **learning: Any) -> Trainer:
        """A trainer of a preset's losses on small batches."""
        config = replace(preset.learning, **{"iterations": 2, "batch": 4, **learning})
        more = StoredEpisodes(self.episodes, seed=0)
        return Trainer(agent, self.episodes, config, seed=0, augmentation=more)

    def inputs(self, agent: Agent) -> RolloutInputs:
        """What a walk of all episodes begins with."""
        read: Instructions = agent.encoder(*self.vocabulary.encode_batch(self.episodes.texts, 40))
        return RolloutInputs(self.environment, read, agent.dropout_masks(len(self.episodes)))

    def walk(self, agent: Agent, pick: Pick, *, learning: bool = False, max_decisions: int = 6) -> Walk:
        """Walk all episodes, with the heads of whole walks where they are learnt from."""
        inputs = self.inputs(agent)
        space = agent.action_space(self.world, len(self.episodes), max_decisions, learning=learning)
        rule = next((rule for kind, rule in RULES.items() if isinstance(space, kind)), ClosestToGoal)
        walk, score = Walk(), agent.score

        def spy(point: DecisionPoint) -> object:
            walk.points.append(_kept(point))
            return score(point)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agent, "score", spy)
            policy = AgentPolicy(agent, inputs, pick, learns=True, watcher=walk)
            labels = rule(self.world, self.episodes.goal)
            rollout = collect(self.world, self.episodes, space, policy, max_steps=60, label_rule=labels)
        whole = agent.whole_walk_heads(rollout, inputs) if learning else {}
        walk.inputs, walk.rollout = inputs, with_heads(rollout, **whole)
        return walk

    def context(self, rollout: Rollout, **learning: Any) -> LossContext:
        """What a loss of such a walk is given."""
        taken = sum(len(table.episode) for table in rollout.decisions.values())
        config = LearningConfig(**learning)
        return LossContext(self.world, self.episodes, config, Stage(), taken, distance_reward)


def _kept(point: DecisionPoint) -> DecisionPoint:
    """A decision point that stays as it is when the walk goes on; its graph shares tables with the memory."""
    if point.graph is None:
        return point
    notes = {name: values.clone() for name, values in point.graph.notes.items()}
    return replace(point, graph=replace(point.graph, columns=dict(point.graph.columns), notes=notes))


def with_heads(rollout: Rollout, **heads: Tensor) -> Rollout:
    """A rollout with some heads replaced."""
    return replace(rollout, heads={**rollout.heads, **heads})


def with_logits(rollout: Rollout, kind: DecisionType, logits: Tensor) -> Rollout:
    """A rollout with other scores of one type of decisions."""
    table = replace(rollout.decisions[kind], logits=logits)
    return replace(rollout, decisions={**rollout.decisions, kind: table})


def learnt_by(agent: nn.Module, loss: Tensor) -> set[str]:
    """The parameters that a loss has a gradient for."""
    names, parameters = zip(*agent.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return {name for name, g in zip(names, gradients, strict=True) if g is not None and bool(g.any())}


def roam(seed: int = 0, stop: float = 0.2) -> Pick:
    """Chooses anything, but seldom to stop."""
    random = torch.Generator().manual_seed(seed)

    def pick(logits: Tensor, _episode: Tensor) -> Tensor:
        chance = logits.isfinite().float()
        if logits.shape[1] > 1:
            chance[:, -1] *= stop
        return torch.multinomial(chance, 1, generator=random).squeeze(1)

    return pick


def imported_by(file: Path) -> set[str]:
    """The modules that a file imports."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return named | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def way_over(world: World, known: Iterable[int], source: int, target: int) -> list[int]:
    """The shortest way over edges between known places, without its begin."""
    path: list[int] = nx.dijkstra_path(known_graph(world, list(known)), source, target, weight="metres")
    return path[1:]


def places_of(row: Tensor) -> list[int]:
    """A row of viewpoints without its padding."""
    return [place for place in row.tolist() if place != NONE]
