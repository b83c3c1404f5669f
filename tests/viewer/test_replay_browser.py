"""Replays in a real browser: played, scrubbed, by keyboard, on small and large screens, light and dark."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from PIL import Image

from scenemem.formats.traces import Decision, Option, Trace, Way
from scenemem.viewer.drawing import draw_thumbnail
from scenemem.viewer.narration import Step, Walk
from scenemem.viewer.replay import Replay, replay_page, write_index, write_replay
from scenemem.viewer.scenery import Doorway, Label, Look, RoomOutline, Scenery
from tests.viewer.checks import DESKTOP, PHONE, Scheme, faults, in_every_scheme, on_every_screen, quiet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


change = msgspec.structs.replace


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
    plain = tuple(
        change(move, memory=None, decisions=tuple(_without_reasons(one) for one in move.decisions))
        for move in turning_back.moves[:2]
    )
    rival = change(turning_back, agent="basic", moves=plain)
    files = {name: tmp_path / f"{name}.html" for name in ("one", "two", "told", "routes", "index")}
    write_replay(files["one"], [turning_back], scenery)
    write_replay(files["told"], [turning_back, rival], _told(scenery))
    write_replay(files["two"], [turning_back, rival], scenery)
    walks = [Walk.of(trace, scenery.room_of) for trace in (turning_back, rival)]
    routes = [
        replace(walk, path=path, moves=[Step(0.0, step) for step in pairwise(path)], captions=captions)
        for walk, path, captions in (
            (walks[0], (0, 1, 3), ["Move 1: it goes.", "Move 2: it goes north.", "The end: it stops."]),
            (walks[1], (0, 1), ["Move 1: it goes.", "The end: it stops."]),
        )
    ]
    routes = [replace(walk, letters=[{}] * 2, marks=[[]] * 2) for walk in routes]
    files["routes"].write_text(replay_page(routes, scenery), encoding="utf-8")
    cards = [(walk, draw_thumbnail(walk, scenery)) for walk in walks]
    write_index(files["index"], "All of them", [Replay(files["two"], cards, 1)])
    return files


def _without_reasons(decision: Decision) -> Decision:
    return change(decision, attention=None, weights=None)


def _told(scenery: Scenery) -> Scenery:
    """The same with captions."""
    captions = {
        0: {1: "a hall, and two Sofas beyond it"},
        1: {0: "the start", 2: "a hall with a rug", 3: "a Sofa, past a lamp", 4: "a sofabed"},
        2: {1: "a hall with a rug"},
        3: {4: "<b>stairs</b>"},
    }
    looks = {place: replace(scenery.looks.get(place, Look()), captions=of) for place, of in captions.items()}
    return replace(scenery, looks=looks)


Show = Callable[..., None]


@pytest.fixture
def show(tab: Page) -> Iterator[Show]:
    """Opens a page in the tab, which must not complain and load nothing else."""
    files = {"about:blank"}

    def opened(file: Path, size: tuple[int, int] = DESKTOP, scheme: Scheme = "light") -> None:
        files.add(file.as_uri())
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.emulate_media(color_scheme=scheme, reduced_motion="no-preference")
        tab.goto(file.as_uri())

    with quiet(tab, lambda url: url.partition("#")[0] in files or url.startswith("data:")):
        yield opened


@pytest.fixture
def opened(tab: Page, show: Show, pages: dict[str, Path]) -> Page:
    """The replay of one agent."""
    show(pages["one"])
    return tab


def _text(page: Page, selector: str) -> str:
    return str(page.locator(selector).first.text_content())


def test_it_plays_through_to_the_end(browser: Browser, pages: dict[str, Path]) -> None:
    # a tab of its own, because its clock is turned by hand
    opened = browser.new_page()
    opened.goto(pages["one"].as_uri())
    opened.clock.install()
    play = opened.get_by_role("button", name="Play")
    play.click()
    seen = [_text(opened, "#count")]
    for _ in range(5):
        opened.clock.run_for(2600)
        seen.append(_text(opened, "#count"))
    assert seen == [*(f"Move {number} of 5" for number in range(1, 6)), "The end"]
    assert opened.get_by_role("button", name="Play").is_visible(), "it stops by itself"
    assert "a success (less than 3 m is needed)" in _text(opened, ".caption")
    play.click()
    assert _text(opened, "#count") == "Move 1 of 5", "playing again begins again"
    opened.close()


def test_it_scrubs_and_the_memory_grows(opened: Page) -> None:
    nodes = []
    for frame in range(4):
        opened.locator("#scrub").fill(str(frame))
        nodes.append(opened.locator(".map > svg .node").count())
        assert opened.locator(".said, .remembered > *, .look .note").count() == 0, "no captions"
    assert nodes == [1, 2, 3, 4]
    opened.locator("#scrub").fill("2")
    assert "turns back to place 2 (hall)" in _text(opened, ".caption")
    assert "back" in str(opened.locator(".caption").get_attribute("class"))
    assert opened.locator(".map > svg .next.back").count() == 1
    assert opened.locator(".map > svg .ring").count() == 1, "one frontier is left"
    assert opened.locator(".looks figure").count() == 2, "here, and what it remembers"
    opened.locator("#scrub").fill("3")
    assert opened.locator(".map > svg .jumped").count() == 1, "the return stays on the map"
    assert opened.locator("#scrub").get_attribute("aria-valuetext") == "Move 4 of 5"


def test_a_newcomer_is_told_what_happens_and_led_to_the_turn(opened: Page) -> None:
    assert "The map is its memory: numbered circles are places it has been to" in _text(opened, "#lead")
    told = "At move 3 it turned back to place 2 (hall); at move 5 it stopped at the goal."
    assert _text(opened, ".story").startswith(told)
    assert _text(opened, ".holds") == "1 visited, 1 only seen"
    opened.get_by_role("button", name="Show move 3: it turns back").click()
    assert _text(opened, "#count") == "Move 3 of 5"
    assert _text(opened, ".holds") == "3 visited, 1 only seen"
    assert "SceneMem replay: one walk, move by move" in _text(opened, "#where")


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("tiny val_unseen", "house · tiny val_unseen, instruction 7_0"),
        ("instruction", "house · instruction 7_0"),
        ("live", "house · an instruction typed on the live page"),
    ],
)
def test_the_header_says_where_the_instruction_is_from(
    split: str, told: str, tab: Page, show: Show, turning_back: Trace, tmp_path: Path
) -> None:
    task = change(turning_back.task, split=split)
    write_replay(tmp_path / "h.html", [change(turning_back, task=task)], Scenery())
    show(tmp_path / "h.html")
    assert _text(tab, "#where").endswith(told)


def test_every_control_brings_caption_and_map_into_view_on_a_phone(
    tab: Page, show: Show, pages: dict[str, Path]
) -> None:
    show(pages["one"], PHONE)
    caption, svg, player = (tab.locator(name) for name in (".caption", ".map > svg", ".player"))
    assert tab.evaluate("scrollY") == 0
    names = ("Show move 3: it turns back", "Next move", "The end", "Previous move", "First move", "Play")
    for button in names:
        for away in (0, 9999):
            tab.locator("#scrub").fill("2")
            tab.evaluate("y => window.scrollTo(0, y)", away)
            tab.get_by_role("button", name=button, exact=True).evaluate("node => node.click()")
            boxes = [part.bounding_box() for part in (caption, svg, player)]
            tops = [box["y"] for box in boxes if box]
            assert 0 <= tops[0] < tops[1] < tops[2], f"{button} from {away}"
            if button == "Play":
                tab.get_by_role("button", name="Pause").click()
    tab.get_by_role("button", name="First move").click()
    before = tab.evaluate("scrollY")
    tab.get_by_role("button", name="Next move").click()
    assert tab.evaluate("scrollY") == before, "what is in view stays where it is"


@pytest.mark.parametrize(("name", "frame", "height"), [("one", "2", 1000), ("two", "1", DESKTOP[1])])
def test_map_and_decision_are_above_the_fold(
    name: str, frame: str, height: int, tab: Page, show: Show, pages: dict[str, Path]
) -> None:
    show(pages[name], (DESKTOP[0], height))
    tab.locator("#scrub").fill(frame)
    bar = tab.locator(".player").bounding_box()
    assert bar is not None
    last = ".decision table" if name == "one" else ".decision tbody tr"
    for panel in tab.locator("article").all():
        for part in (".map > svg", ".decision h3", last):
            box = panel.locator(part).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= bar["y"], f"{part} is below the fold"


def test_one_floor_is_not_spoken_of_and_the_goal_is_seen_where_the_agent_stands(
    tab: Page, show: Show, turning_back: Trace, tmp_path: Path
) -> None:
    places = tuple(change(place, floor=0) for place in turning_back.scene.places)
    flat = change(turning_back, scene=change(turning_back.scene, places=places))
    write_replay(tmp_path / "flat.html", [flat], Scenery())
    show(tmp_path / "flat.html")
    assert tab.locator("#floor-key").is_hidden()
    assert tab.locator(".floors button").count() == 0
    assert "floor" not in _text(tab, "#legend")
    assert tab.locator(".goal-ring").count() == 0
    tab.keyboard.press("End")
    signs = tab.locator(".map > svg > *")
    drawn = signs.evaluate_all("nodes => nodes.map((node) => node.getAttribute('class'))")
    assert drawn.index("agent-mark") < drawn.index("goal-ring") < drawn.index("star")


def test_decisions_say_why_and_their_chances_are_told_apart(opened: Page) -> None:
    assert _text(opened, ".chances") == ""
    opened.locator("#scrub").fill("2")
    assert opened.locator(".chance.to-place").all_text_contents() == ["80 %", "20 %"]
    assert opened.locator(".chance.to-way").all_text_contents() == ["75 %"]
    assert _text(opened, ".chances") == ("Chances beside circles: which place; beside diamonds: which way.")
    heads = opened.locator(".decision h4").all_text_contents()
    assert heads == ["1. Which place on the map to go on from?", "2. Which way from place 2?"]
    assert opened.locator(".decision thead").first.inner_text().split() == ["Option", "View", "Chance"]
    assert opened.locator(".decision .taken th").all_text_contents() == ["✓ place 2 (hall)", "✓ way A"]
    opened.keyboard.press("End")
    assert "The walk is over." in _text(opened, ".decision")


def test_a_move_that_turns_back_shows_the_words_of_each_decision(opened: Page) -> None:
    def marked() -> list[str]:
        strong = ".words .word[data-view='3'], .words .word[data-direction='3']"
        return opened.locator(strong).all_text_contents()

    assert opened.locator(".choices").is_hidden()
    opened.locator("#scrub").fill("2")
    assert marked() == ["Go", "sofa"]
    assert "“sofa”; direction words: “Go”" in _text(opened, ".caption .told")
    opened.get_by_role("button", name="2. which way").focus()
    opened.keyboard.press("Enter")
    assert marked() == ["past", "sofa"]
    assert "“past”; direction words: “sofa”" in _text(opened, ".caption .told")
    pressed = opened.locator(".choices [aria-pressed=true]")
    assert pressed.all_text_contents() == ["2. which way"]
    opened.keyboard.press("ArrowRight")
    assert opened.locator(".choices").is_hidden()
    none = opened.locator(".key .none")
    assert none.is_visible()
    assert [none.get_attribute(f"data-{kind}") for kind in ("view", "direction")] == ["3", "3"]


def test_marks_do_not_depend_on_the_width_of_the_window(
    tab: Page, show: Show, pages: dict[str, Path]
) -> None:
    drawn = []
    for width in (390, 768, 1280):
        show(pages["one"], (width, 1000))
        tab.keyboard.press("ArrowRight")
        tab.evaluate("window.scrollTo(0, 0)")
        words = tab.locator(".words .word").all()
        drawn.append([_colours(tab, word) for word in words])
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0] == [(False, True), (False, True), (False, False), (True, False), (False, False)]


def _colours(tab: Page, word: Locator) -> tuple[bool, bool]:
    """Whether a word is drawn on blue, and over an orange line."""
    box = word.bounding_box()
    assert box is not None
    x, y, width, height = box["x"], box["y"], box["width"], box["height"]
    shot = tab.screenshot(clip={"x": x, "y": y, "width": width, "height": height + 6})
    picture = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
    over, under = picture[: int(height) - 1], picture[int(height) :]
    blue = (over[..., 2] - over[..., 0] > 60).mean() > 0.2
    orange = (under[..., 0] - under[..., 2] > 100).any(axis=0).mean() > 0.3
    return bool(blue), bool(orange)


def test_floors_follow_the_agent_and_can_be_toggled(opened: Page) -> None:
    def pressed() -> str:
        return str(opened.locator(".floors button[aria-pressed=true]").text_content())

    assert pressed() == "Floor 1"
    assert opened.locator(".map > svg .star").count() == 0, "the goal is upstairs"
    opened.keyboard.press("f")
    assert pressed() == "Floor 2"
    assert opened.locator(".map > svg .star").count() == 1
    opened.get_by_role("button", name="Floor 1").click()
    assert pressed() == "Floor 1"
    opened.keyboard.press("End")
    assert pressed() == "Floor 2"


def test_words_are_marked_by_attention(opened: Page) -> None:
    def levels(kind: str) -> list[str | None]:
        return [word.get_attribute(f"data-{kind}") for word in opened.locator(".words .word").all()]

    assert _text(opened, ".words .word >> nth=3") == "sofa"
    assert levels("view") == ["0", "0", "0", "3", "0"]
    assert levels("direction") == ["3", "2", "0", "0", "0"]
    assert opened.locator(".words .word").nth(3).get_attribute("title") == "view: 70 %, direction: 0 %"
    opened.keyboard.press("End")
    assert levels("view") == ["0"] * 5, "nothing is attended to at the end"


def test_the_keyboard_does_everything(opened: Page) -> None:
    def after(*keys: str) -> str:
        for key in keys:
            opened.keyboard.press(key)
        return _text(opened, "#count")

    assert after("ArrowRight", "ArrowRight") == "Move 3 of 5"
    assert after("ArrowLeft") == "Move 2 of 5"
    assert after("End") == "The end"
    assert after("ArrowRight") == "The end"
    assert after("Home") == "Move 1 of 5"
    after("Space")
    assert opened.get_by_role("button", name="Pause").is_visible()
    after("Space")
    assert opened.get_by_role("button", name="Play").is_visible()
    opened.locator("#scrub").focus()
    assert after("ArrowRight") == "Move 2 of 5", "the slider moves once, not twice"
    opened.get_by_role("button", name="Next move").focus()
    assert after("Enter") == "Move 3 of 5"
    outline = opened.get_by_role("button", name="Next move").evaluate(
        "node => getComputedStyle(node).outlineWidth"
    )
    assert outline == "3px", "focus can be seen"


def _captions(tab: Page, box: str) -> list[tuple[str, str]]:
    """What is told about each direction in a part of the first agent's panel."""
    rows = tab.locator(f"article >> nth=0 >> {box} .said > div").all()
    return [
        (str(row.locator("dt").text_content()), " / ".join(row.locator("dd").all_text_contents()))
        for row in rows
    ]


def _marked(tab: Page, box: str) -> list[tuple[str, str | None, str | None]]:
    """Marked words of captions, with the strengths of both marks."""
    words = tab.locator(f"article >> nth=0 >> {box} .said .word").all()
    return [
        (str(word.text_content()), word.get_attribute("data-view"), word.get_attribute("data-direction"))
        for word in words
    ]


def test_captions_tell_of_the_chosen_and_the_remembered_directions(
    tab: Page, show: Show, pages: dict[str, Path]
) -> None:
    show(pages["told"])
    assert _captions(tab, ".looks") == [("✓ way A", "a hall, and two Sofas beyond it")]
    assert _marked(tab, ".looks") == [("Sofas", "3", "0")], "be it one sofa or two"
    assert _captions(tab, ".remembered") == [], "no place to choose"
    tab.locator("#scrub").fill("1")
    assert _captions(tab, ".looks") == [
        ("✓ way B", "a hall with a rug"),
        ("way A", "a Sofa, past a lamp"),
    ]
    tab.locator("#scrub").fill("2")
    assert _captions(tab, ".remembered") == [("✓ place 2", "north: a Sofa, past a lamp")]
    assert _marked(tab, ".remembered") == [("Sofa", "3", "0"), ("past", "0", "2")]
    assert _captions(tab, ".looks") == [("✓ way A", "a Sofa, past a lamp")]
    assert _marked(tab, ".looks") == [("Sofa", "0", "3"), ("past", "3", "0")], "when it has arrived"
    assert tab.locator("article >> nth=0 >> .looks figure .said").count() == 1
    tab.locator("#scrub").fill("3")
    assert _captions(tab, ".looks") == [("✓ way A", "<b>stairs</b>")]
    assert tab.locator(".said b").count() == 0, "text stays text"
    tab.keyboard.press("End")
    assert _captions(tab, ".looks") == []


def test_alike_directions_share_a_line(tab: Page, show: Show, turning_back: Trace, tmp_path: Path) -> None:
    move = turning_back.moves[2]
    assert move.memory is not None
    ways = tuple(Way(1, place, 0.0, 0.0, wind) for place, wind in ((0, "west"), (3, "north"), (4, "south")))
    memory = change(move.memory, ways=(*ways, Way(2, 1, 4.7, 0.0, "west")))
    moves = (*turning_back.moves[:2], change(move, memory=memory), *turning_back.moves[3:])
    looks = {1: Look(captions={0: "a rug", 3: "a lamp", 4: "a rug"}), 2: Look(captions={1: "a door"})}
    write_replay(tmp_path / "alike.html", [change(turning_back, moves=moves)], Scenery(looks=looks))
    show(tmp_path / "alike.html")
    tab.locator("#scrub").fill("2")
    assert _captions(tab, ".remembered") == [
        ("✓ place 2", "west, south: a rug / north: a lamp"),
        ("place 3", "west: a door"),
    ]


def test_places_after_the_likeliest_are_told_of_when_asked_for(
    tab: Page, show: Show, turning_back: Trace, tmp_path: Path
) -> None:
    move = turning_back.moves[3]
    assert move.memory is not None
    options = [Option(place, 0.1 + 0.1 * place, 0.5, node=place) for place in range(3)]
    choice = Decision("frontier", (*options, Option(3, 0.4, 1.0, node=3)), 3)
    memory = change(move.memory, ways=tuple(Way(node, 4, 0.0, 0.0, "north") for node in range(4)))
    more = change(move, memory=memory, decisions=(choice, *move.decisions))
    looks = {place: Look(captions={4: f"stairs {place}"}) for place in range(4)}
    trace = change(turning_back, moves=(*turning_back.moves[:3], more))
    write_replay(tmp_path / "many.html", [trace], Scenery(looks=looks))
    show(tmp_path / "many.html")
    tab.locator("#scrub").fill("3")
    names = [name for name, _ in _captions(tab, ".remembered")]
    assert names == ["✓ place 4", "place 3", "place 2", "place 1"], "by their chance"
    last = tab.get_by_text("stairs 0")
    assert last.is_hidden()
    tab.get_by_text("and 1 more").click()
    assert last.is_visible()


WATCH_STEPS = """() => {
  window.steps = 0;
  const watcher = new MutationObserver((changes) => { window.steps += changes.length; });
  const options = { attributes: true, attributeFilter: ["transform"], subtree: true };
  watcher.observe(document.querySelector(".map > svg"), options);
}"""


def test_the_agent_walks_unless_motion_is_unwelcome(opened: Page) -> None:
    opened.evaluate(WATCH_STEPS)
    opened.keyboard.press("ArrowRight")
    deadline = time.monotonic() + 20
    while opened.evaluate("window.steps") < 2:
        assert time.monotonic() < deadline, "its mark never moved"
        opened.wait_for_timeout(20)
    opened.keyboard.press("Home")
    opened.emulate_media(reduced_motion="reduce")
    opened.evaluate("window.steps = 0")
    opened.keyboard.press("ArrowRight")
    opened.wait_for_timeout(300)
    assert _text(opened, "#count") == "Move 2 of 5"
    assert opened.evaluate("window.steps") == 0


def test_routes_are_played_without_a_word_on_decisions(tab: Page, show: Show, pages: dict[str, Path]) -> None:
    show(pages["routes"])
    assert "says where the agent went and not why" in _text(tab, "#lead")
    assert _text(tab, "#count") == "Move 1 of 2"
    tab.keyboard.press("ArrowRight")
    captions = tab.locator(".caption").all_text_contents()
    assert captions == ["Move 2: it goes north.", "The end: it stops."]
    assert tab.locator(".map > svg .next").count() == 1
    assert tab.locator(".decision:visible, .key:visible span").count() == 0
    assert "chances" not in _text(tab, "#legend")


def test_two_agents_share_one_player(tab: Page, show: Show, pages: dict[str, Path]) -> None:
    show(pages["two"])
    assert tab.locator("article").count() == 2
    assert "does not separate words for what to look for" in _text(tab, "article >> nth=1 >> .key")
    tab.locator("#scrub").fill("4")
    told = tab.locator(".caption").all_text_contents()
    assert told[0].startswith("Move 5:")
    assert told[1].startswith("The end:"), "who has ended stays at the end"
    tops = [box["y"] for box in (tab.locator(".map").nth(n).bounding_box() for n in (0, 1)) if box]
    assert tops[0] == tops[1], "the maps stand side by side"


@in_every_scheme
@on_every_screen
@pytest.mark.parametrize("name", ["one", "two", "told", "routes", "index"])
def test_pages_fit_and_are_accessible(
    name: str, size: tuple[int, int], scheme: Scheme, tab: Page, show: Show, pages: dict[str, Path]
) -> None:
    show(pages[name], size, scheme)
    ground = {"light": "rgb(250, 249, 246)", "dark": "rgb(18, 21, 24)"}
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == ground[scheme]
    for frame in {"index": (), "routes": (0, 2, 1)}.get(name, (0, 5, 2)):
        tab.locator("#scrub").fill(str(frame))
        assert tab.evaluate("document.documentElement.scrollWidth") <= size[0], f"move {frame + 1}"
    assert faults(tab) == []


def test_untrusted_text_runs_nothing(tab: Page, show: Show, turning_back: Trace, tmp_path: Path) -> None:
    nasty = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
    task = change(turning_back.task, text=nasty)
    trace = change(turning_back, task=task, agent=nasty)
    write_replay(tmp_path / "n.html", [trace], Scenery(room_of={0: nasty}))
    show(tmp_path / "n.html")
    assert tab.evaluate("window.harmed") is None
    assert tab.locator("main img").count() == 0


def test_the_ending_can_be_hidden_until_it_comes(tab: Page, show: Show, pages: dict[str, Path]) -> None:
    show(pages["two"])
    told = tab.locator("#headline")
    assert told.is_visible()
    tab.click("#ending")
    assert _text(tab, "#ending") == "Show the ending"
    assert not told.is_visible()
    assert tab.locator("#suspense").is_visible()
    assert not tab.locator(".story").first.is_visible()
    assert tab.title() == "SceneMem replay"
    tab.keyboard.press("End")
    assert told.is_visible(), "at its end everybody may know"
    tab.keyboard.press("Home")
    assert not told.is_visible()
    tab.click("#ending")
    assert told.is_visible()
    show(pages["one"])
    tab.goto("about:blank")
    tab.goto(f"{pages['one'].as_uri()}#hide")
    assert not tab.locator("#headline").is_visible(), "an address can ask for suspense"
    read_aloud = tab.locator("#agents h2").first.text_content() or ""
    assert "goal" not in read_aloud, "screen readers are kept in suspense, too"
