"""The Gymnasium environments: checker, contract and ids; the vector one plays as many single ones would."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from scenemem.errors import UserError
from scenemem.evaluation.score import score_trajectories
from scenemem.formats.results import Point, Trajectory
from scenemem.simulator import (
    Arrays,
    NavigationEnv,
    NavigationGame,
    NavigationVectorEnv,
    Transition,
    open_game,
)

WIDTH = 6


@pytest.fixture
def env(tiny_data: Path) -> NavigationEnv:
    return NavigationEnv(data=tiny_data, features=False)


def expert_action(env: NavigationEnv, info: dict[str, Any]) -> np.int64:
    game = env.game
    here = torch.tensor(game.world.index_of(info["scan"], info["viewpoint"]))
    goal = game.episodes.goal[game.episodes.row_of(info["instruction_id"])]
    return np.int64(game.world.next_slot(here, goal) + 1)


@pytest.mark.parametrize("features", [False, "tiny"])
def test_gymnasiums_own_checker_has_nothing_to_say(tiny_trainable: Path, features: str | bool) -> None:
    env = gymnasium.make("scenemem/R2R-v0", data=tiny_trainable, features=features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


def test_an_episode_begins_where_it_was_chosen_to(tiny_trainable: Path) -> None:
    """With the features of the place, and a mask that allows stopping and its neighbours."""
    env = NavigationEnv(data=tiny_trainable, features="tiny")
    game, world = env.game, env.game.world
    for row in range(0, len(game.episodes), 7):
        wanted = game.episodes.instruction_ids[row]
        observation, info = env.reset(options={"episode": wanted})
        assert (info["instruction_id"], info["instruction"]) == (wanted, game.episodes.texts[row])
        here = game.episodes.start[row]
        assert world.index_of(info["scan"], info["viewpoint"]) == int(here)
        assert game.features is not None
        assert np.array_equal(observation["features"], game.features.gather(here).numpy())
        degree = int(world.degree[here])
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == [1] * (1 + degree) + [0] * (game.candidates - degree)
        assert np.array_equal(observation["candidate_mask"], info["action_mask"][1:])
        assert env.action_masks().dtype == bool
        assert np.array_equal(env.action_masks(), info["action_mask"])
        # what Gymnasium's sampler needs
        assert info["action_mask"][env.action_space.sample(mask=info["action_mask"])] == 1
    with pytest.raises(UserError, match="has no instruction 'nonsense'"):
        env.reset(options={"episode": "nonsense"})


def test_an_action_the_mask_forbids_leaves_the_agent_in_place(env: NavigationEnv) -> None:
    observation, info = env.reset(seed=0)
    forbidden = np.int64(np.flatnonzero(info["action_mask"] == 0)[0])
    after, reward, terminated, truncated, info_after = env.step(forbidden)
    assert data_equivalence(after, observation, exact=True)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["illegal_action"], info_after["illegal_action"]) == (False, True)
    assert info_after["viewpoint"] == info["viewpoint"]


@pytest.mark.parametrize("action", [-1, 99, 0.5, "north"])
def test_an_action_outside_the_space_is_refused(env: NavigationEnv, action: Any) -> None:
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"is not in Discrete\(5\); use 0 to stop or the number of a cand"):
        env.step(action)


def test_the_expert_is_rewarded_and_measured(env: NavigationEnv) -> None:
    _, info = env.reset(seed=1)
    distance, total = info["distance_to_goal"], 0.0
    terminated = truncated = False
    while not terminated:
        assert "metrics" not in info
        _, reward, terminated, truncated, info = env.step(expert_action(env, info))
        total += reward
    assert not truncated
    assert total == pytest.approx(distance + 2)
    assert info["distance_to_goal"] == 0
    assert [info[name] for name in ("sr", "osr", "ne", "spl", "is_success")] == [1.0, 1.0, 0.0, 1.0, True]
    assert info["tl"] == pytest.approx(distance)


def test_metrics_at_the_end_are_those_of_the_evaluation(env: NavigationEnv, tiny_data: Path) -> None:
    """Random walks with bumps and turns back, half of them led to the goal then; scored like a file."""
    env.action_space.seed(0)
    walks, infos = {}, {}
    for number, instruction_id in enumerate(env.game.episodes.instruction_ids[::3]):
        _, info = env.reset(options={"episode": instruction_id})
        walk, over = [info["viewpoint"]], False
        while not over:
            assert "sr" not in info
            led = number % 2 and len(walk) > 3
            action = expert_action(env, info) if led else env.action_space.sample()
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            walk.append(info["viewpoint"])
        walks[info["instruction_id"]], infos[info["instruction_id"]] = walk, info
    world = env.game.world
    trajectories = [Trajectory(name, tuple(map(Point, walk))) for name, walk in walks.items()]
    scores = score_trajectories(world, env.game.episodes, trajectories, partial=True)
    assert len(scores.instruction_ids) == len(walks)
    for name, values in vars(scores.metrics).items():
        found = [infos[instruction_id][name] for instruction_id in scores.instruction_ids]
        assert found == pytest.approx(values.tolist(), abs=1e-12), name
        assert len(set(found)) > 1, name


def test_an_episode_begins_with_reset_and_is_cut_off_after_its_steps(tiny_data: Path) -> None:
    """An action that leads nowhere counts as a step."""
    env = NavigationEnv(data=tiny_data, features=False, max_steps=3)
    for call in (lambda: env.step(np.int64(0)), env.render, env.action_masks):
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) first"):
            call()
    _, info = env.reset(seed=1)
    ends = []
    for _ in range(3):
        nowhere = np.flatnonzero(info["action_mask"] == 0)
        _, _, terminated, truncated, info = env.step(np.int64(nowhere[0] if len(nowhere) else 1))
        ends.append((terminated, truncated, "sr" in info))
    assert ends == [(False, False, False), (False, False, False), (False, True, True)]
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode is under way"):
        env.step(np.int64(1))
    env.reset(seed=0)
    assert env.step(np.int64(0))[2:4] == (True, False)
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode is under way"):
        env.step(np.int64(0))


def test_another_reward_can_be_given(tiny_data: Path) -> None:
    def only_stopping_counts(transition: Transition) -> torch.Tensor:
        return transition.stopped * 10.0

    env = NavigationEnv(data=tiny_data, features=False, reward=only_stopping_counts)
    env.reset(seed=0)
    assert [env.step(np.int64(1))[1], env.step(np.int64(0))[1]] == [0.0, 10.0]


IDS = """
import gymnasium, sys
name, options = "scenemem.simulator:scenemem/R2R-v0", {"data": sys.argv[1], "features": False}
single, vector = gymnasium.make(name, **options), gymnasium.make_vec(name, num_envs=2, **options)
print(single.spec.id, single.spec.kwargs["task"], type(single.unwrapped).__name__, type(vector).__name__)
print(gymnasium.spec("scenemem/R4R-v0").kwargs)
"""


def test_an_id_imports_its_module_by_itself(tiny_data: Path) -> None:
    """With nothing but Gymnasium imported, which stopped loading entry points with 1.0."""
    done = subprocess.run([sys.executable, "-c", IDS, tiny_data], capture_output=True, text=True)
    names = "scenemem/R2R-v0 r2r NavigationEnv NavigationVectorEnv"
    assert (done.stdout, done.stderr) == (f"{names}\n{{'task': 'r4r'}}\n", "")


ENVS = 7


@pytest.fixture(scope="module")
def game(tiny_data: Path) -> NavigationGame:
    return open_game(tiny_data, features=False, max_steps=5)


@pytest.fixture
def envs(game: NavigationGame) -> NavigationVectorEnv:
    return NavigationVectorEnv(ENVS, game=game)


class Follower(NavigationEnv):
    """Begins the episodes of a list, one after the other."""

    def __init__(self, game: NavigationGame, names: list[str]) -> None:
        super().__init__(game=game)
        self.names = iter(names)

    def reset(self, **_: Any) -> tuple[Arrays, dict[str, Any]]:
        return super().reset(options={"episode": next(self.names)})


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert found.dtype == object
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    else:
        assert found == expected


def test_a_batch_equals_single_environments_in_gymnasiums_own_vector(game: NavigationGame) -> None:
    ours = NavigationVectorEnv(ENVS, game=game)
    ours.action_space.seed(0)
    actions = [ours.action_space.sample() for _ in range(40)]
    results: list[tuple[Any, ...]] = [ours.reset(seed=4)]
    begun = [[name] for name in results[0][1]["instruction_id"]]
    for action in actions:
        results.append(ours.step(action))
        for entry in np.flatnonzero(results[-1][2] | results[-1][3]):
            begun[entry].append(results[-1][4]["instruction_id"][entry])
    assert sum(map(len, begun)) > 3 * ENVS, "new episodes began"
    singles = [lambda names=names: Follower(game, names) for names in begun]
    theirs = SyncVectorEnv(singles, autoreset_mode=AutoresetMode.SAME_STEP)
    for found, expected in zip(results, [theirs.reset(), *map(theirs.step, actions)], strict=True):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    assert np.array_equal(ours.action_masks(), results[-1][-1]["action_mask"])
    assert ours.action_masks().dtype == bool


@pytest.mark.parametrize("features", [False, "tiny"])
def test_random_play_stays_in_the_spaces(tiny_trainable: Path, features: str | bool) -> None:
    envs = NavigationVectorEnv(ENVS, data=tiny_trainable, features=features)
    envs.action_space.seed(0)
    observations, infos = envs.reset(seed=0)
    for _ in range(30):
        assert observations in envs.observation_space
        assert infos["action_mask"].shape == (ENVS, envs.game.candidates + 1)
        actions = envs.action_space.sample()
        assert actions in envs.action_space
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert rewards.shape == terminated.shape == truncated.shape == (ENVS,)
        assert [values.dtype.kind for values in (rewards, terminated, truncated)] == ["f", "b", "b"]


def test_a_seed_fixes_the_whole_run(game: NavigationGame) -> None:
    def run(seed: int) -> list[Any]:
        envs = NavigationVectorEnv(ENVS, game=game)
        _, infos = envs.reset(seed=seed)
        random = np.random.default_rng(1)
        seen = [infos["instruction_id"].tolist()]
        for _ in range(12):
            infos = envs.step(random.integers(game.candidates + 1, size=ENVS))[4]
            seen.append(infos["instruction_id"].tolist())
        return seen

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_writing_into_what_was_returned_does_not_disturb_the_play(game: NavigationGame) -> None:
    def run(*, scribble: bool) -> list[list[float]]:
        envs = NavigationVectorEnv(ENVS, game=game)
        returned: tuple[Any, ...] = envs.reset(seed=0)
        rewards = []
        for number in range(8):
            if scribble:
                for values in (*returned[0].values(), *returned[1:-1], returned[-1]["action_mask"]):
                    values[:] = 1
                returned[-1]["illegal_action"][:] = True
            returned = envs.step(np.full(ENVS, number % 3))
            rewards.append(returned[1].tolist())
        return rewards

    assert run(scribble=True) == run(scribble=False)


def test_episodes_can_be_chosen_per_environment(envs: NavigationVectorEnv) -> None:
    wanted = list(envs.game.episodes.instruction_ids[2 : 2 + ENVS])
    _, infos = envs.reset(options={"episode": wanted})
    assert infos["instruction_id"].tolist() == wanted
    for wrong in (wanted[:2], wanted[0]):
        with pytest.raises(ValueError, match=r"^options\['episode'\] must hold 7 instruction ids"):
            envs.reset(options={"episode": wrong})
    with pytest.raises(UserError, match="has no instruction 'x'"):
        envs.reset(options={"episode": ["x"] * ENVS})


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(3, dtype=np.int64), r"must be 7 whole numbers, got an array of shape \(3,\)"),
        (np.zeros(ENVS), "must be 7 whole numbers, got .* type float64"),
        (np.array([0, 0, 0, 9, 0, 0, 0]), r"^action 9 of environment 3 is not in Discrete\(5\)"),
        (np.array([0, -1, 0, 9, 0, 0, 0]), r"^action -1 of environment 1 is not in Discrete\(5\)"),
    ],
)
def test_actions_outside_the_space_are_refused(
    envs: NavigationVectorEnv, actions: np.ndarray[Any, Any], message: str
) -> None:
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.step(actions)


def test_other_misuse_is_refused(envs: NavigationVectorEnv, game: NavigationGame) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) first"):
        envs.step(np.zeros(ENVS, dtype=np.int64))
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode is under way"):
        envs.render()
    with pytest.raises(ValueError, match=r"^num_envs must be 1 or more, got 0$"):
        NavigationVectorEnv(0, game=game)
    with pytest.raises(TypeError, match="render_mode must be 'ansi' or None, got 'rgb_array'"):
        NavigationVectorEnv(2, render_mode="rgb_array", game=game)
    with pytest.raises(TypeError, match=r"^render_mode must be 'ansi' or None, got 'human'$"):
        NavigationEnv(render_mode="human", game=game)


def test_rendering_is_a_line_per_environment(game: NavigationGame) -> None:
    shown: Any = NavigationVectorEnv(3, render_mode="ansi", game=game)
    one: Any = NavigationEnv(render_mode="ansi", game=game)
    _, infos = shown.reset(seed=0)
    lines, places = shown.render(), zip(infos["scan"], infos["viewpoint"], strict=True)
    for line, name, (scan, viewpoint) in zip(lines, infos["instruction_id"], places, strict=True):
        assert line.startswith(f"{scan}_{viewpoint} facing ")
        one.reset(options={"episode": name})
        assert one.render() == line
    for silent in (NavigationVectorEnv(3, game=game), NavigationEnv(game=game)):
        silent.reset(seed=0)
        assert silent.render() is None


def test_make_vec_finds_it_and_gymnasiums_wrappers_accept_it(tiny_data: Path) -> None:
    options: dict[str, Any] = {"data": tiny_data, "features": False, "max_steps": 3}
    envs = gymnasium.make_vec("scenemem/R2R-v0", num_envs=4, **options)
    assert isinstance(envs.unwrapped, NavigationVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    recorded = RecordEpisodeStatistics(envs)
    recorded.reset(seed=0)
    for _ in range(3):
        infos = recorded.step(np.ones(4, dtype=np.int64))[4]
    assert infos["episode"]["l"].tolist() == [3] * 4
    recorded.close()


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")


def run_blocks(section: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The Python of a section of the page, on a small data folder instead of the houses; its names."""
    monkeypatch.setitem(sys.modules, "scenemem.houses.build", SimpleNamespace(default_houses=lambda: data))
    (text,) = [part for part in PAGE.split("\n## ") if part.startswith(section)]
    code = "\n".join(re.findall(r"^```python\n(.+?)^```$", text, re.M | re.S))
    names: dict[str, Any] = {}
    exec(
        compile(code.replace("DIR", str(data)).replace("objects", "tiny"), "docs/simulator.md", "exec"), names
    )
    return names


def test_the_page_on_gymnasium_runs(tiny_trainable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_blocks("Gymnasium", tiny_trainable, monkeypatch)
    assert names["observation"]["candidate_mask"].shape == (4,)
    assert names["envs"].num_envs == 256


def test_the_page_on_stable_baselines_runs_and_its_checker_is_content(
    tiny_trainable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stable_baselines3", "sb3_contrib"):
        pytest.importorskip(name, reason="needs pip install stable-baselines3 sb3-contrib")
    names = run_blocks("Stable-Baselines3", tiny_trainable, monkeypatch)
    model = names["model"]
    assert model.num_timesteps == 512
    assert {"r", "l", "sr", "spl"} <= model.ep_info_buffer[-1].keys()
    masks = model.get_env().env_method("action_masks")
    assert np.array_equal(np.stack(masks), names["envs"].venv.envs.unwrapped.action_masks())
    checker: Any = importlib.import_module("stable_baselines3.common.env_checker")
    checker.check_env(NavigationEnv(data=tiny_trainable, features=False))
    rewards = model.get_env().step(np.zeros(16, dtype=np.int64))[1]
    assert set(rewards.tolist()) <= {-2.0, 2.0}
