"""Navigation as Gymnasium environments, one agent or many at once; importing this module registers their ids.

``gymnasium.make("scenemem.simulator:scenemem/R2R-v0")`` imports it by itself. Shape letters: B plays, N
instructions of the split, K largest number of neighbours, L tokens, D columns, T max_steps + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor
from torch.nn.functional import pad

from scenemem.errors import UserError
from scenemem.evaluation.metrics import measure
from scenemem.features.store import FeatureStore, choose_store, open_environment
from scenemem.formats.atomic import StrPath
from scenemem.formats.episodes import read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet, load_split
from scenemem.tasks.vocabulary import PAD, Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, STOP, VIEWS, Pose, Simulator, World

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Play:
    """A batch of episodes being played."""

    episode: Tensor  # (B,) int64, row of the episode set
    pose: Pose
    steps: Tensor  # (B,) int64, actions taken so far, illegal ones too
    path: Tensor  # (B, T) int64, the viewpoint at the start and after every action, padded with -1
    illegal: Tensor  # (B,) bool, whether the last action led nowhere


@dataclass(frozen=True)
class Transition:
    """What one action changed, for a reward."""

    before: Tensor  # (B,) float64, geodesic metres to the goal
    after: Tensor  # (B,) float64
    stopped: Tensor  # (B,) bool, whether the action was to stop


Reward = Callable[[Transition], Tensor]


def progress_reward(transition: Transition) -> Tensor:
    """Metres gained towards the goal, and for a stop +2 within 3 m of it, -2 elsewhere.  ->  (B,)"""
    verdict = torch.where(transition.after < SUCCESS_METRES, 2.0, -2.0)
    return transition.before - transition.after + verdict * transition.stopped


@dataclass(frozen=True, eq=False)
class NavigationGame:
    """The rules: action 0 stops, action k walks to candidate k - 1, any other action does nothing."""

    world: World
    episodes: EpisodeSet
    tokens: Tensor  # (N, L) int64, padded with PAD
    words: int  # size of the vocabulary
    features: FeatureStore | None = None
    max_steps: int = 30  # actions after which an episode is cut off
    reward: Reward = progress_reward

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be 1 or more, got {self.max_steps}; a usual choice is 30")
        if not self.episodes.has_goals:
            secret = f"the goals of {self.episodes.name} are kept secret, so it has no rewards"
            raise UserError(f"{secret}; choose another split, such as val_unseen")

    @cached_property
    def simulator(self) -> Simulator:
        """Unchecked, because illegal actions are part of the game."""
        return Simulator(self.world, check=False)

    @property
    def candidates(self) -> int:
        """K"""
        return self.world.neighbour.shape[1]

    @property
    def action_space(self) -> spaces.Discrete:
        """Of one play; a new one each time, since spaces carry the state of their own sampler."""
        return spaces.Discrete(self.candidates + 1)

    @property
    def observation_space(self) -> spaces.Dict:
        """Of one play; a new one each time."""
        slots, half_turn = (self.candidates,), math.pi
        parts: dict[str, spaces.Space[Any]] = {
            "heading": spaces.Box(0.0, 2 * half_turn, (1,), np.float32),
            "elevation": spaces.Box(-half_turn / 2, half_turn / 2, (1,), np.float32),
            "candidate_view": spaces.Box(0, VIEWS - 1, slots, np.int64),
            "candidate_heading": spaces.Box(-half_turn, half_turn, slots, np.float32),
            "candidate_elevation": spaces.Box(-half_turn / 2, half_turn / 2, slots, np.float32),
            "candidate_mask": spaces.MultiBinary(self.candidates),
            "instruction": spaces.Box(0, self.words - 1, (self.tokens.shape[1],), np.int64),
        }
        if self.features is not None:
            largest = float(torch.finfo(torch.float16).max)  # stores hold float16
            parts["features"] = spaces.Box(-largest, largest, (VIEWS, self.features.width), np.float32)
        return spaces.Dict(parts)

    def begin(self, episode: Tensor) -> Play:
        """episode: (B,) rows of the episode set"""
        pose = self.simulator.reset(self.episodes.start[episode], self.episodes.heading[episode])
        path = pad(pose.viewpoint.unsqueeze(1), (0, self.max_steps), value=NONE)
        return Play(episode, pose, torch.zeros_like(episode), path, torch.zeros_like(pose.done))

    def act(self, play: Play, action: Tensor) -> tuple[Play, Transition]:
        """action: (B,) int64, 0..K"""
        here, slot = play.pose.viewpoint, action - 1
        illegal = slot >= self.world.degree[here]
        # an agent counts as done for the length of a step that leads nowhere: it stays in place
        held = replace(play.pose, done=play.pose.done | illegal)
        pose = replace(self.simulator.step(held, slot), done=play.pose.done | (slot == STOP))
        steps = play.steps + 1
        path = play.path.scatter(1, steps.unsqueeze(1), pose.viewpoint.unsqueeze(1))
        played = Play(play.episode, pose, steps, path, illegal)
        return played, Transition(self._distance(play), self._distance(played), stopped=slot == STOP)

    def ended(self, play: Play) -> tuple[Tensor, Tensor]:
        """->  terminated by a stop (B,), truncated after ``max_steps`` (B,)"""
        terminated = play.pose.done.clone()  # a copy: users may write into it
        return terminated, (play.steps >= self.max_steps) & ~terminated

    def observe(self, play: Play) -> Arrays:
        """Batched observations; every array is new."""
        pose = play.pose
        seen = self.simulator.candidates(pose)
        parts = {
            "heading": pose.heading.unsqueeze(1),
            "elevation": pose.elevation.unsqueeze(1),
            "candidate_view": seen.view,
            "candidate_heading": seen.heading,
            "candidate_elevation": seen.elevation,
            "candidate_mask": seen.mask.to(torch.int8),
            "instruction": self.tokens.index_select(0, play.episode),
        }
        if self.features is not None:
            parts["features"] = self.features.gather(pose.viewpoint)
        return {name: values.numpy() for name, values in parts.items()}

    def action_masks(self, play: Play) -> npt.NDArray[np.bool_]:
        """Which actions lead somewhere.  ->  (B, K + 1)"""
        neighbours = self.world.neighbour_mask.index_select(0, play.pose.viewpoint)
        return cast(npt.NDArray[np.bool_], pad(neighbours, (1, 0), value=True).numpy())

    def info(self, play: Play) -> Arrays:
        """Batched facts beside the observation; texts are arrays of str objects."""
        row, here = play.episode.numpy(), play.pose.viewpoint
        return {
            "action_mask": self.action_masks(play).astype(np.int8),  # the type Gymnasium's samplers take
            "illegal_action": play.illegal.numpy().copy(),
            "scan": self._texts["scan"][self.world.scan_of[here].numpy()],
            "viewpoint": self._texts["viewpoint"][here.numpy()],
            "instruction": self._texts["instruction"][row],
            "instruction_id": self._texts["instruction_id"][row],
            "distance_to_goal": self._distance(play).numpy(),
        }

    def metrics(self, play: Play) -> Arrays:
        """How well the plays went if they ended where they are, by the names of ``scenemem score``."""
        walked = play.path[:, : int(play.steps.max()) + 1]
        scores = vars(measure(self.world, walked, self.episodes.path[play.episode]))
        arrays = {name: values.numpy() for name, values in scores.items()}
        return {**arrays, "is_success": arrays["sr"] > 0}  # a name that training libraries log

    def describe(self, play: Play) -> list[str]:
        """One line per play for people: where, facing what, how far, and what can be done."""
        seen = self.simulator.candidates(play.pose)
        headings, degree = seen.heading.rad2deg().tolist(), seen.mask.sum(1).tolist()
        facing, distance = play.pose.heading.rad2deg().tolist(), self._distance(play)
        return [
            f"{self.world.names[here]} facing {facing[i]:.0f} deg, {float(distance[i]):.1f} m to go | "
            + " | ".join(["0 stop", *(f"{k + 1} {_turn(headings[i][k])}" for k in range(degree[i]))])
            for i, here in enumerate(play.pose.viewpoint.tolist())
        ]

    def _distance(self, play: Play) -> Tensor:
        """Geodesic metres to the goal.  ->  (B,)"""
        return self.world.geodesic(play.pose.viewpoint, self.episodes.goal[play.episode])

    @cached_property
    def _texts(self) -> Arrays:
        """The names that infos pick from by index."""
        names = {
            "scan": self.world.scans,
            "viewpoint": self.world.viewpoints,
            "instruction": self.episodes.texts,
            "instruction_id": self.episodes.instruction_ids,
        }
        return {name: np.array(texts, dtype=object) for name, texts in names.items()}


def _each(function: Callable[..., Tensor], *plays: Play) -> Play:
    """The play whose every tensor is ``function`` of the same tensors of the given plays."""

    def parts(*records: Any) -> dict[str, Any]:
        columns = {name: [getattr(record, name) for record in records] for name in vars(records[0])}
        return {name: function(*tensors) for name, tensors in columns.items() if name != "pose"}

    return Play(pose=Pose(**parts(*(play.pose for play in plays))), **parts(*plays))


def open_game(
    data: StrPath | None = None,
    *,
    task: str = "r2r",
    split: str = "train",
    features: str | Literal[False] | None = None,
    max_steps: int = 30,
    max_tokens: int = 80,
    reward: Reward = progress_reward,
) -> NavigationGame:
    """Load everything a game needs.

    Args:
        data: data folder; None for the embedded houses, which are built at the first call.
        task: sub-folder of the episodes, for example ``r2r`` or ``r4r``.
        split: for example ``train`` or ``val_unseen``.
        features: name of the feature store whose views are observed; None for the only one of the folder,
            False for no view features.
        max_steps: actions after which an episode is cut off.
        max_tokens: longest instruction in token numbers; the rest of longer ones is cut off.
        reward: maps a ``Transition`` of B plays to B numbers.

    Raises:
        UserError: something is missing or broken in the data folder, or the goals of the split are secret.
    """
    if data is None:
        from scenemem.houses.build import default_houses  # only needed without a data folder

        data = default_houses()
    folder = DataFolder(Path(data))
    if features is None and not folder.feature_files():
        how = f"'scenemem data check --data {folder.root}' shows what it takes to build one"
        raise UserError(f"{folder.root} has no feature store; {how}, features=False plays without")
    if features is False:
        world, store = load_world(folder.connectivity), None
    else:
        advice = "choose one with features='NAME', or none with features=False"
        environment = open_environment(choose_store(folder, features, advice), folder)
        world, store = environment.world, environment.store
    episodes = load_split(folder, world, task, split)
    # every task of a folder shares the words of its R2R training split; R4R only joins those texts
    spoken = read_episodes(folder.episodes("r2r", "train"))
    vocabulary = Vocabulary.build(text for episode in spoken for text in episode.instructions)
    numbers, _ = vocabulary.encode_batch(episodes.texts, max_tokens)
    return NavigationGame(
        world=world,
        episodes=episodes,
        # padded to the full length so that all splits share one observation space
        tokens=pad(numbers, (0, max_tokens - numbers.shape[1]), value=PAD),
        words=len(vocabulary),
        features=store,
        max_steps=max_steps,
        reward=reward,
    )


def _turn(degrees: float) -> str:
    side = "right" if degrees > 0 else "left"
    return "ahead" if abs(degrees) < 0.5 else f"{abs(degrees):.0f} deg {side}"


Actions = npt.NDArray[np.int64]

_ADVICE = "use 0 to stop or the number of a candidate, counted from 1"


class _Playing:
    """What both environments are made of: a game and, after the first reset, the plays under way."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (as Gymnasium does)

    def _open(self, render_mode: str | None, game: NavigationGame | None, options: dict[str, Any]) -> None:
        if render_mode not in (None, "ansi"):
            # Stable-Baselines3 asks for "rgb_array" first and leaves the mode away after a TypeError
            raise TypeError(f"render_mode must be 'ansi' or None, got {render_mode!r}")
        self.render_mode = render_mode
        self.game = open_game(**options) if game is None else game
        self._begun: Play | None = None

    @property
    def _play(self) -> Play:
        if self._begun is None:
            raise ResetNeeded("no episode is under way; call reset() first")
        return self._begun


class NavigationEnv(_Playing, gymnasium.Env[Arrays, np.int64]):
    """Follow an instruction from viewpoint to viewpoint; docs/simulator.md describes spaces and infos.

    Args:
        render_mode: ``"ansi"`` to get a line of text from ``render``.
        game: the game to play; opened from ``options`` when None.
        options: what ``open_game`` takes: data, task, split, features, max_steps, max_tokens, reward.
    """

    def __init__(
        self, render_mode: str | None = None, game: NavigationGame | None = None, **options: Any
    ) -> None:
        self._open(render_mode, game, options)
        self.action_space = self.game.action_space
        self.observation_space = cast(gymnasium.Space[Arrays], self.game.observation_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode: a random one, or the one with the instruction id ``options["episode"]``."""
        super().reset(seed=seed)
        chosen, episodes = (options or {}).get("episode"), self.game.episodes
        row = int(self.np_random.integers(len(episodes))) if chosen is None else episodes.row_of(chosen)
        self._begun = self.game.begin(torch.tensor([row]))
        return _row(self.game.observe(self._play), 0), _plain(self.game.info(self._play))

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """0 stops, k walks to candidate k - 1; an action the mask forbids leaves the agent where it is.

        Raises:
            ValueError: the action is not in the action space.
            ResetNeeded: the episode is over or has not begun.
        """
        if bool(torch.cat(self.game.ended(self._play)).any()):
            raise ResetNeeded("no episode is under way; call reset() first")
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}; {_ADVICE}")
        self._begun, transition = self.game.act(self._play, torch.tensor([int(action)]))
        terminated, truncated = (bool(end) for end in self.game.ended(self._begun))
        info = self.game.info(self._begun)
        if terminated or truncated:
            info |= self.game.metrics(self._begun)
        observation, reward = _row(self.game.observe(self._begun), 0), float(self.game.reward(transition))
        return observation, reward, terminated, truncated, _plain(info)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions lead somewhere; the method that sb3-contrib's ``MaskablePPO`` calls.  ->  (K + 1,)"""
        masks: npt.NDArray[np.bool_] = self.game.action_masks(self._play)[0]
        return masks

    def render(self) -> str | None:
        """With ``render_mode="ansi"`` a line for people: where, facing what, how far, what can be done."""
        (line,) = self.game.describe(self._play)
        return line if self.render_mode == "ansi" else None


class NavigationVectorEnv(_Playing, VectorEnv[Arrays, Actions, npt.NDArray[Any]]):
    """``NavigationEnv`` for ``num_envs`` agents; where an episode ends the same step begins the next one."""

    metadata = {**_Playing.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (as above)

    def __init__(
        self,
        num_envs: int = 1,
        render_mode: str | None = None,
        game: NavigationGame | None = None,
        **options: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be 1 or more, got {num_envs}")
        self._open(render_mode, game, options)
        self.num_envs = num_envs
        self.single_action_space = self.game.action_space
        self.single_observation_space = self.game.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode everywhere: random ones, or those with the ids ``options["episode"]``."""
        super().reset(seed=seed)
        chosen = (options or {}).get("episode")
        rows = self._random_rows(self.num_envs) if chosen is None else self._rows_of(chosen)
        self._begun = self.game.begin(rows)
        return self.game.observe(self._begun), self._infos(self._begun)

    def step(
        self, actions: Actions
    ) -> tuple[Arrays, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Act in every environment; ``final_obs`` and ``final_info`` of the infos are of episodes that ended.

        Raises:
            ValueError: the actions are not in the action space.
            ResetNeeded: ``reset`` was never called.
        """
        play, transition = self.game.act(self._play, self._checked(actions))
        terminated, truncated = self.game.ended(play)
        over = terminated | truncated
        self._begun, final = (play, {}) if not over.any() else self._renewed(play, over)
        info = self._infos(self._begun) | final
        reward = self.game.reward(transition).numpy()
        return self.game.observe(self._begun), reward, terminated.numpy(), truncated.numpy(), info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions lead somewhere.  ->  (num_envs, K + 1)"""
        return self.game.action_masks(self._play)

    def render(self) -> tuple[str, ...] | None:
        """With ``render_mode="ansi"`` a line per environment for people."""
        lines = tuple(self.game.describe(self._play))
        return lines if self.render_mode == "ansi" else None

    def _random_rows(self, count: int) -> Tensor:
        return torch.from_numpy(self.np_random.integers(len(self.game.episodes), size=count))

    def _rows_of(self, chosen: Sequence[str]) -> Tensor:
        if isinstance(chosen, str) or len(chosen) != self.num_envs:
            expected = f"{self.num_envs} instruction ids, one per environment"
            raise ValueError(f"options['episode'] must hold {expected}, got {chosen!r}")
        return torch.tensor([self.game.episodes.row_of(instruction_id) for instruction_id in chosen])

    def _renewed(self, play: Play, over: Tensor) -> tuple[Play, dict[str, Any]]:
        """The play with new episodes where ``over`` (B,) is true, and the infos of those that ended."""
        (rows,) = over.nonzero(as_tuple=True)  # (R,)
        ended, fresh = _each(lambda part: part[rows], play), self.game.begin(self._random_rows(len(rows)))
        last, seen = np.full(self.num_envs, None, dtype=object), self.game.observe(ended)
        for number, row in enumerate(rows.tolist()):
            last[row] = _row(seen, number)
        outcome = _with_masks({**self.game.info(ended), **self.game.metrics(ended)}, over.numpy())
        final = {"final_obs": last, "final_info": outcome}
        final |= {f"_{name}": over.numpy().copy() for name in final}
        return _each(lambda old, new: old.index_copy(0, rows, new), play, fresh), final

    def _infos(self, play: Play) -> dict[str, Any]:
        return _with_masks(self.game.info(play), np.ones(self.num_envs, dtype=bool))

    def _checked(self, actions: Actions) -> Tensor:
        values = np.asarray(actions)
        if values.shape != (self.num_envs,) or values.dtype.kind not in "iu":
            seen = f"an array of shape {values.shape} and type {values.dtype}"
            raise ValueError(f"actions must be {self.num_envs} whole numbers, got {seen}")
        bad = np.flatnonzero((values < 0) | (values > self.game.candidates))
        if len(bad):
            seen = f"action {values[bad[0]]} of environment {bad[0]}"
            raise ValueError(f"{seen} is not in {self.single_action_space}; {_ADVICE}")
        return torch.from_numpy(values.astype(np.int64))


def _row(batch: Arrays, number: int) -> Arrays:
    return {name: values[number] for name, values in batch.items()}


def _plain(batch: Arrays) -> dict[str, Any]:
    """The only entry of every array; single values as Python's own types."""
    return {name: values[0] if values.ndim > 1 else values.tolist()[0] for name, values in batch.items()}


def _with_masks(batch: Arrays, present: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The rows of ``batch`` where ``present`` (B,) is true, with ``_<name>`` masks as in Gymnasium.

    Elsewhere numbers are zero and texts None.
    """
    info: dict[str, Any] = {}
    for name, values in batch.items():
        empty = None if values.dtype == object else 0
        info[name] = np.full((len(present), *values.shape[1:]), empty, dtype=values.dtype)
        info[name][present] = values
        info[f"_{name}"] = present.copy()
    return info


for _name, _task in (("scenemem/R2R-v0", "r2r"), ("scenemem/R4R-v0", "r4r")):
    gymnasium.register(
        id=_name,
        entry_point="scenemem.simulator:NavigationEnv",
        vector_entry_point="scenemem.simulator:NavigationVectorEnv",
        kwargs={"task": _task},
    )
