"""Configurations in TOML: a preset by its name, what is laid over it, and what is changed in it.

    base = "ssm"
    features = "captions"
    seed = 1

    [model]
    width = 128

The string ``"none"`` stands for None, which TOML does not have, where a setting may be None.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
import tomli_w

from scenemem.errors import DataError, SettingError, UserError
from scenemem.formats.decoding import read_toml
from scenemem.presets import Overlays, Preset, with_agent
from scenemem.registry import require_plugins

P = TypeVar("P")

_NONE = "none"


@dataclass(frozen=True)
class Sources:
    """What a run builds on: the weights of another run, and where augmented episodes come from."""

    begin: Path | None = None
    """a run whose trained weights to begin with; the preset's network must be the same"""
    speaker: Path | None = None
    """the run of a speaker that describes further paths, which are learnt from as well"""
    augment: Path | None = None
    """instead of a speaker, a file of augmented episodes"""

    def __post_init__(self) -> None:
        if self.speaker is not None and self.augment is not None:
            raise UserError("`speaker` and `augment` both say where augmented episodes come from; name one")

    @property
    def described(self) -> bool:
        """Whether there are augmented episodes."""
        return self.speaker is not None or self.augment is not None


NO_SOURCES = Sources()


@dataclass(frozen=True)
class TrainingConfig(Sources, Overlays):
    """What a configuration says: the plain fields stand at its top, ``changes`` are everything else."""

    base: str | None = None
    """name of the preset that is changed; a preset may be named beside the file instead"""
    seed: int | None = None
    """of weights, batches, dropout and sampling"""
    iterations: int | None = None
    """the same as learning.iterations"""
    folder: str | None = None
    """name of the data folder of the run that wrote this; without --data it has to be the embedded houses"""
    plugins: tuple[str, ...] = ()
    """modules or files that register what the preset needs"""
    changes: dict[str, Any] = field(default_factory=dict)
    """settings of the preset, nested as in the preset"""


_TOP = {name: hint for name, hint in get_type_hints(TrainingConfig).items() if name != "changes"}
"""What may stand beside the settings of a preset."""


def read_config(file: str | os.PathLike[str]) -> TrainingConfig:
    """Read a configuration; plugins it names have to be loaded already, because they are code."""
    if not Path(file).exists():
        raise DataError(file, "no such file; expected a configuration in TOML")
    content = read_toml(file)
    plain = {}
    for name in _TOP.keys() & content.keys():
        try:
            value = content.pop(name)
            plain[name] = msgspec.convert(value, _TOP[name], dec_hook=lambda kind, place: kind(place))
        except msgspec.ValidationError as error:
            raise DataError(file, _plainly(error), field=name) from error
    config = TrainingConfig(**plain, changes=content)
    require_plugins(config.plugins, file)
    return config


def write_config(config: TrainingConfig, comment: str) -> str:
    """A configuration as TOML; what is None is left out."""
    content = msgspec.to_builtins(config, enc_hook=str)
    plain = {name: content[name] for name in _TOP if content[name] not in (None, ())}
    return f"# {comment}\n" + tomli_w.dumps({**plain, **config.changes})


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted names, as ``{"model.width": 128}``, as nested tables."""
    tables: dict[str, Any] = {}
    for name, value in settings.items():
        table, (*parents, last) = tables, name.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise SettingError(f"'{parent}' is given a value and, in '{name}', a part of it")
        table[last] = value
    return tables


def changed(preset: P, changes: Mapping[str, Any], source: str | os.PathLike[str] | None = None) -> P:
    """A preset (or any nested frozen dataclass) with other settings, which are nested tables.

    Unknown names, values of the wrong type and those that the preset refuses are errors that name ``source``.
    """
    agent = changes.get("agent")
    base: Any = preset
    if isinstance(preset, Preset) and isinstance(agent, str) and agent != preset.agent:
        base = with_agent(preset, agent)  # whose settings are others
    try:
        result: P = _changed(base, base, changes, "")
        return result
    except SettingError as error:
        raise (error if source is None else UserError(f"{os.fspath(source)}: {error}")) from error


def _changed(whole: Any, part: P, changes: Mapping[str, Any], prefix: str) -> P:
    assert dataclasses.is_dataclass(part)
    hints, values = get_type_hints(type(part)), dict[str, Any]()
    for name, value in changes.items():
        dotted = prefix + name
        if name not in {known.name for known in dataclasses.fields(part)}:
            raise SettingError(f"unknown key '{dotted}'; {_nearest(dotted, whole, top=not prefix)}")
        current = getattr(part, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise SettingError(f"'{dotted}' is a table of settings, got {value!r}")
            values[name] = _changed(whole, current, value, f"{dotted}.")
        else:
            values[name] = _converted(value, hints[name], dotted)
    try:
        return dataclasses.replace(part, **values)  # type: ignore[type-var]
    except ValueError as error:
        raise SettingError(str(error)) from error


def _converted(value: Any, hint: Any, name: str) -> Any:
    try:
        converted = msgspec.convert(None if value == _NONE else value, hint)
        _check_keys(value, converted, name)
        return converted
    except msgspec.ValidationError as error:
        if value == _NONE:  # a text that happens to be this word
            return msgspec.convert(value, hint)
        raise SettingError(f"{name}: {_plainly(error)}") from error


def _check_keys(value: Any, converted: Any, name: str) -> None:
    """Refuse keys of tables inside of lists that no setting has."""
    if isinstance(value, list) and isinstance(converted, tuple):
        for number, (one, made) in enumerate(zip(value, converted, strict=True)):
            _check_keys(one, made, f"{name}[{number}]")
    elif isinstance(value, Mapping) and dataclasses.is_dataclass(converted):
        known = [item.name for item in dataclasses.fields(converted)]
        for key in value:
            if key not in known:
                raise SettingError(f"unknown key '{name}.{key}'; there are: {', '.join(known)}")


def _nearest(name: str, preset: Any, *, top: bool) -> str:
    known = [*_setting_names(preset), *(_TOP if top else ())]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    # a name without its table: "width" is "model.width"
    near = near or [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}"


def _setting_names(preset: Any, prefix: str = "") -> Iterator[str]:
    for known in dataclasses.fields(preset):
        value = getattr(preset, known.name)
        if dataclasses.is_dataclass(value):
            yield from _setting_names(value, f"{prefix}{known.name}.")
        else:
            yield prefix + known.name


def differences(base: Any, preset: Any) -> dict[str, Any]:
    """What has to be changed in ``base`` to get ``preset``, as ``changed`` takes it."""
    if isinstance(base, Preset) and base.agent != preset.agent:
        return {"agent": preset.agent, **differences(with_agent(base, preset.agent), preset)}
    found: dict[str, Any] = {}
    for known in dataclasses.fields(preset):
        before, after = getattr(base, known.name), getattr(preset, known.name)
        if dataclasses.is_dataclass(after) and type(before) is type(after):
            inner = differences(before, after)
            found |= {known.name: inner} if inner else {}
        elif before != after:
            found[known.name] = _without_none(msgspec.to_builtins(after))
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_none(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_none(inner) for inner in value]
    return _NONE if value is None else value


def _plainly(error: msgspec.ValidationError) -> str:
    """``Expected `int`, got `str` - at `$.x` `` without the marks."""
    text = str(error).replace("`", "")
    return text[:1].lower() + text[1:].replace(" - at $", " at ").removesuffix(" at ")
