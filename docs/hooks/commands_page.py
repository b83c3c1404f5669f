"""Writes the page of commands from the command line itself: every command, its flags, one example."""

from __future__ import annotations

import html
from typing import Any

from flags import Flag, manual_of

from scenemem.commands import COMMANDS

MARK = "<!-- every command -->"

EXAMPLES = {
    "demo": "scenemem demo --out demo --iterations 300",
    "data check": "scenemem data check --data DIR",
    "data fetch": "scenemem data fetch oracle --data DIR",
    "data convert": "scenemem data convert glove.6B.zip vp2room_label.json --data DIR",
    "data houses": "scenemem data houses --out houses --houses 12 --seed 3",
    "data r4r": "scenemem data r4r --data DIR",
    "data features": "scenemem data features resnet.tsv --data DIR --encoder 'ResNet-152, ImageNet'",
    "data captions": "scenemem data captions --data DIR",
    "data objects": "scenemem data objects --data DIR",
    "data images": "scenemem data images --images DIR --encoder openai/clip-vit-base-patch32 --data DIR",
    "train": "scenemem train ssm --out runs/ssm-0 --seed 0",
    "eval": "scenemem eval runs/ssm-0 --split val_unseen",
    "follow": "scenemem follow runs/ssm-0 --split val_unseen",
    "view": "scenemem view runs/ssm-0 runs/basic-0 --count 3",
    "report": "scenemem report runs/ssm-0 runs/ssm-1 runs/basic-0 --out report.html",
    "serve": "scenemem serve runs/ssm-0",
    "compare": "scenemem compare runs/ssm-0 runs/ssm-1 runs/basic-0 --out table.md",
    "weights": "scenemem weights",
    "weights pack": "scenemem weights pack runs/ssm-0 --data DIR --out mine.safetensors",
    "completion": "scenemem completion bash",
    "doctor": "scenemem doctor --data DIR",
    "score": "scenemem score results.json --data DIR --split val_unseen --json",
    "submit": "scenemem submit runs/ssm-0 --data DIR --split test --out test.json",
    "speak train": "scenemem speak train speaker --out runs/speaker-0",
    "speak eval": "scenemem speak eval runs/speaker-0 --split val_unseen",
    "speak describe": "scenemem speak describe runs/speaker-0 --count 3",
    "speak augment": "scenemem speak augment runs/speaker-0 --count 1000 --out described.json.gz",
}
"""One for each command; the page is not built with one that does not parse."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where the mark is."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """All commands, in the order ``scenemem --help`` lists them.

    Raises:
        ValueError: a command has no example.
    """
    missing = [name for name in COMMANDS if name not in EXAMPLES]
    if missing:
        raise ValueError(f"commands without an example in docs/hooks/commands_page.py: {', '.join(missing)}")
    return "\n".join(_command(name, COMMANDS[name][2]) for name in COMMANDS)


def _command(name: str, summary: str) -> str:
    example = EXAMPLES[name]
    manual = manual_of(example)
    description = " ".join(manual.description.split())
    lines = [f"## scenemem {name}", "", f"{_plain(summary[0].upper() + summary[1:])}.", ""]
    lines += ["```", example, "```", "", _plain(description), ""]
    for title, flags in manual.groups.items():
        lines += [] if title in ("options", "positional arguments") else [f"**{_plain(title)}**", ""]
        lines += ["| | meaning | default |", "|---|---|---|", *map(_row, flags), "", ""]
    return "\n".join(lines)


def _row(flag: Flag) -> str:
    default = "" if flag.default in ("", "None", "False") else _code(flag.default)
    return f"| {_code(f'{flag.name} {flag.value}'.strip())} | {_plain(flag.meaning)} | {default} |"


def _code(text: str) -> str:
    return f"<code>{_plain(text)}</code>"


def _plain(text: str) -> str:
    """Text without any markup of HTML or Markdown."""
    escaped = html.escape(text, quote=False)
    for sign in "|*_[]`":
        escaped = escaped.replace(sign, f"&#{ord(sign)};")
    return escaped
