"""What every page must be in a browser: as wide as the screen, readable, accessible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

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
