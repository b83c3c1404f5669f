"""What all trained agents share: the encoder, the navigator, the critic, and how a rollout is replayed.

Acting and learning use one network in two ways. *Acting* goes tick by tick without gradients. *Replaying*
takes a finished rollout - whoever walked it - and computes the logits of all its decisions at once, with
gradients: only the recurrent state runs through time, every read and score is batched over it. The states of
a walk the network has just made itself are not computed again.

Shape letters: B lanes, T ticks, X observations, M decisions, O options, H state width, D visual columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.agents.sight import Sight
from scenemem.agents.spaces import ActionSpace, Rounds
from scenemem.errors import SettingError
from scenemem.models.attention import rows_of
from scenemem.models.decision import Critic
from scenemem.models.language import InstructionEncoder, Instructions
from scenemem.models.navigator import POSE_WIDTH, LookAhead, LookAround, Navigator, Noise
from scenemem.models.seating import Seating
from scenemem.models.unrolling import Unrolling
from scenemem.simulator.panorama import Pose
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
    values: Tensor  # (B, T) what the critic expects at every tick, 0 after the end

    def part(self, lanes: slice, rollout: Rollout) -> Replay:
        """What it says about some lanes of the rollout that stand together."""
        first, last, _ = lanes.indices(len(self.values))
        rows = {kind: rollout.decisions[kind].rows(first, last) for kind in self.logits}
        return Replay({kind: self.logits[kind][rows[kind]] for kind in rows}, self.values[lanes])


@dataclass(frozen=True)
class States:
    """Everything a network thought on a batch of walks."""

    hidden: Tensor  # (X, H) the attended state after every observation
    seating: Seating  # which observation each row is
    instructions: Instructions  # one per lane
    noise: Noise

    def rows_at(self, rollout: Rollout) -> Tensor:
        """(B, T) the row of the state that each lane had at each tick, 0 after the end"""
        seen = rollout.seen.clamp_max(self.seating.ticks - 1)
        return self.seating.row.gather(1, seen)

    def dropped(self) -> Tensor:
        """(X, H) the states that decide"""
        return self.hidden * rows_of(self.noise.deciding, self.seating.lane)


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
    def space(self, world: World, lanes: int, rounds: Rounds, *, returns: bool = True) -> ActionSpace:
        """A fresh action space for a rollout of this agent over ``lanes`` episodes.

        Args:
            world: where to walk.
            lanes: episodes at once.
            rounds: decisions an episode may take.
            returns: whether an agent that goes back in the end may; walks to learn from are cut off instead,
                for the critic to judge.
        """

    @abstractmethod
    def acting(self, sight: Sight, unrolling: Unrolling) -> Acting:
        """Use the network on walks that begin now."""

    @abstractmethod
    def decision_logits(self, rollout: Rollout, states: States, sight: Sight) -> dict[Kind, Tensor]:
        """The logits of all decisions of a rollout but last places, which are not learnt  ->  kind: (M, O)"""

    def unrolling(
        self, sight: Sight, instructions: Instructions, noise: Noise, *, keeps: bool = False
    ) -> Unrolling:
        """The recurrent state at the beginning of walks; ``keeps`` what learning from them needs."""
        return Unrolling(self.navigator, instructions, noise, sight.panorama, keeps=keeps)

    def replay(self, rollout: Rollout, sight: Sight, instructions: Instructions, noise: Noise) -> Replay:
        """The logits and values of a rollout, whoever walked it, with gradients."""
        unrolling = self.unrolling(sight, instructions, noise, keeps=True)
        follow(unrolling, rollout)
        return self.judge(rollout, sight, unrolling)

    def judge(self, rollout: Rollout, sight: Sight, unrolling: Unrolling) -> Replay:
        """The logits and values of a rollout that ``unrolling`` has followed, with gradients."""
        states = States(unrolling.learnable(), unrolling.seating, unrolling.instructions, unrolling.noise)
        logits = self.decision_logits(rollout, states, sight)
        masked = {
            kind: scores.masked_fill(~rollout.decisions[kind].options, -torch.inf)
            for kind, scores in logits.items()
        }
        values = self.critic(states.hidden)[states.rows_at(rollout)]
        return Replay(masked, values.masked_fill(~rollout.alive, 0.0))

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
            entered=kept(lanes, POSE_WIDTH + visual),
            looking=kept(lanes, width),
            listening=kept(lanes, width),
            deciding=kept(lanes, width),
        )


def follow(unrolling: Unrolling, rollout: Rollout) -> None:
    """Let a navigator see what was seen on finished walks, in the same order."""
    for tick in range(rollout.alive.shape[1]):
        alive, seen = rollout.alive[:, tick], rollout.seen[:, tick]
        new = (alive & (seen == tick)).nonzero().squeeze(1)
        if len(new):
            unrolling.observe(new, rollout.viewpoint[new, tick], rollout.view[new, tick], tick)
        known = (alive & (seen != tick)).nonzero().squeeze(1)
        if len(known):
            unrolling.recall(known, seen[known])


class Acting(ABC):
    """A network in use: the state of every lane, updated observation by observation, without gradients.

    Args:
        network: the parameters.
        sight: what can be seen.
        unrolling: the recurrent state at the beginning of the walks.
    """

    def __init__(self, network: AgentNetwork, sight: Sight, unrolling: Unrolling) -> None:
        self.network = network
        self.sight = sight
        self.unrolling = unrolling

    @property
    def noise(self) -> Noise:
        """The dropout masks of the walks."""
        return self.unrolling.noise

    @property
    def hidden(self) -> Tensor:
        """(B, H) the attended states"""
        return self.unrolling.hidden

    def observe(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> None:
        """Update the states of ``lanes`` (M,) by what they see; those who came back may recall theirs."""
        new = space.newcomers(lanes)
        if len(new):
            self.unrolling.observe(new, pose.viewpoint[new], pose.view[new], space.now)
        if space.recalls and len(new) < len(lanes):
            known = lanes[space.seen[lanes] != space.now]
            self.unrolling.recall(known, space.seen[known])

    def consider(self, pose: Pose, lanes: Tensor, space: ActionSpace) -> None:
        """Prepare the answers of ``lanes`` (M,), which have just observed and may be asked next."""
        del pose, lanes, space  # an agent that needs nothing more than its state

    @abstractmethod
    def logits(self, question: Question, pose: Pose, space: ActionSpace) -> Tensor:
        """The scores of all options  ->  (M, O); impossible options may hold anything"""
