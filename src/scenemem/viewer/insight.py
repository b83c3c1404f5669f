"""Looking into a network while it acts: which words it listens to, and how its scores come about.

Shape letters: M rows of a call, O options, L words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scenemem.models.decision import WeighedScore
from scenemem.models.language import Grounded

_GROUNDING = "grounding"
_SCORES = {"frontier": "frontier_score", "action": "action_score"}  # kind of decision -> module


@dataclass(frozen=True)
class Heard:
    """What one lane listened to."""

    perception: Tensor  # (L,)
    action: Tensor  # (L,)


@dataclass(frozen=True)
class Weighed:
    """How the options of one lane scored; the logit is confidence . weights and whatever an agent adds."""

    confidence: Tensor  # (O, 2) perception-aware, action-aware
    weights: Tensor  # (2,)


class Insight:
    """Keeps, for every lane, the latest attention and confidences of a network.

    Agents may compute these when they observe or when they are asked; ``about`` says whose turn it is, and
    the rows of whatever is computed meanwhile are those lanes. Agents without such modules leave it empty.
    """

    def __init__(self) -> None:
        self.heard: dict[int, Heard] = {}
        self.weighed: dict[tuple[str, int], Weighed] = {}
        self._lanes: list[int] = []
        self._fresh: set[str] = set()  # modules that have spoken in this turn

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Listen to the modules of ``network``; nothing is left attached to it afterwards."""
        with ExitStack() as hooks:
            for kind, name in _SCORES.items():
                module = getattr(network, name, None)
                if isinstance(module, WeighedScore):
                    hooks.enter_context(module.register_forward_hook(self._scored(kind)))
            module = getattr(network, _GROUNDING, None)
            if isinstance(module, nn.Module):
                hooks.enter_context(module.register_forward_hook(self._grounded))
            yield

    @contextmanager
    def about(self, lanes: Tensor) -> Iterator[None]:
        """Rows computed inside belong to ``lanes`` (M,)."""
        self._lanes, self._fresh = lanes.tolist(), set()
        try:
            yield
        finally:
            self._lanes = []

    def _grounded(self, _module: nn.Module, _inputs: tuple[Any, ...], output: Grounded) -> None:
        """perception_words, action_words: (M, 1, L)"""
        if output.perception_words is None or output.action_words is None:
            return
        # an agent that reads with an earlier state grounds that one as well, after the one it decides with
        if self._first(_GROUNDING):
            rows = zip(self._lanes, output.perception_words[:, 0], output.action_words[:, 0], strict=True)
            for lane, perception, action in rows:
                self.heard[lane] = Heard(perception, action)

    def _scored(self, kind: str) -> Any:
        def keep(module: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
            if not self._first(kind):
                return
            perception, action = inputs[:2]
            confidence = module.confidences(*inputs)  # (M, O, 2)
            weights = module.weigh(torch.cat([perception, action], dim=-1))  # (M, 2)
            for lane, *row in zip(self._lanes, confidence, weights, strict=True):
                self.weighed[kind, lane] = Weighed(*row)

        return keep

    def _first(self, name: str) -> bool:
        """Whether ``name`` speaks for the first time in this turn."""
        if not self._lanes or name in self._fresh:
            return False
        self._fresh.add(name)
        return True
