"""Which network an agent is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scenemem.agents.basic import BasicNetwork
from scenemem.agents.grounded import LocalNetwork, MemoryConfig
from scenemem.agents.network import AgentNetwork, NetworkConfig
from scenemem.agents.one_step import AnywhereNetwork
from scenemem.agents.ssm import FrontierNetwork
from scenemem.errors import SettingError
from scenemem.tasks.vocabulary import PAD, Vocabulary

Kind = Literal["basic", "frontier", "local", "anywhere"]


@dataclass(frozen=True)
class WalkConfig:
    """How long an agent may read and walk."""

    rounds: int = 15
    """decisions before a walk is cut off or goes back to end; a frontier and its sub-node are one round"""
    ticks: int = 40
    """observations before a walk is cut off, walks over known places included"""
    words: int = 80
    """longer instructions are cut"""

    def __post_init__(self) -> None:
        for name in ("rounds", "ticks", "words"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")


def build_network(
    kind: Kind,
    model: NetworkConfig,
    memory: MemoryConfig,
    walk: WalkConfig,
    vocabulary: Vocabulary,
    visual: int,
) -> AgentNetwork:
    """A fresh network; ``visual`` is the number of feature columns."""
    if kind == "basic":
        return BasicNetwork(model, len(vocabulary), PAD, visual, walk.rounds)
    networks = {"frontier": FrontierNetwork, "local": LocalNetwork, "anywhere": AnywhereNetwork}
    return networks[kind](model, memory, len(vocabulary), PAD, visual, walk.rounds)
