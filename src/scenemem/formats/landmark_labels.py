"""Hand-made labels of instruction words (``lar2r``): which words are about which viewpoint of the path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Union

import msgspec

from scenemem.errors import DataError
from scenemem.formats.decoding import read_json

WordIndex = Annotated[int, msgspec.Meta(ge=0)]

_ROW_NUMBER = "id"  # stands among the viewpoints of a path and says nothing about it


class WordLabels(msgspec.Struct, frozen=True):
    """The words of one instruction that are about one viewpoint, counted from 0 in its tokens."""

    landmark: tuple[WordIndex, ...] | None = None  # what is seen there; None when nothing was labelled
    action: tuple[WordIndex, ...] | None = None  # what is done there


Labels = dict[str, dict[str, WordLabels]]
"""instruction id -> viewpoint -> labels; viewpoints nobody spoke about are missing"""

_Viewpoint = Union[int, dict[str, WordLabels]]  # noqa: UP007 (evaluated at run time, also on Python 3.10)


def landmark_label_file(root: Path, split: str) -> Path:
    """``lar2r/lar2r_<split>.json``, plain or ``.gz``, in a data folder.

    Raises:
        DataError: there is no such file.
    """
    plain = root / "lar2r" / f"lar2r_{split}.json"
    packed = plain.with_name(f"{plain.name}.gz")
    for file in (plain, packed):
        if file.is_file():
            return file
    raise DataError(
        packed,
        "no such file; the word labels of lar2r (github.com/cwhao98/DDL) belong there, see docs/grounding.md",
    )


def read_landmark_labels(file: str | os.PathLike[str]) -> Labels:
    """Read ``{path_id: {viewpoint: {instruction number: {"landmark": [...], "action": [...]}}}}``.

    Raises:
        DataError: the file cannot be read or holds something else.
    """
    content = read_json(file, dict[str, dict[str, _Viewpoint]])
    labels: Labels = {}
    for path_id, viewpoints in content.items():
        for viewpoint, instructions in viewpoints.items():
            if isinstance(instructions, int):
                if viewpoint != _ROW_NUMBER:
                    raise DataError(
                        file,
                        f"viewpoint '{viewpoint}' holds a number, expected labels per instruction",
                        record=f"path {path_id}",
                    )
                continue
            for number, words in instructions.items():
                labels.setdefault(f"{path_id}_{number}", {})[viewpoint] = words
    return labels
