"""A small table of sources on a local server, in the formats of the real ones."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from scenemem.sources import convert, table
from tests.formats.helpers import packed
from tests.sources.server import Served, serving

VIEWPOINT = "0123456789abcdef0123456789abcdef"
BOXES = {VIEWPOINT: {"7": {"name": "kitchen#counter", "visible_pos": [3], "bbox2d": [[1, 2, 30, 40]]}}}
ROOM_TABLE = {
    "label_info": {},
    "pano_info": {"17DRP5sb8fy": {VIEWPOINT: {"region_index": "4", "region_label": "k"}}},
}
MAPPING = "index\traw_category\tcategory\tmpcat40\n1\tkitchen counter\tcounter\tcounter\n"


def repository(content: bytes | None = None) -> bytes:
    """A snapshot of a repository as code hosts pack it: one folder, other JSON files among the boxes."""
    boxes = f"REVERIE-0fe/{table.BOXES_IN_ARCHIVE}17DRP5sb8fy_{VIEWPOINT}.json"
    other = "REVERIE-0fe/connectivity/x_connectivity.json"
    return packed({other: b"[]", boxes: content or json.dumps(BOXES).encode()})


def glove_table() -> bytes:
    """Two vectors as an .npy file."""
    stream = io.BytesIO()
    np.save(stream, np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32))
    return stream.getvalue()


def originals() -> dict[str, bytes]:
    """File name -> content of everything the small table lists."""
    return {
        "17DRP5sb8fy_connectivity.json": b"[]",
        "R2R_train.json": b'["train"]',
        "R2R_test.json": b'["test"]',
        "vp2room_label.json": json.dumps(ROOM_TABLE).encode(),
        "category_mapping.tsv": MAPPING.encode(),
        "objpos.json": json.dumps({"17DRP5sb8fy": {"7": [1.00004, 2, 3], "8": [0, 0, 0]}}).encode(),
        "trainval_glove.npy": glove_table(),
        "trainval_vocab.txt": b"the\ncounter\n",
        "REVERIE.tar.gz": repository(),
    }


_OF = {
    "17DRP5sb8fy_connectivity.json": "graphs",
    "R2R_train.json": "r2r-episodes",
    "R2R_test.json": "r2r-episodes",
    "vp2room_label.json": "rooms",
    "category_mapping.tsv": "labels",
    "objpos.json": "positions",
    "trainval_glove.npy": "words",
    "trainval_vocab.txt": "words",
}


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Served]]:
    """Serve the small table in place of the real one; yields what gives the served file of a name."""
    contents = originals()
    rows = tuple(
        table._Row(source, name, len(contents[name]), hashlib.sha256(contents[name]).hexdigest())
        for name, source in _OF.items()
    )
    monkeypatch.setattr(table, "_rows", lambda: rows)
    name = f"17DRP5sb8fy_{VIEWPOINT}.json"
    line = f"{hashlib.sha256(json.dumps(BOXES).encode()).hexdigest()}  {name}\n"
    monkeypatch.setattr(convert, "BOXES_DIGEST", hashlib.sha256(line.encode()).hexdigest())
    served: dict[str, Served] = {}
    by_name: dict[str, Served] = {}
    monkeypatch.delenv(table.MIRROR, raising=False)
    for source in table.SOURCES.values():
        for file in source.files:
            own = Path(file.target).name
            by_name[own] = served[f"/{file.url.partition('://')[2]}"] = Served(contents[own])
    with serving(served) as address:
        monkeypatch.setenv(table.MIRROR, f"{address}/")
        yield by_name.__getitem__
