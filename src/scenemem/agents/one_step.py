"""The paper's one-step ablation: all sub-nodes of the memory compete in a single decision (Eqs. 10, 11).

Shape letters: B lanes, T ticks, R decisions, N remembered places, K neighbour slots, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.grounded import (
    GroundedActing,
    GroundedNetwork,
    MemoryConfig,
    graphs_now,
    graphs_then,
    map_of,
    memory_of,
)
from scenemem.agents.network import Acting, NetworkConfig, States
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, AnywhereSpace, Rounds
from scenemem.models.attention import rows_of
from scenemem.models.collect_read import CollectRead, Graphs, Places
from scenemem.models.decision import OneStepScore, StopRead, with_stop
from scenemem.models.grounding import Grounded
from scenemem.models.unrolling import Unrolling
from scenemem.simulator.panorama import Pose
from scenemem.world.geometry import view_heading
from scenemem.world.graph import World


class AnywhereNetwork(GroundedNetwork):
    """Reads its memory and chooses one of all sub-nodes on it, or stops."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, memory, words, padding, visual, rounds)
        stream = memory.stream or visual
        self.read = CollectRead(config.width, visual, stream, memory.reasoning_steps, memory.orientation)
        self.anywhere_score = OneStepScore(config.width, visual, stream, memory.orientation)
        self.stop_read = StopRead(config.width, stream, memory.orientation) if memory.stop_reads else None

    def space(self, world: World, lanes: int, rounds: Rounds, *, returns: bool = True) -> ActionSpace:
        """Any sub-node of the memory, or stop."""
        return AnywhereSpace(world, lanes, rounds, self.memory.weights, **self.habits(returns=returns))

    def acting(self, sight: Sight, unrolling: Unrolling) -> Acting:
        """Begin to act."""
        return _AnywhereActing(self, sight, unrolling)

    def decision_logits(self, rollout: Rollout, states: States, sight: Sight) -> dict[Kind, Tensor]:
        """->  anywhere: (R, N * K + 1)"""
        table, moments = rollout.decisions["anywhere"], rollout.moments(["anywhere"])
        row = states.rows_at(rollout)[moments.lane, moments.tick]
        grounded = self.ground(states)
        logits = self.score_map(
            grounded.at(row),
            self.ground_readers(states, grounded).at(row),
            sight.places(map_of(rollout).node),
            view_heading(rollout.view[moments.lane, moments.tick]),
            states.noise.feature,
            graphs_then(rollout, moments),
            map_of(rollout).at[moments.lane, moments.tick],
        )
        return {"anywhere": _widened(rows_of(logits, moments.of["anywhere"]), table.options)}

    def score_map(
        self,
        grounded: Grounded,
        readers: Grounded,
        places: Places,
        heading: Tensor,
        feature_mask: Tensor,
        graphs: Graphs,
        here: Tensor,
    ) -> Tensor:
        """grounded, readers: (R, H)  heading, here: (R,)  ->  (R, n * K + 1)"""
        nodes = self.read(readers, places, heading, feature_mask, graphs)
        logits: Tensor = self.anywhere_score(grounded, places, nodes, heading, feature_mask, graphs)
        return logits if self.stop_read is None else with_stop(logits, self.stop_read(grounded, nodes, here))


class _AnywhereActing(GroundedActing):
    network: AnywhereNetwork

    @torch.no_grad()
    def logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """(R, N * K + 1), or (R, N) for last places"""
        memory, lanes = memory_of(space), question.lanes
        if question.kind == "last":
            return self.stopping.of(lanes)
        graphs = graphs_now(memory, lanes)
        scores = self.network.score_map(
            self.grounded(lanes),
            self.readers(lanes),
            self.sight.places(memory.node[lanes, : graphs.edge.shape[1]]),
            view_heading(pose.view[lanes]),
            self.noise.feature,
            graphs,
            memory.here[lanes],
        )
        logits = _widened(scores, question.options)
        if self.network.memory.goes_back:
            self.stopping.note(logits, question, memory)
        return logits


def _widened(logits: Tensor, options: Tensor) -> Tensor:
    """Insert the slots of nodes that are not known yet before the stop option.  (R, n * K + 1)  ->  (R, O)"""
    missing = options.shape[1] - logits.shape[1]
    return torch.cat([nn.functional.pad(logits[:, :-1], (0, missing)), logits[:, -1:]], dim=1)
