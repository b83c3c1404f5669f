"""Checkpoints: one safetensors file with weights, optimiser, randomness and progress; strict and atomic.

A resumed run continues bit for bit. No pickle is read or written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from scenemem.errors import DataError
from scenemem.formats.decoding import decode_json
from scenemem.formats.tensors import CHECKSUM, read_tensor_file, write_tensor_file

VERSION = 3
"""Of what is written and read."""
NETWORK = "network."
"""What the names of weights begin with."""
_OPTIMISER = "optimiser."
_DESCRIPTION = "scenemem"  # name of the metadata among the texts of the file
_SPARE_NUMBERS, _SPARE_TENSORS, _SPARE = 2**24, 1000, 4  # that building may have beyond the weights

N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]  # plain JSON values: progress, preset, vocabulary, ...

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
    """Read a checkpoint."""
    tensors, texts = read_tensor_file(file, "checkpoint")
    damaged = "not a checkpoint of SceneMem, or damaged"
    if _DESCRIPTION not in texts:
        raise DataError(file, f"{damaged} (it has no description)")
    try:
        metadata = decode_json(texts[_DESCRIPTION], dict[str, Any], file)
    except DataError as error:
        raise DataError(file, f"{damaged} ({error.reason})") from error
    version = metadata.pop("version", None)
    if version != VERSION:
        expected = f"expected checkpoint version {VERSION}"
        raise DataError(file, f"was written by another version ({version!r}); {expected}")
    if CHECKSUM not in texts:
        raise DataError(file, f"{damaged} (it lost its checksum)")
    return Checkpoint(tensors, metadata)


def stored_network(build: Callable[[], N], checkpoint: Checkpoint, file: str | os.PathLike[str]) -> N:
    """Build the network that a checkpoint describes, and load its weights strictly.

    The settings of the network come from the file, too, and may name any size. Building ends when it has more
    numbers or tensors than the file has and some to spare; a tensor is counted before it is filled, and takes
    no memory until then.
    """
    weights = checkpoint.network().values()
    stored = sum(tensor.numel() for tensor in weights)
    numbers, tensors = 0, 0

    def count(_module: nn.Module, _name: str, parameter: Tensor | None) -> None:
        nonlocal numbers, tensors
        numbers, tensors = numbers + (0 if parameter is None else parameter.numel()), tensors + 1
        if numbers > _SPARE_NUMBERS + _SPARE * stored:
            raise ValueError(f"{numbers:,} numbers and more; the file has {stored:,}")
        if tensors > _SPARE_TENSORS + _SPARE * len(weights):
            raise ValueError(f"{tensors:,} tensors and more; the file has {len(weights)}")

    counting = register_module_parameter_registration_hook(count)
    try:
        network = build()
    except (ArithmeticError, AssertionError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(file, f"its preset makes no network that fits its weights ({reason})") from error
    finally:
        counting.remove()
    load_network(network, checkpoint, file)
    return network


def load_network(network: nn.Module, checkpoint: Checkpoint, file: str | os.PathLike[str]) -> None:
    """Load weights strictly; an error names what differs."""
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
        if stored[name].is_floating_point() != tensor.is_floating_point():
            raise DataError(file, f"'{name}' holds {stored[name].dtype}, expected {tensor.dtype}")
    network.load_state_dict(stored)


def load_optimiser(
    optimiser: Optimizer, checkpoint: Checkpoint, file: str | os.PathLike[str] = "checkpoint"
) -> None:
    """Restore the moments of every parameter, in the order of the optimiser's parameters, where these are."""
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
        # the count of steps stays on the CPU unless the optimiser keeps it beside the moments
        beside = tensor.dim() or any(group.get("fused") for group in optimiser.param_groups)
        optimiser.state[parameter][key] = tensor.to(parameter.device if beside else "cpu", copy=True)


def _optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    return {
        f"{_OPTIMISER}{number}.{key}": torch.as_tensor(value)
        for number, parameter in enumerate(parameters)
        for key, value in optimiser.state.get(parameter, {}).items()
    }
