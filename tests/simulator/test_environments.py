"""The Gymnasium environments: checker, contract and ids; the vector one plays as many single ones would."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from scenemem.errors import UserError
from scenemem.simulator import (
    Arrays,
    NavigationEnv,
    NavigationGame,
    NavigationVectorEnv,
    Transition,
    open_game,
    register_environments,
)

WIDTH = 6


@pytest.fixture
def env(tiny_data: Path) -> NavigationEnv:
    return NavigationEnv(data=tiny_data)


def expert_action(env: NavigationEnv, info: dict[str, Any]) -> np.int64:
    game = env.game
    here = torch.tensor(game.world.index_of(info["scan"], info["viewpoint"]))
    goal = game.episodes.goal[game.episodes.row_of(info["instruction_id"])]
    return np.int64(game.world.next_slot(here, goal) + 1)


@pytest.mark.parametrize("features", [None, "tiny"])
def test_gymnasiums_own_checker_has_nothing_to_say(tiny_trainable: Path, features: str | None) -> None:
    env = gymnasium.make("SceneMem/R2R-v0", data=tiny_trainable, features=features)
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
    assert info["metrics"] == pytest.approx(
        {
            "success": True,
            "oracle_success": True,
            "navigation_error": 0.0,
            "trajectory_length": distance,
            "spl": 1.0,
        }
    )


def test_an_episode_begins_with_reset_and_is_cut_off_after_its_steps(tiny_data: Path) -> None:
    """An action that leads nowhere counts as a step."""
    env = NavigationEnv(data=tiny_data, max_steps=3)
    for call in (lambda: env.step(np.int64(0)), env.render):
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) first"):
            call()
    _, info = env.reset(seed=1)
    ends = []
    for _ in range(3):
        nowhere = np.flatnonzero(info["action_mask"] == 0)
        _, _, terminated, truncated, info = env.step(np.int64(nowhere[0] if len(nowhere) else 1))
        ends.append((terminated, truncated, "metrics" in info))
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

    env = NavigationEnv(data=tiny_data, reward=only_stopping_counts)
    env.reset(seed=0)
    assert [env.step(np.int64(1))[1], env.step(np.int64(0))[1]] == [0.0, 10.0]


def test_ids_are_registered_once() -> None:
    spec = gymnasium.spec("SceneMem/R2R-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_environments()
    assert gymnasium.spec("SceneMem/R2R-v0") is spec
    assert gymnasium.spec("SceneMem/R4R-v0").kwargs == {"task": "r4r"}


def test_an_id_can_name_the_module_that_registers_it(tiny_data: Path) -> None:
    env = gymnasium.make("scenemem.simulator:SceneMem/R2R-v0", data=tiny_data, split="val_unseen")
    _, info = env.reset(seed=0)
    assert info["scan"] == "yard"


ENVS = 7


@pytest.fixture(scope="module")
def game(tiny_data: Path) -> NavigationGame:
    return open_game(tiny_data, max_steps=5)


@pytest.fixture
def envs(game: NavigationGame) -> NavigationVectorEnv:
    return NavigationVectorEnv(ENVS, game=game)


def entry_of(batch: Arrays, entry: int) -> Arrays:
    return {name: values[entry] for name, values in batch.items()}


def assert_same_info(entry: dict[str, Any], single: dict[str, Any]) -> None:
    assert entry.keys() == single.keys()
    for name, value in single.items():
        if isinstance(value, dict):
            assert_same_info(entry[name], value)
        else:
            assert np.array_equal(entry[name], value), name


def test_every_entry_equals_a_single_environment_step_by_step(game: NavigationGame) -> None:
    vector = DictInfoToList(NavigationVectorEnv(ENVS, game=game))
    singles = [NavigationEnv(game=game) for _ in range(ENVS)]
    random = np.random.default_rng(0)
    observations, infos = vector.reset(seed=4)
    over = np.ones(ENVS, dtype=bool)
    actions, rewards = np.zeros(ENVS, dtype=np.int64), np.zeros(ENVS)
    terminated, truncated = ~over, ~over
    begun = 0
    for _ in range(40):
        for entry, single in enumerate(singles):
            if over[entry]:
                begun += 1
                expected, info = single.reset(options={"episode": infos[entry]["instruction_id"]})
                reward, stopped, cut = 0.0, False, False
            else:
                expected, reward, stopped, cut, info = single.step(np.int64(actions[entry]))
            assert data_equivalence(entry_of(observations, entry), expected, exact=True)
            assert (rewards[entry], terminated[entry], truncated[entry]) == (reward, stopped, cut)
            assert_same_info(infos[entry], info)
        over = terminated | truncated
        actions = random.integers(game.candidates + 1, size=ENVS)
        observations, rewards, terminated, truncated, infos = vector.step(actions)
    assert begun > 2 * ENVS, "the walk was long enough to begin new episodes in every entry"


@pytest.mark.parametrize("features", [None, "tiny"])
def test_random_play_stays_in_the_spaces(tiny_trainable: Path, features: str | None) -> None:
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
    with pytest.raises(gymnasium.error.ResetNeeded, match="nothing to render yet"):
        envs.render()
    with pytest.raises(ValueError, match=r"^num_envs must be 1 or more, got 0$"):
        NavigationVectorEnv(0, game=game)
    with pytest.raises(ValueError, match="render_mode must be 'ansi' or None, got 'rgb_array'"):
        NavigationVectorEnv(2, render_mode="rgb_array", game=game)
    with pytest.raises(ValueError, match=r"^render_mode must be 'ansi' or None, got 'human'$"):
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
    register_environments()
    envs = gymnasium.make_vec("SceneMem/R2R-v0", num_envs=4, data=tiny_data, max_steps=3)
    assert isinstance(envs.unwrapped, NavigationVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    recorded = RecordEpisodeStatistics(envs)
    recorded.reset(seed=0)
    for _ in range(3):
        infos = recorded.step(np.ones(4, dtype=np.int64))[4]
    assert infos["episode"]["l"].tolist() == [3] * 4
    recorded.close()
