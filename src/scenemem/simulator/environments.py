"""Navigation as Gymnasium environments, one agent or many at once; importing this module registers their ids.

``gymnasium.make("scenemem.simulator.environments:SceneMem/R2R-v0")`` imports it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from scenemem.simulator.game import Arrays, NavigationGame, Play, choose, open_game

Actions = npt.NDArray[np.int64]

_ADVICE = "use 0 to stop or the number of a candidate, counted from 1"
_IDS = {"SceneMem/R2R-v0": "r2r", "SceneMem/R4R-v0": "r4r"}  # id -> task


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
        _check_render_mode(render_mode)
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
            row = self.game.episodes.row_of(chosen)
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
            raise ValueError(f"action {action!r} is not in {self.action_space}; {_ADVICE}")
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


class NavigationVectorEnv(VectorEnv[Arrays, Actions, npt.NDArray[Any]]):
    """``NavigationEnv`` for ``num_envs`` agents; where an episode has ended the next step begins one."""

    metadata = {**NavigationEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (as above)

    def __init__(
        self,
        num_envs: int = 1,
        render_mode: str | None = None,
        game: NavigationGame | None = None,
        **options: Any,
    ) -> None:
        _check_render_mode(render_mode)
        if num_envs < 1:
            raise ValueError(f"num_envs must be 1 or more, got {num_envs}")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.game = open_game(**options) if game is None else game
        self.single_action_space = self.game.action_space
        self.single_observation_space = self.game.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._play: Play | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode everywhere: random ones, or those with the ids ``options["episode"]``."""
        super().reset(seed=seed)
        chosen = (options or {}).get("episode")
        rows = self._random_rows(self.num_envs) if chosen is None else self._rows_of(chosen)
        self._play = self.game.begin(rows)
        return self.game.observe(self._play), _with_masks(self.game.info(self._play))

    def step(
        self, actions: Actions
    ) -> tuple[Arrays, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Act in every environment; one whose episode ended at the last step begins a new one instead.

        Raises:
            ValueError: the actions are not in the action space.
            ResetNeeded: ``reset`` was never called.
        """
        if self._play is None:
            raise ResetNeeded("no episode is under way; call reset() first")
        over = torch.stack(self.game.ended(self._play)).any(0)
        played, transition = self.game.act(self._play, self._checked(actions))
        reward = self.game.reward(transition).masked_fill(over, 0.0)
        self._play = choose(over, self._next_episodes(self._play, over), played) if over.any() else played
        terminated, truncated = self.game.ended(self._play)
        info = _with_masks(self.game.info(self._play))
        ended = (terminated | truncated).numpy()
        if ended.any():
            info["metrics"] = _with_masks(self.game.metrics(self._play), ended)
            info["_metrics"] = ended
        return self.game.observe(self._play), reward.numpy(), terminated.numpy(), truncated.numpy(), info

    def render(self) -> tuple[str, ...] | None:
        """With ``render_mode="ansi"`` a line per environment for people."""
        if self._play is None:
            raise ResetNeeded("there is nothing to render yet; call reset() first")
        return tuple(self.game.describe(self._play)) if self.render_mode == "ansi" else None

    def _random_rows(self, count: int) -> torch.Tensor:
        return torch.from_numpy(self.np_random.integers(len(self.game.episodes), size=count))

    def _rows_of(self, chosen: Sequence[str]) -> torch.Tensor:
        if isinstance(chosen, str) or len(chosen) != self.num_envs:
            expected = f"{self.num_envs} instruction ids, one per environment"
            raise ValueError(f"options['episode'] must hold {expected}, got {chosen!r}")
        return torch.tensor([self.game.episodes.row_of(instruction_id) for instruction_id in chosen])

    def _next_episodes(self, play: Play, over: torch.Tensor) -> Play:
        """Fresh plays; only environments whose episode is over draw a new episode."""
        rows = play.episode.clone()
        rows[over] = self._random_rows(int(over.sum()))
        return self.game.begin(rows)

    def _checked(self, actions: Actions) -> torch.Tensor:
        values = np.asarray(actions)
        if values.shape != (self.num_envs,) or values.dtype.kind not in "iu":
            seen = f"an array of shape {values.shape} and type {values.dtype}"
            raise ValueError(f"actions must be {self.num_envs} whole numbers, got {seen}")
        bad = np.flatnonzero((values < 0) | (values > self.game.candidates))
        if len(bad):
            seen = f"action {values[bad[0]]} of environment {bad[0]}"
            raise ValueError(f"{seen} is not in {self.single_action_space}; {_ADVICE}")
        return torch.from_numpy(values.astype(np.int64))


def register_environments() -> None:
    """Register the ids of this package; doing so again changes nothing."""
    for name, task in _IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="scenemem.simulator.environments:NavigationEnv",
                vector_entry_point="scenemem.simulator.environments:NavigationVectorEnv",
                kwargs={"task": task},
            )


def _check_render_mode(render_mode: str | None) -> None:
    """Refuse what cannot be drawn."""
    if render_mode not in (None, "ansi"):
        raise ValueError(f"render_mode must be 'ansi' or None, got {render_mode!r}")


def _first(batch: Arrays) -> Arrays:
    return {name: values[0] for name, values in batch.items()}


def _plain(batch: Arrays) -> dict[str, Any]:
    """The only entry of every array; single values as Python's own types."""
    return {name: values[0] if values.ndim > 1 else values.tolist()[0] for name, values in batch.items()}


def _with_masks(batch: Arrays, present: npt.NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Add ``_<name>`` arrays that tell which environments have a value, as Gymnasium's vector infos do.

    Values of environments that have none are zero.
    """
    info: dict[str, Any] = {}
    for name, values in batch.items():
        info[name] = values if present is None else np.where(present, values, values.dtype.type(0))
        info[f"_{name}"] = np.ones(len(values), dtype=bool) if present is None else present.copy()
    return info


register_environments()
