"""Packed weights: files that come with SceneMem, lie in a folder or on the Hub, and become run folders."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from jinja2 import Template

import scenemem
from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import atomic_file, atomic_folder
from scenemem.formats.decoding import file_digest, fitted, read_toml
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.houses.house import ENCODER
from scenemem.learning.checkpoint import NETWORK, Checkpoint, read_checkpoint, write_tensors
from scenemem.runs.experiment import Progress, silent
from scenemem.runs.folder import SPEAKER, RunFolder, Which
from scenemem.runs.opened import open_run
from scenemem.runs.speakers import LoadedSpeaker, open_speaker

PREFIX = "weights:"
WEIGHTS = Path(scenemem.__file__).parent / "weights"
"""Where the weights that come with SceneMem lie, ``NAME.safetensors`` each."""

HUB = "hf://"
"""What the address of weights on the Hub begins with: ``hf://owner/name``, or ``hf://owner/name@revision``."""

ENDING = ".safetensors"

HUB_FILE = "model.safetensors"
"""The weights in a folder in the layout of the Hub, beside config.json and README.md."""

AGENT_METRICS, SPEAKER_METRICS = ("sr", "spl", "osr", "ne"), ("bleu", "retrieval", "shuffled")
"""The metrics on the card of an agent and of a speaker."""

_PACKED = ("preset", "vocabulary", "features", "name", "seed")  # metadata needed to use weights
_ADDRESS = re.compile(r"^(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "metrics": dict,
    "name": str,
    "seed": int,
    "preset.data.task": str,
    "preset.selection.split": str,
    "vocabulary": list,
    "features.width": int,
    "features.sha256": str,
    "features.encoder": str,
    "progress.iteration": int,
    "description.data.features": str,
    "description.versions": dict,
}
"""The metadata of packed weights that their readers rely on."""


class Seeds(msgspec.Struct, frozen=True):
    """All runs that were trained like published weights: their seeds, and (mean, deviation) on val_unseen."""

    seeds: tuple[int, ...]
    sr: tuple[float, float]
    spl: tuple[float, float]


@dataclass(frozen=True)
class Published:
    """What a file of packed weights says about itself."""

    name: str
    file: Path
    metadata: dict[str, Any]
    metrics: dict[str, dict[str, float]]  # what these very weights reach, by split
    description: dict[str, Any]  # of the run they come from

    @property
    def seeds(self) -> Seeds | None:
        """What other seeds reach, from the ``seeds.toml`` beside the weights; None when only one is known."""
        file = self.file.with_name("seeds.toml")
        known = fitted(read_toml(file), dict[str, Seeds], file) if file.is_file() else {}
        return known.get(self.name)

    @property
    def is_speaker(self) -> bool:
        """Whether they describe paths rather than walk them."""
        return self.metadata.get("kind") == SPEAKER

    @property
    def card(self) -> tuple[str, ...]:
        """The metrics that tell how good the weights are, the most important one first."""
        return SPEAKER_METRICS if self.is_speaker else AGENT_METRICS

    @property
    def command(self) -> str:
        """The command that measures them."""
        return "speak eval" if self.is_speaker else "eval"

    @property
    def houses(self) -> bool:
        """Whether they were trained on the embedded houses, which need no data folder."""
        return bool(self.description["data"]["features"] == ENCODER)

    @property
    def address(self) -> str:
        """What commands call them, where they lie in the folder of the shell."""
        if self.file.parent == WEIGHTS:
            return f"{PREFIX}{self.name}"
        return f"{PREFIX}{self.name}/" if self.file.name == HUB_FILE else f"{PREFIX}{self.file.name}"

    @property
    def measured_on(self) -> str:
        """The split on which they are measured again: the last one they were measured on."""
        return next(reversed(self.metrics), "val_unseen")

    @property
    def track(self) -> str:
        """The track of the features they see; empty when it is not known."""
        track: str = self.metadata["features"].get("track", "")
        return track


def published(folder: Path | None = None) -> list[Published]:
    """All weights in a folder, by name; those that come with SceneMem unless another one is named."""
    return [read_published(file) for file in _files(folder).values()]


def read_published(file: Path) -> Published:
    """What a file of packed weights says about itself."""
    metadata = read_checkpoint(file).metadata
    if not isinstance(metadata.get("description"), dict):
        raise DataError(file, "holds no packed weights; pack them with 'scenemem weights pack'")
    _check(metadata, _REQUIRED, file)
    entry = Published(file.stem, file, metadata, metadata["metrics"], metadata["description"])
    shown = {f"metrics.{split}.{name}": (int, float) for split in entry.metrics for name in entry.card}
    _check(metadata, shown, file)
    return entry


def _check(found: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]], file: Path) -> None:
    """Refuse nested metadata without these values, each by its dotted name."""
    for path, kind in kinds.items():
        value: Any = found
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            reason = f"does not describe its weights ('{path}' is {value!r:.40}); get the file again"
            raise DataError(file, reason)


def find_run(source: str | os.PathLike[str]) -> RunFolder:
    """The run behind a folder, a file of packed weights, or ``weights:NAME``.

    NAME is that of weights that come with SceneMem, a file, a folder in the layout of the Hugging Face Hub,
    or ``hf://owner/name``.
    """
    name = os.fspath(source)
    address = name.removeprefix(PREFIX)
    if address == name and not name.endswith(ENDING):
        run = RunFolder(Path(name))
        run.describe()  # or say that there is none
        return run
    elsewhere = "/" in address or address.endswith(ENDING) or Path(address).is_dir()
    return RunFolder(_unpacked_file(weights_file(address)) if elsewhere else unpacked(address))


def weights_file(address: str) -> Path:
    """The weights behind ``hf://owner/name`` (fetched once into the Hub's own cache), in a folder or file."""
    if address.endswith(ENDING):
        if not Path(address).is_file():
            raise UserError(f"there are no packed weights at {address}")
        return Path(address)
    if not address.startswith(HUB):
        file = Path(address) / HUB_FILE
        if not file.is_file():
            advice = "'scenemem weights pack RUN --out FOLDER' writes one"
            raise DataError(address, f"holds no {HUB_FILE}; {advice}")
        return file
    match = _ADDRESS.match(address.removeprefix(HUB))
    if match is None:
        raise UserError(
            f"'{address}' is no address on the Hub, expected hf://owner/name or hf://owner/name@revision"
        )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        advice = "install it with: pip install 'scenemem[hub]'"
        raise UserError(f"weights on the Hub need huggingface_hub; {advice}") from error
    try:
        # the address is read when it is needed, so that a mirror named in HF_ENDPOINT is used
        endpoint = os.environ.get("HF_ENDPOINT")
        found = hf_hub_download(match["repository"], HUB_FILE, revision=match["revision"], endpoint=endpoint)
    except Exception as error:  # the library has many, all about the network or the repository
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{address}: cannot be fetched ({reason}); is the name right, and is there a network?"
        ) from error
    return Path(found)


def halved(checkpoint: Checkpoint) -> Checkpoint:
    """The weights of a checkpoint in half precision, without what only training needs."""
    tensors = {name: tensor.half() for name, tensor in checkpoint.tensors.items() if name.startswith(NETWORK)}
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"'{name}' has numbers that half precision cannot hold; train with weight decay")
    known = checkpoint.metadata
    metadata = {name: known[name] for name in (*_PACKED, "inputs", "kind") if name in known}
    return Checkpoint(tensors, {**metadata, "progress": {"iteration": known["progress"]["iteration"]}})


def write_published(
    file: Path, weights: Checkpoint, description: Mapping[str, Any], metrics: Mapping[str, Any]
) -> None:
    """Write halved weights with the description of their run and what they reach on each split."""
    metadata = {**weights.metadata, "description": description, "metrics": metrics}
    write_tensors(file, weights.tensors, metadata)


def unpacked(name: str, folder: Path | None = None) -> Path:
    """The run folder of published weights, in the cache; made when it is not there yet."""
    files = _files(folder)
    if name not in files:
        raise UserError(f"no weights called '{name}'; there are: {', '.join(files) or 'none'}")
    return _unpacked_file(files[name])


def _files(folder: Path | None) -> dict[str, Path]:
    return {file.stem: file for file in sorted((folder or WEIGHTS).glob("*.safetensors"))}


def _unpacked_file(file: Path) -> Path:
    target = cache_folder() / "weights" / file_digest(file)[:12] / file.stem
    if not target.is_dir():
        _unpack(file, target)
    return target


def _unpack(file: Path, target: Path) -> None:
    """Make a run folder out of a file of packed weights."""
    weights = read_checkpoint(file)
    description = weights.metadata.pop("description", None)
    if not isinstance(description, dict):
        raise DataError(file, "holds no packed weights; name the run folder, or use 'scenemem weights pack'")
    tensors = {name: tensor.to(torch.float32) for name, tensor in weights.tensors.items()}
    with atomic_folder(target, keep_existing=True) as partial:
        run = RunFolder(partial)
        run.begin(description)
        run.last.parent.mkdir()
        for place in (run.last, run.best):  # there is only one set of weights
            write_tensors(place, tensors, weights.metadata)


def pack_weights(
    run: RunFolder,
    out: Path,
    folder: DataFolder,
    splits: Sequence[str],
    checkpoint: Which = "last",
    progress: Progress = silent,
    device: str = "cpu",
    licence: str = "",
) -> list[Path]:
    """Pack the weights of a run in half precision, and measure the packed ones  ->  the files written.

    ``out`` is a file NAME.safetensors, which gets a card beside it, or a folder in the layout of the Hub, for
    which a ``licence`` has to be named. The same run gives the same bytes.
    """
    if not licence and not out.suffix:
        advice = "name the one you choose: --licence mit, cc-by-nc-4.0, other, ..."
        raise UserError(f"{out}: what is shared on the Hub needs a licence; {advice}")
    if licence and not _LICENCE.fullmatch(licence):
        raise UserError(f"`licence` takes an identifier like mit or cc-by-nc-4.0, got '{licence}'")
    description = {**run.describe(), **({"licence": licence} if licence else {})}
    # what it learned from, without where that lay on this machine
    description["data"].pop("folder", None)
    sources = description.get("augmentation", {})
    description["augmentation"] = {name: Path(place).name for name, place in sources.items()}
    description["plugins"] = [Path(name).name for name in description.get("plugins", ())]
    packed = halved(read_checkpoint(run.checkpoint(checkpoint)))
    metrics: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:  # what the packed weights reach, not those they come from
        file, copy = Path(place) / "packed.safetensors", RunFolder(Path(place) / "packed")
        write_published(file, packed, description, {})
        _unpack(file, copy.root)
        if packed.metadata.get("kind") == SPEAKER:
            speaker = LoadedSpeaker(open_speaker(copy, folder))
            for split in splits:
                found = speaker.evaluate(split, progress=progress)
                metrics[split] = {name: found[name] for name in SPEAKER_METRICS}
        else:
            opened = open_run(copy, folder, "last", progress, device)
            metrics |= {split: opened.evaluate(split).metrics for split in splits}
    file = out if out.suffix else out / HUB_FILE
    write_published(file, packed, description, metrics)
    if not out.suffix:
        return _write_hub_files(out)
    card = out.with_suffix(".md")
    with atomic_file(card) as partial:
        partial.write_text(model_card(read_published(out)), encoding="utf-8")
    return [file, card]


def _write_hub_files(folder: Path) -> list[Path]:
    """Write config and card beside the packed weights of a folder, from what the weights tell."""
    entry = replace(read_published(folder / HUB_FILE), name=folder.name)
    copied = {name: entry.metadata[name] for name in ("preset", "name", "seed", "features")}
    versions = entry.description["versions"]
    config = {"library_name": "scenemem", **copied, "metrics": entry.metrics, "versions": versions}
    with atomic_file(folder / "config.json") as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    with atomic_file(folder / "README.md") as partial:
        partial.write_text(model_card(entry, hub=True), encoding="utf-8")
    return [folder / name for name in (HUB_FILE, "config.json", "README.md")]


def model_card(entry: Published, *, hub: bool = False) -> str:
    """What one has to know about packed weights, in Markdown; for the Hub with the lines that it reads."""
    text = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    template = Template(text, trim_blocks=True, keep_trailing_newline=True)
    return str(template.render(entry=entry, hub=hub, seeds=entry.seeds, digest=file_digest(entry.file)))
