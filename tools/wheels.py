"""The wheel outside of the checkout: ``python tools/wheels.py python3.10 python3.11 ... --full python3.11``.

Builds the wheel, then makes an empty environment for every Python named and installs it there. With
``--full`` its dependencies come along, small houses are built, trained on, evaluated and reported, and the
demo runs for four steps. Without it torch is left out: every module is compiled, and those that need no torch
are imported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_SMALL = (
    *("--model.width", "16", "--model.word-width", "8", "--learning.batch", "4", "--iterations", "2"),
    *("--selection.every", "2", "--selection.save-every", "2", "--no-replays"),
)
_IMPORTS = """
import importlib, pkgutil, sys, scenemem
done, without = 0, []
needed = ("torch", "safetensors", "fastapi", "starlette", "uvicorn")
for module in pkgutil.walk_packages(scenemem.__path__, "scenemem."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        done += 1
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in needed:
            raise
        without.append(module.name)
assert scenemem.__file__.startswith(sys.prefix), scenemem.__file__
print(f"imported {done} modules; {len(without)} need torch or an extra")
"""


def main() -> None:
    """Try the wheel on every Python named; leave with 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", help="interpreters")
    parser.add_argument("--full", action="append", default=[], help="one that gets torch, too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheel = _built(chosen.pythons[0], folder)
        for number, python in enumerate(dict.fromkeys([*chosen.pythons, *chosen.full])):
            environment = folder / f"environment-{number}"
            _call(python, "-m", "venv", "--without-pip", str(environment))
            trial = _full if python in chosen.full else _light
            trial(_Environment(python, environment / "bin"), wheel, folder)


class _Environment(NamedTuple):
    """An environment without pip, which the interpreter it was made with fills."""

    base: str  # that interpreter
    programs: Path

    @property
    def python(self) -> str:
        return str(self.programs / "python")

    def install(self, *words: str) -> None:
        """Install packages, in the versions of the tests."""
        pip = (self.base, "-m", "pip", "--quiet", "--python", self.python, "install", "--no-compile")
        _call(*pip, "--constraint", str(ROOT / "constraints.txt"), *words)


def _built(python: str, folder: Path) -> Path:
    _call(python, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("scenemem-*.whl")
    return wheel


def _light(environment: _Environment, wheel: Path, folder: Path) -> None:
    """Everything but torch: compile all modules, import those that need no torch."""
    python = environment.python
    environment.install(
        "gymnasium", "jinja2", "msgspec", "numpy", "pillow", "rich", "tomli", "tomli-w", "tyro"
    )
    environment.install("--no-deps", str(wheel))
    site = _told(python, "-c", "import scenemem; print(scenemem.__path__[0])", cwd=folder)
    _call(python, "-W", "error", "-m", "compileall", "-q", site)
    told = _told(python, "-c", _IMPORTS, cwd=folder)
    version = _told(str(environment.programs / "scenemem"), "--version", cwd=folder)
    _say(f"{_told(python, '--version')}, without torch: {version}; compiled all; {told}")


def _full(environment: _Environment, wheel: Path, folder: Path) -> None:
    """The whole way of a newcomer: build houses, train, evaluate, report."""
    environment.install(str(wheel))
    work, data = Path(tempfile.mkdtemp(dir=folder)), ("--data", "houses")
    for words in (
        ("data", "houses", "--out", "houses", "--houses", "12"),
        ("train", "ssm", "--out", "run", *_SMALL, *data),
        ("eval", "run", *data),
        ("report", "run", *data, "--out", "report.html"),
        ("demo", "--iterations", "4", "--no-replays"),
        ("doctor",),
    ):
        _call(str(environment.programs / "scenemem"), *words, cwd=work)
    done = "houses built, trained on, evaluated, reported; demo"
    _say(f"{_told(environment.python, '--version')}, with torch: {done}")


def _call(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, env=_clean(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
        sys.exit(1)


def _told(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, env=_clean(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        sys.exit(1)
    return done.stdout.strip()


def _clean() -> dict[str, str]:
    """The environment without anything that leads Python back to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
