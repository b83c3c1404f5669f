from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scenemem.formats.features import verify_store
from tests.commands.helpers import typed
from tests.features.caption_houses import write_captions


def _tsv(file: Path, count: int = 3, width: int = 4) -> Path:
    text = base64.b64encode(np.ones((36, width), np.float32).tobytes()).decode()
    file.write_text("".join(f"scan\tv{number}\t640\t480\t60\t{text}\n" for number in range(count)))
    return file


def test_features_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _tsv(tmp_path / "net.tsv")
    assert typed("data", "features", file, "--data", tmp_path, "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)["stores"]
    target = tmp_path / "features" / "net.npy"
    assert shown == {
        "name": "net",
        "track": "images",
        "file": str(target),
        "width": 4,
        "viewpoints": 3,
        "sha256": verify_store(target).sha256,
    }
    words = ("--name", "few", "--columns", 2, "--out", tmp_path / "o", "--encoder", "made up")
    assert typed("data", "features", file, "--data", tmp_path, *words) == 0
    info = verify_store(tmp_path / "o" / "few.npy")
    expected = f"few (track images): 3 viewpoints x 36 views x 2 columns\n  sha256 {info.sha256}\n"
    assert expected in capsys.readouterr().out
    assert (info.width, info.encoder) == (2, "made up")


def test_captions_are_built_beside_the_data(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    write_captions(root)
    words = ("--caption-columns", 4, "--detection-columns", 0, "--json")
    assert typed("data", "captions", "--data", root, *words) == 0
    (shown,) = json.loads(capsys.readouterr().out)["stores"]
    assert (shown["name"], shown["track"], shown["width"]) == ("captions", "captions", 11)
    assert shown["sha256"] == verify_store(root / "features" / "captions.npy").sha256


@pytest.fixture
def annotated(tiny_data: Path, tmp_path: Path) -> Path:
    """The tiny data folder with one object and without room labels."""
    root = tmp_path / "annotated"
    (root / "objects").mkdir(parents=True)
    (root / "connectivity").symlink_to(tiny_data / "connectivity")
    thing = {"id": 1, "name": "lamp", "views": [12], "boxes": [[0, 0, 64, 48]]}
    line = json.dumps({"scan": "grid", "viewpoint": "g00", "objects": [thing]})
    (root / "objects" / "view_objects.jsonl").write_text(line)
    return root


def test_object_features_are_built_with_rooms_when_they_are_known(
    annotated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("data", "objects", "--data", annotated, "--json") == 0
    shown = capsys.readouterr()
    (store,) = json.loads(shown.out)["stores"]
    assert store["name"] == "objects"
    assert store["sha256"] == verify_store(annotated / "features" / "objects.npy").sha256
    assert f"no room labels in {annotated / 'rooms'}: only the store 'objects' was built" in shown.err
    (annotated / "rooms").mkdir()
    rooms = "scan\tviewpoint\troom_code\troom\ngrid\tg00\tk\tkitchen\n"
    (annotated / "rooms" / "viewpoint_rooms.tsv").write_text(rooms)
    assert typed("data", "objects", "--data", annotated, "--json") == 0
    names = [store["name"] for store in json.loads(capsys.readouterr().out)["stores"]]
    assert names == ["objects", "oracle"]
    out = annotated / "out"
    assert typed("data", "objects", "--data", annotated, "--no-oracle", "--out", out) == 0
    assert capsys.readouterr().err.count("no room labels") == 0
    assert sorted(file.name for file in out.iterdir()) == ["objects.json", "objects.npy"]


def test_mistakes_are_one_line_and_exit_code_2(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("data", "objects", "--data", tiny_data, "--out", tmp_path / "o") == 2
    assert "no object annotations; put view_objects.jsonl.gz" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
    file = tmp_path / "net.tsv"
    file.write_text("scan\tv\t640\t480\t60\t%%%%\n")
    assert typed("data", "features", file, "--data", tmp_path) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"error: {file}: line 1, field 'features': not valid base64" in shown.err
    assert not list((tmp_path / "features").iterdir())
