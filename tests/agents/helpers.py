"""What tests of agents share: small networks, their walks in the tiny world, and plain graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn
from typing_extensions import Self

from scenemem.agents.agent import ActionSpace, Agent, Observations, with_last
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.rollout import DecisionType, Rollout
from scenemem.agents.walker import (
    AgentPolicy,
    Decided,
    LabelRule,
    Pick,
    TrainedAgent,
    WalkConfig,
    Watcher,
    collect,
)
from scenemem.features.store import Environment, open_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import ClosestToGoal
from scenemem.models.navigator import DropoutMasks, Instructions, RolloutInputs
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, Pose, World

WORDS, MAX_STEPS = 40, 60
assert PRESETS, "presets register the packaged agents"

Build = Callable[[DataSizes], Agent]


def packaged(agent: str, **settings: Any) -> Build:
    """Makes a small network of a packaged agent."""
    spec = AGENTS[agent]
    config = spec.config(**{"word_width": 8, "width": 16, **settings})
    return lambda sizes: spec.build(config, sizes)


@dataclass(frozen=True)
class Setting:
    """The tiny world with random features, and episodes to walk in it."""

    environment: Environment
    episodes: EpisodeSet
    vocabulary: Vocabulary

    @classmethod
    def load(cls, data: Path, split: str = "train") -> Self:
        """From a folder like ``tiny_trainable``."""
        torch.set_num_threads(1)
        world = load_world(data / "connectivity")
        environment = Environment(world, open_store(data / "features" / "tiny.npy", world))
        episodes = load_split(DataFolder(data), world, "r2r", split)
        return cls(environment, episodes, Vocabulary.build(episodes.texts, min_count=1))

    @property
    def world(self) -> World:
        return self.environment.world

    @property
    def sizes(self) -> DataSizes:
        return DataSizes(len(self.vocabulary), self.environment.width)

    def every(self, step: int) -> Setting:
        """The same with fewer episodes."""
        return replace(self, episodes=self.episodes.select(range(0, len(self.episodes), step)))

    def network(self, build: str | Build, *, seed: int = 4, std: float | None = 0.25) -> Agent:
        """Random weights, so large that scores differ clearly from option to option."""
        torch.manual_seed(seed)
        network = (packaged(build) if isinstance(build, str) else build)(self.sizes)
        for parameter in network.parameters() if std else ():
            nn.init.normal_(parameter, std=std or 0.0)
        return network.eval()

    def agent(self, name: str, *, limits: WalkConfig | None = None, **settings: Any) -> TrainedAgent:
        """Ready to walk."""
        network = self.network(packaged(name, **settings))
        return TrainedAgent(network, self.environment, self.vocabulary, limits or WalkConfig(6, 20, WORDS))

    def read(self, agent: Agent, episodes: EpisodeSet | None = None) -> Instructions:
        texts = (episodes or self.episodes).texts
        encoded: Instructions = agent.encoder(*self.vocabulary.encode_batch(texts, WORDS))
        return encoded

    def walk(
        self,
        agent: Agent,
        pick: Pick,
        episodes: EpisodeSet | None = None,
        *,
        masks: DropoutMasks | None = None,
        max_decisions: int | Tensor = 6,
        max_steps: int | Tensor = MAX_STEPS,
        learning: bool = False,
        learns: bool = True,
        forced: Tensor | None = None,
        watcher: Watcher | None = None,
        rule: LabelRule | None = None,
    ) -> Rollout:
        """Walk, by default with gradients and towards the goal."""
        episodes = episodes or self.episodes
        masks = masks or agent.dropout_masks(len(episodes))
        inputs = RolloutInputs(self.environment, self.read(agent, episodes), masks)
        policy = AgentPolicy(agent, inputs, pick, forced=forced, learns=learns, watcher=watcher)
        return collect(
            self.world,
            episodes,
            agent.action_space(self.world, len(episodes), max_decisions, learning=learning),
            policy,
            max_steps=max_steps,
            label_rule=rule or ClosestToGoal(self.world, episodes.goal),
        )


def roam(seed: int = 0) -> Pick:
    """Chooses anything, but seldom to stop, so that memories grow and walks lead back and forth."""
    random = torch.Generator().manual_seed(seed)

    def pick(logits: Tensor, _episode: Tensor) -> Tensor:
        assert not logits.requires_grad, "a choice is no part of what is learnt"
        chance = logits.isfinite().float()
        chance[:, -1] *= 0.2
        return torch.multinomial(chance, 1, generator=random).squeeze(1)

    return pick


def never_stop(logits: Tensor, _episode: Tensor) -> Tensor:
    """The best option but stopping, where there is another."""
    last = torch.where(logits[:, :-1].isfinite().any(dim=1), -1e6, logits[:, -1])
    return with_last(logits[:, :-1], last).argmax(dim=1)


class Roaming:
    """The same as a policy without a network; ``stops`` is the chance to, 0 only without another option."""

    def __init__(self, seed: int = 0, *, stops: float = 1.0) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._stops = max(stops, 1e-30)

    def observe(self, *_: object) -> None:
        """Nothing is seen."""

    def decide(self, request: Any, _label: Tensor, _pose: Any, _space: ActionSpace, /) -> tuple[Tensor, None]:
        chance = request.options.double()
        if not request.type.over_nodes:
            chance[:, request.stop] *= self._stops
        return torch.multinomial(chance, 1, generator=self._random).squeeze(1), None


class Notebook:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.places: list[list[int]] = []
        self.decisions: list[Decided] = []

    def observed(self, observations: Observations, _pose: Pose, _space: ActionSpace, /) -> None:
        self.places.append(observations.viewpoint.tolist())

    def decided(self, decided: Decided, /) -> None:
        self.decisions.append(decided)

    def of(self, kind: DecisionType) -> list[Decided]:
        """The decisions of one type."""
        return [decided for decided in self.decisions if decided.request.type == kind]


def walks_of(rollout: Rollout) -> list[list[int]]:
    """The places of every episode, without padding."""
    return [[place for place in walk if place != NONE] for walk in rollout.walked.tolist()]


def known_graph(world: World, places: list[int]) -> nx.Graph:
    """The edges between some places, with their metres."""
    graph = nx.Graph()
    graph.add_nodes_from(places)
    for here in graph:
        for slot, there in enumerate(world.neighbour[here].tolist()):
            if there in graph:
                graph.add_edge(here, there, metres=float(world.neighbour_length[here, slot]))
    return graph


def open_slots(world: World, place: int, visited: list[int]) -> list[int]:
    """The candidate slots of a place that lead to no visited one."""
    neighbours = world.neighbour[place].tolist()
    return [slot for slot, there in enumerate(neighbours) if there != NONE and there not in visited]


def same_scores(seen: Rollout, expected: Rollout, *, tolerance: float = 1e-4) -> None:
    """The same decisions with the same logits, whatever the order of their rows."""
    assert seen.decisions.keys() == expected.decisions.keys()
    for kind, table in expected.decisions.items():
        found = seen.decisions[kind]
        rows, other = ((t.episode * 1000 + t.step).argsort() for t in (table, found))
        for column in ("episode", "step", "options", "choice", "place", "stops"):
            assert torch.equal(getattr(found, column)[other], getattr(table, column)[rows]), (kind, column)
        scores = found.logits[other].detach(), table.logits[rows].detach()
        torch.testing.assert_close(*scores, atol=tolerance, rtol=tolerance)
