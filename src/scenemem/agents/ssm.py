"""The agent of the paper: a navigator with a Structured Scene Memory, and its ablations.

Shape letters: B lanes, T ticks, R frontier decisions, M action decisions, N remembered places, K neighbour
slots, D visual columns, V width of the visual stream, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from scenemem.agents.hints import FrontierHints, NodeFacts
from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig
from scenemem.agents.rollout import Kind, Map, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, FrontierSpace, LocalSpace
from scenemem.memory.scene_memory import Weights
from scenemem.models.attention import tiled
from scenemem.models.collect_read import CollectRead, Graphs, Places
from scenemem.models.decision import StopOption, WeighedScore
from scenemem.models.grounding import FineGrainedGrounding, Grounded, SharedGrounding
from scenemem.models.language import Instructions
from scenemem.models.navigator import Noise
from scenemem.simulator.panorama import Stance
from scenemem.world.geometry import VIEWS, view_heading
from scenemem.world.graph import World


@dataclass(frozen=True)
class MemoryConfig:
    """What makes the memory agent; the ablations of the paper's table 3 each change one line."""

    space: Literal["frontier", "local"] = "frontier"
    # frontier: two-step decisions over the memory; local: neighbours of here only
    grounding: bool = True
    # separate perception- and action-aware states; False asks everything with the state itself
    reasoning_steps: int = 3
    # S rounds of message passing; 0 switches it off
    stream: int | None = None
    # width of the visual node states; None keeps the width of the features, as in the paper
    hints: bool = False
    # plain facts as further frontier inputs (here, distance, age, remembered scores); not in the paper
    weights: Weights = "metres"
    # what the shortest way over the memory counts


class MemoryNetwork(AgentNetwork):
    """A navigator that grounds words in its memory and may return to any frontier it left behind."""

    def __init__(
        self,
        config: NetworkConfig,
        memory: MemoryConfig,
        words: int,
        padding: int,
        visual: int,
        rounds: int,
    ) -> None:
        super().__init__(config, words, padding, visual)
        width, stream = config.width, memory.stream or visual
        self.memory = memory
        self._rounds = rounds
        self.grounding = FineGrainedGrounding(width) if memory.grounding else SharedGrounding()
        self.stop = StopOption(visual)
        self.action_score = WeighedScore(width, visual)
        if memory.space == "frontier":
            self.read = CollectRead(width, visual, stream, memory.reasoning_steps)
            self.frontier_score = WeighedScore(width, stream)
            self.hints = FrontierHints(width) if memory.hints else None

    def space(self, world: World, lanes: int) -> ActionSpace:
        """What this agent may choose from."""
        if self.memory.space == "local":
            return LocalSpace(world, lanes, self._rounds)
        return FrontierSpace(world, lanes, self._rounds, self.memory.weights)

    def acting(self, sight: Sight, instructions: Instructions, noise: Noise) -> Acting:
        """Begin to act."""
        return _MemoryActing(self, sight, instructions, noise)

    def decision_logits(
        self, rollout: Rollout, hidden: Tensor, sight: Sight, instructions: Instructions, noise: Noise
    ) -> dict[Kind, Tensor]:
        """hidden: (B, T, H)  ->  action: (M, K + 1), frontier: (R, N)"""
        grounded = self.grounding(hidden * noise.deciding.unsqueeze(1), instructions)
        # with hints the scores of every tick are remembered, otherwise only decisions are scored
        table = rollout.decisions["action"]
        everywhere = self.memory.hints and "frontier" in rollout.decisions
        where = rollout.alive.nonzero().unbind(1) if everywhere else (table.lane, table.tick)
        logits = self.score_actions(
            grounded.perception[where],
            grounded.action[where],
            sight.neighbours(rollout.viewpoint[where], rollout.view[where]),
            noise.feature,
        )
        if "frontier" not in rollout.decisions:
            return {"action": logits}
        at_tick = _dense(logits, where, rollout) if everywhere else None
        frontier = self._replayed_frontiers(rollout, hidden, grounded, sight, noise, at_tick)
        action = logits if at_tick is None else at_tick[table.lane, table.tick]
        return {"action": action, "frontier": frontier}

    def score_actions(
        self, perception: Tensor, action: Tensor, seen: tuple[Tensor, Tensor], feature_mask: Tensor
    ) -> Tensor:
        """Eq. 14: the neighbours of here, then stop.

        perception, action: (M, H)  seen: visual (M, K, D), orientation (M, K, 4)  ->  (M, K + 1)
        """
        visual, orientation = self.stop(seen[0] * feature_mask, tiled(seen[1]))
        logits: Tensor = self.action_score(perception, action, visual, orientation)
        return logits

    def score_frontiers(
        self,
        state: Tensor,
        grounded: Grounded,
        places: Places,
        heading: Tensor,
        feature_mask: Tensor,
        graphs: Graphs,
        facts: NodeFacts | None,
    ) -> Tensor:
        """Eqs. 7 to 9 and 13.  state: (R, H)  grounded: (B, T, H)  heading: (B, T)  ->  (R, N)"""
        visual, orientation = self.read(grounded, places, heading, feature_mask, graphs)
        where = (graphs.lane, graphs.tick)
        logits: Tensor = self.frontier_score(
            grounded.perception[where], grounded.action[where], visual, orientation
        )
        return logits if self.hints is None or facts is None else logits + self.hints(state, facts)

    def _replayed_frontiers(
        self,
        rollout: Rollout,
        hidden: Tensor,
        grounded: Grounded,
        sight: Sight,
        noise: Noise,
        at_tick: Tensor | None,
    ) -> Tensor:
        if rollout.map is None:
            raise TypeError("a rollout with frontier decisions has no map")
        table, known = rollout.decisions["frontier"], rollout.map
        nodes = known.node.clamp_min(0)
        directions, exists = sight.directions(nodes)
        where = (table.lane, table.tick)
        graphs = Graphs(table.lane, table.tick, known.edge[table.lane], known.count[where])
        facts = None
        if at_tick is not None:
            remembered = _remembered(at_tick, known, rollout.alive, table.lane, table.tick, exists)
            still_open = _first_visit(known, sight.world)[table.lane] >= graphs.count[:, None, None]
            walk = table.walk[:, : nodes.shape[1]]
            facts = NodeFacts(
                known.at[where], graphs.count, walk, remembered, still_open & exists[table.lane]
            )
        logits = self.score_frontiers(
            hidden[where],
            grounded,
            Places(sight.panorama(nodes), directions, exists),
            view_heading(rollout.view),
            noise.feature,
            graphs,
            facts,
        )
        return nn.functional.pad(logits, (0, table.options.shape[1] - logits.shape[1]))


class _MemoryActing(Acting):
    """Keeps what every lane has seen, so that nothing is gathered twice."""

    network: MemoryNetwork
    _panoramas: Tensor | None = None  # (B, N, 36, D)
    _remembered: Tensor | None = None  # (B, N, K + 1)

    @torch.no_grad()
    def observe(self, stance: Stance, lanes: Tensor, space: ActionSpace) -> None:
        """Update the states, and remember what is needed to judge frontiers later."""
        panorama = self.sight.panorama(stance.viewpoint[lanes])
        self._look_around(panorama, stance, lanes)
        memory = space.memory
        if memory is None:
            return
        if self._panoramas is None:
            self._panoramas = panorama.new_zeros(*memory.node.shape, VIEWS, self.sight.width)
        self._panoramas[lanes, memory.here[lanes]] = panorama
        if self.network.memory.hints:
            self._remember(stance, lanes, memory.here[lanes], memory.node.shape)

    def _remember(self, stance: Stance, lanes: Tensor, here: Tensor, shape: torch.Size) -> None:
        logits = self._action_logits(stance, lanes)
        exists = self.sight.directions(stance.viewpoint[lanes])[1]
        scores = _log_probabilities(logits, exists)
        if self._remembered is None:
            self._remembered = scores.new_zeros(*shape, scores.shape[-1])
        self._remembered[lanes, here] = scores

    @torch.no_grad()
    def logits(self, question: Question, stance: Stance, space: ActionSpace) -> Tensor:
        """(M, K + 1) for actions, (M, N) for frontiers"""
        if question.kind == "frontier":
            return self._frontier_logits(question, stance, space)
        return self._action_logits(stance, question.lanes)

    def _grounded(self, lanes: Tensor) -> Grounded:
        state = (self.hidden[lanes] * self.noise.deciding[lanes]).unsqueeze(1)
        grounded: Grounded = self.network.grounding(state, self.instructions.select(lanes))
        return grounded

    def _action_logits(self, stance: Stance, lanes: Tensor) -> Tensor:
        grounded = self._grounded(lanes)
        seen = self.sight.neighbours(stance.viewpoint[lanes], stance.view[lanes])
        return self.network.score_actions(
            grounded.perception[:, 0], grounded.action[:, 0], seen, self.noise.feature
        )

    def _frontier_logits(self, question: Question, stance: Stance, space: ActionSpace) -> Tensor:
        memory, lanes = space.memory, question.lanes
        if memory is None or self._panoramas is None or question.walk is None:
            raise TypeError("a frontier was asked for without a memory")
        nodes = int(memory.count[lanes].max())
        directions, exists = self.sight.directions(memory.node[lanes, :nodes].clamp_min(0))
        row = torch.arange(len(lanes), device=lanes.device)
        count = memory.count[lanes]
        graphs = Graphs(row, torch.zeros_like(row), memory.edge[lanes, :nodes, :nodes], count)
        facts = None
        if self._remembered is not None:
            facts = NodeFacts(
                memory.here[lanes],
                count,
                question.walk[:, :nodes],
                self._remembered[lanes, :nodes],
                memory.subnode[lanes, :nodes],
            )
        logits = self.network.score_frontiers(
            self.hidden[lanes],
            self._grounded(lanes),
            Places(self._panoramas[lanes, :nodes], directions, exists),
            view_heading(stance.view[lanes]).unsqueeze(1),
            self.noise.feature,
            graphs,
            facts,
        )
        return nn.functional.pad(logits, (0, question.options.shape[1] - nodes))


def _log_probabilities(logits: Tensor, exists: Tensor) -> Tensor:
    """Over real neighbours and stop.  logits: (..., K + 1)  exists: (..., K)  ->  (..., K + 1)"""
    options = nn.functional.pad(exists, (0, 1), value=True)
    return logits.masked_fill(~options, -torch.inf).log_softmax(dim=-1).masked_fill(~options, -1e4)


def _dense(logits: Tensor, where: tuple[Tensor, ...], rollout: Rollout) -> Tensor:
    """logits: (P, O) of the ticks ``where``  ->  (B, T, O)"""
    return logits.new_zeros(*rollout.alive.shape, logits.shape[-1]).index_put(where, logits)


def _remembered(
    at_tick: Tensor, known: Map, alive: Tensor, lane: Tensor, tick: Tensor, exists: Tensor
) -> Tensor:
    """What each node's neighbours scored when the lane last stood there, up to the given moments.

    at_tick: (B, T, K + 1) action logits  exists: (B, N, K)  lane, tick: (R,)  ->  (R, N, K + 1), no gradient
    """
    ticks = torch.arange(at_tick.shape[1], device=tick.device)
    stood = known.at.unsqueeze(-1) == torch.arange(known.node.shape[1], device=tick.device)  # (B, T, N)
    stood &= alive.unsqueeze(-1)
    last = torch.where(stood, ticks[:, None], -1).cummax(dim=1).values[lane, tick]  # (R, N)
    logits = at_tick.detach()[lane.unsqueeze(1), last.clamp_min(0)]
    return _log_probabilities(logits, exists[lane]).masked_fill((last < 0).unsqueeze(-1), 0.0)


def _first_visit(known: Map, world: World) -> Tensor:
    """Number of the node that is slot k of node n; N where it was never visited  ->  (B, N, K)"""
    places = world.neighbour[known.node.clamp_min(0)]
    match = places.unsqueeze(-1) == known.node[:, None, None, :]
    return torch.where(match.any(dim=-1), match.int().argmax(dim=-1), known.node.shape[1])
