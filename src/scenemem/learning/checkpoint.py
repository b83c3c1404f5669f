"""Checkpoints: one safetensors file with weights, optimiser, randomness and progress; strict and atomic.

A resumed run continues bit for bit. No pickle is read or written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from scenemem.errors import DataError
from scenemem.formats.decoding import unique_object
from scenemem.formats.tensors import CHECKSUM, read_tensor_file, write_tensor_file

VERSION = 3
"""Of what is written and read."""
NETWORK = "network."
"""What the names of weights begin with."""
_OPTIMISER = "optimiser."
_DESCRIPTION = "scenemem"  # name of the metadata among the texts of the file
_SPARE_NUMBERS, _NUMBERS = 2**24, 4  # asked for per number of the weights; agents of the family need 2
_SPARE_CALLS, _CALLS = 10_000, 100  # of torch per tensor of the weights; agents of the family need 10

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
    if version != VERSION:
        expected = f"expected checkpoint version {VERSION}"
        raise DataError(file, f"was written by another version ({version!r}); {expected}")
    if CHECKSUM not in texts:
        raise DataError(file, "not a checkpoint of SceneMem, or damaged (it lost its checksum)")
    return Checkpoint(tensors, metadata)


def stored_network(build: Callable[[], N], checkpoint: Checkpoint, file: str | os.PathLike[str]) -> N:
    """Build the network that a checkpoint describes, and load its weights strictly.

    The settings of the network come from the file, too, and may name any size. Building ends before it takes
    far more memory than the weights need; only then is it repeated without memory, to find what differs.

    Raises:
        DataError: names or shapes differ, or the settings make no network.
    """
    try:
        with _Bounded(checkpoint):
            network = build()
    except _TooLargeError as error:
        if (outline := _outline(build, checkpoint)) is not None:
            _compare(outline, checkpoint, file)
        raise DataError(file, f"its preset names a network far larger than its weights ({error})") from None
    except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(file, f"its preset makes no network ({_first_line(error)})") from error
    load_network(network, checkpoint, file)
    return network


class _TooLargeError(Exception):
    """A network asks for more than its checkpoint can fill."""


class _Bounded(TorchFunctionMode):
    """Ends the building of a network that asks for far more calls of torch, or numbers, than weights need.

    Args:
        checkpoint: the weights.
        takes_memory: count numbers.
    """

    SIZED = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)

    def __init__(self, checkpoint: Checkpoint, *, takes_memory: bool = True) -> None:
        super().__init__()
        self.counted = self.SIZED if takes_memory else ()
        weights = checkpoint.network().values()
        self.stored, self.asked = sum(tensor.numel() for tensor in weights), 0
        self.tensors, self.calls = len(weights), 0
        self.gradients = torch.is_grad_enabled()

    def __exit__(self, *error: Any) -> None:
        """Layers begin inside ``no_grad``; ended in there, they could not switch gradients on again."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.set_grad_enabled(self.gradients)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count what a call asks for, before it is made."""
        del types
        kwargs = kwargs or {}
        self.calls += 1
        if self.calls > _SPARE_CALLS + _CALLS * self.tensors:
            raise _TooLargeError(f"its layers do not end; the file has {self.tensors} tensors")
        if function in self.counted:
            self.asked += _numbers(*args[: 1 if function is torch.full else None], **kwargs)
            if self.asked > _SPARE_NUMBERS + _NUMBERS * self.stored:
                raise _TooLargeError(f"{self.asked:,} numbers and more; the file has {self.stored:,}")
        return function(*args, **kwargs)


def _numbers(*sizes: Any, size: Sequence[int] | None = None, **_: Any) -> int:
    """How many numbers a tensor has that is asked for with these arguments."""
    sizes = sizes if size is None else tuple(size)
    return math.prod(sizes if not sizes or isinstance(sizes[0], int) else sizes[0])


def _outline(build: Callable[[], nn.Module], checkpoint: Checkpoint) -> nn.Module | None:
    """A network without memory; None when it cannot be built that way."""
    try:
        with torch.device("meta"), _Bounded(checkpoint, takes_memory=False):
            return build()
    except Exception:  # whatever it is, there is nothing to compare
        return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def load_network(network: nn.Module, checkpoint: Checkpoint, file: str | os.PathLike[str]) -> None:
    """Load weights strictly; a mismatch says what differs.

    Raises:
        DataError: names or shapes differ.
    """
    _compare(network, checkpoint, file)
    network.load_state_dict(checkpoint.network())


def _compare(network: nn.Module, checkpoint: Checkpoint, file: str | os.PathLike[str]) -> None:
    """Refuse other names and shapes than those of a network."""
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
