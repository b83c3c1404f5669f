"""Tracks have names and sensors; unions hold the columns of all; layouts tell stores apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from scenemem import cli
from scenemem.errors import DataError, UserError
from scenemem.features.store import TRACKS, join_stores
from scenemem.formats.features import Column, StoreInfo, read_store, write_store

KEYS = ("s_a", "s_b", "s_c")
SPACE = np.arange(3 * 36 * 2).reshape(3, 36, 2) / 256


def _store(folder: Path, name: str, width: int, **changed: Any) -> Path:
    """A store with ``width`` columns of its own and two that all stores share."""
    own = np.random.default_rng(width).normal(size=(3, 36, width))
    values = np.concatenate([own, changed.pop("space", SPACE)], axis=-1)
    keys = changed.pop("keys", KEYS)
    rows = values[[KEYS.index(key) for key in keys]]
    columns = (Column("own", 0, width, name), Column("space", width, width + 2, "free space"))
    given = {"source": f"{name}/", "encoder": f"{name} words", "track": name, "columns": columns, **changed}
    write_store(folder / f"{name}.npy", keys, rows, width=width + 2, **given)
    return folder / f"{name}.npy"


def test_every_track_says_what_it_stands_for() -> None:
    assert list(TRACKS) == ["captions", "objects", "images", "oracle", "houses"], "from strict to privileged"
    assert [name for name, track in TRACKS.items() if track.privileged] == ["oracle"]
    for track in TRACKS.values():
        assert track.sensor
        assert track.command.startswith("scenemem data ")


def test_a_union_holds_the_columns_of_all_and_free_space_once(tmp_path: Path) -> None:
    captions = _store(tmp_path, "captions", 3)
    objects = _store(tmp_path, "objects", 2, keys=("s_c", "s_a", "s_b"))
    seen: list[tuple[int, int]] = []
    info = join_stores(
        {"captions": captions, "objects": objects},
        tmp_path / "captions+objects.npy",
        lambda done, total: seen.append((done, total)),
    )
    assert (info.track, info.keys, info.width) == ("captions+objects", KEYS, 7)
    assert info.sensor == f"{TRACKS['captions'].sensor} + {TRACKS['objects'].sensor}"
    assert info.source == "captions/; objects/"
    assert info.encoder == "captions words + objects words"
    assert [(column.description, column.start, column.stop) for column in info.columns] == [
        *(("captions", 0, 3), ("free space", 3, 5), ("objects", 5, 7)),
    ]
    assert seen[-1] == (3, 3)
    _, values = read_store(tmp_path / "captions+objects.npy")
    np.testing.assert_array_equal(values[..., :5], read_store(captions)[1])
    np.testing.assert_array_equal(values[..., 5:], read_store(objects)[1][[1, 2, 0], :, :2])


def test_groups_that_differ_are_both_kept(tmp_path: Path) -> None:
    stores = {
        "captions": _store(tmp_path, "captions", 3),
        "objects": _store(tmp_path, "objects", 2, space=SPACE + 1),
    }
    assert join_stores(stores, tmp_path / "union.npy").width == 9


def test_stores_of_other_viewpoints_are_not_joined(tmp_path: Path) -> None:
    whole, part = _store(tmp_path, "captions", 3), _store(tmp_path, "objects", 2, keys=("s_a", "s_c"))
    with pytest.raises(DataError, match=r"objects\.npy: lacks the viewpoint 's_b'; only stores of the same"):
        join_stores({"captions": whole, "objects": part}, tmp_path / "union.npy")
    with pytest.raises(DataError, match=r"captions\.npy: alone holds the viewpoint 's_b'"):
        join_stores({"objects": part, "captions": whole}, tmp_path / "union.npy")


def test_a_union_needs_two_stores_with_tracks(tmp_path: Path) -> None:
    captions, unknown = _store(tmp_path, "captions", 3), _store(tmp_path, "old", 2, track="")
    with pytest.raises(UserError, match="a union takes two stores or more, got 1: captions"):
        join_stores({"captions": captions}, tmp_path / "union.npy")
    with pytest.raises(UserError, match=r"old\.npy: has no track; build it again"):
        join_stores({"captions": captions, "old": unknown}, tmp_path / "union.npy")


def test_the_command_joins_stores_of_a_data_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, width in (("captions", 3), ("objects", 2)):
        _store(tmp_path / "features", name, width)
    with pytest.raises(SystemExit) as caught:
        cli.main(["data", "join", "captions", "objects", "--data", str(tmp_path), "--json"])
    assert caught.value.code == 0
    (shown,) = json.loads(capsys.readouterr().out)["stores"]
    assert (shown["name"], shown["track"], shown["width"]) == ("captions+objects", "captions+objects", 7)
    assert (tmp_path / "features" / "captions+objects.npy").is_file()


def test_the_layout_tells_stores_of_another_meaning_apart() -> None:
    info = StoreInfo(("s_a",), 2, "files", "words", "0", (Column("own", 0, 2, "x"),), "captions", "a camera")
    same: list[tuple[str, Any]] = [("source", "others"), ("sha256", "1"), ("sensor", "")]
    other: list[tuple[str, Any]] = [
        ("track", "objects"),
        ("encoder", "minilm"),
        ("width", 3),
        ("keys", ("s_b",)),
        ("columns", ()),
    ]
    for name, value in same:
        assert msgspec.structs.replace(info, **{name: value}).layout == info.layout
    for name, value in other:
        assert msgspec.structs.replace(info, **{name: value}).layout != info.layout
