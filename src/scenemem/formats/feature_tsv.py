"""View features as published for R2R: tab-separated lines, one per viewpoint, base64 of float32 (36, D)."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator

import numpy as np

from scenemem.errors import DataError
from scenemem.formats.decoding import read_lines
from scenemem.formats.feature_files import VIEWS, FeatureRow

FIELDS = ("scanId", "viewpointId", "image_w", "image_h", "vfov", "features")
_VALUE = np.dtype("<f4")
_EXCERPT = 20  # characters of a field worth showing in an error


def read_feature_tsv(file: str | os.PathLike[str], columns: int | None = None) -> Iterator[FeatureRow]:
    """Stream the rows of a feature TSV in file order, one line in memory at a time.

    Lines are split here rather than by the csv module: its fields are limited in size, these are not.

    Args:
        file: the text file, plain or ``.gz``, without a header line.
        columns: keep only the first columns of every view.

    Raises:
        DataError: the file cannot be read, or a line does not hold six fields, valid base64 or a number of
            bytes that makes 36 equal views; the line is named.
    """
    for number, line in enumerate(read_lines(file), start=1):
        if not line:
            continue
        place = f"line {number}"
        fields = line.split("\t")
        if len(fields) != len(FIELDS):
            raise DataError(
                file,
                f"holds {len(fields)} tab-separated fields, expected {len(FIELDS)}: {' '.join(FIELDS)}",
                record=place,
            )
        for name, value in zip(FIELDS[:2], fields[:2], strict=True):
            if not value:
                raise DataError(file, "is empty, expected an id", record=place, field=name)
        content = _decoded(fields[-1], file, place)
        values = np.frombuffer(content, dtype=_VALUE).reshape(VIEWS, -1)
        yield FeatureRow(f"{fields[0]}_{fields[1]}", values[:, :columns], place)


def estimate_feature_tsv(file: str | os.PathLike[str]) -> int:
    """About how many rows a feature TSV holds: all lines are about as long as the first."""
    first = next(read_lines(file), "")
    return os.path.getsize(file) // (len(first) + 1)


def _decoded(text: str, file: str | os.PathLike[str], place: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        excerpt = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
        raise DataError(
            file, f"not valid base64 ({error}): '{excerpt}'", record=place, field=FIELDS[-1]
        ) from error
    view = VIEWS * _VALUE.itemsize
    if not content or len(content) % view:
        raise DataError(
            file,
            f"holds {len(content)} bytes, expected a multiple of {view}: {VIEWS} views of float32 numbers",
            record=place,
            field=FIELDS[-1],
        )
    return content
