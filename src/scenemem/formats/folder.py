"""Where each public file lives inside a data folder, and where things built from it may be written."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from scenemem.errors import DataError

SPLITS = ("train", "val_seen", "val_unseen", "test")


def cache_folder() -> Path:
    """The folder for things that can be rebuilt: ``SCENEMEM_CACHE``, else the user's cache folder."""
    chosen = os.environ.get("SCENEMEM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scenemem"


@dataclass(frozen=True)
class DataFolder:
    """The layout of a data folder (``--data``); building one only checks that the folder exists."""

    root: Path

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise DataError(self.root, "no such folder; `data` expects one that holds connectivity/ and r2r/")

    @property
    def quoted(self) -> str:
        """The folder as it is typed in a shell."""
        return shlex.quote(str(self.root))

    @property
    def connectivity(self) -> Path:
        """``<scan>_connectivity.json`` files."""
        return self.root / "connectivity"

    @property
    def objects(self) -> Path:
        """Object annotations."""
        return self.root / "objects"

    @property
    def rooms(self) -> Path:
        """Room labels."""
        return self.root / "rooms"

    @property
    def captions(self) -> Path:
        """Published captions of the views, packed or unpacked."""
        return self.root / "captions"

    @property
    def word_vectors(self) -> Path:
        """Word vectors, GloVe's for example."""
        return self.root / "glove" / "glove_300d.npz"

    @property
    def derived(self) -> Path:
        """Where things built from this folder go: the folder itself, or the cache if it is read-only.

        Permission bits are respected even for the super-user.
        """
        mode = self.root.stat().st_mode
        writable = bool(mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(self.root, os.W_OK)
        if writable:
            return self.root
        name = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:16]
        return cache_folder() / "derived" / name

    def episodes(self, task: str, split: str) -> Path:
        """The episode file of a split, e.g. ``r2r/R2R_train.json``, as JSON or JSON lines, plain or ``.gz``.

        The names the public files have are all found (``_enc`` files, ``rxr/rxr_train_guide.jsonl.gz``), and
        derived files as well; the plain name inside the folder is returned when there is none.
        """
        stems = (f"{task.upper()}_{split}", f"{task.upper()}_{split}_enc", f"{task}_{split}_guide")
        names = [stem + end for stem in stems for end in (".json", ".json.gz", ".jsonl", ".jsonl.gz")]
        places = [folder / task / name for folder in self._places() for name in names]
        return next((place for place in places if place.is_file()), places[0])

    def feature_files(self) -> list[Path]:
        """All feature stores ``features/<name>.npy``, by name; one in the folder hides a derived one."""
        found = {
            file.stem: file
            for place in reversed(self._places())
            for file in (place / "features").glob("*.npy")
            if not file.name.startswith(".")
        }
        return [found[name] for name in sorted(found)]

    def feature_file(self, name: str) -> Path:
        """The feature store ``features/<name>.npy``, in the folder or among the derived files."""
        stores = {file.stem: file for file in self.feature_files()}
        if name not in stores:
            there = f"there are: {', '.join(stores)}" if stores else "there is none yet"
            advice = f"'scenemem data check --data {self.quoted}' shows what it takes to build it"
            raise DataError(self.root, f"no feature store '{name}' ({there}); {advice}")
        return stores[name]

    def _places(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.root, self.derived)))
