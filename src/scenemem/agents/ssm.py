"""The agent of the paper: frontier decisions over a Structured Scene Memory.

Shape letters: B lanes, T ticks, R frontier decisions, M action decisions, N remembered places, K neighbour
slots, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.agents.grounded import (
    GroundedActing,
    LocalNetwork,
    MemoryConfig,
    action_logits,
    graphs_now,
    graphs_then,
    map_of,
    memory_of,
)
from scenemem.agents.hints import FrontierHints, NodeFacts
from scenemem.agents.hop_prior import HopPriorSpace
from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig, States
from scenemem.agents.rollout import Kind, Map, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, FrontierSpace, Rounds, with_memory
from scenemem.models.attention import rows_of
from scenemem.models.collect_read import CollectRead
from scenemem.models.decision import FrontierScore, StopRead, with_stop
from scenemem.models.grounding import Grounded
from scenemem.models.unrolling import Unrolling
from scenemem.simulator.panorama import Pose
from scenemem.world.geometry import view_heading
from scenemem.world.graph import NONE, World


class FrontierNetwork(LocalNetwork):
    """Reads its memory, chooses a frontier, walks there, and chooses one of its sub-nodes or stops."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, memory, words, padding, visual, rounds)
        stream = memory.stream or visual
        self.read = CollectRead(config.width, visual, stream, memory.reasoning_steps, memory.orientation)
        self.frontier_score = FrontierScore(config.width, stream, memory.orientation)
        self.hints = FrontierHints(config.width) if memory.hints else None
        self.stop_read = StopRead(config.width, stream, memory.orientation) if memory.stop_reads else None

    def space(self, world: World, lanes: int, rounds: Rounds, *, returns: bool = True) -> ActionSpace:
        """Frontiers of the memory, then their sub-nodes."""
        space = HopPriorSpace if self.memory.hop_prior else FrontierSpace
        return space(world, lanes, rounds, self.memory.weights, **self.habits(returns=returns))

    def acting(self, sight: Sight, unrolling: Unrolling) -> Acting:
        """Begin to act."""
        return _FrontierActing(self, sight, unrolling)

    def decision_logits(self, rollout: Rollout, states: States, sight: Sight) -> dict[Kind, Tensor]:
        """->  action: (M, K + 1), frontier: (R, N)"""
        reading = [kind for kind in self._read_for if kind in rollout.decisions]
        if not reading:
            return super().decision_logits(rollout, states, sight)
        grounded = self.ground(states)
        actions, facts = self._actions_and_facts(rollout, grounded, states, sight)
        moments = rollout.moments(reading)
        row = states.rows_at(rollout)[moments.lane, moments.tick]
        asks = grounded.at(row)
        nodes = self.read(
            self.ground_readers(states, grounded).at(row),
            sight.places(map_of(rollout).node),
            view_heading(rollout.view[moments.lane, moments.tick]),
            states.noise.feature,
            graphs_then(rollout, moments),
        )
        if self.stop_read is not None:
            here = map_of(rollout).at[moments.lane, moments.tick]
            actions = with_stop(actions, self.stop_read(asks, nodes, here)[moments.of["action"]])
        logits: dict[Kind, Tensor] = {"action": actions}
        if "frontier" in reading:
            table, asked = rollout.decisions["frontier"], moments.of["frontier"]
            scores = rows_of(self.frontier_score(*asks.asks, *nodes), asked)
            state = rows_of(states.hidden, row[asked])
            logits["frontier"] = _widened(self.hinted(scores, state, facts), table.options)
        return logits

    @property
    def _read_for(self) -> tuple[Kind, ...]:
        """The decisions that need the memory to be read."""
        return ("frontier",) if self.stop_read is None else ("action", "frontier")

    def hinted(self, scores: Tensor, state: Tensor, facts: NodeFacts | None) -> Tensor:
        """The scores of frontiers with what plain facts add.  scores: (R, N)  state: (R, H)  ->  (R, N)"""
        return scores if self.hints is None or facts is None else scores + self.hints(state, facts)

    def _actions_and_facts(
        self, rollout: Rollout, grounded: Grounded, states: States, sight: Sight
    ) -> tuple[Tensor, NodeFacts | None]:
        """The scores of all action decisions; with hints, every observation is scored and remembered."""
        table, seating = rollout.decisions["action"], states.seating
        rows_at = states.rows_at(rollout)
        decided = rows_at[table.lane, table.tick]
        if self.hints is None or "frontier" not in rollout.decisions:
            return self.score_rows(grounded, decided, rollout, states, sight), None
        everywhere = torch.arange(len(seating.lane), device=decided.device)
        logits = self.score_rows(grounded, everywhere, rollout, states, sight)
        facts = _facts_then(rollout, rows_of(logits.detach(), rows_at), sight, revisits=self.memory.revisits)
        return rows_of(logits, decided), facts


class _FrontierActing(GroundedActing):
    network: FrontierNetwork
    _scores: Tensor | None = None  # (B, N, K + 1) log-probabilities when last at each node
    _actions: Tensor | None = None  # (B, K + 1) action logits where the lanes stand, when they are at hand

    def __init__(self, network: AgentNetwork, sight: Sight, unrolling: Unrolling) -> None:
        super().__init__(network, sight, unrolling)
        # (B,) how well stopping fits what the memory says about where they stand, and the tick it was read at
        self._fits = torch.zeros_like(self.hidden[:, 0])
        self._read = torch.full_like(self._fits, NONE, dtype=torch.long)

    @torch.no_grad()
    def consider(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> None:
        """Ground the states; with hints, remember how the neighbours scored."""
        super().consider(pose, lanes, space)
        if self.network.hints is None:
            return
        memory = memory_of(space)
        exists = self.sight.world.neighbour_mask[pose.viewpoint[lanes]]
        logits = action_logits(self.network, self, pose, lanes)
        if self._scores is None or self._actions is None:
            self._scores = logits.new_zeros(*memory.node.shape, logits.shape[-1])
            self._actions = logits.new_zeros(len(memory.node), logits.shape[-1])
        self._scores[lanes, memory.here[lanes]] = _log_probabilities(logits, exists)
        self._actions[lanes] = logits

    @torch.no_grad()
    def logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """(M, K + 1) for actions, (R, N) for frontiers and last places"""
        if question.kind == "frontier":
            return self._frontier_logits(question, pose, space)
        if question.kind == "last":
            return self.stopping.of(question.lanes)
        logits = self._action_logits(pose, question.lanes, space)
        if self.network.memory.goes_back:
            self.stopping.note(logits, question, memory_of(space))
        return logits

    def _action_logits(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> Tensor:
        """(M, K + 1)"""
        if self._actions is not None:
            logits = self._actions[lanes]
        else:
            logits = action_logits(self.network, self, pose, lanes)
        if self.network.stop_read is None:
            return logits
        return with_stop(logits, self._stop_fits(pose, lanes, space))

    def _frontier_logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """(R, N)"""
        memory, lanes = memory_of(space), question.lanes
        nodes = self._read_memory(pose, lanes, space)
        facts = None
        if self._scores is not None and question.walk is not None:
            known = nodes[0].shape[1]
            facts = NodeFacts(
                here=memory.here[lanes],
                count=memory.count[lanes],
                walk=question.walk[:, :known],
                remembered=self._scores[lanes, :known],
                open=with_memory(space).ways(lanes)[:, :known],
            )
        scores = self.network.frontier_score(*self.grounded(lanes).asks, *nodes)
        return _widened(self.network.hinted(scores, self.hidden[lanes], facts), question.options)

    def _read_memory(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> tuple[Tensor, Tensor]:
        """The states of all nodes ``lanes`` know, visual (R, n, V) and orientation (R, n, W)."""
        memory = memory_of(space)
        graphs = graphs_now(memory, lanes)
        nodes: tuple[Tensor, Tensor] = self.network.read(
            self.readers(lanes),
            self.sight.places(memory.node[lanes, : graphs.edge.shape[1]]),
            view_heading(pose.view[lanes]),
            self.noise.feature,
            graphs,
        )
        if self.network.stop_read is not None:
            self._fits[lanes] = self.network.stop_read(self.grounded(lanes), nodes, memory.here[lanes])
            self._read[lanes] = space.now
        return nodes

    def _stop_fits(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> Tensor:
        """(M,); lanes that have not read their memory at this tick do so now"""
        unread = lanes[self._read[lanes] != space.now]
        if len(unread):
            self._read_memory(pose, unread, space)
        return self._fits[lanes]


def _widened(logits: Tensor, options: Tensor) -> Tensor:
    """Scores of the known nodes, padded to all nodes there could be.  (R, n)  ->  (R, N)"""
    return nn.functional.pad(logits, (0, options.shape[1] - logits.shape[1]))


def _log_probabilities(logits: Tensor, exists: Tensor) -> Tensor:
    """Over real neighbours and stop.  logits: (..., K + 1)  exists: (..., K)  ->  (..., K + 1)"""
    options = nn.functional.pad(exists, (0, 1), value=True)
    return logits.masked_fill(~options, -torch.inf).log_softmax(dim=-1).masked_fill(~options, -1e4)


def _facts_then(rollout: Rollout, at_tick: Tensor, sight: Sight, *, revisits: bool) -> NodeFacts:
    """What was known about the nodes at every frontier decision.  at_tick: (B, T, K + 1) action logits"""
    known, table = map_of(rollout), rollout.decisions["frontier"]
    where, nodes = (table.lane, table.tick), known.node.shape[1]
    places = known.node.clamp_min(0)
    exists = sight.world.neighbour_mask[places]
    count = known.count[where]
    last = _last_stood(known, rollout.alive)[where]  # (R, n)
    logits = at_tick[table.lane.unsqueeze(1), last.clamp_min(0)]
    remembered = _log_probabilities(logits, exists[table.lane])
    visited_as = _node_number(sight.world.neighbour[places], known.node)[table.lane]  # (R, n, K)
    return NodeFacts(
        here=known.at[where],
        count=count,
        walk=table.walk[:, :nodes],
        remembered=remembered.masked_fill((last < 0).unsqueeze(-1), 0.0),
        open=exists[table.lane] & (revisits | (visited_as >= count[:, None, None])),
    )


def _last_stood(known: Map, alive: Tensor) -> Tensor:
    """The last tick, up to each tick, at which the lane stood at each node; -1 before  ->  (B, T, N)"""
    ticks = torch.arange(alive.shape[1], device=alive.device).unsqueeze(-1)
    stood = known.at.unsqueeze(-1) == torch.arange(known.node.shape[1], device=alive.device)
    return torch.where(stood & alive.unsqueeze(-1), ticks, -1).cummax(dim=1).values


def _node_number(places: Tensor, node: Tensor) -> Tensor:
    """Which node each place became; N where it never did.  places: (B, N, K)  node: (B, N)  ->  (B, N, K)"""
    match = places.unsqueeze(-1) == node[:, None, None, :]
    return torch.where(match.any(dim=-1), match.int().argmax(dim=-1), node.shape[1])
