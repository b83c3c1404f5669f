"""Writes the replays of the page to play, with the agents of the houses that come with the package."""

from __future__ import annotations

import tempfile
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from scenemem.runs.experiment import open_data
from scenemem.runs.opened import open_run
from scenemem.runs.pages import replay_episodes
from scenemem.runs.weights import find_run
from scenemem.viewer.replay import plain, write_index

AGENTS = ("ssm-plus-houses", "basic-houses")
COUNT, SPLIT = 4, "val_unseen"
FIRST, MORE = "<!-- one replay -->", "<!-- more replays -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the replays, and the page that lists them."""
    for name, text in gallery()[0].items():
        files.append(File.generated(config, f"gallery/{name}", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the first replay and the list of the others where the marks are."""
    if FIRST not in markdown:
        return markdown
    first, *others = gallery()[1].items()
    frame = (
        f'<iframe src="../gallery/{first[0]}#hide" title="A replay of two agents" width="100%" height="900" '
        'style="border:1px solid var(--md-default-fg-color--lightest);border-radius:10px" loading="lazy">'
        "</iframe>"
    )
    rows = [f'- <a href="../gallery/{name}">{escape(title)}</a>' for name, title in others]
    return markdown.replace(FIRST, frame).replace(MORE, "\n".join(rows))


@cache
def gallery() -> tuple[dict[str, str], dict[str, str]]:
    """The pages by file name, and what every replay is called."""
    torch.set_num_threads(1)
    houses = open_data(None)
    runs = {name: open_run(find_run(f"weights:{name}"), houses) for name in AGENTS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        replays = replay_episodes(
            runs, SPLIT, None, COUNT, lambda name: folder / f"{SPLIT}-{plain(name)}.html"
        )
        write_index(folder / "index.html", f"{' and '.join(AGENTS)} on {SPLIT}", replays)
        pages = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.html")}
    return pages, {replay.file.name: replay.title for replay in replays}
