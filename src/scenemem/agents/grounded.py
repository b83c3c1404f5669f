"""Agents that ground words about things and words about directions apart, and the local-action ablation.

Shape letters: B lanes, T ticks, M decisions, N places, K neighbour slots, D visual columns, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.network import Acting, AgentNetwork, NetworkConfig
from scenemem.agents.rollout import Decisions, Kind, Map, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, LocalSpace
from scenemem.errors import SettingError
from scenemem.memory.scene_memory import SceneMemory, Weights
from scenemem.models.attention import tiled
from scenemem.models.collect_read import Graphs
from scenemem.models.decision import StopOption, WeighedScore
from scenemem.models.grounding import FineGrainedGrounding, Grounded, SharedGrounding
from scenemem.models.language import Instructions
from scenemem.models.navigator import Noise
from scenemem.simulator.panorama import Stance
from scenemem.world.geometry import VIEWS
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
    hints: bool = False
    """plain facts as further frontier inputs (here, distance, age, remembered scores); not in the paper"""
    weights: Weights = "metres"
    """what the shortest way over the memory counts"""
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


class GroundedNetwork(AgentNetwork):
    """A navigator with a perception-aware and an action-aware state (Eqs. 5 and 6)."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, words, padding, visual, rounds)
        self.memory = memory
        self.grounding = FineGrainedGrounding(config.width) if memory.grounding else SharedGrounding()

    def ground(self, hidden: Tensor, instructions: Instructions, noise: Noise) -> Grounded:
        """hidden: (B, T, H)"""
        grounded: Grounded = self.grounding(hidden * noise.deciding.unsqueeze(1), instructions)
        return grounded

    def ground_readers(
        self, hidden: Tensor, grounded: Grounded, instructions: Instructions, noise: Noise
    ) -> Grounded:
        """The states that read the memory at every tick: the grounded ones, or those one observation earlier.

        hidden: (B, T, H)  grounded: (B, T, H)
        """
        if not self.memory.read_before:
            return grounded
        earlier = torch.cat([instructions.hidden.unsqueeze(1), hidden[:, :-1]], dim=1)
        return self.ground(earlier, instructions, noise)


class LocalNetwork(GroundedNetwork):
    """Scores the neighbours of here with its grounded states (Eq. 14)."""

    def __init__(
        self, config: NetworkConfig, memory: MemoryConfig, words: int, padding: int, visual: int, rounds: int
    ) -> None:
        super().__init__(config, memory, words, padding, visual, rounds)
        self.stop = StopOption(visual)
        self.action_score = WeighedScore(config.width, visual)

    def space(self, world: World, lanes: int, rounds: int) -> ActionSpace:
        """The neighbours of here, or stop."""
        return LocalSpace(world, lanes, rounds)

    def acting(self, sight: Sight, instructions: Instructions, noise: Noise) -> Acting:
        """Begin to act."""
        return LocalActing(self, sight, instructions, noise)

    def decision_logits(
        self, rollout: Rollout, hidden: Tensor, sight: Sight, instructions: Instructions, noise: Noise
    ) -> dict[Kind, Tensor]:
        """hidden: (B, T, H)  ->  action: (M, K + 1)"""
        grounded = self.ground(hidden, instructions, noise)
        table = rollout.decisions["action"]
        return {"action": self.score_ticks(rollout, grounded, (table.lane, table.tick), sight, noise)}

    def score_ticks(
        self, rollout: Rollout, grounded: Grounded, where: tuple[Tensor, ...], sight: Sight, noise: Noise
    ) -> Tensor:
        """Scores of the neighbours at the given lanes and ticks  ->  (M, K + 1)"""
        seen = sight.neighbours(rollout.viewpoint[where], rollout.view[where])
        return self.score_actions(grounded.perception[where], grounded.action[where], seen, noise.feature)

    def score_actions(
        self, perception: Tensor, action: Tensor, seen: tuple[Tensor, Tensor], feature_mask: Tensor
    ) -> Tensor:
        """Eq. 14: the neighbours of here, then stop.

        perception, action: (M, H)  seen: visual (M, K, D), orientation (M, K, 4)  ->  (M, K + 1)
        """
        visual, orientation = self.stop(seen[0] * feature_mask, tiled(seen[1]))
        logits: Tensor = self.action_score(perception, action, visual, orientation)
        return logits


class GroundedActing(Acting):
    """Grounds the states of the lanes that are asked."""

    network: GroundedNetwork

    def grounded(self, lanes: Tensor) -> Grounded:
        """The grounded states of ``lanes``, one tick: (M, 1, H)"""
        return self._grounded(self.hidden, lanes)

    def readers(self, lanes: Tensor, grounded: Grounded) -> Grounded:
        """The states that read the memory: (M, 1, H)"""
        return self._grounded(self.earlier, lanes) if self.network.memory.read_before else grounded

    def _grounded(self, states: Tensor, lanes: Tensor) -> Grounded:
        hidden = states[lanes].unsqueeze(1)
        return self.network.ground(hidden, self.instructions.select(lanes), self.noise.select(lanes))


class LocalActing(GroundedActing):
    """Scores the neighbours of here."""

    network: LocalNetwork

    @torch.no_grad()
    def logits(self, question: Question, stance: Stance, space: ActionSpace) -> Tensor:
        """(M, K + 1)"""
        del space
        return action_logits(self.network, self, stance, question.lanes)


def action_logits(network: LocalNetwork, acting: GroundedActing, stance: Stance, lanes: Tensor) -> Tensor:
    """How the neighbours of where ``lanes`` stand score now  ->  (M, K + 1)"""
    grounded = acting.grounded(lanes)
    seen = acting.sight.neighbours(stance.viewpoint[lanes], stance.view[lanes])
    return network.score_actions(grounded.perception[:, 0], grounded.action[:, 0], seen, acting.noise.feature)


class RememberingActing(GroundedActing):
    """Also keeps the panoramas every lane has seen, so that nothing is gathered twice."""

    _panoramas: Tensor | None = None  # (B, N, 36, D)

    @torch.no_grad()
    def observe(self, stance: Stance, lanes: Tensor, space: ActionSpace) -> None:
        """Update the states and keep what was seen."""
        panorama = self.sight.panorama(stance.viewpoint[lanes])
        self._look_around(panorama, stance, lanes)
        memory = memory_of(space)
        if self._panoramas is None:
            self._panoramas = panorama.new_zeros(*memory.node.shape, VIEWS, self.sight.width)
        self._panoramas[lanes, memory.here[lanes]] = panorama

    def panoramas(self, lanes: Tensor, nodes: int) -> Tensor:
        """What ``lanes`` saw at their first ``nodes`` places  ->  (M, nodes, 36, D)"""
        if self._panoramas is None:
            raise RuntimeError("nothing has been observed yet; call observe first")
        return self._panoramas[lanes, :nodes]


def memory_of(space: ActionSpace) -> SceneMemory:
    """The memory of a space that must have one."""
    if space.memory is None:
        raise TypeError(f"{type(space).__name__} has no memory, but this agent decides over one")
    return space.memory


def graphs_now(memory: SceneMemory, lanes: Tensor) -> Graphs:
    """The memories of ``lanes`` as they are, each its own lane at tick 0."""
    nodes = int(memory.count[lanes].max())
    row = torch.arange(len(lanes), device=lanes.device)
    return Graphs(row, torch.zeros_like(row), memory.edge[lanes, :nodes, :nodes], memory.count[lanes])


def graphs_then(rollout: Rollout, table: Decisions) -> tuple[Graphs, Tensor]:
    """The memories of a rollout as they were at its decisions, and the ticks these were taken at.

    Reads are computed per lane and decision, not per tick: most ticks of a long walk decide nothing.

    ->  graphs whose ``tick`` is the number of the decision within its lane, tick (B, Q)
    """
    known = map_of(rollout)
    seat, tick = table.seats(len(rollout.alive))
    count = known.count[table.lane, table.tick]
    return Graphs(table.lane, seat, known.edge[table.lane], count), tick


def map_of(rollout: Rollout) -> Map:
    """The map of a rollout that must have one."""
    if rollout.map is None:
        raise TypeError("this rollout has no map, but this agent decides over one")
    return rollout.map
