"""Packed weights in the layout of the Hugging Face Hub: written as a folder, found in one or on the Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import atomic_file
from scenemem.runs.folder import Published, read_published
from scenemem.runs.opened import model_card

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""The three files of a folder."""

HUB = "hf://"
"""What the address of weights on the Hub begins with: ``hf://owner/name``, or ``hf://owner/name@revision``."""

_ADDRESS = re.compile(r"^(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")
_MISSING = "weights on the Hub need huggingface_hub; install it with: pip install 'scenemem[hub]'"


def write_hub_files(folder: Path) -> list[Path]:
    """Write config and card beside the packed weights of a folder, from what the weights tell."""
    entry = read_published(folder / WEIGHTS)
    entry = Published(folder.name, entry.file, entry.metadata, entry.metrics, entry.description)
    config = {
        "library_name": "scenemem",
        "preset": entry.metadata["preset"],
        "name": entry.metadata["name"],
        "seed": entry.metadata["seed"],
        "features": entry.metadata["features"],
        "metrics": entry.metrics,
        "versions": entry.description["versions"],
    }
    with atomic_file(folder / CONFIG) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    with atomic_file(folder / CARD) as partial:
        partial.write_text(_front_matter(entry) + _card(entry), encoding="utf-8")
    return [folder / name for name in (WEIGHTS, CONFIG, CARD)]


def weights_file(address: str) -> Path:
    """The weights behind ``hf://owner/name`` or in a folder; fetched once and kept in the Hub's own cache.

    Raises:
        UserError: the address is no such thing, the Hub cannot be reached, or there are no such weights.
    """
    if not address.startswith(HUB):
        file = Path(address) / WEIGHTS
        if not file.is_file():
            raise DataError(
                address, f"holds no {WEIGHTS}; 'scenemem weights pack RUN --out FOLDER' writes one"
            )
        return file
    match = _ADDRESS.match(address.removeprefix(HUB))
    if match is None:
        raise UserError(
            f"'{address}' is no address on the Hub, expected hf://owner/name or hf://owner/name@revision"
        )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise UserError(_MISSING) from error
    try:
        # the address is read when it is needed, so that a mirror named in HF_ENDPOINT is used
        found = hf_hub_download(
            match["repository"], WEIGHTS, revision=match["revision"], endpoint=os.environ.get("HF_ENDPOINT")
        )
    except Exception as error:  # the library has many, all about the network or the repository
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{address}: cannot be fetched ({reason}); is the name right, and is there a network?"
        ) from error
    return Path(found)


def _front_matter(entry: Published) -> str:
    """The lines in front of a card that the Hub reads."""
    metric, task = entry.card[0], entry.metadata["preset"]["data"]["task"]
    results = "".join(
        f"""  - task: {{type: {"text-generation" if entry.is_speaker else "vision-language-navigation"}}}
    dataset: {{name: {task} {split}, type: {task}}}
    metrics: [{{type: {metric}, value: {means[metric]:.3f}}}]
"""
        for split, means in entry.metrics.items()
    )
    name = f"model-index:\n- name: {entry.name}\n  results:\n{results}" if results else ""
    tags = "tags: [vision-and-language-navigation, r2r]"
    return f"---\nlibrary_name: scenemem\nlicense: mit\n{tags}\n{name}---\n\n"


def _card(entry: Published) -> str:
    """The card of the weights, for readers of the folder who do not have the package."""
    text = model_card(entry)
    command = "speak eval" if entry.is_speaker else "eval"
    return (
        f"{text}\nUse them with `scenemem {command} weights:FOLDER`, "
        "or `weights:hf://owner/name` once they are on the Hub.\n"
    )
