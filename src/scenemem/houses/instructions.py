"""English instructions for a route, written from the scene and the geometry alone.

Every instruction comes with the claims it makes, so that each of them can be checked against the house.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from scenemem.houses.house import KINDS, MATERIAL_WORDS, PHRASES, ROOM_KINDS, Stand
from scenemem.houses.viewpoints import LandmarkWalk, Leg, Route, Side, Surroundings, turn_between

_T = TypeVar("_T")

_BUILDING_WORDS = {"window": ("window",), "front door": ("front door", "main door")}

_SLIGHT, _CLEAR, _BACK = math.radians(35), math.radians(55), math.radians(150)  # turns
_SHORT = 1.5  # metres; shorter straight legs are not worth a clause
_LONG = 2.6  # metres; a leg one walks across a room
_AT_HAND = 2.2  # metres; doors farther away are not "on the left"

Subject = Literal[
    "sees",  # the landmark can be seen from the viewpoint
    "passes",  # it lies beside the way, on ``side`` if that is said
    "ahead",  # it lies straight ahead on the way
    "near",  # it is close to the viewpoint
    "turn",  # the way turns to ``side``
    "door side",  # the door lies on ``side`` of someone arriving at the viewpoint
    "ordinal",  # it is door ``number`` on ``side``, counted from the viewpoint
    "room",  # the viewpoint lies in the room, or in a door of it
    "stairs",  # the way leads up or down the stairs
    "doorway",  # the viewpoint is in the door, or on the part of the stairs that was named
]


@dataclass(frozen=True)
class Claim:
    """Something an instruction says that must be true; steps are indices into ``Route.stands``."""

    about: Subject
    step: int  # where it is said
    until: int = -1  # the step it reaches to, where that matters
    landmark: int = -1  # index into Surroundings.landmarks
    side: Side | Literal["around", "up", "down"] = ""
    room: int = -1
    door: int = -1
    number: int = 0  # of an ordinal


class Phrase(NamedTuple):
    """Words and what they claim; false when there are no words."""

    text: str
    claims: tuple[Claim, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text)


_EMPTY = Phrase("")


def joined(*parts: Phrase | Claim | str) -> Phrase:
    """Phrases, plain words and claims in one phrase; what is empty leaves no trace."""
    words: list[str] = []
    claims: list[Claim] = []
    for part in parts:
        if isinstance(part, Claim):
            claims.append(part)
        else:
            phrase = Phrase(part) if isinstance(part, str) else part
            words += [phrase.text] if phrase else []
            claims += phrase.claims
    return Phrase(" ".join(words), tuple(claims))


def turn_word(angle: float) -> Side | Literal["around"]:
    """left, right or around; empty for a turn too small to mention."""
    if abs(angle) < _SLIGHT:
        return ""
    if abs(angle) > _BACK:
        return "around"
    return "right" if angle > 0 else "left"


@dataclass(frozen=True)
class Style:
    """How a speaker likes to describe a route; shares between 0 and 1."""

    landmarks: float  # how often a landmark is mentioned where there is one
    turns: float  # how often a turn is mentioned where something else tells the way
    rooms: float  # how often rooms are named
    colours: float  # how often the colour of a thing is named
    detail: float  # how often going straight on is mentioned where there is nothing to see


STYLES = (
    Style(landmarks=0.6, turns=0.95, rooms=0.6, colours=0.5, detail=0.6),  # names every turn
    Style(landmarks=0.95, turns=0.55, rooms=0.45, colours=0.75, detail=0.4),  # goes by what there is to see
    Style(landmarks=0.35, turns=0.7, rooms=0.9, colours=0.35, detail=0.15),  # short, names the rooms
)
"""One speaker per instruction of a route."""


def write_instructions(around: Surroundings, route: Route, rng: np.random.Generator) -> tuple[Phrase, ...]:
    """Differently worded instructions for one route, one per style."""
    walk = LandmarkWalk(around, route)
    return tuple(_Speaker(walk, style, rng).instruction() for style in STYLES)


class _Speaker:
    """Describes one route in one style."""

    def __init__(self, walk: LandmarkWalk, style: Style, rng: np.random.Generator) -> None:
        self.walk = walk
        self.house = walk.house
        self.landmarks = walk.around.landmarks
        self.stands = [walk.house.stands[number] for number in walk.stands]
        self.style = style
        self.rng = rng
        self.named: set[int] = set()  # landmarks mentioned so far

    def instruction(self) -> Phrase:
        """Clauses joined into sentences of one to three clauses; the last one says where to stop."""
        legs = zip(self.walk.legs, (None, *self.walk.legs), strict=False)
        clauses = [clause for leg, before in legs if (clause := self._clause(leg, before))]
        clauses.append(self._stop())
        sentences: list[Phrase] = []
        while clauses:
            size = min(len(clauses), self._pick((1, 1, 2, 2, 2, 3)))
            sentence = clauses[0]
            for clause in clauses[1:size]:
                plain = " and " not in sentence.text + clause.text
                link = self._say("links") if plain else ", then "
                sentence = Phrase(sentence.text + link + clause.text, sentence.claims + clause.claims)
            clauses = clauses[size:]
            opener = self._say("openers") if sentences and self._chance(0.15) else ""
            text = opener + (sentence.text if opener else sentence.text[0].upper() + sentence.text[1:])
            sentences.append(Phrase(f"{text}.", sentence.claims))
        return joined(*sentences)

    def _chance(self, share: float) -> bool:
        """True in ``share`` of all cases."""
        return bool(self.rng.random() < share)

    def _pick(self, options: Sequence[_T]) -> _T:
        return options[int(self.rng.integers(len(options)))]

    def _say(self, what: str) -> str:
        """One of the ways to say something."""
        return self._pick(PHRASES[what])

    # Clauses: one per leg.

    def _clause(self, leg: Leg, before: Leg | None) -> Phrase:
        """The clause of a leg; empty when the leg goes without saying."""
        if leg.climb:
            return self._climb(leg)
        if self._kind(leg.room) == "stairs":
            return _EMPTY  # stepping off the stairs
        if leg.into < 0:
            return self._inside(leg, first=before is None)
        if self._kind(leg.into) == "stairs":
            return self._to_stairs(leg)
        return self._through_door(leg, before)

    def _kind(self, room: int) -> str:
        return self.house.rooms[room].kind

    def _climb(self, leg: Leg) -> Phrase:
        way: Literal["up", "down"] = "up" if leg.climb > 0 else "down"
        noun = self._pick(("stairs", "stairs", "staircase", "steps"))
        verb = self._pick(("go", "walk", "climb" if leg.climb > 0 else "go", "head"))
        end, ending = self.stands[leg.stop].stairs, ""
        if end in ("top", "bottom") and self._chance(0.35):
            ending = f"to the {end}"
        if end == "top" and self._chance(0.2):
            ending = "to the upper floor"
        return joined(verb, way, "the", noun, ending, Claim("stairs", leg.start, leg.stop, side=way))

    def _to_stairs(self, leg: Leg) -> Phrase:
        turn = self._turn(leg)
        if not turn:
            return self._go(leg) if self.walk.length(leg) > _LONG else _EMPTY
        goal = self._pick(("to the stairs", "towards the stairs", "to the staircase"))
        return joined(turn, "and", self._pick(PHRASES["walk"][:3]), goal)

    def _through_door(self, leg: Leg, before: Leg | None) -> Phrase:
        """Leave a room for the hallway, or enter the next room."""
        out = self._kind(leg.into) == "hallway"
        long = self.walk.length(leg) > _LONG
        past = self._past(leg) if long and self._chance(self.style.landmarks) else _EMPTY
        if out:
            core = self._leave(leg)
        elif self._chance(self._door_chance(leg, before)):
            core = joined(self._say(f"pass {self.house.doors[leg.door].style}"), self._door(leg, before))
            if self._chance(self.style.rooms):
                core = joined(core, f"{self._within(leg.into)}to", self._room(leg.into, leg.stop))
        else:
            verb = self._say("onto" if self._kind(leg.into) == "porch" else "enter")
            core = joined(verb, self._room(leg.into, leg.stop), self._on_door_side(leg, share=0.6))
        move = joined(past, "and" if past else "", core)
        sided = "on the" in core.text or "on your" in core.text
        return self._turned(leg, move, needed=not sided and not out, share=0.4 if sided else 1.0)

    def _door_chance(self, leg: Leg, before: Leg | None) -> float:
        """How often the door is described rather than only the room behind it."""
        if self._counted_door(leg, before):
            return 0.8
        return 0.5 if self.style.rooms > 0.5 else 0.7

    def _leave(self, leg: Leg) -> Phrase:
        """Out into the hallway."""
        if self._chance(0.25):
            return joined(self._pick(("go", "walk", "head")), "out into", self._room(leg.into, leg.stop))
        core = joined(self._say("exit"), self._room(leg.room, leg.start))
        if self._chance(self.style.landmarks * 0.5):
            near = self._unnamed(self.walk.beside_door(leg))
            if near:
                landmark = self._landmark(near[0], leg.stop - 1)
                core = joined(core, "through the door", self._pick(PHRASES["beside"][:3]), landmark)
        elif self._chance(0.15):
            core = joined(core, "and enter", self._room(leg.into, leg.stop))
        return core

    def _inside(self, leg: Leg, *, first: bool) -> Phrase:
        """Walk within a room."""
        turn, short = self._turn(leg), self.walk.length(leg) < _SHORT
        if not turn and short and not first:
            return _EMPTY
        detailed = bool(turn) or self._chance(self.style.detail)
        move = self._go(leg, plain=not short and detailed)
        return self._turned(leg, move, needed=True) if move else turn

    def _turned(self, leg: Leg, move: Phrase, *, needed: bool, share: float = 1.0) -> Phrase:
        """Put the turn before a move; a needed turn is always said, others as often as the speaker likes."""
        turn = self._turn(leg)
        if not turn or not self._chance(1.0 if needed else share * self.style.turns):
            return move
        if leg.start > 0 and self._chance(0.3 * self.style.landmarks):
            near = self._unnamed(self.walk.near(leg.start, 1.1))
            if near:
                at = joined(self._say("reached"), self._landmark(near[0], leg.start))
                return joined(Phrase(f"{at.text},", at.claims), turn, "and", move)
        return joined(turn, "and", move)

    def _go(self, leg: Leg, *, plain: bool = True) -> Phrase:
        """Walk past, towards or along something; without ``plain`` only where there is a landmark."""
        verb = self._say("walk")
        if self._chance(self.style.landmarks):
            past, ahead = self._past(leg), self._unnamed(self.walk.ahead(leg))
            if past and (not ahead or self._chance(0.55)):
                return past
            if ahead:
                landmark = self._landmark(ahead[0], leg.start)
                claim = Claim("ahead", leg.start, leg.stop, ahead[0])
                return joined(verb, self._say("towards"), landmark, claim)
        if not plain:
            return _EMPTY
        if self._kind(leg.room) == "hallway":
            way = "to the end of" if self._ends_hallway(leg) else self._pick(("down", "along", "through"))
            return joined(verb, way, self._room(leg.room, leg.start))
        if self.walk.length(leg) > _LONG and self._chance(0.7):
            return joined(verb, self._pick(("across", "through")), self._room(leg.room, leg.start))
        return joined(verb, self._say("forward"))

    def _past(self, leg: Leg) -> Phrase:
        passed = [(number, side) for number, side in self.walk.passed(leg) if number not in self.named]
        if not passed or not self._chance(max(0.5, self.style.landmarks)):
            return _EMPTY
        number, side = passed[0] if self._chance(0.7) else self._pick(passed)
        claim = Claim("passes", leg.start, leg.stop, number, side if side and self._chance(0.35) else "")
        landmark = self._landmark(number, leg.start)
        where = self._on(claim.side) if claim.side else ""
        return joined(self._say("past"), landmark, where, claim)

    def _ends_hallway(self, leg: Leg) -> bool:
        """Whether a leg leads to the end of a hallway."""
        rect, (x, y, _) = self.house.rooms[leg.room].rect, self.walk.spot(leg.stop)
        east, north = math.sin(leg.heading), math.cos(leg.heading)
        if abs(east) > abs(north):
            left = rect.x1 - x if east > 0 else x - rect.x0
        else:
            left = rect.y1 - y if north > 0 else y - rect.y0
        return left < 1.3 and self.walk.length(leg) > 2.0

    # Phrases: names of landmarks, rooms, turns and doors.

    def _landmark(self, number: int, step: int) -> Phrase:
        """A landmark as seen from a viewpoint of the route: 'the blue sofa', 'a wooden desk'."""
        self.named.add(number)
        thing = self.landmarks[number]
        model = KINDS.get(thing.kind)
        others = self.walk.same_kind(number, step)
        adjectives = []
        telling = any(other.colour != thing.colour for other in others)
        if model and len(model.colours) > 1 and self._chance(0.9 if telling else self.style.colours):
            adjectives.append(thing.colour)
        material = MATERIAL_WORDS.get(thing.material)
        if material and model and len(model.materials) > 1 and self._chance(0.2):
            adjectives.append(material)
        noun = " ".join([*adjectives, self._pick(model.words if model else _BUILDING_WORDS[thing.kind])])
        indefinite = "an" if noun[0] in "aeiou" else "a"
        article = "the" if not others or self._chance(0.5) else indefinite
        return joined(article, noun, Claim("sees", step, landmark=number))

    def _unnamed(self, numbers: Sequence[int]) -> list[int]:
        """The landmarks among these that were not mentioned yet."""
        return [number for number in numbers if number not in self.named]

    def _room(self, number: int, step: int) -> Phrase:
        """A room that is at, or entered from, a viewpoint of the route: 'the kitchen'."""
        words = ROOM_KINDS[self._kind(number)].words
        word = words[0] if self._chance(0.7) else self._pick(words)
        return joined("the", word, Claim("room", step, room=number))

    def _within(self, number: int) -> str:
        """The preposition for being in a room."""
        return "on" if self._kind(number) == "porch" else "in"

    def _on(self, side: str) -> str:
        return f"on {self._pick(('the', 'your'))} {side}"

    def _turn(self, leg: Leg) -> Phrase:
        """The turn at the start of a leg, empty when it goes straight on."""
        side = turn_word(leg.turn)
        if not side:
            return _EMPTY
        slight = abs(leg.turn) < _CLEAR and self._chance(0.5)
        return joined(
            self._say(f"{'bear' if slight else 'turn'} {side}"), Claim("turn", leg.start, side=side)
        )

    def _door(self, leg: Leg, before: Leg | None) -> Phrase:
        """The door at the end of a leg: which one it is, as well as the surroundings allow."""
        counted = self._counted_door(leg, before)
        if counted and self._chance(0.8):
            return counted
        options = [self._door_beside, self._door_on_side]
        if not self._chance(0.5):
            options.reverse()
        return options[0](leg) or options[1](leg) or counted or joined("the", self._door_word(leg))

    def _door_word(self, leg: Leg) -> str:
        return "opening" if self.house.doors[leg.door].style == "opening" else self._say("doorway")

    def _door_beside(self, leg: Leg) -> Phrase:
        near = self._unnamed(self.walk.beside_door(leg))
        if not near:
            return _EMPTY
        landmark = self._landmark(near[0], leg.stop - 1)
        return joined("the", self._door_word(leg), self._pick(PHRASES["beside"][:4]), landmark)

    def _door_on_side(self, leg: Leg) -> Phrase:
        where = self._on_door_side(leg)
        return joined("the", self._door_word(leg), where) if where else _EMPTY

    def _on_door_side(self, leg: Leg, share: float = 1.0) -> Phrase:
        """The side of a door near the start of a leg and not ahead, in ``share`` of all cases."""
        door, (x, y, _) = self.house.doors[leg.door], self.walk.spot(leg.start)
        bearing = turn_between(leg.before, math.atan2(door.x - x, door.y - y))
        aside = math.radians(30) < abs(bearing) < math.radians(150)
        if self.walk.length(leg) > _AT_HAND or not aside or (share < 1 and not self._chance(share)):
            return _EMPTY
        side: Side = "right" if bearing > 0 else "left"
        return joined(self._on(side), Claim("door side", leg.start, door=leg.door, side=side))

    def _counted_door(self, leg: Leg, before: Leg | None) -> Phrase:
        """'the second door on the left', counted from where one starts down the hallway."""
        if self._kind(leg.room) != "hallway":
            return _EMPTY
        walked = before if before is not None and before.room == leg.room and before.door < 0 else leg
        sides: tuple[Side, Side] = ("left", "right")
        for side in sides:
            doors = self.walk.doors_ahead(walked, side)
            if leg.door in doors and len(doors) > 1:
                number = doors.index(leg.door)
                last = number == len(doors) - 1 and self._chance(0.4)
                word = "last" if last else PHRASES["ordinals"][number]
                claim = Claim("ordinal", walked.start, door=leg.door, side=side, number=number + 1)
                return joined("the", word, "door", self._on(side), claim)
        return _EMPTY

    # The last clause: where to stop, and how one knows.

    def _stop(self) -> Phrase:
        """A clause such as 'stop next to the blue sofa' or 'wait in the doorway of the kitchen'."""
        step = len(self.stands) - 1
        stand = self.stands[step]
        verb = self._say("stop")
        if stand.stairs:
            where = "on the landing" if stand.stairs == "landing" else f"at the {stand.stairs} of the stairs"
            return joined(verb, where, Claim("doorway", step, room=stand.room))
        if stand.door >= 0:
            return joined(verb, self._in_doorway(stand, step))
        return joined(verb, self._beside_thing(stand, step) or self._in_room(stand, step))

    def _in_doorway(self, stand: Stand, step: int) -> Phrase:
        """In a doorway, named after the room that is not entered any more."""
        door = self.house.doors[stand.door]
        a, b = self.stands[step - 1], self.stands[step]
        x, y = 0.2 * a.x + 0.8 * b.x, 0.2 * a.y + 0.8 * b.y
        come_from = min(door.rooms, key=lambda room: self.house.rooms[room].rect.distance(x, y))
        onward = next(room for room in door.rooms if room != come_from)
        room = self._room(onward, step)
        where = self._pick(
            ("in the opening to", "at the entrance to", "where you enter")
            if door.style == "opening"
            else ("in the doorway of", "at the door of", "in the doorway to", "at the entrance to")
        )
        return joined(where, room, Claim("doorway", step, door=stand.door, room=onward))

    def _beside_thing(self, stand: Stand, step: int) -> Phrase:
        """Beside, before or on something close by."""
        near = [n for n in self.walk.near(step) if self.landmarks[n].room == stand.room]
        if not near:
            return _EMPTY
        number = near[0] if len(near) == 1 or self._chance(0.7) else near[1]
        thing, landmark = self.landmarks[number], self._landmark(number, step)
        claim = Claim("near", step, landmark=number)
        if thing.kind == "rug":
            return joined("on" if thing.box.footprint.holds(stand.x, stand.y) else "by", landmark, claim)
        x, y = thing.box.footprint.centre
        east, north = stand.x - x, stand.y - y
        ahead = east * thing.facing[0] + north * thing.facing[1]
        where = self._say("beside")
        if ahead / max(math.hypot(east, north), 1e-9) > 0.8 and self._chance(0.6):
            where = "in front of"
        phrase = joined(where, landmark, claim)
        if self._chance(0.25):
            phrase = joined(phrase, self._within(stand.room), self._room(stand.room, step))
        return phrase

    def _in_room(self, stand: Stand, step: int) -> Phrase:
        room, name = self.house.rooms[stand.room], self._room(stand.room, step)
        x, y = room.rect.centre
        if math.hypot(stand.x - x, stand.y - y) < 0.9 and room.kind != "hallway":
            return joined("in the middle of", name)
        within = self._within(stand.room)
        just_entered = self.stands[step - 1].door >= 0
        arriving = (f"once you are {within}", "when you reach", "as you enter") if just_entered else ()
        return joined(self._pick((within, *arriving)), name)
