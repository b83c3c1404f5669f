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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from scenemem.errors import DataError
from scenemem.formats.atomic import atomic_file

VERSION = 2
"""Of what is written; version 1 is read as well, under the names its parameters have today."""
NETWORK = "network."
"""What the names of weights begin with."""
_OPTIMISER = "optimiser."


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
) -> None:
    """Write a checkpoint; with ``optimiser`` and ``extra`` (random states) the run can be resumed from it."""
    tensors = {NETWORK + name: tensor for name, tensor in network.state_dict().items()}
    if optimiser is not None:
        tensors.update(_optimiser_tensors(optimiser))
    write_tensors(file, {**tensors, **(extra or {})}, metadata)


def write_tensors(
    file: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write tensors that begin with ``NETWORK`` and others as a checkpoint."""
    together = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(file) as partial:
        save_file(together, partial, metadata={"scenemem": json.dumps({"version": VERSION, **metadata})})


def read_checkpoint(file: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        DataError: the file is missing, damaged, or was written by another version.
    """
    try:
        with safe_open(file, framework="pt") as content:
            metadata = json.loads((content.metadata() or {})["scenemem"])
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise DataError(file, "no such checkpoint") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(file, f"not a checkpoint of SceneMem, or damaged ({error})") from error
    version = metadata.pop("version", None)
    if version == 1:
        tensors = {_renamed(name): tensor for name, tensor in tensors.items()}
    elif version != VERSION:
        raise DataError(file, f"was written by another version; expected checkpoint version {VERSION} or 1")
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


def load_optimiser(optimiser: Optimizer, checkpoint: Checkpoint) -> None:
    """Restore the moments of every parameter, in the order of the optimiser's parameters."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for name, tensor in checkpoint.tensors.items():
        if name.startswith(_OPTIMISER):
            number, key = name.removeprefix(_OPTIMISER).split(".")
            optimiser.state[parameters[int(number)]][key] = tensor.clone()


def _optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    return {
        f"{_OPTIMISER}{number}.{key}": torch.as_tensor(value)
        for number, parameter in enumerate(parameters)
        for key, value in optimiser.state.get(parameter, {}).items()
    }
