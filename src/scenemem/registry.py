"""Registries: objects found by name, which other packages may add to without touching this one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from scenemem.errors import UserError

T = TypeVar("T")
F = TypeVar("F")


class Registry(Mapping[str, T]):
    """Objects of one kind by name, in the order they were registered.

    Args:
        kind: what the objects are, for messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    @overload
    def register(self, name: str) -> Callable[[F], F]: ...
    @overload
    def register(self, name: str, entry: T) -> T: ...

    def register(self, name: str, entry: Any = None) -> Any:
        """Add an object, or use as a decorator; the same object may come again.

        Raises:
            UserError: another object has that name.
        """
        if entry is None:
            return lambda decorated: self.register(name, decorated)
        if self._entries.setdefault(name, entry) is not entry:
            raise UserError(f"there is a {self.kind} called '{name}' already; choose another name")
        return entry

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._entries, n=3) or list(self._entries)
            raise UserError(f"unknown {self.kind} '{name}'; there are: {', '.join(near)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
