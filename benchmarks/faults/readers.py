"""Every reader of files that strangers may have written, with a good file to damage."""

from __future__ import annotations

import base64
import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from scenemem.errors import UserError
from scenemem.features.pictures import read_picture
from scenemem.formats.annotations import (
    Captioner,
    CaptionFiles,
    ListedObject,
    ObjectPosition,
    ViewpointObjects,
    read_captions,
    read_landmark_labels,
    read_table,
    read_view_objects,
    read_word_vectors,
)
from scenemem.formats.connectivity import read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_feature_hdf5, read_feature_tsv, read_store, write_store
from scenemem.formats.results import read_episode_results, read_trajectories
from scenemem.formats.tensors import CHECKSUM, tensor_digest
from scenemem.formats.traces import read_trace
from scenemem.learning.checkpoint import VERSION as CHECKPOINT_VERSION
from scenemem.learning.checkpoint import read_checkpoint, write_tensors
from scenemem.presets import PRESETS, Preset
from scenemem.runs.config import changed, read_config
from scenemem.runs.experiment import begun
from scenemem.runs.folder import RunFolder
from scenemem.runs.weights import read_published
from scenemem.sources.convert import (
    read_category_mapping,
    read_glove,
    read_glove_table,
    read_house,
    read_object_positions,
    read_room_table,
)


@dataclass(frozen=True)
class Reader:
    """A reader, the name its file has to have, and the bytes of a good one.

    Damage to a packed file is mostly found by whatever unpacks it; damage to its ``inner`` content, packed
    well by ``pack``, reaches the reader behind that.
    """

    file: str
    good: bytes = field(repr=False)
    read: Callable[[Path], object]
    inner: bytes = field(default=b"", repr=False)
    pack: Callable[[bytes], bytes] | None = None

    def damaged(self, chance: random.Random) -> bytes:
        """The file with some damage."""
        if self.pack is not None and chance.random() < 0.5:
            return self.pack(damaged(self.inner, chance))
        return damaged(self.good, chance)


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
    house = "H s\nR 0 0 0 0 k 0\nP " + "0" * 32 + " 0 0 0\nP " + "1" * 32 + " 1 -1 0\n"
    rooms = {"pano_info": {"s": {"v": {"region_index": "3", "region_label": "k"}}}}
    mapping = "raw_category\tcategory\tmpcat40\nfloor lamp\tlamp\tlighting\n"
    glove = "lamp 0.5 -1 2e-3\nred sofa 1 2 3\n"
    toml = 'base = "ssm"\nseed = 3\n[model]\nwidth = 16\n[learning]\nbatch = 4\n'
    spoken = {"scan": "s", "path": ["a"], "heading": 0, "instruction_id": 7, "instruction": "Go."}
    navgpt = {"v": ["down: a rug\nmiddle: a lamp\ntop: a ceiling"] * 8}
    listed = {"scan": "s", "viewpoint": "v", "objects": [_object()]}
    picture = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(picture, "JPEG")
    np.save(work / "table.npy", rows[0])
    made: dict[str, tuple[Any, ...]] = {
        "connectivity": ("s_connectivity.json", _encoded(_graph()), read_scan),
        "episodes": ("R2R_train.json", _encoded(_episodes()), read_episodes),
        "packed episodes": ("R2R_train.json.gz", *_packed(_encoded(_episodes()), _gzip, read_episodes)),
        "spoken episodes": ("rxr_train.jsonl", _encoded(spoken) + b"\n", read_episodes),
        "trajectories": ("results.json", _encoded(walked), read_trajectories),
        "outcomes": ("split.jsonl", _encoded(_outcome()) + b"\n", read_episode_results),
        "trace": ("trace.json", _encoded(_trace()), read_trace),
        "features as text": ("features.tsv", tsv.encode(), _all(read_feature_tsv)),
        "features as HDF5": ("features.hdf5", (work / "features.hdf5").read_bytes(), _all(read_feature_hdf5)),
        "store": ("store.npy", (work / "store.npy").read_bytes(), read_store),
        "store record": ("store.json", (work / "store.json").read_bytes(), _store_of_record),
        "word vectors": ("words.npz", (work / "words.npz").read_bytes(), read_word_vectors),
        "boxes": (
            "BBox.tar.gz",
            *_packed(_encoded(boxes), _tar("BBox/s_v.json"), _all(read_view_objects)),
        ),
        "boxes by line": ("view_objects.jsonl", _encoded(listed) + b"\n", _all(read_view_objects)),
        "captions": (
            "langnav.tar.gz",
            *_packed(_encoded(langnav), _tar("r2r_blip_DETR_vis2text/s.json"), _captions("langnav")),
        ),
        "other captions": (
            "navgpt.tar.gz",
            *_packed(_encoded(navgpt), _tar("observations_list/s.json"), _captions("navgpt")),
        ),
        "object positions": ("positions.tsv", positions.encode(), _positions),
        "word labels": ("lar2r_train.json", _encoded(labels), read_landmark_labels),
        "object table": ("objpos.json", _encoded({"s": {"3": [0.5, 1, 2]}}), _positions_of_boxes),
        "rooms of a house": ("s.house", house.encode(), read_house),
        "rooms": ("vp2room_label.json", _encoded(rooms), read_room_table),
        "categories": ("category_mapping.tsv", mapping.encode(), read_category_mapping),
        "word vectors as text": ("glove.txt", glove.encode(), read_glove),
        "packed word vectors": ("glove.zip", *_packed(glove.encode(), _zip("glove.6B.3d.txt"), read_glove)),
        "table of word vectors": ("table.npy", (work / "table.npy").read_bytes(), _glove_table),
        "pictures": ("0.jpg", picture.getvalue(), lambda file: read_picture(file, "view 0")),
        "configuration": ("experiment.toml", toml.encode(), _configured),
        "checkpoint": ("checkpoint", (work / "checkpoint").read_bytes(), read_checkpoint),
        "packed weights": (
            "packed.safetensors",
            *_packed(_encoded(_weights(description)), _checkpoint, read_published),
        ),
        "description of a run": ("preset.json", _encoded(description), _described),
        "metrics of a run": ("metrics.jsonl", lines.encode(), _logged),
    }
    return {name: Reader(*parts) for name, parts in made.items()}


def damaged(good: bytes, chance: random.Random) -> bytes:
    """A good file with some damage: bytes changed, cut, repeated, moved or replaced by other texts.

    Half of the JSON files stay JSON, with values of another kind, missing, repeated or under other names.
    """
    if good[:1] in b"[{" and chance.random() < 0.5:
        lines = [json.loads(line) for line in good.splitlines()]
        return b"\n".join(json.dumps(_reshaped(line, chance)).encode() for line in lines)
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


def _reshaped(value: Any, chance: random.Random) -> Any:
    """JSON with one value changed."""
    if not isinstance(value, (dict, list)) or not value or chance.random() < 0.1:
        return chance.choice(_VALUES)
    items: list[tuple[Any, Any]] = list(value.items() if isinstance(value, dict) else enumerate(value))
    place = chance.randrange(len(items))
    name, part = items[place]
    match chance.randrange(8):
        case 0:
            del items[place]
        case 1:
            items.insert(place, (f"{name} " if isinstance(value, dict) else name, part))
        case 2:
            items[place] = (str(chance.choice(_VALUES)), part)
        case _:
            items[place] = (name, _reshaped(part, chance))
    return dict(items) if isinstance(value, dict) else [part for _, part in items]


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 36, 2**31, 2**63, -(2**64), 10**30, 0.5, -1e308, 1e-320),
    *(float("nan"), float("inf"), "", "a", "1", "-1", "nan", "\ud800", "\0", "../x", "9" * 5000, "\u0663"),
    *([], {}, [[]], [None], [1, 2, 3], {"a": 1}, {"": {}}, ["a", "a"], {"0": [0]}, [[[[1]]]]),
)

_TEXTS = (
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"[]", b"{}", b'""', b'"\\ud800"'),
    *(b"9" * 400, b"[" * 2000, b'{"a":' * 500, b"\xff\xfe", b"0", b"18446744073709551616", b"\n", b",", b'"'),
    *((2**31).to_bytes(4, "little"), (2**63).to_bytes(8, "little"), b"\xff" * 8),
)


def attempt(reader: Reader, content: bytes, folder: Path) -> str:
    """Read some bytes  ->  ``read`` or ``refused``; anything else is raised."""
    (folder / reader.file).write_bytes(content)
    try:
        reader.read(folder / reader.file)
    except UserError:
        return "refused"
    return "read"


def write_beside(found: dict[str, Reader], name: str, folder: Path) -> None:
    """Write what a reader needs beside its own file."""
    partner = {"store": "store record", "store record": "store"}.get(name)
    if partner is not None:
        (folder / found[partner].file).write_bytes(found[partner].good)
    (folder / "vocabulary.txt").write_text("\n".join(map(str, range(36))))


def _all(read: Callable[[Path], Any]) -> Callable[[Path], object]:
    return lambda file: list(read(file))


def _captions(captioner: Captioner) -> Callable[[Path], object]:
    return lambda file: list(read_captions(CaptionFiles(captioner, file)))


def _positions_of_boxes(file: Path) -> object:
    boxed = ViewpointObjects("s", "v", (ListedObject(3, "lamp", (), ()),))
    return read_object_positions(file, [boxed])


def _glove_table(file: Path) -> object:
    return read_glove_table(file, file.with_name("vocabulary.txt"))


def _configured(file: Path) -> object:
    return changed(PRESETS["ssm"], read_config(file).changes, file)


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


def _object() -> dict[str, object]:
    seen = {"views": [3], "boxes": [[0, 0, 5, 5]]}
    return {"id": 3, "name": "lamp", "category": "lamp", "mpcat40": "lighting", **seen}


def _weights(description: dict[str, object]) -> dict[str, object]:
    """What packed weights say about themselves."""
    features = {"width": 3, "sha256": "0", "encoder": "e", "track": "captions"}
    reached = {"val_unseen": dict.fromkeys(_SCORES, 0.5)}
    known = {"name": "ssm", "seed": 0, "preset": description["preset"], "vocabulary": ["a", "b"]}
    return {
        **known,
        "version": CHECKPOINT_VERSION,
        "features": features,
        "progress": {"iteration": 4},
        "metrics": reached,
        "description": description,
    }


def _packed(
    inner: bytes, pack: Callable[[bytes], bytes], read: Callable[[Path], object]
) -> tuple[bytes, Callable[[Path], object], bytes, Callable[[bytes], bytes]]:
    return pack(inner), read, inner, pack


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 1)


def _tar(name: str) -> Callable[[bytes], bytes]:
    def pack(content: bytes) -> bytes:
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        return target.getvalue()

    return pack


def _zip(name: str) -> Callable[[bytes], bytes]:
    def pack(content: bytes) -> bytes:
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        return target.getvalue()

    return pack


def _checkpoint(metadata: bytes) -> bytes:
    """A checkpoint whose checksum is right, whatever its description says."""
    texts = {"scenemem": metadata.decode("utf-8", "replace")}
    tensors = {"network.a": torch.ones(3)}
    return save(tensors, metadata={**texts, CHECKSUM: tensor_digest(tensors, texts)})
