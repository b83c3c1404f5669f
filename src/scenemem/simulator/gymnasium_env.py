"""One agent in one episode as a Gymnasium environment."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.error import ResetNeeded

from scenemem.simulator.game import Arrays, NavigationGame, Play
from scenemem.simulator.open_game import open_game


class NavigationEnv(gymnasium.Env[Arrays, np.int64]):
    """Follow an instruction from viewpoint to viewpoint; docs/simulator.md describes spaces and infos.

    Args:
        render_mode: ``"ansi"`` to get a line of text from ``render``.
        game: the game to play; opened from ``options`` when None.
        options: what ``open_game`` takes: data, task, split, features, max_steps, max_tokens, reward.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (declared by Gymnasium)

    def __init__(
        self, render_mode: str | None = None, game: NavigationGame | None = None, **options: Any
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.game = open_game(**options) if game is None else game
        self.action_space = self.game.action_space
        self.observation_space = cast(gymnasium.Space[Arrays], self.game.observation_space)
        self._play: Play | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode: a random one, or the one with the instruction id ``options["episode"]``."""
        super().reset(seed=seed)
        chosen = (options or {}).get("episode")
        if chosen is None:
            row = int(self.np_random.integers(len(self.game.episodes)))
        else:
            row = self.game.row_of(chosen)
        self._play = self.game.begin(torch.tensor([row]))
        return _first(self.game.observe(self._play)), _plain(self.game.info(self._play))

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """0 stops, k walks to candidate k - 1; an action the mask forbids leaves the agent where it is.

        Raises:
            ValueError: the action is not in the action space.
            ResetNeeded: the episode is over or has not begun.
        """
        if self._play is None or bool(torch.cat(self.game.ended(self._play)).any()):
            raise ResetNeeded("no episode is under way; call reset() first")
        if not self.action_space.contains(action):
            raise ValueError(
                f"action {action!r} is not in {self.action_space}; "
                "use 0 to stop or the number of a candidate, counted from 1"
            )
        self._play, transition = self.game.act(self._play, torch.tensor([int(action)]))
        terminated, truncated = (bool(end) for end in self.game.ended(self._play))
        info = _plain(self.game.info(self._play))
        if terminated or truncated:
            info["metrics"] = _plain(self.game.metrics(self._play))
        observation = _first(self.game.observe(self._play))
        return observation, float(self.game.reward(transition)), terminated, truncated, info

    def render(self) -> str | None:
        """With ``render_mode="ansi"`` a line for people: where, facing what, how far, what can be done."""
        if self._play is None:
            raise ResetNeeded("there is nothing to render yet; call reset() first")
        return self.game.describe(self._play)[0] if self.render_mode == "ansi" else None


def check_render_mode(render_mode: str | None) -> None:
    """Refuse what cannot be drawn."""
    if render_mode not in (None, "ansi"):
        raise ValueError(f"render_mode must be 'ansi' or None, got {render_mode!r}")


def _first(batch: Arrays) -> Arrays:
    return {name: values[0] for name, values in batch.items()}


def _plain(batch: Arrays) -> dict[str, Any]:
    """The only entry of every array; single values as Python's own types."""
    return {name: values[0] if values.ndim > 1 else values.tolist()[0] for name, values in batch.items()}
