from __future__ import annotations

from pathlib import Path

import pytest

from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder, cache_folder


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="no such folder; --data expects one that holds connectivity/ and r2r/"
    ):
        DataFolder(tmp_path / "nowhere")


def test_public_files_are_found_plain_or_gzipped(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    plain = tmp_path / "r2r" / "R2R_train.json"
    assert folder.episodes("r2r", "train") == plain, "the plain name is what a message should show"
    plain.parent.mkdir()
    packed = tmp_path / "r2r" / "R2R_train.json.gz"
    packed.touch()
    assert folder.episodes("r2r", "train") == packed
    plain.touch()
    assert folder.episodes("r2r", "train") == plain


def test_the_names_of_other_public_files_are_known(tmp_path: Path) -> None:
    for task, name in (("r2r", "R2R_val_seen_enc.jsonl"), ("rxr", "rxr_train_guide.jsonl.gz")):
        file = tmp_path / task / name
        file.parent.mkdir()
        file.touch()
    folder = DataFolder(tmp_path)
    assert folder.episodes("r2r", "val_seen").name == "R2R_val_seen_enc.jsonl"
    assert folder.episodes("rxr", "train").name == "rxr_train_guide.jsonl.gz"


def test_a_writable_folder_keeps_what_is_derived_from_it(tmp_path: Path) -> None:
    assert DataFolder(tmp_path).derived == tmp_path


def test_a_read_only_folder_is_left_alone_even_by_the_super_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        folder = DataFolder(tmp_path)
        assert cache_folder() in folder.derived.parents
        store = folder.derived / "features" / "objects.npy"
        store.parent.mkdir(parents=True)
        store.touch()
        assert folder.feature_file("objects") == store
        r4r = folder.derived / "r4r" / "R4R_train.json"
        r4r.parent.mkdir()
        r4r.touch()
        assert folder.episodes("r4r", "train") == r4r
    finally:
        tmp_path.chmod(0o755)


def test_an_unknown_feature_store_lists_the_known_ones(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    with pytest.raises(
        DataError, match=r"no feature store 'clip' \(there is none yet\); 'scenemem data check"
    ):
        folder.feature_file("clip")
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "objects.npy").touch()
    with pytest.raises(DataError, match=r"no feature store 'clip' \(there are: objects\)"):
        folder.feature_file("clip")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("SCENEMEM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "scenemem"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "scenemem"
