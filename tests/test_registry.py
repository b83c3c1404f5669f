"""Registries and the plugins that fill them."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from scenemem import registry as module
from scenemem.errors import DataError, UserError
from scenemem.registry import (
    GROUP,
    VARIABLE,
    Registry,
    UnknownNameError,
    load_plugin,
    loaded_plugins,
    require_plugins,
)

TOOLS: Registry[object] = Registry("tool")
HAMMER = object()


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded or installed, and nothing of a test stays."""
    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "_installed_are_loaded", False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    monkeypatch.setattr(TOOLS, "_objects", {"hammer": HAMMER, "saw": object()})
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "tools_registry", sys.modules[__name__])


def _plugin(folder: Path, name: str, text: str = "TOOLS.register('drill', object())") -> Path:
    file = folder / f"{name}.py"
    file.write_text(f"from tools_registry import TOOLS\n{text}\n", encoding="utf-8")
    return file


def test_a_registry_is_a_mapping_in_the_order_of_registration() -> None:
    assert list(TOOLS) == ["hammer", "saw"]
    assert (len(TOOLS), TOOLS["hammer"], "saw" in TOOLS, "drill" in TOOLS) == (2, HAMMER, True, False)
    assert TOOLS.get("drill") is None
    assert dict(TOOLS)["hammer"] is HAMMER
    with pytest.raises(TypeError):
        TOOLS["drill"] = HAMMER  # type: ignore[index]


def test_an_unknown_name_is_refused_with_the_near_ones() -> None:
    with pytest.raises(UnknownNameError) as far:
        TOOLS["drill"]
    assert str(far.value) == "unknown tool 'drill'; there are: hammer, saw"
    near = r"^unknown tool 'hamer'; did you mean hammer\? There are: hammer, saw$"
    with pytest.raises(UserError, match=near):
        TOOLS["hamer"]
    assert isinstance(far.value, KeyError)


def test_a_taken_name_is_refused_unless_it_is_the_same_thing() -> None:
    assert TOOLS.register("hammer", HAMMER) is HAMMER
    taken = "there is a tool 'hammer' already; register yours under another name"
    with pytest.raises(UserError, match=taken):
        TOOLS.register("hammer", object())

    @TOOLS.register("pliers")
    class Pliers:
        pass

    assert TOOLS["pliers"] is Pliers


def test_a_plugin_is_a_file_or_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _plugin(tmp_path, "shed")
    first = load_plugin(str(file))
    assert load_plugin(str(file)) is first, "once"
    assert "drill" in TOOLS
    _plugin(tmp_path, "attic", "TOOLS.register('ladder', object())")
    monkeypatch.chdir(tmp_path)
    load_plugin("attic")
    assert "ladder" in TOOLS
    assert loaded_plugins() == (str(file), "attic")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TOOLS.register('saw', object())", "there is a tool 'saw' already"),
        ("1 / 0", r"plugin '.*shed\.py' fails with ZeroDivisionError: division by zero \(shed\.py, line 2\)"),
        ("import no_such_thing", "fails with ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
)
def test_a_plugin_that_fails_is_located(text: str, message: str, tmp_path: Path) -> None:
    file = _plugin(tmp_path, "shed", text)
    for _ in range(2):
        with pytest.raises(UserError, match=message):
            load_plugin(str(file))
    assert loaded_plugins() == ()


def test_a_plugin_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no plugin file .*nowhere\.py"):
        load_plugin(str(tmp_path / "nowhere.py"))
    missing = r"there is no plugin 'no_such_shed': no such module and no \.py file"
    with pytest.raises(UserError, match=missing):
        load_plugin("no_such_shed")


def test_installed_plugins_wait_for_an_unknown_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugin(tmp_path, "installed_shed")
    monkeypatch.syspath_prepend(str(tmp_path))
    queried: list[str] = []

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        queried.append(group)
        return [importlib.metadata.EntryPoint("shed", "installed_shed", group)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert TOOLS.get("hammer") is HAMMER
    assert queried == [], "not for a name that is known"
    assert TOOLS["drill"] is not None
    assert TOOLS.get("chisel") is None
    assert queried == [GROUP], "once"
    assert loaded_plugins() == ("installed_shed",)


def test_the_environment_names_plugins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [_plugin(tmp_path, "one"), _plugin(tmp_path, "two", "TOOLS.register('vice', object())")]
    monkeypatch.setenv(VARIABLE, os.pathsep.join(map(str, files)))
    assert {"drill", "vice"} <= {name for name in ("drill", "vice") if name in TOOLS}


def test_a_file_that_needs_a_plugin_does_not_load_it(tmp_path: Path) -> None:
    file = _plugin(tmp_path, "shed")
    with pytest.raises(DataError) as refused:
        require_plugins(["elsewhere/shed.py"], "run/preset.json")
    assert str(refused.value) == (
        "run/preset.json: was made with elsewhere/shed.py; if you trust that code, add --plugin "
        "elsewhere/shed.py (in Python: scenemem.load_plugin('elsewhere/shed.py'))"
    )
    assert "drill" not in TOOLS
    load_plugin(str(file))
    require_plugins(["elsewhere/shed.py"], "run/preset.json")
