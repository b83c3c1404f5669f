"""Agents that ground words about things and words about directions apart, and the local-action ablation.

Shape letters: B lanes, T ticks, M decisions, N places, K neighbour slots, D visual columns, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig, States
from scenemem.agents.rollout import Kind, Map, Moments, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, LocalSpace, Rounds, with_memory
from scenemem.errors import SettingError
from scenemem.memory.scene_memory import SceneMemory, Weights
from scenemem.models.attention import rows_of
from scenemem.models.collect_read import Graphs
from scenemem.models.decision import ActionScore, StopOption
from scenemem.models.grounding import FineGrainedGrounding, Grounded, SharedGrounding
from scenemem.models.seating import alone
from scenemem.models.unrolling import LaneSelection, Unrolling
from scenemem.simulator.panorama import Pose
from scenemem.world.geometry import ANGLE_WIDTH
from scenemem.world.graph import World


@dataclass(frozen=True)
class MemoryConfig:
    """What makes the memory agent; the ablations of the paper's table 3 each change one thing."""

    grounding: bool = True
    """separate perception- and action-aware states; False asks everything with the state itself"""
    reasoning_steps: int = 3
    """S rounds of message passing; 0 switches it off"""
    stream: int | None = None
    """width of the visual node states; None keeps the width of the features, as in the paper"""
    orientation: int = ANGLE_WIDTH
    """width of the orientation node states: four numbers repeated, 128 in the paper"""
    hints: bool = False
    """plain facts as further frontier inputs (here, distance, age, remembered scores); not in the paper"""
    weights: Weights = "metres"
    """what the shortest way over the memory counts"""
    recalls: bool = False
    """coming back to a place restores the state the agent had there; not in the paper, where it goes on"""
    stop_reads: bool = False
    """the option to stop is scored by what the memory says about the place as well; not in the paper"""
    goes_back: bool = False
    """who has used up its decisions goes back to where stopping seemed best, and stops; not in the paper"""
    revisits: bool = False
    """visited neighbours stay options, for paths that lead back; in the paper only unvisited ones are"""
    read_before: bool = False
    """read the memory with the state before the observation, as the released code does"""
    hop_prior: bool = False
    """the released code's knowledge of R2R path lengths: stop only 4 to 6 hops from the start"""

    def __post_init__(self) -> None:
        if self.reasoning_steps < 0:
            raise SettingError(
                f"reasoning_steps must be 0 or more, got {self.reasoning_steps}; use 0 to switch it off"
            )
        if self.stream is not None and self.stream < 1:
            raise SettingError(
                f"stream must be 1 or more, got {self.stream}; leave it out for the feature width"
            )
        if self.recalls and self.read_before:
            raise SettingError(
                "recalls and read_before exclude each other: a recalled state has none before it"
            )
        if self.hop_prior and self.goes_back:
            raise SettingError(
                "hop_prior and goes_back exclude each other: the hop prior has its own place to end at; "
                "add --memory.no-goes-back"
            )
        if self.orientation < 4 or self.orientation % 4:
            raise SettingError(
                f"orientation must be a multiple of 4, got {self.orientation}; four numbers are repeated"
            )


class GroundedNetwork(AgentNetwork):
    """A navigator with a perception-aware and an action-aware state (Eqs. 5 and 6)."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, words, padding, visual, rounds)
        self.memory = memory
        self.grounding = FineGrainedGrounding(config.width) if memory.grounding else SharedGrounding()

    def habits(self, *, returns: bool) -> dict[str, bool]:
        """How the agent walks over its memory."""
        return {
            "recalls": self.memory.recalls,
            "goes_back": self.memory.goes_back and returns,
            "revisits": self.memory.revisits,
        }

    def ground(self, states: States) -> Grounded:
        """Of every observation."""
        grounded: Grounded = self.grounding(states.dropped(), states.instructions, states.seating)
        return grounded

    def ground_readers(self, states: States, grounded: Grounded) -> Grounded:
        """The states that read the memory: the grounded ones, or those one observation earlier."""
        if not self.memory.read_before:
            return grounded
        seating, first = states.seating, len(states.hidden)
        earlier = torch.where(
            seating.tick == 0,
            first + seating.lane,
            seating.row[seating.lane, (seating.tick - 1).clamp_min(0)],
        )
        hidden = torch.cat([states.hidden, states.instructions.hidden])
        return self.ground(replace(states, hidden=rows_of(hidden, earlier)))


class LocalNetwork(GroundedNetwork):
    """Scores the neighbours of here with its grounded states (Eq. 14)."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, memory, words, padding, visual, rounds)
        self.stop = StopOption(visual)
        self.action_score = ActionScore(config.width, visual)

    def space(self, world: World, lanes: int, rounds: Rounds, *, returns: bool = True) -> ActionSpace:
        """The neighbours of here, or stop."""
        del returns
        return LocalSpace(world, lanes, rounds)

    def acting(self, sight: Sight, unrolling: Unrolling) -> Acting:
        """Begin to act."""
        return LocalActing(self, sight, unrolling)

    def decision_logits(self, rollout: Rollout, states: States, sight: Sight) -> dict[Kind, Tensor]:
        """->  action: (M, K + 1)"""
        table = rollout.decisions["action"]
        row = states.rows_at(rollout)[table.lane, table.tick]
        return {"action": self.score_rows(self.ground(states), row, rollout, states, sight)}

    def score_rows(
        self, grounded: Grounded, row: Tensor, rollout: Rollout, states: States, sight: Sight
    ) -> Tensor:
        """Scores of the neighbours at the given observations  row: (M,)  ->  (M, K + 1)"""
        where = (states.seating.lane[row], states.seating.tick[row])
        seen = sight.neighbours(rollout.viewpoint[where], rollout.view[where])
        perception, action = (rows_of(rows, row) for rows in grounded.asks)
        return self.score_actions(perception, action, seen, states.noise.feature)

    def score_actions(
        self, perception: Tensor, action: Tensor, seen: tuple[Tensor, Tensor], feature_mask: Tensor
    ) -> Tensor:
        """Eq. 14: the neighbours of here, then stop.

        perception, action: (M, H)  seen: visual (M, K, D), orientation (M, K, 4)  ->  (M, K + 1)
        """
        logits: Tensor = self.action_score(perception, action, *seen, feature_mask, self.stop)
        return logits


class GroundedActing(Acting):
    """Grounds the state of every lane once per observation."""

    network: GroundedNetwork

    def __init__(self, network: AgentNetwork, sight: Sight, unrolling: Unrolling) -> None:
        super().__init__(network, sight, unrolling)
        self._asks = tuple(torch.zeros_like(self.hidden) for _ in range(2))  # (B, H) h^p and h^a
        self._reads = self._asks  # (B, H) the states that read the memory
        if self.network.memory.read_before:
            self._reads = tuple(torch.zeros_like(self.hidden) for _ in range(2))
        self._asked = LaneSelection(unrolling.instructions.detached(), unrolling.noise)
        self.stopping = Stopping()

    @torch.no_grad()
    def consider(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> None:
        """Ground the states."""
        del pose, space
        self._ground(self.unrolling.hidden, lanes, self._asks)
        if self.network.memory.read_before:
            self._ground(self.unrolling.earlier, lanes, self._reads)

    def grounded(self, lanes: Tensor) -> Grounded:
        """The grounded states of ``lanes``: (M, H)"""
        return Grounded(*(states[lanes] for states in self._asks))

    def readers(self, lanes: Tensor) -> Grounded:
        """The states that read the memory: (M, H)"""
        return Grounded(*(states[lanes] for states in self._reads))

    def _ground(self, hidden: Tensor, lanes: Tensor, into: tuple[Tensor, ...]) -> None:
        words, noise = self._asked.select(lanes)
        found = self.network.ground(States(hidden[lanes], alone(len(lanes), lanes.device), words, noise))
        for states, fresh in zip(into, found.asks, strict=True):
            states[lanes] = fresh


class Stopping:
    """Remembers how likely stopping was at every place, for who has to choose among them in the end."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None  # (B, N) log-probabilities, lowest where nobody has asked

    def note(self, logits: Tensor, question: Question, memory: SceneMemory) -> None:
        """How the options of a question with stop among them scored.  logits: (M, O)"""
        if self._scores is None:
            lowest = torch.finfo(logits.dtype).min
            self._scores = torch.full(memory.node.shape, lowest, dtype=logits.dtype, device=logits.device)
        likely = logits.masked_fill(~question.options, -torch.inf).log_softmax(dim=-1)
        self._scores[question.lanes, memory.here[question.lanes]] = likely[:, -1]

    def of(self, lanes: Tensor) -> Tensor:
        """lanes: (M,), which all have been asked before  ->  (M, N)"""
        if self._scores is None:
            raise ValueError("nothing has been noted yet")
        return self._scores[lanes]


class LocalActing(GroundedActing):
    """Scores the neighbours of here."""

    network: LocalNetwork

    @torch.no_grad()
    def logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """(M, K + 1)"""
        del space
        return action_logits(self.network, self, pose, question.lanes)


def action_logits(network: LocalNetwork, acting: GroundedActing, pose: Pose, lanes: Tensor) -> Tensor:
    """How the neighbours of where ``lanes`` stand score now  ->  (M, K + 1)"""
    seen = acting.sight.neighbours(pose.viewpoint[lanes], pose.view[lanes])
    return network.score_actions(*acting.grounded(lanes).asks, seen, acting.noise.feature)


def memory_of(space: ActionSpace) -> SceneMemory:
    """The memory of a space that must have one."""
    return with_memory(space).memory


def graphs_now(memory: SceneMemory, lanes: Tensor) -> Graphs:
    """The memories of ``lanes`` as they are, each a lane of its own."""
    nodes = int(memory.count[lanes].max())
    return Graphs(alone(len(lanes), lanes.device), memory.edge[lanes, :nodes, :nodes], memory.count[lanes])


def graphs_then(rollout: Rollout, moments: Moments) -> Graphs:
    """The memories of a rollout as they were at some of its moments."""
    known = map_of(rollout)
    count = known.count[moments.lane, moments.tick]
    return Graphs(moments.seating, known.edge[moments.lane], count)


def map_of(rollout: Rollout) -> Map:
    """The map of a rollout that must have one."""
    if rollout.map is None:
        raise TypeError("this rollout has no map, but this agent decides over one")
    return rollout.map
