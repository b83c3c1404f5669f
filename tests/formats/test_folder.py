from __future__ import annotations

from pathlib import Path

import pytest

from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder, cache_folder
from tests.formats.helpers import put


def test_missing_folders_and_stores_are_refused(tmp_path: Path) -> None:
    message = "no such folder; `data` expects one that holds connectivity/ and r2r/"
    with pytest.raises(DataError, match=message):
        DataFolder(tmp_path / "nowhere")
    folder = DataFolder(tmp_path)
    message = r"no feature store 'clip' \({}\); 'scenemem data check"
    with pytest.raises(DataError, match=message.format("there is none yet")):
        folder.feature_file("clip")
    put(tmp_path / "features" / "objects.npy", "")
    with pytest.raises(DataError, match=message.format("there are: objects")):
        folder.feature_file("clip")


def test_public_files_are_found_plain_or_gzipped(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    plain = tmp_path / "r2r" / "R2R_train.json"
    assert folder.episodes("r2r", "train") == plain, "the plain name is what a message should show"
    packed = put(tmp_path / "r2r" / "R2R_train.json.gz", "")
    assert folder.episodes("r2r", "train") == packed
    put(plain, "")
    assert folder.episodes("r2r", "train") == plain
    encoded = put(tmp_path / "r2r" / "R2R_val_seen_enc.jsonl", "")
    assert folder.episodes("r2r", "val_seen") == encoded
    guide = put(tmp_path / "rxr" / "rxr_train_guide.jsonl.gz", "")
    assert folder.episodes("rxr", "train") == guide


def test_a_read_only_folder_is_left_alone_even_by_the_super_user(tmp_path: Path) -> None:
    assert DataFolder(tmp_path).derived == tmp_path
    tmp_path.chmod(0o555)
    try:
        folder = DataFolder(tmp_path)
        assert cache_folder() in folder.derived.parents
        store = put(folder.derived / "features" / "objects.npy", "")
        assert folder.feature_file("objects") == store
        r4r = put(folder.derived / "r4r" / "R4R_train.json", "")
        assert folder.episodes("r4r", "train") == r4r
    finally:
        tmp_path.chmod(0o755)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("SCENEMEM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "scenemem"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "scenemem"
