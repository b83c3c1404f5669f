"""The docs site: it builds without a warning, is complete, and needs no network to be read."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

import scenemem
from scenemem import zoo
from scenemem.commands import COMMANDS
from scenemem.presets import PRESETS
from scenemem.runs.experiment import SPEAKERS
from tests.viewer.checks import Scheme, faults, in_every_scheme, on_every_screen

if TYPE_CHECKING:
    from playwright.sync_api import Page

REPOSITORY = Path(__file__).resolve().parents[2]
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
NAMED = {*PRESETS, *SPEAKERS} - {*zoo.rows()}  # before any test registers more
LINK_KINDS_NOT_LOADED = {"canonical", "prev", "next"}


class _Page(HTMLParser):
    """What a page loads and links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.assets: list[str] = []
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = {name: value for name, value in attrs if value is not None}
        self.anchors |= {facts[name] for name in ("id", "name") if name in facts}
        if tag == "a" and "href" in facts:
            self.links.append(facts["href"])
        if tag in LOADED and LOADED[tag] in facts and facts.get("rel") not in LINK_KINDS_NOT_LOADED:
            self.assets.append(facts[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; warnings are errors, those of links and anchors that lead nowhere too."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_page_to_play_embeds_replays_that_are_there(site: Path) -> None:
    page = (site / "play" / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r'(?:src|href)="\.\./(gallery/[\w.-]+\.html)', page)
    assert len(shown) == 5, "one to play, three more, and the list"
    assert "ssm-plus-houses: " in page, "every replay is named by how it ends"
    for name in shown:
        text = (site / name).read_text(encoding="utf-8")
        assert "Content-Security-Policy" in text
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text), "it loads nothing from elsewhere"


@in_every_scheme
@on_every_screen
def test_the_page_to_play_fits_and_is_accessible(
    site: Path, tab: Page, size: tuple[int, int], scheme: Scheme
) -> None:
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.emulate_media(color_scheme=scheme)
    tab.goto((site / "play" / "index.html").as_uri())
    replay = tab.frame_locator("iframe")
    tab.locator("iframe").scroll_into_view_if_needed()
    replay.get_by_text("Move 1 of").wait_for()
    assert faults(tab) == []


def test_the_site_is_complete_and_needs_no_network(site: Path) -> None:
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    assert len(pages) > 30
    _check_assets(site, pages)
    commands, presets = pages[site / "commands/index.html"], pages[site / "presets/index.html"]
    assert {f"scenemem-{name.replace(' ', '-')}" for name in COMMANDS} <= commands.anchors
    assert presets.anchors >= NAMED
    shown = (site / "presets/index.html").read_text(encoding="utf-8")
    assert "--model.reasoning-steps" in shown
    assert "<!-- preset" not in shown
    assert "UnvisitedActions" in (site / "extending/index.html").read_text(encoding="utf-8")
    _check_reference(pages)


def test_every_link_of_the_built_pages_leads_somewhere(site: Path) -> None:
    """mkdocs checks links in Markdown only, not those in HTML, in the theme or in pages that hooks write."""
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    broken, seen = set(), 0
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            place = file if not parts.path else (file.parent / unquote(parts.path)).resolve()
            place = place / "index.html" if place.is_dir() else place
            there = place.is_file() and (
                place not in pages or unquote(parts.fragment) in pages[place].anchors
            )
            broken |= set() if there else {f"{file.relative_to(site)}: {link}"}
            seen += 1
    assert seen > 1000
    assert broken == set()


def _check_assets(site: Path, pages: dict[Path, _Page]) -> None:
    """Nothing a page or a style sheet loads comes from elsewhere."""
    for file, page in pages.items():
        for asset in page.assets:
            assert not re.match(r"(https?:)?//", asset), f"{file.relative_to(site)} loads {asset}"
    for sheet in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"""(url\(|@import|href=)\s*["']?(https?:)?//""", text), sheet.name


def _check_reference(pages: dict[Path, _Page]) -> None:
    """Every public module has its place on a reference page."""
    anchors = set().union(*(page.anchors for file, page in pages.items() if "reference" in file.parts))
    package = Path(scenemem.__file__).parent
    for module in package.rglob("*.py"):
        if not module.stem.startswith("_"):
            name = ".".join(("scenemem", *module.relative_to(package).with_suffix("").parts))
            assert name in anchors, f"{name} is on no reference page"


def test_every_image_of_the_docs_describes_itself() -> None:
    for picture in ("architecture", "memory"):
        text = (REPOSITORY / "docs" / "images" / f"{picture}.svg").read_text(encoding="utf-8")
        assert "<title" in text
        assert "<desc" in text
        assert "prefers-color-scheme: dark" in text


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module of docs/hooks."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "hooks"))
    return importlib.import_module


def test_the_flags_shown_are_those_the_command_reads(hook: Callable[[str], Any]) -> None:
    manual_of = hook("flags").manual_of
    split = manual_of("scenemem eval expert --split val_seen").flags()["--split"]
    assert (split.value, split.default) == ("SPLIT", "val_unseen")
    assert split.meaning.startswith("which episodes: train, val_seen, val_unseen, test")
    trained = manual_of("scenemem train ssm-no-reasoning").flags()
    assert trained["--model.reasoning-steps"].default == "0"
    for example in ("scenemem eval expert --spilt dev", "scenemem fly", "scenemem eval"):
        with pytest.raises(ValueError, match=example):
            manual_of(example)


def test_every_preset_shows_what_it_changes_and_nothing_else(hook: Callable[[str], Any]) -> None:
    base_of, differences = hook("presets_page").base_of, hook("presets_page").differences
    assert (base_of("ssm"), base_of("ssm-plus-no-hints"), base_of("seq2seq")) == (None, "ssm-plus", "basic")
    head, _, *rows = differences("ssm-plus-no-hints").splitlines()
    assert head == "| flag | `ssm-plus` | `ssm-plus-no-hints` | meaning |"
    assert [row.split("|")[1:4] for row in rows] == [[" `--model.hints` ", " `True` ", " `False` "]]
    head, _, *rows = differences("ssm", " --features captions").splitlines()
    assert head == "| flag | `ssm` | `ssm --features captions` | meaning |"
    assert "--selection.split" in "".join(rows)
    assert "--model" not in "".join(rows)
    shown = differences("basic")
    assert "`basic` has no `--model.grounding`, `--model.allow-revisits`, `--model.reasoning-steps`" in shown
    assert "`--model.width`" not in shown
    on_page_markdown = hook("presets_page").on_page_markdown
    with pytest.raises(ValueError, match=r"disagree about: .*ssm"):
        on_page_markdown("<!-- preset: ssm -->")
    assert on_page_markdown("no presets here") == "no presets here"
