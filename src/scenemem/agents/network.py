"""What all trained agents share: the encoder, the navigator, the critic, and how a rollout is replayed.

Acting and learning use one network in two ways. *Acting* goes tick by tick without gradients. *Replaying*
takes a finished rollout - whoever walked it - and computes the logits of all its decisions at once, with
gradients: only the recurrent state runs through time, every read and score is batched over it.

Shape letters: B lanes, T ticks, M decisions, O options, H state width, D visual columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace
from scenemem.errors import SettingError
from scenemem.models.decision import Critic
from scenemem.models.language import InstructionEncoder, Instructions
from scenemem.models.navigator import POSE_WIDTH, LookAhead, LookAround, Navigator, NavigatorState, Noise
from scenemem.simulator.panorama import Stance
from scenemem.world.geometry import ANGLE_WIDTH
from scenemem.world.graph import World


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and dropout that every trained agent has."""

    word_width: int = 256
    """width of the word embeddings"""
    width: int = 512
    """width H of the instruction encoding and of the navigator's state"""
    dropout: float = 0.5
    """share of state and input numbers dropped in training"""
    feature_dropout: float = 0.4
    """share of visual columns dropped in training, the same for all views and steps of a rollout"""
    panorama: bool = True
    """look at all 36 views; False sees only the view it faces"""

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise SettingError(f"width must be even and positive, got {self.width}; both directions share it")
        if self.word_width < 1:
            raise SettingError(f"word_width must be 1 or more, got {self.word_width}")
        for name in ("dropout", "feature_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"{name} must be in [0, 1), got {getattr(self, name)}")


@dataclass(frozen=True)
class Replay:
    """What a network says about the decisions of a rollout."""

    logits: dict[Kind, Tensor]  # (M, O), -inf where there is no option
    values: Tensor  # (B, T) what the critic expects at every tick


class AgentNetwork(nn.Module, ABC):
    """An agent's parameters, and the two ways to use them.

    Args:
        config: sizes and dropout.
        words: size of the vocabulary.
        padding: token number of the padding word.
        visual: columns D of the view features.
        rounds: decisions a lane may take before it is cut off.
    """

    def __init__(self, config: NetworkConfig, words: int, padding: int, visual: int, rounds: int) -> None:
        super().__init__()
        self.config = config
        self.rounds = rounds
        look = LookAround(visual, config.width) if config.panorama else LookAhead()
        self.encoder = InstructionEncoder(words, config.word_width, config.width, config.dropout, padding)
        self.navigator = Navigator(visual, config.width, look)
        self.critic = Critic(config.width)

    @abstractmethod
    def space(self, world: World, lanes: int, rounds: int) -> ActionSpace:
        """A fresh action space for a rollout of this agent over ``lanes`` episodes."""

    @abstractmethod
    def acting(self, sight: Sight, instructions: Instructions, noise: Noise) -> Acting:
        """Begin to act on the given instructions, one per lane."""

    @abstractmethod
    def decision_logits(
        self, rollout: Rollout, hidden: Tensor, sight: Sight, instructions: Instructions, noise: Noise
    ) -> dict[Kind, Tensor]:
        """The logits of all decisions of a rollout.  hidden: (B, T, H)  ->  kind: (M, O)"""

    def replay(self, rollout: Rollout, sight: Sight, instructions: Instructions, noise: Noise) -> Replay:
        """The logits and values of a rollout, with gradients."""
        hidden = self._unroll(rollout, sight, instructions, noise)
        logits = self.decision_logits(rollout, hidden, sight, instructions, noise)
        masked = {
            kind: scores.masked_fill(~rollout.decisions[kind].options, -torch.inf)
            for kind, scores in logits.items()
        }
        return Replay(masked, self.critic(hidden))

    def noise(self, lanes: int) -> Noise:
        """Dropout masks for one rollout; ones in evaluation mode."""
        width, device = self.config.width, next(self.parameters()).device
        visual = self.navigator.visual
        rate = self.config.dropout if self.training else 0.0
        feature_rate = self.config.feature_dropout if self.training else 0.0

        def kept(*shape: int, dropped: float = rate) -> Tensor:
            return nn.functional.dropout(torch.ones(shape, device=device), dropped)

        return Noise(
            feature=kept(visual, dropped=feature_rate),
            entered=kept(lanes, POSE_WIDTH + visual + ANGLE_WIDTH),
            looking=kept(lanes, width),
            listening=kept(lanes, width),
            deciding=kept(lanes, width),
        )

    def _unroll(self, rollout: Rollout, sight: Sight, instructions: Instructions, noise: Noise) -> Tensor:
        """The navigator's attended state at every tick, anything after the end  ->  (B, T, H)"""
        ticks = rollout.ticks
        order = ticks.argsort(descending=True, stable=True)
        words, masks = instructions.select(order), noise.select(order)
        viewpoint, view = rollout.viewpoint[order], rollout.view[order]
        state = self.navigator.begin(words)
        states: list[Tensor] = []
        for tick, lanes in enumerate(_running(ticks)):
            if lanes < len(state.hidden):
                # lanes are sorted by length, so the ones still under way are the first ones
                words, masks = words.select(slice(lanes)), masks.select(slice(lanes))
                state = NavigatorState(state.hidden[:lanes], state.cell[:lanes])
            panorama = sight.panorama(viewpoint[:lanes, tick])
            state = self.navigator(state, panorama, view[:lanes, tick], words, masks)
            states.append(nn.functional.pad(state.hidden, (0, 0, 0, len(ticks) - lanes)))
        hidden = torch.stack(states, dim=1)[order.argsort()]
        return nn.functional.pad(hidden, (0, 0, 0, rollout.alive.shape[1] - hidden.shape[1]))


_GROUP = 16  # lanes leave an unrolling together, because every change of their number copies gradients


def _running(ticks: Tensor) -> list[int]:
    """Lanes to compute at each tick: those under way, rounded up to a group.  ticks: (B,)"""
    counts = [int((ticks > tick).sum()) for tick in range(int(ticks.max()))]
    return [min(len(ticks), -(-count // _GROUP) * _GROUP) for count in counts]


class Acting(ABC):
    """A network in use: the state of every lane, updated observation by observation, without gradients."""

    def __init__(self, network: AgentNetwork, sight: Sight, instructions: Instructions, noise: Noise) -> None:
        self.network = network
        self.sight = sight
        self.instructions = instructions.detached()
        self.noise = noise
        begin = network.navigator.begin(self.instructions)
        self.hidden = begin.hidden.clone()  # (B, H)
        self.earlier = begin.hidden.clone()  # (B, H) one observation ago
        self.cell = begin.cell.clone()  # (B, H)

    @torch.no_grad()
    def observe(self, stance: Stance, lanes: Tensor, space: ActionSpace) -> None:
        """Update the states of ``lanes`` (M,) by what they see."""
        del space
        panorama = self.sight.panorama(stance.viewpoint[lanes])
        self._look_around(panorama, stance, lanes)

    def _look_around(self, panorama: Tensor, stance: Stance, lanes: Tensor) -> None:
        state = self.network.navigator(
            NavigatorState(self.hidden[lanes], self.cell[lanes]),
            panorama,
            stance.view[lanes],
            self.instructions.select(lanes),
            self.noise.select(lanes),
        )
        self.earlier[lanes] = self.hidden[lanes]
        self.hidden[lanes] = state.hidden
        self.cell[lanes] = state.cell

    @abstractmethod
    def logits(self, question: Question, stance: Stance, space: ActionSpace) -> Tensor:
        """The scores of all options  ->  (M, O); impossible options may hold anything"""
