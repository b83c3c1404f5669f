"""A report and the replays beside it in a real browser: links open, pages play, everybody can use them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scenemem.formats.folder import DataFolder
from scenemem.runs.folder import RunFolder
from scenemem.runs.pages import report_on
from tests.viewer.checks import DESKTOP, Scheme, faults, in_every_scheme, on_every_screen, quiet

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def report(
    trained_runs: dict[str, RunFolder], tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A report on two agents, moved to where neither runs nor data are."""
    folder = tmp_path_factory.mktemp("report")
    runs = [trained_runs["ssm"], trained_runs["basic"]]
    report_on(runs, DataFolder(tiny_trainable), folder / "made" / "report.html", splits=["val_unseen"])
    return Path(shutil.move(folder / "made", folder / "mailed")) / "report.html"


@pytest.fixture
def opened(tab: Page, report: Path) -> Iterator[Page]:
    """The report in a browser that must not complain and not leave the folder."""
    with quiet(tab, lambda url: url.startswith((report.parent.as_uri(), "data:"))):
        tab.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        tab.goto(report.as_uri())
        yield tab


def test_every_link_opens_a_replay_that_plays(opened: Page, report: Path) -> None:
    links = opened.locator(".replays a")
    count = links.count()
    assert 1 <= count <= 4
    assert opened.locator(".replays .thumb").count() == 2 * count, "one map for each agent"
    for number in range(count):
        title = links.nth(number).text_content()
        links.nth(number).click()
        opened.wait_for_selector("#scrub")
        assert Path(opened.url.removeprefix("file://")).parent == report.parent / "replays"
        told = opened.locator("#headline span").all_text_contents()
        assert len(told) == 2
        assert all(one.strip() in str(title) for one in told)
        assert opened.locator("article").count() == 2, "both agents"
        opened.keyboard.press("End")
        assert opened.text_content("#count") == "The end"
        opened.go_back()


@in_every_scheme
@on_every_screen
def test_the_report_fits_and_is_accessible(opened: Page, size: tuple[int, int], scheme: Scheme) -> None:
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": size[0], "height": size[1]})
    assert faults(opened) == []


def test_a_replay_leads_back_to_the_report(opened: Page, report: Path) -> None:
    opened.locator(".replays a").first.click()
    opened.wait_for_selector("#scrub")
    opened.click("#back-link")
    assert opened.url == report.as_uri()


def test_later_results_can_be_filtered_by_what_agents_see(opened: Page) -> None:
    rows = opened.locator(".filtered tbody tr")
    assert {"DUET", "ScaleVLN", "SRDF"} <= set(rows.locator("th").all_text_contents())
    assert all(row.is_visible() for row in rows.all())
    opened.locator(".filtered input[value=vlm]").check()
    shown = [row.locator("th").text_content() for row in rows.all() if row.is_visible()]
    assert shown == ["NavGPT-2 (FlanT5-XXL)"]
    for link in opened.locator(".filtered td a").all():
        assert str(link.get_attribute("href")).startswith("https://")
