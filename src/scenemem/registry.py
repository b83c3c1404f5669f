"""Names for things that can be extended, and the plugins that register further ones."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

from scenemem.errors import DataError, UserError

T = TypeVar("T")

GROUP = "scenemem.plugins"
"""Entry points of this group are modules that register something when they are imported."""

PACKAGED = ("scenemem.zoo",)
"""Packages of our own whose ``register`` adds names; they are loaded without being named."""

VARIABLE = "SCENEMEM_PLUGINS"
"""Environment variable with further plugins, separated like ``PATH``."""


class UnknownNameError(UserError, KeyError):
    """No such name in a registry; the message lists those there are."""

    __str__ = Exception.__str__  # a KeyError would put the message in quotes


class Registry(Mapping[str, T]):
    """A mapping from names to objects that code outside of the package can add to, but not change.

    An unknown name is looked up in the installed plugins, which are loaded once.

    Args:
        what: what the names stand for, in one word, for messages.
        known: the objects to begin with.
        advice: what to use instead of an unknown name; None where similar names are the better hint.
    """

    def __init__(
        self,
        what: str,
        known: Mapping[str, T] | None = None,
        advice: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self.what = what
        self._objects: dict[str, T] = dict(known or {})
        self._advice = advice

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...
    @overload
    def register(self, name: str, value: T) -> T: ...
    def register(self, name: str, value: T | None = None) -> T | Callable[[T], T]:
        """Add an object under a name that is free, and return it; without one this is a decorator."""
        if value is None:
            return lambda decorated: self.register(name, decorated)
        if self._objects.setdefault(name, value) is not value:
            raise UserError(f"there is a {self.what} '{name}' already; register yours under another name")
        return value

    def __getitem__(self, name: str) -> T:
        if name in self:
            return self._objects[name]
        instead = self._advice(name) or suggestion(name, self._objects)
        raise UnknownNameError(f"unknown {self.what} '{name}'; {instead}")

    def __contains__(self, name: object) -> bool:
        if name not in self._objects:
            load_installed_plugins()
        return name in self._objects

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)


_LISTED = 8  # names; a longer list is not read


def listed(known: Iterable[str]) -> str:
    """Names for a message: all of them, or the first few and the count of the others."""
    names = list(known)
    if len(names) <= _LISTED + 1:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"


def suggestion(name: str, known: Mapping[str, Any]) -> str:
    """The names that could have been meant, and those there are."""
    near = get_close_matches(name, known, n=3)
    there_are = f"here are: {listed(known)}"
    return f"did you mean {' or '.join(near)}? T{there_are}" if near else f"t{there_are}"


_loaded: dict[str, ModuleType] = {}  # by the names they were loaded with
_installed_are_loaded = False


def loaded_plugins() -> tuple[str, ...]:
    """The plugins in use, so that a run can say what it was trained with."""
    return tuple(_loaded)


def require_plugins(names: Iterable[str], needed_by: str | os.PathLike[str]) -> None:
    """Refuse to go on without these plugins; a file never makes us run code that the user did not name."""
    load_installed_plugins()
    known = {Path(name).name for name in _loaded}
    missing = [name for name in names if Path(name).name not in known]
    if missing:
        flags = " ".join(f"--plugin {shlex.quote(name)}" for name in missing)
        raise DataError(
            needed_by,
            f"was made with {', '.join(missing)}; if you trust that code, add {flags} "
            f"(in Python: scenemem.load_plugin({missing[0]!r}))",
        )


def load_plugin(name: str) -> ModuleType:
    """Import a plugin, which registers its agents, presets and the like; a second time changes nothing.

    Args:
        name: an importable module, or the path of a file that ends in ``.py``.

    Raises:
        UserError: there is no such module or file, or it fails while it is imported.
    """
    if name in _loaded:
        return _loaded[name]
    _load_packaged()  # first, so that a name that is taken is refused to the plugin
    load = _from_file if name.endswith(".py") else _module
    module: ModuleType = _imported(name, lambda: load(name))
    if all(module is not known for known in _loaded.values()):
        _loaded[name] = module
    return module


def load_installed_plugins() -> None:
    """Load the plugins of installed packages and of the environment variable, the first time only."""
    global _installed_are_loaded
    if _installed_are_loaded:
        return
    _installed_are_loaded = True  # before loading: a plugin may look for names, too
    _load_packaged()
    for entry in importlib.metadata.entry_points(group=GROUP):
        loaded = _imported(entry.module, entry.load)
        _loaded.setdefault(entry.module, sys.modules.get(entry.module, loaded))
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        if name.strip():
            load_plugin(name.strip())


def _load_packaged() -> None:
    for package in PACKAGED:
        importlib.import_module(package).register()


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as ``python -m`` does: the command lies elsewhere, the plugin beside the work
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)


def _from_file(file: str) -> ModuleType:
    place = Path(file).resolve()
    if not place.is_file():
        raise UserError(f"there is no plugin file {file}")
    # the same file has the same name in every process, so that what it defines can be sent to workers
    name = f"scenemem_plugin_{place.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None, "the name ends in .py"  # noqa: PT018
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(name: str, load: Callable[[], Any]) -> Any:
    """What ``load`` imports; the message of an error in a plugin has its place."""
    try:
        return load()
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            raise UserError(f"there is no plugin '{name}': no such module and no .py file") from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"plugin '{name}' fails with {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno})"
        ) from error
