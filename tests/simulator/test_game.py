"""The rules of the navigation game: rewards, ends, metrics and what is refused."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.formats.features import read_store, write_store
from scenemem.simulator import NavigationGame, Transition, open_game, progress_reward
from scenemem.tasks.vocabulary import BOS, PAD, Vocabulary


@pytest.fixture(scope="module")
def game(tiny_data: Path) -> NavigationGame:
    return open_game(tiny_data, features=False)


def test_the_reward_is_metres_gained_and_a_verdict_on_stopping() -> None:
    table = [  # before, after, stopped, reward
        (9.0, 7.5, False, 1.5),
        (7.5, 9.0, False, -1.5),
        (7.5, 7.5, True, -2.0),
        (2.9, 2.9, True, 2.0),
        (3.0, 3.0, True, -2.0),  # nearer than 3 m, strictly, as in the R2R evaluation
        (2.9, 2.9, False, 0.0),
    ]
    before, after, stopped, reward = (torch.tensor(column) for column in zip(*table, strict=True))
    torch.testing.assert_close(progress_reward(Transition(before, after, stopped)), reward)


def test_metrics_of_a_walk_past_the_goal(game: NavigationGame) -> None:
    """There and two edges on: the goal was passed but not kept."""
    world = game.world
    start, goal, beyond = (world.index_of("grid", name) for name in ("g00", "g10", "g30"))
    path = torch.tensor([[start, goal]])
    crossing = replace(
        game,
        episodes=replace(game.episodes.select([0]), start=path[:, 0], goal=path[:, 1], path=path),
    )
    play = crossing.begin(torch.tensor([0]))
    for _ in range(3):
        slot = world.next_slot(play.pose.viewpoint, torch.tensor([beyond]))
        play, _ = crossing.act(play, slot + 1)
    scores = {name: values[0] for name, values in crossing.metrics(play).items()}
    metres = float(world.geodesic(torch.tensor(start), torch.tensor(beyond)))
    assert scores["tl"] == pytest.approx(metres)
    assert scores["ne"] == pytest.approx(float(world.geodesic(torch.tensor(beyond), torch.tensor(goal))))
    assert [float(scores[name]) for name in ("sr", "osr", "spl", "sdtw")] == [0.0, 1.0, 0.0, 0.0]
    assert 0 < scores["ndtw"] < 1
    assert not scores["is_success"]


def test_stopping_where_one_should_be_already_is_perfect(game: NavigationGame) -> None:
    stay = game.episodes.start.unsqueeze(1)
    here = replace(game, episodes=replace(game.episodes, goal=game.episodes.start, path=stay))
    play, _ = here.act(here.begin(torch.tensor([0])), torch.tensor([0]))
    found = here.metrics(play)
    assert {name: float(values[0]) for name, values in found.items()} == {
        "tl": 0,
        "ne": 0,
        "sr": 1,
        "osr": 1,
        "spl": 1,
        "spl_ref": 1,
        "cls": 1,
        "ndtw": 1,
        "sdtw": 1,
        "is_success": 1,
    }


def test_instructions_are_padded_token_numbers(game: NavigationGame, tiny_data: Path) -> None:
    vocabulary = Vocabulary.build(game.episodes.texts)
    assert game.words == len(vocabulary)
    numbers = vocabulary.encode(game.episodes.texts[3], 80)
    assert game.tokens.shape == (len(game.episodes), 80)
    assert game.tokens[3].tolist() == numbers + [PAD] * (80 - len(numbers))
    assert (open_game(tiny_data, features=False, max_tokens=5).tokens[:, 0] == BOS).all()


def test_all_splits_share_their_spaces(game: NavigationGame, tiny_data: Path) -> None:
    other = open_game(tiny_data, split="val_unseen", features=False)
    assert other.observation_space == game.observation_space
    assert other.action_space == game.action_space


def test_what_cannot_be_played_is_refused(game: NavigationGame, tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the goals of r2r test are kept secret.*such as val_unseen$"):
        open_game(tiny_data, split="test", features=False)
    with pytest.raises(ValueError, match=r"^max_steps must be 1 or more, got 0; a usual choice is 30$"):
        open_game(tiny_data, max_steps=0, features=False)
    with pytest.raises(DataError, match="no such folder"):
        open_game(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no feature store 'resnet'"):
        open_game(tiny_data, features="resnet")
    with pytest.raises(UserError, match=r"^'r2r train' has no instruction 'x_9'; its ids look like '\d+_0'$"):
        game.episodes.row_of("x_9")


def test_view_features_are_the_only_store_or_a_choice(copied_data: Path, tiny_data: Path) -> None:
    tiny = copied_data / "features" / "tiny.npy"
    only = open_game(copied_data)
    assert only.features is not None
    assert only.features.width == 8
    assert only.observation_space["features"].shape == (36, 8)
    assert "features" not in open_game(copied_data, features=False).observation_space.spaces
    shutil.copy(tiny, tiny.with_name("other.npy"))
    shutil.copy(tiny.with_suffix(".json"), tiny.with_name("other.json"))
    several = r"has several feature stores \(other, tiny\); choose one with features='NAME', or none with "
    with pytest.raises(UserError, match=several + "features=False$"):
        open_game(copied_data)
    named = open_game(copied_data, features="other")
    assert named.features is not None
    with pytest.raises(
        UserError, match=r"has no feature store; 'scenemem data check .*, features=False plays"
    ):
        open_game(tiny_data)


def test_buildings_without_features_are_left_out(copied_data: Path, game: NavigationGame) -> None:
    info, rows = read_store(copied_data / "features" / "tiny.npy")
    kept = [key for key in info.keys if not key.startswith("spiral_")]
    chosen = rows[[info.keys.index(key) for key in kept]]
    write_store(
        copied_data / "features" / "tiny.npy", kept, chosen, width=8, source="test", encoder="random numbers"
    )
    with pytest.warns(UserWarning, match=r"lacks \d+ of \d+ viewpoints|paths are used"):
        partial = open_game(copied_data)
    assert set(partial.world.scans) == set(game.world.scans) - {"spiral"}


def test_without_a_data_folder_the_embedded_houses_are_played(
    tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = SimpleNamespace(default_houses=lambda: tiny_data)
    monkeypatch.setitem(sys.modules, "scenemem.houses.build", stand_in)
    assert open_game(features=False).world.scans == ("grid", "spiral", "yard")


def test_a_line_for_people(game: NavigationGame) -> None:
    world = game.world
    start, goal = world.index_of("grid", "g11"), world.index_of("grid", "g10")
    named = replace(
        game,
        episodes=replace(
            game.episodes.select([0]),
            start=torch.tensor([start]),
            goal=torch.tensor([goal]),
            heading=torch.tensor([torch.pi / 2], dtype=torch.float64),
        ),
    )
    (line,) = named.describe(named.begin(torch.tensor([0])))
    assert line.startswith("grid_g11 facing 90 deg, 1.9 m to go | 0 stop | 1 ")
    assert line.count("|") == 5
    assert " deg right" in line
    assert " deg left" in line
