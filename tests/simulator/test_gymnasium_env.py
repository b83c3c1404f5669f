"""The single Gymnasium environment: its checker, its contract and its ids."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence

from scenemem.errors import UserError
from scenemem.formats.features import write_store
from scenemem.simulator.environments import NavigationEnv, register_environments
from scenemem.simulator.game import Transition
from scenemem.simulator.panorama import shortest_path_action
from scenemem.world.build import load_world

WIDTH = 6


@pytest.fixture(scope="module")
def data_with_features(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data folder with a made-up feature store beside it."""
    root = tmp_path_factory.mktemp("with-features")
    for name in ("connectivity", "r2r"):
        (root / name).symlink_to(tiny_data / name)
    keys = load_world(root / "connectivity").names
    rows = np.random.default_rng(0).normal(size=(len(keys), 36, WIDTH))
    write_store(
        root / "features" / "made_up.npy", keys, iter(rows), width=WIDTH, source="test", encoder="none"
    )
    return root


@pytest.fixture
def env(tiny_data: Path) -> NavigationEnv:
    return NavigationEnv(data=tiny_data)


def expert_action(env: NavigationEnv, info: dict[str, Any]) -> np.int64:
    game = env.game
    here = torch.tensor(game.world.index_of(info["scan"], info["viewpoint"]))
    goal = game.episodes.goal[game.row_of(info["instruction_id"])]
    return np.int64(shortest_path_action(game.world, here, goal) + 1)


@pytest.mark.parametrize("features", [None, "made_up"])
def test_gymnasiums_own_checker_has_nothing_to_say(data_with_features: Path, features: str | None) -> None:
    env = gymnasium.make("SceneMem/R2R-v0", data=data_with_features, features=features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("features", [None, "made_up"])
def test_every_observation_of_random_play_lies_in_its_space(
    data_with_features: Path, features: str | None
) -> None:
    env = NavigationEnv(data=data_with_features, features=features, max_steps=6)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    for _ in range(100):
        assert observation in env.observation_space
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert np.isfinite(reward)
        if terminated or truncated:
            observation, _ = env.reset()


def test_features_are_those_of_the_viewpoint(data_with_features: Path) -> None:
    env = NavigationEnv(data=data_with_features, features="made_up")
    observation, info = env.reset(seed=3)
    store, world = env.game.features, env.game.world
    assert store is not None
    here = torch.tensor(world.index_of(info["scan"], info["viewpoint"]))
    assert np.array_equal(observation["features"], store.gather(here).numpy())


def test_a_seed_picks_the_same_episodes_again(env: NavigationEnv) -> None:
    def drawn(seed: int) -> list[str]:
        first = env.reset(seed=seed)[1]["instruction_id"]
        return [first, *(env.reset()[1]["instruction_id"] for _ in range(5))]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_an_episode_can_be_chosen_by_its_instruction(env: NavigationEnv) -> None:
    wanted = env.game.episodes.instruction_ids[7]
    _, info = env.reset(options={"episode": wanted})
    assert (info["instruction_id"], info["instruction"]) == (wanted, env.game.episodes.texts[7])
    assert info["scan"] == env.game.world.scans[int(env.game.episodes.scan[7])]
    with pytest.raises(UserError, match="has no instruction 'nonsense'"):
        env.reset(options={"episode": "nonsense"})


def test_the_mask_allows_stopping_and_the_neighbours(env: NavigationEnv) -> None:
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        degree = int(env.game.world.degree[env.game.world.index_of(info["scan"], info["viewpoint"])])
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == [1] * (1 + degree) + [0] * (env.game.candidates - degree)
        assert np.array_equal(observation["candidate_mask"], info["action_mask"][1:])
        # what Gymnasium's sampler needs
        assert info["action_mask"][env.action_space.sample(mask=info["action_mask"])] == 1


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


def test_an_episode_is_cut_off_after_its_steps(tiny_data: Path) -> None:
    env = NavigationEnv(data=tiny_data, max_steps=3)
    _, info = env.reset(seed=1)
    ends = []
    for _ in range(3):
        _, _, terminated, truncated, info = env.step(np.int64(1))
        ends.append((terminated, truncated, "metrics" in info))
    assert ends == [(False, False, False), (False, False, False), (False, True, True)]
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode is under way"):
        env.step(np.int64(1))


def test_nothing_happens_before_reset_or_after_the_end(env: NavigationEnv) -> None:
    for call in (lambda: env.step(np.int64(0)), env.render):
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) first"):
            call()
    env.reset(seed=0)
    env.step(np.int64(0))
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode is under way"):
        env.step(np.int64(0))


def test_another_reward_can_be_given(tiny_data: Path) -> None:
    def only_stopping_counts(transition: Transition) -> torch.Tensor:
        return transition.stopped * 10.0

    env = NavigationEnv(data=tiny_data, reward=only_stopping_counts)
    env.reset(seed=0)
    assert [env.step(np.int64(1))[1], env.step(np.int64(0))[1]] == [0.0, 10.0]


def test_rendering_is_a_line_of_text(tiny_data: Path) -> None:
    env = NavigationEnv(data=tiny_data, render_mode="ansi")
    _, info = env.reset(seed=0)
    text = env.render()
    assert text is not None
    assert text.startswith(f"{info['scan']}_{info['viewpoint']} facing ")
    silent = NavigationEnv(game=env.game)
    silent.reset(seed=0)
    assert silent.render() is None
    with pytest.raises(ValueError, match=r"^render_mode must be 'ansi' or None, got 'human'$"):
        NavigationEnv(data=tiny_data, render_mode="human")


def test_ids_are_registered_once() -> None:
    spec = gymnasium.spec("SceneMem/R2R-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_environments()
    assert gymnasium.spec("SceneMem/R2R-v0") is spec
    assert gymnasium.spec("SceneMem/R4R-v0").kwargs == {"task": "r4r"}


def test_an_id_can_name_the_module_that_registers_it(tiny_data: Path) -> None:
    env = gymnasium.make(
        "scenemem.simulator.environments:SceneMem/R2R-v0", data=tiny_data, split="val_unseen"
    )
    _, info = env.reset(seed=0)
    assert info["scan"] == "yard"
