"""What every page must be in a browser: as wide as the screen, readable, accessible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

PHONE, DESKTOP = (360, 740), (1280, 900)

Scheme = Literal["light", "dark"]

on_every_screen = pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
in_every_scheme = pytest.mark.parametrize("scheme", ["light", "dark"])

CUT_OFF = """() => [...document.querySelectorAll("button, output, h1, thead th")]
  .filter((one) => one.checkVisibility() && one.clientWidth && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.textContent)"""


@contextmanager
def quiet(page: Page, own: Callable[[str], bool], pardoned: str = "no such text") -> Iterator[None]:
    """The page prints nothing on the console, makes no error and loads nothing but its own addresses."""
    wrong: list[str] = []
    listeners: dict[Any, Callable[..., None]] = {
        "console": lambda message: None if pardoned in message.text else wrong.append(message.text),
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda asked: None if own(asked.url) else wrong.append(asked.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert not wrong, wrong


def faults(page: Page) -> list[str]:
    """What is wrong with a page as it is shown now: too wide, words cut off, hard to use; frames as well."""
    found = []
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if wide > 0:
        found.append(f"{wide} pixels too wide")
    found += [f"cut off: {text}" for frame in page.frames for text in frame.evaluate(CUT_OFF)]
    found += [
        f"{item['id']} ({item['impact']}): {item['nodes'][0]['html']}"
        for item in axe.Axe().run(page).response["violations"]
    ]
    return found
