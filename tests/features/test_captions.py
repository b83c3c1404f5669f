"""Caption features: what the columns hold, what they are fitted on, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from scenemem.errors import UserError
from scenemem.features.captions import CaptionConfig, build_caption_features
from scenemem.features.objects import space, unannotated
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.features import StoreInfo, read_store, verify_store
from scenemem.formats.folder import DataFolder
from tests.features.caption_houses import THINGS, viewpoint_views, write_captions

Floats = npt.NDArray[np.float64]


@pytest.fixture
def data(tiny_data: Path, tmp_path: Path) -> DataFolder:
    """The tiny world with captions and word vectors."""
    root = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    write_captions(root)
    words = [*THINGS, "white", "black", "red", "a", "next", "to"]
    vectors = np.random.default_rng(0).normal(size=(len(words), 20)).astype(np.float16)
    (root / "glove").mkdir()
    np.savez(root / "glove" / "glove_300d.npz", words=np.array(words), vectors=vectors)
    return DataFolder(root)


def _build(data: DataFolder, name: str = "captions", **changed: Any) -> tuple[StoreInfo, Floats]:
    config = CaptionConfig(**{"caption_columns": 6, "detection_columns": 5, **changed})
    target = data.root / "features" / f"{name}.npy"
    info = build_caption_features(data, target, config)
    return info, np.asarray(read_store(target)[1], dtype=np.float64)


def _langnav(data: DataFolder, scan: str, change: Callable[[dict[str, Any]], object]) -> None:
    file = data.captions / "r2r_blip_DETR_vis2text" / f"{scan}.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def _detected(kind: str, box: str, confidence: str, caption: str | None = None) -> dict[str, str]:
    caption = caption or f"a {kind}"
    return {"obj_class": kind, "coordinates": box, "confidence": confidence, "caption": caption}


def test_the_store_names_its_track_its_columns_and_its_files(data: DataFolder) -> None:
    seen: list[tuple[int, int]] = []
    target = data.root / "features" / "captions.npy"
    config = CaptionConfig(caption_columns=6, detection_columns=5)
    info = build_caption_features(data, target, config, lambda *done: seen.append(done))
    assert (info.track, info.sensor) == ("captions", "a camera with a captioner, and a depth sensor")
    assert [(column.name, column.start, column.stop) for column in info.columns] == [
        *(("langnav captions", 0, 6), ("langnav detections", 6, 11), ("space", 11, 18)),
    ]
    assert info.source == "captions/r2r_blip_DETR_vis2text (unpacked copy)"
    words = "glove/glove_300d.npz bags reduced to 6 + 5 on 2 training buildings"
    assert info.encoder == f"langnav captions, {words}"
    assert seen == sorted(seen)
    assert seen[-1] == (6, 6), "three buildings, read and written"
    assert verify_store(target) == info
    buildings = [unannotated(read_scan(file)) for file in connectivity_files(data.connectivity)]
    assert info.keys == tuple(key for building in buildings for key in building.keys)
    expected = np.concatenate([space(building) for building in buildings]).astype(np.float16)
    np.testing.assert_array_equal(read_store(target)[1][..., -7:], expected, "free space is the graph's")


def test_captions_have_columns_by_words_and_detections_by_confidence_and_size(data: DataFolder) -> None:
    texts = ["a white bed", "a white bed", "a black sink", "a white lamp", "xyz"]
    whole = "0 0 640 480"
    found = [
        [_detected("bed", whole, "0.5"), _detected("bed", "0 0 64 48", "0.9")],
        [_detected("bed", whole, "0.25")],
    ]

    def change(content: dict[str, Any]) -> None:
        for view, text in enumerate(texts):
            dense = found[view] if view < 2 else []
            content["g00"][str(view)] = {"global_cap": text, "dense_cap": dense}

    _langnav(data, "grid", change)
    info, values = _build(data, caption_columns=20, detection_columns=20)
    row = values[info.keys.index("grid_g00")]
    first, second, other, alike, unknown = row[:5, :20]
    np.testing.assert_array_equal(first, second)
    assert first @ alike > first @ other
    assert np.linalg.norm(first) == pytest.approx(1, abs=0.05), "few words: the axes keep nearly everything"
    assert not unknown.any(), "no word of it is known"
    assert not row[2, 20:40].any()
    total = 0.5 + 0.9 * 0.01**0.25
    np.testing.assert_allclose(row[0, 20:40], row[1, 20:40] / 0.25 * total, atol=2e-3)


def test_navgpt_headings_are_spread_over_the_views_by_angle(data: DataFolder) -> None:
    file = data.captions / "navgpt_r2r" / "observations_list" / "grid.json"
    content = json.loads(file.read_text())
    content["g00"] = ["down: a bed\nmiddle: xyz\ntop: xyz", *["down: xyz\nmiddle: xyz\ntop: xyz"] * 7]
    file.write_text(json.dumps(content))
    info, values = _build(data, captioner="navgpt", caption_columns=20)
    assert [column.name for column in info.columns] == ["navgpt captions", "space"]
    row = values[info.keys.index("grid_g00"), :, :20]
    assert np.linalg.norm(row[0]) == pytest.approx(1, abs=0.05)
    share = row @ row[0] / (row[0] @ row[0])
    expected = np.zeros(36)
    expected[[0, 1, 11]] = 1, 1 / 3, 1 / 3  # 30 degrees lies two thirds of the way to the next heading
    np.testing.assert_allclose(share, expected, atol=2e-3)


def test_both_captioners_stand_side_by_side(data: DataFolder) -> None:
    info, values = _build(data, "both", captioner="both")
    assert [(column.name, column.stop - column.start) for column in info.columns] == [
        *(("langnav captions", 6), ("langnav detections", 5), ("navgpt captions", 6), ("space", 7)),
    ]
    assert "r2r_blip_DETR_vis2text" in info.source
    assert "observations_list" in info.source
    np.testing.assert_array_equal(values[..., :11], _build(data)[1][..., :11])


def test_only_training_buildings_are_fitted_on(data: DataFolder) -> None:
    before, values = _build(data)
    chance = random.Random(9)
    unseen = _detected("spaceship", "0 0 9 9", "1", "a red bed")

    def change(content: dict[str, Any]) -> None:
        for name in content:
            content[name] = viewpoint_views(chance)
            content[name]["0"]["dense_cap"] = [unseen]

    _langnav(data, "yard", change)  # the only building that is not in R2R_train.json
    after, changed = _build(data)
    assert after.columns == before.columns
    seen = [not key.startswith("yard") for key in before.keys]
    np.testing.assert_array_equal(changed[seen], values[seen])
    assert (changed[~np.array(seen)] != values[~np.array(seen)]).any()
    _langnav(data, "grid", change)
    assert (_build(data)[1][..., :6] != changed[..., :6]).any()


def test_episodes_and_word_vectors_may_be_missing(data: DataFolder) -> None:
    shutil.rmtree(data.root / "r2r")
    shutil.rmtree(data.root / "glove")
    info, values = _build(data)
    assert info.encoder == "langnav captions, hashed words (no glove/) reduced to 6 + 5 on all buildings"
    assert values[..., :6].any()


def test_neither_order_nor_other_viewpoints_and_buildings_change_a_byte(data: DataFolder) -> None:
    before = _build(data)[0]

    def change(content: dict[str, Any]) -> None:
        content["g-excluded"] = content["g00"]
        content.update({name: content.pop(name) for name in sorted(content)})

    _langnav(data, "grid", change)
    folder = data.captions / "r2r_blip_DETR_vis2text"
    (folder / "elsewhere.json").write_text((folder / "yard.json").read_text())
    assert _build(data, "again")[0] == before


REFUSED: dict[str, tuple[Callable[[DataFolder], object], dict[str, Any], str]] = {
    "a viewpoint less": (
        lambda data: _langnav(data, "grid", lambda content: content.pop("g11")),
        {},
        "lacks 1 of the 32 viewpoints of the connectivity files, first 'grid_g11'; get",
    ),
    "a viewpoint more": (
        lambda data: _langnav(data, "grid", lambda content: content.update(ghost=content["g00"])),
        {},
        "viewpoint 'ghost': is not in the connectivity file of its scan",
    ),
    "no captions": (
        lambda data: shutil.rmtree(data.captions),
        {},
        r"captions: no captions of langnav; put the archive langnav\*\.tar\.gz or",
    ),
    "width": (lambda _: None, {"caption_columns": -1}, "caption_columns must be 0 or more, got -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_refused(data: DataFolder, case: str) -> None:
    change, options, message = REFUSED[case]
    change(data)
    with pytest.raises(UserError, match=message):
        _build(data, **options)
    assert not (data.root / "features" / "captions.npy").exists()


@pytest.mark.real_data
def test_the_published_captions_cover_every_viewpoint(real_data: Path, tmp_path: Path) -> None:
    data = DataFolder(real_data)
    if not data.captions.is_dir():
        pytest.skip("needs the published captions")
    info = build_caption_features(data, tmp_path / "captions.npy")
    assert (len(info.keys), info.width) == (10_567, 128 + 96 + 7)
    assert "(published, sha256 f7a80b68" in info.source
    some = read_store(tmp_path / "captions.npy")[1][::50].astype(np.float32)
    length = np.linalg.norm(some[..., :128], axis=-1)
    assert 0.9 < length.mean() <= 1.001, "the main axes keep most of a caption"
