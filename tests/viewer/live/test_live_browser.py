"""The live page in a real browser: choose, type, watch, describe; small and large, light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scenemem.formats.folder import DataFolder
from scenemem.runs.folder import RunFolder
from scenemem.runs.pages import open_live_state
from scenemem.viewer.live_state import LiveServerState
from tests.viewer.checks import DESKTOP, Scheme, faults, in_every_scheme, on_every_screen, quiet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

driver = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")

PATIENCE = 30_000  # milliseconds

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with _opened(browser, address) as opened:
        yield opened


@contextmanager
def _opened(browser: Browser, address: str) -> Iterator[Page]:
    """The page in a tab of its own; it must not complain, nor ask anybody but its own server."""
    own = f"{address}/", "data:"
    tab = browser.new_page(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
    with quiet(tab, lambda url: url.startswith(own), "422"):  # a refused request is no fault of the page
        tab.goto(address)
        tab.wait_for_selector("#plan .place")
        yield tab
    tab.close()


def _walk(page: Page, instruction: str) -> None:
    page.fill("#instruction", instruction)
    page.click("#walk")
    done = "The walk is complete. Play it below, or save it as a page."
    driver.expect(page.locator("#status")).to_have_text(done, timeout=PATIENCE)


def test_instructions_are_walked_by_both_agents(page: Page) -> None:
    assert page.locator(".player").is_hidden()
    page.select_option("#start", "5")
    _walk(page, "Go past the 🛋️ sofa, <b>then</b> stop.")
    assert page.locator("#agents article").count() == 2
    assert page.locator("#agents .name").all_inner_texts()[0].startswith("ssm — ")
    assert page.locator("#agents b").count() == 2, "one per caption: what is typed is never markup"
    assert "🛋️" in page.locator("#agents .words").first.inner_text()
    assert page.locator("#agents .node").count() >= 2
    driver.expect(page.locator("#count")).to_have_text(re.compile("Move [2-9]|The end"), timeout=PATIENCE)
    page.click("#last")
    assert page.inner_text("#count") == "The end"
    assert "The end" in page.locator(".caption").first.inner_text()
    page.click("#agents")
    page.keyboard.press("Home")
    assert page.inner_text("#count").startswith("Move 1 of")

    page.select_option("#house", "yard")
    driver.expect(page.locator("#start option")).to_have_count(10)
    page.fill("#instruction", "")
    page.click("#instruction")
    page.keyboard.type("fly to a far corner")
    assert page.input_value("#instruction") == "fly to a far corner", "keys of the player do not disturb"
    _walk(page, "Wait here.")
    assert page.locator("#agents article").count() == 2, "the second walk replaces the first"
    assert "Wait here." in page.locator("#agents .words").first.inner_text().replace("\n", " ")


def test_a_trained_agent_walks_and_its_walk_can_be_kept(
    browser: Browser, trained_runs: dict[str, RunFolder], tiny_trainable: Path, serve: Serve, tmp_path: Path
) -> None:
    state = open_live_state([trained_runs["ssm"].root], None, DataFolder(tiny_trainable), "last")
    with serve(state) as address, _opened(browser, address) as page:
        page.select_option("#house", "yard")
        driver.expect(page.locator("#start option")).to_have_count(10)
        page.select_option("#example", "0")
        assert page.locator("#keep").is_disabled(), "there is nothing to keep yet"
        _walk(page, "Walk </script><script>window.harmed = 1</script> on.")
        page.click("#last")
        shown = page.locator(".caption").text_content()
        with page.expect_download() as kept:
            page.click("#keep")
        file = tmp_path / kept.value.suggested_filename
        kept.value.save_as(file)
    assert file.name == "walk-yard.html"
    replay = browser.new_page()
    with quiet(replay, lambda url: url == file.as_uri()):
        replay.goto(file.as_uri())
        replay.keyboard.press("End")
        assert replay.locator(".caption").text_content() == shown, "it is the walk that was shown"
        assert "ssm-0" in str(replay.text_content("#where"))
        assert "</script>" in str(replay.text_content(".words"))
        assert replay.evaluate("window.harmed") is None
    replay.close()


def test_a_route_is_suggested_or_chosen_on_the_map_described_or_refused(page: Page) -> None:
    page.select_option("#house", "grid")
    driver.expect(page.locator("#example option")).to_have_count(2)
    page.select_option("#example", "0")
    assert page.input_value("#instruction") == "Walk on."
    assert (page.input_value("#start"), page.input_value("#goal")) == ("0", "3")
    spot = page.locator("#plan .place").nth(7).bounding_box()
    assert spot is not None
    x, y = spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y)
    page.mouse.up()
    assert page.input_value("#start") == "7"
    assert page.inner_text("#wind") == "east"
    page.check("#click-goal")
    page.mouse.click(x, y)
    assert page.input_value("#goal") == "7"
    assert page.locator("#plan .star").count() == 1
    page.select_option("#start", "2")
    page.select_option("#goal", "")
    assert page.locator("#plan .star").count() == 0
    page.click("#describe")
    assert page.inner_text("#status") == "choose a goal first: the place where the route ends"
    page.select_option("#goal", "6")
    page.click("#describe")
    page.wait_for_selector("#plan .reference")
    assert "m long" in page.inner_text("#status")
    assert "parrot" in page.inner_text("#speaker")

    page.fill("#instruction", "   ")
    page.click("#walk")
    page.wait_for_selector("#status.bad")
    assert page.inner_text("#status") == "instruction: the instruction is empty; say where to go"
    page.fill("#instruction", "Qwrt zxcvb")
    page.click("#walk")
    told = page.locator("#status", has_text="knows no word of this instruction")
    told.wait_for(timeout=PATIENCE)


@in_every_scheme
@on_every_screen
def test_the_page_fits_and_is_accessible(page: Page, size: tuple[int, int], scheme: Scheme) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    assert faults(page) == []
    _walk(page, "Walk from g00 to g22.")
    page.click("#last")
    assert faults(page) == []


def test_the_page_opens_on_a_building_not_seen_in_training_and_says_why_nothing_speaks(
    browser: Browser, state: LiveServerState, serve: Serve
) -> None:
    groups = {"grid": "train", "spiral": "train", "yard": "val_unseen"}
    mute = LiveServerState(state.agents, state.sceneries, groups=groups)
    with serve(mute) as address, _opened(browser, address) as tab:
        assert tab.input_value("#house") == "yard"
        labels = tab.eval_on_selector_all("#house optgroup", "groups => groups.map((one) => one.label)")
        assert labels == ["Not seen in training (val_unseen)", "Seen in training (train)"]
        assert tab.locator("#house optgroup").nth(1).locator("option").count() == 2
        assert tab.locator("#describe").is_disabled()
        reason = "no packaged speaker knows these features; start the page with --speaker RUN"
        assert reason in tab.inner_text("#speaker")
