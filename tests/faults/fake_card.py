"""A graphics card that is none: tensors on it claim the device ``cpu:1`` and refuse to meet those of the CPU.

What a real card would refuse is refused here as well: tensors of two devices in one operation (but for a
single number, an index, or a copy), and a generator of the CPU that draws for the card. Reading a value of
the card waits for it; these moments are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

CARD = "cpu:1"
"""The name of the device."""

_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default}
_INDEXED = {  # a card takes indices from the CPU in these
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten.index_put.default,
}
_WAITS = {  # operations whose result, or its size, has to be known by the CPU
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_consecutive.default,
    _aten.unique_dim.default,
    _aten.is_nonzero.default,
    _aten.repeat_interleave.Tensor,
    _aten.equal.default,
}


class DeviceError(AssertionError):
    """What a real card would refuse."""


class CardTensor(torch.Tensor):
    """A tensor on the card; ``held`` has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> CardTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(CARD),
            requires_grad=inner.requires_grad,
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise DeviceError(f"{func} outside of fake_card()")

    def tolist(self) -> Any:
        """The values; a real card sends them to the CPU for this."""
        return self.to("cpu").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused as on a real card, unless forced."""
        if not force:
            raise DeviceError("numpy() of a tensor on the card; move it to the CPU first")
        return self.to("cpu").numpy()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"CardTensor({self.held!r})"


class FakeCard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs everything on the CPU and keeps the two devices apart."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = Counter[str]()  # operation -> how often the CPU waited for the card in it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        on_card = [value for value in tensors if isinstance(value, CardTensor)]
        wanted = kwargs.get("device")
        asked = torch.device(wanted) if wanted is not None else None
        to_card = bool(on_card) if asked is None else asked == torch.device(CARD)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        if on_card and func not in _COPIES:
            self._check_together(func, args, tensors)
        generator = kwargs.get("generator")
        if to_card and isinstance(generator, torch.Generator):
            raise DeviceError(f"{func} draws on the card with a generator of the CPU")
        if on_card and (func in _WAITS or (asked is not None and not to_card)):
            self.waits[str(func)] += 1
        out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if func is _aten.copy_.default:
            return args[0]
        if not to_card or func is _aten._local_scalar_dense.default:
            return out
        wrapped = tree_map(lambda value: CardTensor(value) if isinstance(value, torch.Tensor) else value, out)
        if not on_card:
            return wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)  # type: ignore[no-untyped-call]

    def _check_together(self, func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
        others = [value for value in tensors if not isinstance(value, CardTensor) and value.dim()]
        if func in _INDEXED and isinstance(args[0], CardTensor):
            others = [value for value in others if not any(value is index for index in args[1])]
        if others:
            shapes = ", ".join(f"{value.dtype} {tuple(value.shape)}" for value in others)
            raise DeviceError(f"{func} mixes tensors of the card with tensors of the CPU: {shapes}")


class _MadeOnCard(TorchFunctionMode):
    """Tensors made from plain numbers are made on the CPU and sent to the card, which no dispatch tells."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, CardTensor) else value


@contextmanager
def fake_card() -> Iterator[FakeCard]:
    """Put the card into this machine for a while."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # modules move as they do to a real card
    try:
        with FakeCard() as card, _MadeOnCard():
            yield card
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
