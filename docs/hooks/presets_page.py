"""Writes into the page of presets where each differs from its base, from the table of presets itself."""

from __future__ import annotations

import re
from typing import Any

from flags import Flag, manual_of

from scenemem import zoo
from scenemem.presets import PRESETS as REGISTERED
from scenemem.runs.experiment import SPEAKERS

MARK = re.compile(r"^<!-- preset: (\S+)( .+)? -->$", re.MULTILINE)
"""A preset, and what is laid over it."""
PRESETS = {name: preset for name, preset in REGISTERED.items() if name not in zoo.rows()}
"""Those of this page; the family has a page of its own."""
BASES = {"basic": "ssm", "seq2seq": "basic"}
"""Of names without their base; a preset called base-what is a variant of the longest such base."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put a table where each mark is.

    Raises:
        ValueError: a preset has no mark, or a mark no preset.
    """
    found = MARK.findall(markdown)
    if not found:
        return markdown
    marked = [name for name, overlays in found if not overlays]
    if sorted(marked) != sorted([*PRESETS, *SPEAKERS]):
        odd = ", ".join(sorted(set(marked) ^ {*PRESETS, *SPEAKERS}))
        raise ValueError(f"docs/presets.md and the code disagree about: {odd}")
    return MARK.sub(lambda found: differences(found[1], found[2] or ""), markdown)


def base_of(name: str) -> str | None:
    """The preset a preset is a variant of; None when it stands for itself."""
    begins = [name[:place] for place, letter in enumerate(name) if letter == "-"]
    known = [begin for begin in begins if begin in PRESETS or begin in SPEAKERS]
    return BASES.get(name) or (known[-1] if known else None)


def differences(name: str, overlays: str = "") -> str:
    """What a preset changes, or what is laid over it; of a preset without a base, all its values."""
    base, own = (name if overlays else base_of(name)), _settings(name + overlays)
    if base is None:
        rows = [f"| `{key}` | {_default(flag)} | {_meaning(flag)} |" for key, flag in own.items()]
        return "| flag | value | meaning |\n|---|---|---|\n" + "\n".join(rows)
    other = _settings(base)
    rows = [
        f"| `{key}` | {_default(other.get(key))} | {_default(flag)} | {_meaning(flag)} |"
        for key, flag in own.items()
        if key not in other or other[key].default != flag.default
    ]
    gone = [f"`{key}`" for key in other if key not in own]
    table = f"| flag | `{base}` | `{name}{overlays}` | meaning |\n|---|---|---|---|\n" + "\n".join(rows)
    return table + (f"\n\n`{name}` has no {', '.join(gone)}." if gone else "")


def _settings(words: str) -> dict[str, Flag]:
    """The flags that are settings of a preset, by name; the others belong to the run."""
    command = "train" if words.split()[0] in PRESETS else "speak train"
    flags = manual_of(f"scenemem {command} {words}").flags()
    return {name: flag for name, flag in flags.items() if "." in name or name in ("--agent", "--words")}


def _meaning(flag: Flag) -> str:
    """Losses are entries of a dictionary and have no text of their own."""
    return flag.meaning or ("weight of this loss" if ".losses." in flag.name else "")


def _default(flag: Flag | None) -> str:
    return f"`{flag.default}`" if flag is not None and flag.default else ""
