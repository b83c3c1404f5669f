"""The last words of an instruction: where to stop, and how one knows."""

from __future__ import annotations

import math

from scenemem.houses import lexicon
from scenemem.houses.mentions import Claim
from scenemem.houses.records import Stand
from scenemem.houses.surroundings import gap_to
from scenemem.houses.wording import Phrase, Wording, joined


def tell_stop(words: Wording) -> Phrase:
    """A clause such as 'stop next to the blue sofa' or 'wait in the doorway of the kitchen'."""
    place = len(words.route.stands) - 1
    stand = words.house.stands[words.route.stands[place]]
    verb = words.pick(lexicon.STOP)
    if stand.stairs:
        return _on_stairs(verb, stand, place)
    if stand.door >= 0:
        return _in_doorway(words, verb, stand, place)
    beside = _beside_thing(words, place)
    if beside.text:
        return joined(verb, beside)
    return joined(verb, _in_room(words, stand, place))


def _on_stairs(verb: str, stand: Stand, place: int) -> Phrase:
    claim = Claim("doorway", place, room=stand.room)
    if stand.stairs == "landing":
        return Phrase(f"{verb} on the landing", (claim,))
    return Phrase(f"{verb} at the {stand.stairs} of the stairs", (claim,))


def _in_doorway(words: Wording, verb: str, stand: Stand, place: int) -> Phrase:
    """In a doorway, named after the room that is not entered any more."""
    come_from = _room_walked(words, place)
    onward = next(room for room in words.house.doors[stand.door].rooms if room != come_from)
    claim = Claim("doorway", place, door=stand.door, room=onward)
    room = words.room(onward, place)
    wide = words.house.doors[stand.door].style == "opening"
    where = words.pick(
        ("in the opening to", "at the entrance to", "where you enter")
        if wide
        else ("in the doorway of", "at the door of", "in the doorway to", "at the entrance to")
    )
    return joined(verb, Phrase(where, (claim,)), room)


def _room_walked(words: Wording, place: int) -> int:
    """The room of the last edge."""
    stands = words.route.stands
    a, b = words.around.position[stands[place - 1]], words.around.position[stands[place]]
    x, y = (float(value) for value in (0.2 * a + 0.8 * b)[:2])
    door = words.house.doors[words.house.stands[stands[place]].door]
    return min(door.rooms, key=lambda room: gap_to(words.house.rooms[room].rect, x, y))


def _beside_thing(words: Wording, place: int) -> Phrase:
    """Beside, before or on something close by."""
    stand = words.house.stands[words.route.stands[place]]
    near = [
        number for number in words.finder.near(place) if words.around.landmarks[number].room == stand.room
    ]
    if not near:
        return Phrase("")
    number = near[0] if len(near) == 1 or words.chance(0.7) else near[1]
    thing, landmark = words.around.landmarks[number], words.landmark(number, place)
    claim = Claim("near", place, landmark=number)
    if thing.kind == "rug":
        on_it = thing.box.footprint.holds(stand.x, stand.y)
        return joined(Phrase("on" if on_it else "by", (claim,)), landmark)
    x, y = thing.box.footprint.centre
    east, north = stand.x - x, stand.y - y
    before = (east * thing.facing[0] + north * thing.facing[1]) / max(math.hypot(east, north), 1e-9) > 0.8
    where = words.pick(lexicon.BESIDE)
    if before and words.chance(0.6):
        where = "in front of"
    phrase = joined(Phrase(where, (claim,)), landmark)
    if words.chance(0.25):
        phrase = joined(phrase, words.within(stand.room), words.room(stand.room, place))
    return phrase


def _in_room(words: Wording, stand: Stand, place: int) -> Phrase:
    room = words.room(stand.room, place)
    rect = words.house.rooms[stand.room].rect
    x, y = rect.centre
    if math.hypot(stand.x - x, stand.y - y) < 0.9 and words.house.rooms[stand.room].kind != "hallway":
        return joined("in the middle of", room)
    within = words.within(stand.room)
    just_entered = words.house.stands[words.route.stands[place - 1]].door >= 0
    arriving = (f"once you are {within}", "when you reach", "as you enter") if just_entered else ()
    return joined(words.pick((within, *arriving)), room)
