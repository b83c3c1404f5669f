"""Memories at the end of real walks in the tiny world, and what agents ask them with; 64-bit numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scenemem.agents.actions import Arrival
from scenemem.features.store import Environment
from scenemem.ssm.deciding import FrontierActions
from scenemem.ssm.graph import MemoryGraph, SceneMemory, WalkOptions
from scenemem.ssm.reading import Grounded
from scenemem.world.graph import World

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
    return space.recall(Arrival(everyone, everyone, space.memory.count), environment)


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


def slots_reversed(environment: Environment) -> Environment:
    """The same places with their candidate slots in the opposite order."""
    names = ("", "_view", "_heading", "_elevation", "_length")
    tables = {f"neighbour{name}": getattr(environment.world, f"neighbour{name}").flip(1) for name in names}
    return Environment(replace(environment.world, **tables), environment.store)


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
