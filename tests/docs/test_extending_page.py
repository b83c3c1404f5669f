"""The tutorial of docs/extending.md: it shows every example, and its configuration trains."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from scenemem import extend

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")


def test_the_page_includes_every_example() -> None:
    included = re.findall(r'--8<-- "(.+?)"', PAGE)
    assert sorted(included) == sorted(f"examples/{file.name}" for file in REPOSITORY.glob("examples/*.py"))


def test_constants_and_registries_the_page_names_are_exported() -> None:
    named = set(re.findall(r"`([A-Z][A-Z_]+)(?:\.register)?[`(]", PAGE))
    assert {"ACTION", "FINAL", "AGENTS", "PRESETS"} <= named
    assert {name for name in named if not hasattr(extend, name)} <= {"PATH"}


def test_the_configuration_of_the_page_trains(tiny_trainable: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    text = next(
        block for block in re.findall(r"^```toml\n(.+?)^```$", PAGE, re.M | re.S) if "base =" in block
    )
    config.write_text(text, encoding="utf-8")
    command = next(line for line in PAGE.splitlines() if line.startswith("scenemem train --config"))
    words = command.replace("mine.toml", str(config)).split()[1:]
    flags = ["--data", str(tiny_trainable), "--out", str(tmp_path / "run"), "--iterations", "2", "--json"]
    small = ["--data.min-count", "1", "--learning.batch", "4", "--selection.split", "val_unseen"]
    trained = subprocess.run(  # a process of its own, so that the plugin is not registered in this one
        [sys.executable, "-m", "scenemem", *words, *flags, *small, "--no-replays"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["iteration"] == 2
    logged = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert set(json.loads(logged.splitlines()[-1])["losses"]) == {"teacher_forcing", "a2c", "progress"}
