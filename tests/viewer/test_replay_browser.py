"""Replays in a real browser: played, scrubbed, by keyboard, on small and large screens, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from scenemem.formats.traces import Trace
from scenemem.viewer.gallery import Replay, Told, write_index
from scenemem.viewer.replay import write_replay
from scenemem.viewer.scenery import Doorway, Label, Look, RoomOutline, Scenery
from scenemem.viewer.thumbnails import draw_thumbnail

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

PHONE, DESKTOP = (360, 740), (1280, 900)

Scheme = Literal["light", "dark"]


@pytest.fixture
def pages(turning_back: Trace, tmp_path: Path) -> dict[str, Path]:
    """A replay of one agent, one with an agent beside it that has no memory and no attention, an index."""
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw=="
    scenery = Scenery(
        rooms=(RoomOutline("hall", 0, 2.0, 1.0, (-1.0, -1.0, 5.0, 3.0)), RoomOutline("attic", 1, 2.0, 4.0)),
        doorways=(Doorway(0, (2.0, 3.0, 3.0, 3.0)),),
        room_of={0: "hall", 1: "hall", 4: "attic"},
        looks={
            0: Look(picture=pixel),
            1: Look(labels=(Label("sofa", 0.2, 0.0), Label("attic", 1.0, 0.3, True))),
        },
    )
    turns = turning_back.rounds[:2]
    plain = [
        msgspec.structs.replace(
            turn,
            memory=None,
            decisions=tuple(msgspec.structs.replace(d, attention=None, weights=None) for d in turn.decisions),
        )
        for turn in turns
    ]
    rival = msgspec.structs.replace(turning_back, agent="basic", rounds=tuple(plain))
    files = {name: tmp_path / f"{name}.html" for name in ("one", "two", "index")}
    write_replay(files["one"], [turning_back], scenery)
    write_replay(files["two"], [turning_back, rival], scenery)
    both = (turning_back, rival)
    told = tuple(Told(trace.agent, "Got lost", "It did.", draw_thumbnail(trace, scenery)) for trace in both)
    write_index(files["index"], "All of them", [Replay(files["two"], both, told, 1)])
    return files


class Watched:
    """An open page that remembers what went wrong."""

    def __init__(
        self, tab: Page, file: Path, size: tuple[int, int] = DESKTOP, scheme: Scheme = "light"
    ) -> None:
        self.page, self.file = tab, file
        self.wrong: list[str] = []
        self._listeners: dict[Any, Callable[..., None]] = {
            "console": lambda message: self.wrong.append(message.text),
            "pageerror": lambda error: self.wrong.append(str(error)),
            "request": lambda request: self._requested(request.url),
        }
        for event, listener in self._listeners.items():
            tab.on(event, listener)
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.emulate_media(color_scheme=scheme, reduced_motion="no-preference")
        tab.goto(file.as_uri())

    def _requested(self, url: str) -> None:
        if url != self.file.as_uri() and not url.startswith("data:"):
            self.wrong.append(url)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.text_content())

    def close(self) -> None:
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        assert self.wrong == [], "no console message, no error and no request"


@pytest.fixture
def opened(tab: Page, pages: dict[str, Path]) -> Iterator[Watched]:
    watched = Watched(tab, pages["one"])
    yield watched
    watched.close()


def test_it_plays_through_to_the_end(browser: Browser, pages: dict[str, Path]) -> None:
    opened = Watched(
        browser.new_page(), pages["one"]
    )  # a tab of its own, because its clock is turned by hand
    opened.page.clock.install()
    play = opened.page.get_by_role("button", name="Play")
    play.click()
    seen = [opened.text("#count")]
    for _ in range(5):
        opened.page.clock.run_for(2600)
        seen.append(opened.text("#count"))
    assert seen == [*(f"Round {number} of 5" for number in range(1, 6)), "The end"]
    assert opened.page.get_by_role("button", name="Play").is_visible(), "it stops by itself"
    assert "so this counts as a success" in opened.text(".caption")
    play.click()
    assert opened.text("#count") == "Round 1 of 5", "playing again begins again"
    opened.close()
    opened.page.close()


def test_it_scrubs_and_the_memory_grows(opened: Watched) -> None:
    nodes = []
    for frame in range(4):
        opened.page.locator("#scrub").fill(str(frame))
        nodes.append(opened.page.locator(".map > svg .node").count())
    assert nodes == [1, 2, 3, 4]
    opened.page.locator("#scrub").fill("2")
    assert "turns back to place 2 (hall)" in opened.text(".caption")
    assert "back" in str(opened.page.locator(".caption").get_attribute("class"))
    assert opened.page.locator(".map > svg .next.back").count() == 1
    assert opened.page.locator(".map > svg .ring").count() == 1, "one frontier is left"
    assert opened.page.locator(".looks figure").count() == 2, "here, and what it remembers"
    opened.page.locator("#scrub").fill("3")
    assert opened.page.locator(".map > svg .jumped").count() == 1, "the return stays on the map"
    assert opened.page.locator("#scrub").get_attribute("aria-valuetext") == "Round 4 of 5"


def test_a_newcomer_is_told_what_happens_and_led_to_the_turn(opened: Watched) -> None:
    assert "The map is its memory: numbered circles are places it has been to" in opened.text("#lead")
    assert opened.text(".story").startswith(
        "In round 3 it turned back to place 2 (hall) on its map; in round 5 it stopped at the goal."
    )
    assert opened.text(".holds") == "1 place visited, 1 only seen"
    opened.page.get_by_role("button", name="Show round 3: it turns back").click()
    assert opened.text("#count") == "Round 3 of 5"
    assert opened.text(".holds") == "3 places visited, 1 only seen"
    assert "stands for no word in particular" in opened.text(".key")


def test_playing_on_a_phone_brings_the_map_into_view(tab: Page, pages: dict[str, Path]) -> None:
    watched = Watched(tab, pages["one"], PHONE)
    assert tab.evaluate("scrollY") == 0
    tab.get_by_role("button", name="Play").click()
    assert tab.evaluate("scrollY") > 100
    assert tab.evaluate("document.querySelector('.caption').getBoundingClientRect().top") >= 0
    watched.close()


def test_floors_follow_the_agent_and_can_be_toggled(opened: Watched) -> None:
    def pressed() -> str:
        return str(opened.page.locator(".floors button[aria-pressed=true]").text_content())

    assert pressed() == "Floor 1"
    assert opened.page.locator(".map > svg .star").count() == 0, "the goal is upstairs"
    opened.page.keyboard.press("f")
    assert pressed() == "Floor 2"
    assert opened.page.locator(".map > svg .star").count() == 1
    opened.page.get_by_role("button", name="Floor 1").click()
    assert pressed() == "Floor 1"
    opened.page.keyboard.press("End")
    assert pressed() == "Floor 2"


def test_words_are_shaded_by_what_is_listened_to(opened: Watched) -> None:
    def shade(word: int, name: str) -> float:
        script = "([node, name]) => parseFloat(node.style.getPropertyValue(name))"
        handle = opened.page.locator(".words .word").nth(word).element_handle()
        return float(opened.page.evaluate(script, [handle, name]))

    assert opened.text(".words .word >> nth=3") == "sofa"
    assert [shade(word, "--looks") for word in range(5)] == pytest.approx([0, 0.143, 0.286, 1, 0])
    assert [shade(word, "--moves") for word in range(5)] == pytest.approx([1, 0.5, 0.167, 0, 0])
    script = "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node, '::after').height]"
    loud, quiet = (opened.page.locator(".words .word").nth(n).evaluate(script) for n in (3, 0))
    assert loud[0] != quiet[0], "shading is seen"
    assert float(quiet[1].removesuffix("px")) > float(loud[1].removesuffix("px")), "and so is the underline"
    assert opened.page.locator(".words .word").nth(3).get_attribute("title") == "look for: 70 %, move by: 0 %"
    opened.page.keyboard.press("End")
    assert shade(3, "--looks") == 0, "nothing is listened to at the end"


def test_the_keyboard_does_everything(opened: Watched) -> None:
    def after(*keys: str) -> str:
        for key in keys:
            opened.page.keyboard.press(key)
        return opened.text("#count")

    assert after("ArrowRight", "ArrowRight") == "Round 3 of 5"
    assert after("ArrowLeft") == "Round 2 of 5"
    assert after("End") == "The end"
    assert after("ArrowRight") == "The end"
    assert after("Home") == "Round 1 of 5"
    after("Space")
    assert opened.page.get_by_role("button", name="Pause").is_visible()
    after("Space")
    assert opened.page.get_by_role("button", name="Play").is_visible()
    opened.page.locator("#scrub").focus()
    assert after("ArrowRight") == "Round 2 of 5", "the slider moves once, not twice"
    opened.page.get_by_role("button", name="Next round").focus()
    assert after("Enter") == "Round 3 of 5"
    outline = opened.page.get_by_role("button", name="Next round").evaluate(
        "node => getComputedStyle(node).outlineWidth"
    )
    assert outline == "3px", "focus can be seen"


def test_decisions_say_why(opened: Watched) -> None:
    opened.page.locator("#scrub").fill("2")
    heads = opened.page.locator(".decision h4").all_text_contents()
    assert heads == ["1. From which place on the map to go on?", "2. Which way from place 2?"]
    assert opened.page.locator(".decision thead").first.inner_text().split() == ["Option", "Sight", "Chance"]
    assert opened.page.locator(".decision .taken th").all_text_contents() == ["✓ place 2 (hall)", "✓ way A"]
    opened.page.keyboard.press("End")
    assert "No more decisions" in opened.text(".decision")


def test_the_agent_walks_unless_motion_is_unwelcome(opened: Watched) -> None:
    def transform() -> str:
        return str(opened.page.locator(".agent-mark").get_attribute("transform"))

    opened.page.keyboard.press("ArrowRight")
    moving = transform()
    changed = f"document.querySelector('.agent-mark').getAttribute('transform') !== '{moving}'"
    opened.page.wait_for_function(changed)
    opened.page.emulate_media(reduced_motion="reduce")
    opened.page.keyboard.press("ArrowRight")
    before = transform()
    opened.page.wait_for_timeout(120)
    assert transform() == before


def test_two_agents_share_one_player(tab: Page, pages: dict[str, Path]) -> None:
    both = Watched(tab, pages["two"])
    assert both.page.locator("article").count() == 2
    assert "does not tell words about things" in both.text("article >> nth=1 >> .key")
    both.page.locator("#scrub").fill("4")
    told = both.page.locator(".caption").all_text_contents()
    assert told[0].startswith("Round 5:")
    assert told[1].startswith("The end:"), "who has ended stays at the end"
    tops = [box["y"] for box in (both.page.locator(".map").nth(n).bounding_box() for n in (0, 1)) if box]
    assert tops[0] == tops[1], "the maps stand side by side"
    both.close()


def test_pages_fit_the_screen_in_light_and_dark(tab: Page, pages: dict[str, Path]) -> None:
    for file in pages.values():
        watched = Watched(tab, file)
        for width, height in (PHONE, DESKTOP):
            tab.set_viewport_size({"width": width, "height": height})
            for frame in (0, 2, 5):
                if tab.locator("#scrub").count():
                    tab.locator("#scrub").fill(str(frame))
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, f"{file.stem}, {frame}"
        colours: dict[Scheme, str] = {"light": "rgb(250, 249, 246)", "dark": "rgb(18, 21, 24)"}
        for scheme, colour in colours.items():
            tab.emulate_media(color_scheme=scheme)
            assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == colour
        watched.close()


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("one", PHONE, "dark"), ("two", DESKTOP, "light"), ("index", PHONE, "light")],
    ids=["one", "two", "index"],
)
def test_pages_are_accessible(
    name: str, size: tuple[int, int], scheme: Scheme, tab: Page, pages: dict[str, Path]
) -> None:
    watched = Watched(tab, pages[name], size, scheme)
    watched.page.keyboard.press("ArrowRight")
    watched.page.keyboard.press("ArrowRight")
    found = axe.Axe().run(watched.page).response["violations"]
    assert [(item["id"], item["impact"]) for item in found] == []
    watched.close()


def test_untrusted_text_runs_nothing(tab: Page, turning_back: Trace, tmp_path: Path) -> None:
    nasty = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
    task = msgspec.structs.replace(turning_back.task, text=nasty)
    trace = msgspec.structs.replace(turning_back, task=task, agent=nasty)
    write_replay(tmp_path / "n.html", [trace], Scenery(room_of={0: nasty}))
    watched = Watched(tab, tmp_path / "n.html")
    assert watched.page.evaluate("window.harmed") is None
    assert watched.page.locator("main img").count() == 0
    watched.close()
