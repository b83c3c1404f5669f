"""A trained agent ready to walk: network, eyes and vocabulary together."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scenemem.agents.collect import Policy, collect
from scenemem.agents.network import Acting, AgentNetwork
from scenemem.agents.policy import Chooser, NetworkPolicy, take_best
from scenemem.agents.rollout import Rollout
from scenemem.agents.sight import Sight
from scenemem.models.language import Instructions
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary


class TrainedAgent:
    """Walks with a network, greedily unless told otherwise.

    Args:
        network: the parameters.
        sight: the world and the features of its views.
        vocabulary: the words the network knows.
        max_words: longer instructions are cut.
        max_ticks: observations before a walk is cut off.
        choose: how an option is chosen from the scores.
    """

    def __init__(
        self,
        network: AgentNetwork,
        sight: Sight,
        vocabulary: Vocabulary,
        *,
        max_words: int,
        max_ticks: int,
        choose: Chooser = take_best,
    ) -> None:
        self.network = network
        self.sight = sight
        self.vocabulary = vocabulary
        self.max_words = max_words
        self.max_ticks = max_ticks
        self.choose = choose

    def read(self, texts: tuple[str, ...]) -> Instructions:
        """Encode instructions, one per text."""
        tokens, lengths = self.vocabulary.encode_batch(texts, self.max_words)
        device = self.sight.world.device
        encoded: Instructions = self.network.encoder(tokens.to(device), lengths)
        return encoded

    @torch.no_grad()
    def walk(self, episodes: EpisodeSet, /, policy_of: Callable[[Acting], Policy] | None = None) -> Rollout:
        """Walk the episodes in evaluation mode.

        Args:
            episodes: one lane each.
            policy_of: who answers with the network in use; one that chooses as this agent does unless told.
        """
        was_training = self.network.training
        self.network.eval()
        lanes, world = len(episodes), self.sight.world
        unrolling = self.network.unrolling(self.sight, self.read(episodes.texts), self.network.noise(lanes))
        acting = self.network.acting(self.sight, unrolling)
        policy = NetworkPolicy(acting, self.choose) if policy_of is None else policy_of(acting)
        space = self.network.space(world, lanes, self.network.rounds)
        rollout = collect(world, episodes, space, policy, max_ticks=self.max_ticks)
        self.network.train(was_training)
        return rollout
