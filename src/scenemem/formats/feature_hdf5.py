"""View features in HDF5 files: one data set (36, D) per viewpoint, named ``<scan>_<viewpoint>``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scenemem.errors import DataError, UserError
from scenemem.formats.feature_files import VIEWS, FeatureRow


def count_feature_hdf5(file: str | os.PathLike[str]) -> int:
    """The number of data sets in an HDF5 file."""
    with _opened(file) as source:
        return len(source)


def read_feature_hdf5(file: str | os.PathLike[str], columns: int | None = None) -> Iterator[FeatureRow]:
    """Stream the data sets of an HDF5 file in the order of their names, one in memory at a time.

    Args:
        file: the HDF5 file; any float type, compressed or not.
        columns: keep only the first columns of every view (some files append class scores).

    Raises:
        DataError: the file or a data set cannot be read, or a data set is not a (36, D) table of floats.
        UserError: h5py is not installed.
    """
    with _opened(file) as source:
        for key in source:
            place = f"data set '{key}'"
            try:
                entry = source[key]
            except (KeyError, OSError, RuntimeError) as error:  # a link whose target is gone
                raise DataError(file, f"cannot be opened ({error.args[0]})", record=place) from error
            shape, kind = getattr(entry, "shape", None), getattr(entry, "dtype", None)
            if shape is None or kind is None or len(shape) != 2 or kind.kind != "f":
                raise DataError(
                    file, f"holds {_worded(shape, kind)}, expected floats of shape ({VIEWS}, D)", record=place
                )
            try:
                values = np.asarray(entry[:, :columns])
            except (OSError, RuntimeError) as error:
                raise DataError(file, f"cannot be unpacked ({error})", record=place) from error
            yield FeatureRow(key, values, place)


def _worded(shape: Any, kind: Any) -> str:
    return "a group" if shape is None else f"{kind} of shape {shape}"


@contextmanager
def _opened(file: str | os.PathLike[str]) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            f"{file}: reading HDF5 needs h5py, which is not installed; run: pip install 'scenemem[features]'"
        ) from error
    if not Path(file).is_file():
        raise DataError(file, "no such file")
    try:
        source = h5py.File(file, "r")
    except OSError as error:
        raise DataError(file, f"not a readable HDF5 file ({error}); is the file complete?") from error
    with source:
        yield source
