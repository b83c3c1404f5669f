"""Checkpoints: one safetensors file with weights, optimiser, randomness and progress; strict and atomic.

A resumed run continues bit for bit. No pickle is read or written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scenemem.errors import DataError
from scenemem.formats.decoding import unique_object
from scenemem.formats.tensors import CHECKSUM, read_tensor_file, write_tensor_file

VERSION = 3
"""Of what is written. Version 2, which had no checksum, is read and continued as well; version 1 is read
under the names its parameters have today."""
NETWORK = "network."
"""What the names of weights begin with."""
CONTINUED = (2, 3)
"""Versions whose runs can be resumed bit for bit."""
_OPTIMISER = "optimiser."
_DESCRIPTION = "scenemem"  # name of the metadata among the texts of the file


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]  # plain JSON values: progress, preset, vocabulary, ...
    version: int = VERSION  # of the file

    def network(self) -> dict[str, Tensor]:
        """The weights by parameter name."""
        return {
            name.removeprefix(NETWORK): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(NETWORK)
        }


def write_checkpoint(
    file: str | os.PathLike[str],
    network: nn.Module,
    metadata: Mapping[str, Any],
    optimiser: Optimizer | None = None,
    extra: Mapping[str, Tensor] | None = None,
    previous: str | os.PathLike[str] | None = None,
) -> None:
    """Write a checkpoint; with ``optimiser`` and ``extra`` (random states) the run can be resumed from it.

    The checkpoint that was there before is kept as ``previous``.
    """
    tensors = {NETWORK + name: tensor for name, tensor in network.state_dict().items()}
    if optimiser is not None:
        tensors.update(_optimiser_tensors(optimiser))
    write_tensors(file, {**tensors, **(extra or {})}, metadata, previous)


def write_tensors(
    file: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    previous: str | os.PathLike[str] | None = None,
) -> None:
    """Write tensors that begin with ``NETWORK`` and others as a checkpoint."""
    described = {_DESCRIPTION: json.dumps({"version": VERSION, **metadata})}
    write_tensor_file(file, tensors, described, previous=previous)


def read_checkpoint(file: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        DataError: the file is missing, damaged, or was written by another version.
    """
    tensors, texts = read_tensor_file(file, "checkpoint")
    try:
        text = texts[_DESCRIPTION]
        metadata = json.loads(text, object_pairs_hook=unique_object)
        if "\\ud" in text.lower():  # half of a character, which nothing can print or write
            json.dumps(metadata, ensure_ascii=False).encode()
    except (KeyError, ValueError, RecursionError) as error:
        raise DataError(file, f"not a checkpoint of SceneMem, or damaged ({error})") from error
    if not isinstance(metadata, dict):
        seen = type(metadata).__name__
        raise DataError(file, f"not a checkpoint of SceneMem, or damaged (its description is a {seen})")
    version = metadata.pop("version", None)
    if version == 1:
        tensors = {_renamed(name): tensor for name, tensor in tensors.items()}
    elif version not in CONTINUED:
        expected = f"expected checkpoint version 1 to {VERSION}"
        raise DataError(file, f"was written by another version ({version!r}); {expected}")
    elif version == VERSION and CHECKSUM not in texts:
        raise DataError(file, "not a checkpoint of SceneMem, or damaged (it lost its checksum)")
    return Checkpoint(tensors, metadata, version)


_NAMES_V1 = (
    (r"begin_(hidden|cell)", r"initial_\1"),
    (r"^navigator\.look\.ask_(visual|angle)", r"updater.view_query.\1"),
    (r"^navigator\.listen", "updater.word_query"),
    (r"^navigator\.", "updater."),
    (r"^stop\.", "actions.stop."),
    (r"^action_score\.", "actions."),
    (r"^read\.narrow", "reader.project"),
    (r"^read\.", "reader."),
    (r"^anywhere_score\.", "global_score."),
    (r"^stop_read\.", "stop_from_memory."),
    (r"^ask_", "scorer.query_"),
    (r"\.ask_", ".query_"),
    (r"\.weigh\.", ".mix."),
    (r"^decoder\.listen\.", "decoder.path_query."),
)
"""How parameters were called in version 1 -> how they are called now."""


def _renamed(name: str) -> str:
    """The name of a tensor of version 1 today."""
    if not name.startswith(NETWORK):
        return name
    own = name.removeprefix(NETWORK)
    for old, new in _NAMES_V1:
        own = re.sub(old, new, own)
    return NETWORK + own


def load_network(network: nn.Module, checkpoint: Checkpoint, file: str | os.PathLike[str]) -> None:
    """Load weights strictly; a mismatch says what differs.

    Raises:
        DataError: names or shapes differ.
    """
    stored, expected = checkpoint.network(), network.state_dict()
    missing, unknown = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    if missing or unknown:
        raise DataError(
            file,
            f"holds other weights than this network: {len(missing)} missing ({', '.join(missing[:3])}), "
            f"{len(unknown)} unknown ({', '.join(unknown[:3])}); was it trained with another preset?",
        )
    for name, tensor in expected.items():
        if stored[name].shape != tensor.shape:
            raise DataError(
                file,
                f"'{name}' has shape {tuple(stored[name].shape)}, this network needs {tuple(tensor.shape)}; "
                "was it trained with another preset, vocabulary or feature store?",
            )
    network.load_state_dict(stored)


def load_optimiser(
    optimiser: Optimizer, checkpoint: Checkpoint, file: str | os.PathLike[str] = "checkpoint"
) -> None:
    """Restore the moments of every parameter, in the order of the optimiser's parameters, where these are.

    Raises:
        DataError: they belong to another network.
    """
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for name, tensor in checkpoint.tensors.items():
        if not name.startswith(_OPTIMISER):
            continue
        number, _, key = name.removeprefix(_OPTIMISER).partition(".")
        known = number.isdigit() and int(number) < len(parameters)
        if not known or (tensor.dim() and tensor.shape != parameters[int(number)].shape):
            raise DataError(
                file, f"'{name}' belongs to no parameter of this network; is it another preset's?"
            )
        parameter = parameters[int(number)]
        # the count of steps stays on the CPU unless the optimiser wants it beside the moments
        beside = tensor.dim() or _counts_beside(optimiser)
        optimiser.state[parameter][key] = tensor.to(parameter.device if beside else "cpu", copy=True)


def _counts_beside(optimiser: Optimizer) -> bool:
    """Whether the optimiser keeps its counts of steps on the device of the parameters."""
    return any(group.get("fused") or group.get("capturable") for group in optimiser.param_groups)


def _optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    return {
        f"{_OPTIMISER}{number}.{key}": torch.as_tensor(value)
        for number, parameter in enumerate(parameters)
        for key, value in optimiser.state.get(parameter, {}).items()
    }
