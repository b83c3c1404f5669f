"""The paper's one-step ablation: all sub-nodes of the memory compete in a single decision (Eqs. 10, 11).

Shape letters: B lanes, T ticks, R decisions, N remembered places, K neighbour slots, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.grounded import (
    GroundedNetwork,
    MemoryConfig,
    RememberingActing,
    graphs_now,
    graphs_then,
    map_of,
    memory_of,
)
from scenemem.agents.network import Acting, NetworkConfig
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, AnywhereSpace
from scenemem.models.collect_read import CollectRead, Graphs, Places
from scenemem.models.decision import OneStepScore
from scenemem.models.grounding import Grounded
from scenemem.models.language import Instructions
from scenemem.models.navigator import Noise
from scenemem.simulator.panorama import Stance
from scenemem.world.geometry import view_heading
from scenemem.world.graph import World


class AnywhereNetwork(GroundedNetwork):
    """Reads its memory and chooses one of all sub-nodes on it, or stops."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, memory, words, padding, visual, rounds)
        stream = memory.stream or visual
        self.read = CollectRead(config.width, visual, stream, memory.reasoning_steps)
        self.anywhere_score = OneStepScore(config.width, visual, stream)

    def space(self, world: World, lanes: int, rounds: int) -> ActionSpace:
        """Any sub-node of the memory, or stop."""
        return AnywhereSpace(world, lanes, rounds, self.memory.weights)

    def acting(self, sight: Sight, instructions: Instructions, noise: Noise) -> Acting:
        """Begin to act."""
        return _AnywhereActing(self, sight, instructions, noise)

    def decision_logits(
        self, rollout: Rollout, hidden: Tensor, sight: Sight, instructions: Instructions, noise: Noise
    ) -> dict[Kind, Tensor]:
        """hidden: (B, T, H)  ->  anywhere: (R, N * K + 1)"""
        table = rollout.decisions["anywhere"]
        graphs, tick = graphs_then(rollout, table)
        grounded = self.ground(hidden, instructions, noise)
        logits = self.score_map(
            grounded.at(tick),
            self.ground_readers(hidden, grounded, instructions, noise).at(tick),
            sight.places(map_of(rollout).node),
            view_heading(rollout.view.gather(1, tick)),
            noise.feature,
            graphs,
        )
        return {"anywhere": _widened(logits, table.options)}

    def score_map(
        self,
        grounded: Grounded,
        readers: Grounded,
        places: Places,
        heading: Tensor,
        feature_mask: Tensor,
        graphs: Graphs,
    ) -> Tensor:
        """grounded, readers: (B, T, H)  heading: (B, T)  ->  (R, n * K + 1)"""
        nodes = self.read(readers, places, heading, feature_mask, graphs)
        logits: Tensor = self.anywhere_score(grounded, places, nodes, heading, feature_mask, graphs)
        return logits


class _AnywhereActing(RememberingActing):
    network: AnywhereNetwork

    @torch.no_grad()
    def logits(self, question: Question, stance: Stance, space: ActionSpace) -> Tensor:
        """(R, N * K + 1)"""
        memory, lanes = memory_of(space), question.lanes
        graphs = graphs_now(memory, lanes)
        nodes = graphs.edge.shape[1]
        grounded = self.grounded(lanes)
        logits = self.network.score_map(
            grounded,
            self.readers(lanes, grounded),
            self.sight.places(memory.node[lanes, :nodes], self.panoramas(lanes, nodes)),
            view_heading(stance.view[lanes]).unsqueeze(1),
            self.noise.feature,
            graphs,
        )
        return _widened(logits, question.options)


def _widened(logits: Tensor, options: Tensor) -> Tensor:
    """Insert the slots of nodes that are not known yet before the stop option.  (R, n * K + 1)  ->  (R, O)"""
    missing = options.shape[1] - logits.shape[1]
    return torch.cat([nn.functional.pad(logits[:, :-1], (0, missing)), logits[:, -1:]], dim=1)
