"""Streaming converters from public feature files to the store, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from scenemem.errors import UserError
from scenemem.formats.feature_files import FeatureRow, StoreInfo, stream_store
from scenemem.formats.feature_hdf5 import count_feature_hdf5, read_feature_hdf5
from scenemem.formats.feature_tsv import estimate_feature_tsv, read_feature_tsv

Progress = Callable[[int, int], None]

TSV_ENDS = (".tsv", ".tsv.gz")
HDF5_ENDS = (".hdf5", ".h5")


def store_name(file: str | os.PathLike[str]) -> str:
    """The name of a feature file without the ending that tells its kind."""
    name = Path(file).name
    return next((name.removesuffix(end) for end in TSV_ENDS + HDF5_ENDS if name.endswith(end)), name)


def convert_features(
    file: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    columns: int | None = None,
    encoder: str = "",
    progress: Progress | None = None,
) -> StoreInfo:
    """Convert a TSV or HDF5 file, told apart by its name, to the store ``target``.

    Args:
        file: the public feature file.
        target: the ``.npy`` file of the store to write.
        columns: keep only the first columns of every view; all when not given.
        encoder: the network that made the features, when known.
        progress: called with (viewpoints done, in all); for a TSV the latter is estimated from its size.

    Raises:
        UserError: the name ends in neither kind, or no column would be kept.
        DataError: the file is broken or its rows do not fit the store; see the readers and ``stream_store``.
    """
    if columns is not None and columns < 1:
        raise UserError(f"columns must be 1 or more, got {columns}; leave it out to keep all")
    name = Path(file).name
    if name.endswith(TSV_ENDS):
        return convert_tsv(file, target, columns=columns, encoder=encoder, progress=progress)
    if name.endswith(HDF5_ENDS):
        return convert_hdf5(file, target, columns=columns, encoder=encoder, progress=progress)
    raise UserError(
        f"{file}: unknown kind of feature file; expected a name ending in {', '.join(TSV_ENDS + HDF5_ENDS)}"
    )


def convert_tsv(
    file: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    columns: int | None = None,
    encoder: str = "",
    progress: Progress | None = None,
) -> StoreInfo:
    """Convert a feature TSV; rows keep the order of the file. See ``convert_features``."""
    rows = read_feature_tsv(file, columns)
    if progress is not None:
        rows = _with_progress(rows, estimate_feature_tsv(file), progress)
    return _stream(file, target, rows, columns, encoder)


def convert_hdf5(
    file: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    columns: int | None = None,
    encoder: str = "",
    progress: Progress | None = None,
) -> StoreInfo:
    """Convert a feature HDF5 file; rows are in the order of their names. See ``convert_features``."""
    rows = read_feature_hdf5(file, columns)
    if progress is not None:
        rows = _with_progress(rows, count_feature_hdf5(file), progress)
    return _stream(file, target, rows, columns, encoder)


def _stream(
    file: str | os.PathLike[str],
    target: str | os.PathLike[str],
    rows: Iterable[FeatureRow],
    columns: int | None,
    encoder: str,
) -> StoreInfo:
    kept = f", first {columns} columns" if columns is not None else ""
    return stream_store(
        target, rows, origin=file, source=f"{Path(file).name}{kept}", encoder=encoder, width=columns
    )


def _with_progress(rows: Iterable[FeatureRow], total: int, progress: Progress) -> Iterator[FeatureRow]:
    for done, row in enumerate(rows, start=1):
        yield row
        progress(done, max(done, total))
