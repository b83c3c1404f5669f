"""What the tests of the family share: small networks of every system, and walks through the tiny world."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from scenemem.agents.agent import Agent
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import AgentPolicy, Pick, TrainedAgent, Watcher, collect
from scenemem.features.store import Environment
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import ClosestToGoal, LearningConfig, LossContext, Stage, distance_reward
from scenemem.learning.trainer import Trainer
from scenemem.models.navigator import Instructions, StateLog
from scenemem.presets import PRESETS, PUBLISHED, Preset
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import World
from scenemem.zoo.exploration import ExplorerLabels
from scenemem.zoo.exploring import ExploringActions
from scenemem.zoo.labels import LowLevelExpert
from scenemem.zoo.low_level import LowLevelActions

SMALL: dict[str, Any] = {
    "width": 16,
    "word_width": 8,
    "action_width": 12,
    "map_width": 12,
    "critic_width": 8,
    "layers": 1,
    "panorama_layers": 1,
    "text_layers": 1,
    "heads": 2,
}
"""Settings that make any network of the family small; each has some of them."""


def named(results: str) -> Preset[Any]:
    """A row; with the ending ``-as-published`` its published recipe."""
    row = results.removesuffix("-as-published")
    return PRESETS[row] if row == results else PUBLISHED[row]


def small_settings(preset: Preset[Any]) -> dict[str, Any]:
    """Those of the settings that the agent of a preset has, and has not switched off."""
    own = {item.name for item in fields(preset.model)}
    return {name: value for name, value in SMALL.items() if name in own and getattr(preset.model, name)}


def small(preset: Preset[Any], **changes: Any) -> Preset[Any]:
    """A preset with a small network."""
    values = {**small_settings(preset), **changes}
    return replace(preset, model=replace(preset.model, **values))


RULES = {LowLevelActions: LowLevelExpert, ExploringActions: ExplorerLabels}
"""Label rules of the action spaces that have one of their own."""


@dataclass(frozen=True)
class Setting:
    """The tiny world with random features, and episodes to learn from."""

    environment: Environment
    episodes: EpisodeSet
    vocabulary: Vocabulary

    @property
    def world(self) -> World:
        return self.environment.world

    def agent(self, name: str, *, seed: int = 0, **changes: Any) -> TrainedAgent:
        """The agent of a preset with a small network and fresh weights."""
        preset = small(named(name), **changes)
        torch.manual_seed(seed)
        sizes = DataSizes(len(self.vocabulary), self.environment.width)
        network = AGENTS[preset.agent].build(preset.model, sizes)
        return TrainedAgent(network, self.environment, self.vocabulary, preset.walk)

    def loud_agent(self, name: str, *, seed: int = 4, **changes: Any) -> Agent:
        """Random weights, so large that scores differ clearly from option to option."""
        agent = self.agent(name, **changes).network
        torch.manual_seed(seed)
        for parameter in agent.parameters():
            nn.init.normal_(parameter, std=0.25)
        return agent.eval()

    def trainer(self, agent: TrainedAgent, preset: Preset[Any], **learning: Any) -> Trainer:
        values = {"iterations": 2, "batch": 4, **learning}
        return Trainer(
            agent,
            self.episodes,
            replace(preset.learning, **values),
            seed=0,
            augmentation=StoredEpisodes(self.episodes, seed=0),
        )

    def read(self, agent: Agent) -> Instructions:
        encoded: Instructions = agent.encoder(*self.vocabulary.encode_batch(self.episodes.texts, 40))
        return encoded

    def walk(
        self,
        agent: Agent,
        pick: Pick,
        *,
        learning: bool = False,
        watcher: Watcher | None = None,
        max_decisions: int = 6,
    ) -> tuple[Rollout, StateLog]:
        """Walk all episodes, and keep the states."""
        masks = agent.dropout_masks(len(self.episodes))
        log = agent.state_log(self.environment, self.read(agent), masks, learns=True)
        space = agent.action_space(self.world, len(self.episodes), max_decisions, learning=learning)
        rule = next((rule for kind, rule in RULES.items() if isinstance(space, kind)), ClosestToGoal)
        rollout = collect(
            self.world,
            self.episodes,
            space,
            AgentPolicy(agent, log, self.environment, pick, watcher=watcher),
            max_steps=60,
            label_rule=rule(self.world, self.episodes.goal),
        )
        return rollout, log

    def context(self, rollout: Rollout, **learning: Any) -> LossContext:
        taken = sum(len(table.episode) for table in rollout.decisions.values())
        return LossContext(
            self.world, self.episodes, LearningConfig(**learning), Stage(), taken, distance_reward
        )


def roam(seed: int = 0, stop: float = 0.2) -> Pick:
    """Chooses anything, but seldom to stop."""
    random = torch.Generator().manual_seed(seed)

    def pick(logits: torch.Tensor, _episode: torch.Tensor) -> torch.Tensor:
        chance = logits.isfinite().float()
        if logits.shape[1] > 1:
            chance[:, -1] *= stop
        return torch.multinomial(chance, 1, generator=random).squeeze(1)

    return pick
