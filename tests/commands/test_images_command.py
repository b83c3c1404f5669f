"""``scenemem data images`` as a user types it: from the pixels of drawn houses to SR, and through a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scenemem.features import images, pictures
from scenemem.features.pictures import DrawnHouses, read_cameras
from scenemem.formats.connectivity import Scan, connectivity_files, read_scan, write_scan
from scenemem.formats.decoding import read_json
from scenemem.formats.features import verify_store
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import HousesConfig, build_houses
from tests.commands.helpers import SMALL, Shell, typed
from tests.features.picture_files import write_views


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two houses of which only the viewpoints of one route each are left, and ``pictures`` of these."""
    root = tmp_path_factory.mktemp("images") / "houses"
    few = HousesConfig(houses=2, train_routes=1, val_seen_routes=1, val_unseen_routes=1)
    build_houses(root, few, jobs=1)
    (root / "r2r" / "R2R_val_seen.json").unlink()
    walked = [
        set(episode["path"])
        for split in ("train", "val_unseen")
        for episode in read_json(root / "r2r" / f"R2R_{split}.json", list[dict[str, Any]])
    ]
    for file, route in zip(connectivity_files(root / "connectivity"), walked, strict=True):
        scan = read_scan(file)
        kept = [msgspec.structs.replace(one, included=one.image_id in route) for one in scan.viewpoints]
        write_scan(root / "connectivity", Scan(scan.name, tuple(kept)))
    data = DataFolder(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "_HOUSE_FACE", 16)  # a sixteenth of the rays
        write_views(DrawnHouses(data), read_cameras(data), root / "pictures")
    return root


def test_from_pixels_to_success_rate(houses: Path, tmp_path: Path, shell: Shell) -> None:
    words = ("--images", houses / "pictures", "--data", houses, "--encoder", "houses-small")
    (store,) = shell.json("data", "images", *words)["stores"]
    assert (store["name"], store["width"]) == ("images", 276)
    info = verify_store(houses / "features" / "images.npy")
    assert (store["sha256"], info.encoder.split()[0]) == (info.sha256, "houses-small")
    run = tmp_path / "basic-0"
    where = ("--data", houses, "--features", "images", "--out", run, "--selection.split", "val_unseen")
    shell("train", "basic", *where, *SMALL, "--learning.batch", 2, "--iterations", 2)
    assert 0 <= shell.json("eval", run, "--data", houses, "--split", "val_unseen")["metrics"]["sr"] <= 1
    assert json.loads((run / "preset.json").read_text())["preset"]["data"]["features"] == "images"
    (one,) = shell.json("data", "images", *words, "--name", "one", "--scans", "house_001")["stores"]
    keys = [key for key in info.keys if key.startswith("house_001_")]
    assert 0 < len(keys) == one["viewpoints"] < store["viewpoints"]
    assert "attic" in shell.refused("data", "images", *words, "--scans", "attic")


def test_without_a_folder_of_pictures_the_houses_are_drawn(
    houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setattr(pictures, "_HOUSE_FACE", 16)
    words = ("--encoder", "houses-small", "--out", tmp_path, "--name", "drawn", "--batch", 72)
    shown = shell("data", "images", "--data", houses, *words)
    info = verify_store(tmp_path / "drawn.npy")
    assert info.source == f"drawings of the embedded houses, {len(info.keys)} viewpoints"
    assert f"drawn (track images): {len(info.keys)} viewpoints x 36 views x 276 columns" in shown


HALTING = """
import time
from scenemem.features.images import ENCODERS, HousesSmall

class Halting(HousesSmall):
    viewpoints = 0

    def encode(self, pictures):
        self.viewpoints += 1
        if self.viewpoints > 3:
            time.sleep(600)
        return super().encode(pictures)

ENCODERS.register("halting", lambda device: Halting())
"""


def _viewpoints_in(file: Path) -> int:
    """Count of whole viewpoints after the line of settings."""
    content = file.read_bytes() if file.exists() else b""
    place, count = content.find(b"\n") + 1, 0
    while place and place + images._ROW.size <= len(content):
        place += images._ROW.size + images._ROW.unpack_from(content, place)[0]
        count += place <= len(content)
    return count


def test_a_killed_run_is_continued_to_the_same_bytes(houses: Path, tmp_path: Path) -> None:
    plugin, folder = tmp_path / "halting.py", tmp_path / "killed"
    plugin.write_text(HALTING)
    words = ["data", "images", "--images", str(houses / "pictures"), "--data", str(houses)]
    started = [*words, "--out", str(folder), "--encoder", "halting", "--plugin", str(plugin)]
    unfinished = folder / ".images.npy.unfinished"
    with subprocess.Popen([sys.executable, "-m", "scenemem", *started], stderr=subprocess.DEVNULL) as process:
        while _viewpoints_in(unfinished) < 3:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "images.npy").exists()
    assert not (folder / "images.json").exists()

    assert _viewpoints_in(unfinished) == 3
    for out in (folder, tmp_path / "whole"):
        assert typed(*words, "--encoder", "houses-small", "--out", out) == 0
    for name in ("images.npy", "images.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(file.name for file in folder.iterdir()) == ["images.json", "images.npy"]


def test_mistakes_are_one_line(houses: Path, tmp_path: Path, shell: Shell) -> None:
    words = ("data", "images", "--encoder", "houses-small", "--out", tmp_path)
    refused = shell.refused(*words)
    assert "has no plans of houses to draw; name a folder of pictures with --images" in refused
    refused = shell.refused(*words, "--images", houses / "pictures")
    assert "scan grid, viewpoint g00: no pictures of this viewpoint of the world" in refused
    assert list(tmp_path.iterdir()) == []
