"""The vector environment plays exactly as many single ones would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from scenemem.errors import UserError
from scenemem.simulator.environments import NavigationEnv, NavigationVectorEnv, register_environments
from scenemem.simulator.game import Arrays, NavigationGame, open_game

LANES = 7


@pytest.fixture(scope="module")
def game(tiny_data: Path) -> NavigationGame:
    return open_game(tiny_data, max_steps=5)


@pytest.fixture
def envs(game: NavigationGame) -> NavigationVectorEnv:
    return NavigationVectorEnv(LANES, game=game)


def lane_of(batch: Arrays, lane: int) -> Arrays:
    return {name: values[lane] for name, values in batch.items()}


def assert_same_info(lane: dict[str, Any], single: dict[str, Any]) -> None:
    assert lane.keys() == single.keys()
    for name, value in single.items():
        if isinstance(value, dict):
            assert_same_info(lane[name], value)
        else:
            assert np.array_equal(lane[name], value), name


def test_every_lane_equals_a_single_environment_step_by_step(game: NavigationGame) -> None:
    vector = DictInfoToList(NavigationVectorEnv(LANES, game=game))
    singles = [NavigationEnv(game=game) for _ in range(LANES)]
    random = np.random.default_rng(0)
    observations, infos = vector.reset(seed=4)
    over = np.ones(LANES, dtype=bool)
    actions, rewards = np.zeros(LANES, dtype=np.int64), np.zeros(LANES)
    terminated, truncated = ~over, ~over
    begun = 0
    for _ in range(40):
        for lane, single in enumerate(singles):
            if over[lane]:
                begun += 1
                expected, info = single.reset(options={"episode": infos[lane]["instruction_id"]})
                reward, stopped, cut = 0.0, False, False
            else:
                expected, reward, stopped, cut, info = single.step(np.int64(actions[lane]))
            assert data_equivalence(lane_of(observations, lane), expected, exact=True)
            assert (rewards[lane], terminated[lane], truncated[lane]) == (reward, stopped, cut)
            assert_same_info(infos[lane], info)
        over = terminated | truncated
        actions = random.integers(game.candidates + 1, size=LANES)
        observations, rewards, terminated, truncated, infos = vector.step(actions)
    assert begun > 2 * LANES, "the walk was long enough to begin new episodes in every lane"


def test_random_play_stays_in_the_spaces(envs: NavigationVectorEnv) -> None:
    envs.action_space.seed(0)
    observations, infos = envs.reset(seed=0)
    for _ in range(30):
        assert observations in envs.observation_space
        assert infos["action_mask"].shape == (LANES, envs.game.candidates + 1)
        actions = envs.action_space.sample()
        assert actions in envs.action_space
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert rewards.shape == terminated.shape == truncated.shape == (LANES,)
        assert [values.dtype.kind for values in (rewards, terminated, truncated)] == ["f", "b", "b"]


def test_a_seed_fixes_the_whole_run(game: NavigationGame) -> None:
    def run(seed: int) -> list[Any]:
        envs = NavigationVectorEnv(LANES, game=game)
        _, infos = envs.reset(seed=seed)
        random = np.random.default_rng(1)
        seen = [infos["instruction_id"].tolist()]
        for _ in range(12):
            infos = envs.step(random.integers(game.candidates + 1, size=LANES))[4]
            seen.append(infos["instruction_id"].tolist())
        return seen

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_ended_lanes_begin_anew_at_the_next_step_and_ignore_the_action(envs: NavigationVectorEnv) -> None:
    envs.reset(seed=0)
    actions = np.where(np.arange(LANES) % 2 == 0, 0, 1)
    _, _, terminated, _, infos = envs.step(actions)
    assert terminated.tolist() == (actions == 0).tolist()
    assert infos["_metrics"].tolist() == terminated.tolist()
    assert infos["metrics"]["_spl"].tolist() == terminated.tolist()
    before = infos["viewpoint"]
    _, rewards, terminated, truncated, infos = envs.step(np.ones(LANES, dtype=np.int64))
    assert not terminated.any()
    assert not truncated.any()
    assert "metrics" not in infos
    assert (rewards[actions == 0] == 0).all()
    starts = [
        envs.game.world.viewpoints[int(envs.game.episodes.start[envs.game.row_of(name)])]
        for name in infos["instruction_id"]
    ]
    for lane in range(LANES):
        assert (infos["viewpoint"][lane] == starts[lane]) or actions[lane] == 1
        assert (infos["viewpoint"][lane] != before[lane]) or actions[lane] == 0


def test_writing_into_what_was_returned_does_not_disturb_the_play(game: NavigationGame) -> None:
    def run(*, scribble: bool) -> list[list[float]]:
        envs = NavigationVectorEnv(LANES, game=game)
        returned: tuple[Any, ...] = envs.reset(seed=0)
        rewards = []
        for number in range(8):
            if scribble:
                for values in (*returned[0].values(), *returned[1:-1], returned[-1]["action_mask"]):
                    values[:] = 1
                returned[-1]["illegal_action"][:] = True
            returned = envs.step(np.full(LANES, number % 3))
            rewards.append(returned[1].tolist())
        return rewards

    assert run(scribble=True) == run(scribble=False)


def test_episodes_can_be_chosen_per_lane(envs: NavigationVectorEnv) -> None:
    wanted = list(envs.game.episodes.instruction_ids[2 : 2 + LANES])
    _, infos = envs.reset(options={"episode": wanted})
    assert infos["instruction_id"].tolist() == wanted
    for wrong in (wanted[:2], wanted[0]):
        with pytest.raises(ValueError, match=r"^options\['episode'\] must hold 7 instruction ids"):
            envs.reset(options={"episode": wrong})
    with pytest.raises(UserError, match="has no instruction 'x'"):
        envs.reset(options={"episode": ["x"] * LANES})


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(3, dtype=np.int64), r"must be 7 whole numbers, got an array of shape \(3,\)"),
        (np.zeros(LANES), "must be 7 whole numbers, got .* type float64"),
        (np.array([0, 0, 0, 9, 0, 0, 0]), r"^action 9 of lane 3 is not in Discrete\(5\)"),
        (np.array([0, -1, 0, 9, 0, 0, 0]), r"^action -1 of lane 1 is not in Discrete\(5\)"),
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
        envs.step(np.zeros(LANES, dtype=np.int64))
    with pytest.raises(gymnasium.error.ResetNeeded, match="nothing to render yet"):
        envs.render()
    with pytest.raises(ValueError, match=r"^num_envs must be 1 or more, got 0$"):
        NavigationVectorEnv(0, game=game)
    with pytest.raises(ValueError, match="render_mode must be 'ansi' or None, got 'rgb_array'"):
        NavigationVectorEnv(2, render_mode="rgb_array", game=game)


def test_rendering_is_a_line_per_lane(game: NavigationGame, envs: NavigationVectorEnv) -> None:
    shown = NavigationVectorEnv(3, render_mode="ansi", game=game)
    shown.reset(seed=0)
    lines = shown.render()
    assert lines is not None
    assert len(lines) == 3
    assert all(" m to go | 0 stop | 1 " in line for line in lines)
    envs.reset(seed=0)
    assert envs.render() is None


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


def test_gymnasiums_own_vectoriser_accepts_the_single_environment(tiny_data: Path) -> None:
    register_environments()
    envs = gymnasium.make_vec("SceneMem/R2R-v0", num_envs=2, vectorization_mode="sync", data=tiny_data)
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    envs.close()
