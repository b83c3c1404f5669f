"""Memories at the end of real walks in the tiny world, in 64-bit numbers, and agents that walk there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.agent import Agent, DecisionPoint
from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import AgentPolicy, Sample, collect
from scenemem.features.store import Environment
from scenemem.models.navigator import RolloutInputs
from scenemem.ssm.deciding import FrontierActions
from scenemem.ssm.graph import MemoryGraph, SceneMemory, WalkOptions
from scenemem.ssm.reading import Grounded
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import World
from tests.agents.helpers import Setting as AgentSetting
from tests.agents.helpers import packaged
from tests.ssm import reference

VISUAL, WIDTH = 5, 6
MASK = torch.tensor([1.5, 0.0, 1.5, 1.5, 0.0], dtype=torch.float64)
WALKS = {  # one goes round a square, one goes back and forth, one has just begun
    "grid": ["g00", "g10", "g11", "g01", "g02"],
    "spiral": ["s3", "s4", "s0", "s4"],
    "yard": ["g11"],
}
MakeEnvironment = Callable[[World, int], Environment]


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def trained(module: nn.Module) -> Any:
    """Random weights everywhere, also where training begins at 0."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def scored(agent: Any, walk: Callable[[], object]) -> list[tuple[DecisionPoint, Any]]:
    """Every decision point of a walk, with its scores."""
    seen, score = list[tuple[DecisionPoint, Any]](), agent.score

    def spy(point: DecisionPoint) -> Any:
        seen.append((point, score(point)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "score", spy)
        walk()
    return seen


def visit_all(memory: SceneMemory, walks: Sequence[Sequence[int]]) -> SceneMemory:
    """Walks of any length, step by step."""
    for step in range(max(map(len, walks))):
        active = [episode for episode, walk in enumerate(walks) if step < len(walk)]
        memory.visit(torch.tensor([walks[episode][step] for episode in active]), torch.tensor(active))
    return memory


def remembered(environment: Environment, walks: Sequence[Sequence[int]], **options: Any) -> MemoryGraph:
    """What agents at the end of their walks decide with."""
    space = FrontierActions(environment.world, len(walks), max(map(len, walks)) + 1, WalkOptions(**options))
    visit_all(space.memory, walks)
    everyone = torch.arange(len(walks))
    return space.memory.recall(everyone, space.memory.count, environment)


def exact(environment: Environment) -> Environment:
    """The same with 64-bit features and angles."""
    world = environment.world
    world = replace(
        world,
        neighbour_heading=world.neighbour_heading.double(),
        neighbour_elevation=world.neighbour_elevation.double(),
    )
    store = replace(environment.store, values=environment.store.values.double(), half=True)
    return Environment(world, store)


def repainted(environment: Environment, change: Callable[[Tensor], Tensor]) -> Environment:
    """The same places with other features.  change: (V, 36, D)  ->  (V, 36, D)"""
    store = environment.store
    return Environment(environment.world, replace(store, values=change(store.values.clone())))


def referred(environment: Environment, here: int) -> reference.Place:
    """A place as the reference wants it."""
    world, features = environment.world, environment.panorama(torch.tensor(here)).double().numpy()
    slots = world.neighbour_mask[here].nonzero().flatten().tolist()
    looking = world.neighbour_view[here, slots].tolist()
    tables = (world.neighbour, world.neighbour_heading, world.neighbour_elevation)
    ways = zip(*(table[here, slots].tolist() for table in tables), looking, strict=True)
    views = (reference.NavigableView(there, features[view], *angles) for there, *angles, view in ways)
    others = [view for view in range(36) if view not in looking]
    return reference.Place(here, tuple(views), features[others])


@dataclass(frozen=True)
class Moment:
    """Agents at the end of their walks."""

    environment: Environment
    walks: list[list[int]]
    grounded: Grounded  # (R, H)
    heading: Tensor  # (R,)

    @property
    def graph(self) -> MemoryGraph:
        return remembered(self.environment, self.walks)

    @property
    def states(self) -> list[tuple[int, int, int]]:
        """Memory, node and viewpoint of every node state."""
        visited = [dict.fromkeys(walk) for walk in self.walks]
        return [(row, node, place) for row, known in enumerate(visited) for node, place in enumerate(known)]

    def ask(self, reader: nn.Module) -> tuple[Tensor, Tensor]:
        nodes: tuple[Tensor, Tensor] = reader(self.grounded, self.heading, MASK, self.graph)
        return nodes

    def only(self, rows: list[int]) -> Moment:
        """Some of the agents."""
        grounded = Grounded(self.grounded.perception[rows], self.grounded.action[rows])
        return Moment(self.environment, [self.walks[row] for row in rows], grounded, self.heading[rows])


class Setting(AgentSetting):
    """A world with random features of 10 columns, and instructions to follow in it."""

    @classmethod
    def of(cls, make: MakeEnvironment, world: World, episodes: EpisodeSet) -> Setting:
        return cls(make(world, 10), episodes, Vocabulary.build(episodes.texts, min_count=1))

    def random(self, kind: str = "ssm", *, std: float = 0.25, **settings: Any) -> Any:
        """An agent whose scores differ from option to option."""
        return self.network(packaged(kind, **settings), seed=1, std=std)

    def learning(self, agent: Agent, *, max_decisions: int = 6) -> tuple[Rollout, RolloutInputs]:
        """A walk to learn from, which draws its choices, and what it began with."""
        count, world = len(self.episodes), self.world
        inputs = RolloutInputs(self.environment, self.read(agent), agent.dropout_masks(count))
        pick = Sample(torch.Generator().manual_seed(3))
        policy = AgentPolicy(agent, inputs, pick, learns=True)
        space = agent.action_space(world, count, max_decisions)
        return collect(world, self.episodes, space, policy, max_steps=25), inputs
