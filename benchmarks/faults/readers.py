"""Every reader of files that strangers may have written, with a good file to damage."""

from __future__ import annotations

import base64
import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import torch

from scenemem.errors import UserError
from scenemem.formats.annotations import (
    ObjectPosition,
    read_landmark_labels,
    read_table,
    read_view_objects,
    read_word_vectors,
)
from scenemem.formats.captions import CaptionFiles, read_captions
from scenemem.formats.connectivity import read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_feature_hdf5, read_feature_tsv, read_store, write_store
from scenemem.formats.results import read_episode_results, read_trajectories
from scenemem.formats.traces import read_trace
from scenemem.learning.checkpoint import read_checkpoint, write_tensors
from scenemem.presets import PRESETS, Preset
from scenemem.runs.experiment import begun
from scenemem.runs.folder import RunFolder


@dataclass(frozen=True)
class Reader:
    """A reader, the name its file has to have, and the bytes of a good one."""

    file: str
    good: bytes
    read: Callable[[Path], object]


def readers(work: Path) -> dict[str, Reader]:
    """All readers by name; ``work`` is a folder for making good files."""
    numbers = np.random.default_rng(0)
    rows = numbers.normal(size=(2, 36, 3)).astype(np.float32)
    write_store(
        work / "store.npy", ["s_a", "s_b"], rows, width=3, source="test", encoder="random", track="images"
    )
    write_tensors(
        work / "checkpoint", {"network.a": torch.ones(3), "optimiser.0.step": torch.tensor(1.0)}, {"x": [1]}
    )
    np.savez_compressed(work / "words.npz", words=np.array(["a", "b"]), vectors=rows[:, 0])
    with h5py.File(work / "features.hdf5", "w") as file:
        for name, row in zip(("s_a", "s_b"), rows, strict=True):
            file.create_dataset(name, data=row, chunks=(36, 3), compression="gzip")
    description = {
        "name": "ssm",
        "seed": 0,
        "preset": msgspec.to_builtins(PRESETS["ssm"]),
        "data": {"features": "f", "sha256": "0"},
        "versions": {"torch": "2"},
        "plugins": [],
    }
    boxes = {"v": {"3": {"name": "lamp", "visible_pos": [3], "bbox2d": [[0, 0, 5, 5]]}}}
    view = {"global_cap": "a room", "dense_cap": [_dense()]}
    langnav = {"v": {str(number): view for number in range(36)}}
    lines = "".join(
        json.dumps(line) + "\n" for line in ({"iteration": 2, "losses": {"a": 0.5}}, {"iteration": 4})
    )
    tsv = "".join(f"s\t{name}\t640\t480\t60\t{_base64(row)}\n" for name, row in zip("ab", rows, strict=True))
    positions = "scan\tobject_id\tx\ty\tz\tname\tcategory\tmpcat40\ns\t1\t0.5\t1\t2\tlamp\tlamp\tlighting\n"
    labels = {"1": {"id": 3, "v": {"0": {"landmark": [1], "action": None}}}}
    walked = [{"instr_id": "1_0", "trajectory": [["a", 0.0, 0.0], ["b", 1.0, 0.5]]}]
    made = {
        "connectivity": ("s_connectivity.json", _encoded(_graph()), read_scan),
        "episodes": ("R2R_train.json", _encoded(_episodes()), read_episodes),
        "packed episodes": ("R2R_train.json.gz", gzip.compress(_encoded(_episodes())), read_episodes),
        "trajectories": ("results.json", _encoded(walked), read_trajectories),
        "outcomes": ("split.jsonl", _encoded(_outcome()) + b"\n", read_episode_results),
        "trace": ("trace.json", _encoded(_trace()), read_trace),
        "features as text": ("features.tsv", tsv.encode(), _all(read_feature_tsv)),
        "features as HDF5": ("features.hdf5", (work / "features.hdf5").read_bytes(), _all(read_feature_hdf5)),
        "store": ("store.npy", (work / "store.npy").read_bytes(), read_store),
        "store record": ("store.json", (work / "store.json").read_bytes(), _store_of_record),
        "word vectors": ("words.npz", (work / "words.npz").read_bytes(), read_word_vectors),
        "boxes": ("BBox.tar.gz", _tar("BBox/s_v.json", boxes), _all(read_view_objects)),
        "captions": ("langnav.tar.gz", _tar("r2r_blip_DETR_vis2text/s.json", langnav), _captions),
        "object positions": ("positions.tsv", positions.encode(), _positions),
        "word labels": ("lar2r_train.json", _encoded(labels), read_landmark_labels),
        "checkpoint": ("checkpoint", (work / "checkpoint").read_bytes(), read_checkpoint),
        "description of a run": ("preset.json", _encoded(description), _described),
        "metrics of a run": ("metrics.jsonl", lines.encode(), _logged),
    }
    return {name: Reader(*parts) for name, parts in made.items()}


def damaged(good: bytes, chance: random.Random) -> bytes:
    """A good file with some damage: bytes changed, cut, repeated, moved or replaced by other texts."""
    content = bytearray(good)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        start = chance.randrange(len(content) + 1)
        length = chance.choice((1, 1, 4, 16, len(content) // 4))
        match chance.randrange(8):
            case 0 if content:
                content[min(start, len(content) - 1)] = chance.randrange(256)
            case 1 if content:
                content[min(start, len(content) - 1)] ^= 1 << chance.randrange(8)
            case 2:
                del content[start:]
            case 3:
                del content[start : start + length]
            case 4:
                content[start:start] = content[start : start + length]
            case 5:
                content[start : start + length] = chance.randbytes(length)
            case 6:
                content[start : start + length] = b"\0" * length
            case _:
                content[start : start + chance.choice((0, 1, 4))] = chance.choice(_TEXTS)
    return bytes(content)


_TEXTS = (
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"[]", b"{}", b'""', b'"\\ud800"'),
    *(b"9" * 400, b"[" * 2000, b'{"a":' * 500, b"\xff\xfe", b"0", b"18446744073709551616", b"\n", b",", b'"'),
    *((2**31).to_bytes(4, "little"), (2**63).to_bytes(8, "little"), b"\xff" * 8),
)


def attempt(reader: Reader, content: bytes, folder: Path, beside: dict[str, bytes]) -> str:
    """Read some bytes  ->  ``read`` or ``refused``; anything else is raised."""
    for name, other in beside.items():
        (folder / name).write_bytes(other)
    (folder / reader.file).write_bytes(content)
    try:
        reader.read(folder / reader.file)
    except UserError:
        return "refused"
    return "read"


def beside(found: dict[str, Reader], name: str) -> dict[str, bytes]:
    """Files that a reader needs beside its own."""
    partner = {"store": "store record", "store record": "store"}.get(name)
    return {} if partner is None else {found[partner].file: found[partner].good}


def _all(read: Callable[[Path], Any]) -> Callable[[Path], object]:
    return lambda file: list(read(file))


def _captions(file: Path) -> object:
    return list(read_captions(CaptionFiles("langnav", file)))


def _positions(file: Path) -> object:
    return list(read_table(file, ObjectPosition))


def _store_of_record(file: Path) -> object:
    return read_store(file.with_suffix(".npy"))


def _described(file: Path) -> object:
    return begun(RunFolder(file.parent), Preset)


def _logged(file: Path) -> object:
    return list(RunFolder(file.parent).logged())


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def _base64(row: Any) -> str:
    return base64.b64encode(row.tobytes()).decode()


def _dense() -> dict[str, object]:
    return {"obj_class": "chair", "coordinates": "0 0 9 9", "confidence": 0.5, "caption": "a chair"}


def _graph() -> list[dict[str, object]]:
    def viewpoint(name: str, x: float, flags: list[bool]) -> dict[str, object]:
        pose = [1, 0, 0, x, 0, 1, 0, 0, 0, 0, 1, 1.5, 0, 0, 0, 1]
        known = {"image_id": name, "pose": pose, "included": True, "height": 1.5}
        return {**known, "visible": flags, "unobstructed": flags}

    return [viewpoint("a", 0.0, [False, True]), viewpoint("b", 2.0, [True, False])]


def _episodes() -> list[dict[str, object]]:
    return [
        {"scan": "s", "path_id": 1, "path": ["a", "b"], "heading": 0.5, "instructions": ["Go.", "Walk."]},
        {"scan": "s", "path_id": 2, "path": ["b", "a"], "heading": 1, "instructions": ["Stop."]},
    ]


_SCORES = ("tl", "ne", "sr", "osr", "spl", "spl_ref", "cls", "ndtw", "sdtw")


def _outcome() -> dict[str, object]:
    facts = {"instr_id": "1_0", "checkpoint": "last", "iteration": 4, "outcome": "reached", "words": 2}
    counts = {"reference": 2.0, "hops": 1, "jumps": 0}
    return {**facts, **counts, **dict.fromkeys(_SCORES, 0.5)}


def _trace() -> dict[str, object]:
    places = [{"id": name, "x": x, "y": 0.0, "z": 1.5, "floor": 0} for name, x in (("a", 0.0), ("b", 2.0))]
    memory = {"here": 0, "nodes": [0], "frontier": [True], "edges": [], "ways": []}
    options = [{"place": 1, "probability": 0.75, "logit": 1.0}, {"place": 0, "probability": 0.25, "logit": 0}]
    attention = {"perception": [0.5], "action": [0.5]}
    decision = {"kind": "action", "options": options, "choice": 0, "attention": attention}
    task = {
        "split": "s",
        "instruction_id": "1_0",
        "text": "Go.",
        "words": [{"text": "Go"}],
        "start": 0,
        "goal": 1,
    }
    return {
        "version": 2,
        "agent": "ssm",
        "task": task,
        "scene": {"scan": "s", "floors": [0.0], "places": places, "edges": [[0, 1]]},
        "moves": [{"heading": 0.0, "walk": [0, 1], "decisions": [decision], "memory": memory}],
        "ending": {"stopped": True, "place": 1, "scores": dict.fromkeys(_SCORES, 0.5)},
    }


def _tar(name: str, value: object) -> bytes:
    target, content = io.BytesIO(), _encoded(value)
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return target.getvalue()
