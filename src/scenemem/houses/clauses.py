"""One clause per leg of a route: turning, walking, leaving and entering rooms, climbing stairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scenemem.houses import lexicon
from scenemem.houses.legs import Leg
from scenemem.houses.mentions import Claim
from scenemem.houses.wording import Phrase, Wording, joined

_SHORT = 1.5  # metres; shorter straight legs are not worth a clause
_LONG = 2.6  # metres; a leg one walks across a room


class Teller:
    """Turns the legs of one route into clauses."""

    def __init__(self, words: Wording, legs: Sequence[Leg]) -> None:
        self.words = words
        self.legs = legs
        self.house = words.house

    def tell(self, number: int) -> Phrase:
        """The clause of a leg; empty when the leg goes without saying."""
        leg = self.legs[number]
        if leg.climb:
            return self._climb(leg)
        if self.house.rooms[leg.room].kind == "stairs":
            return Phrase("")  # stepping off the stairs
        if leg.into >= 0 and self.house.rooms[leg.into].kind == "stairs":
            return self._to_stairs(leg)
        if leg.into >= 0:
            return self._through_door(leg, self.legs[number - 1] if number else None)
        return self._inside(leg, first=number == 0)

    def _climb(self, leg: Leg) -> Phrase:
        words = self.words
        way = "up" if leg.climb > 0 else "down"
        noun = words.pick(("stairs", "stairs", "staircase", "steps"))
        verb = words.pick(("go", "walk", "climb" if leg.climb > 0 else "go", "head"))
        stand = self.house.stands[words.route.stands[leg.stop]]
        ending = ""
        if stand.stairs in ("top", "bottom") and words.chance(0.35):
            ending = f"to the {stand.stairs}"
        if stand.stairs == "top" and words.chance(0.2):
            ending = "to the upper floor"
        claim = Claim("stairs", leg.start, leg.stop, side="up" if leg.climb > 0 else "down")
        return joined(verb, Phrase(f"{way} the {noun}", (claim,)), ending)

    def _to_stairs(self, leg: Leg) -> Phrase:
        words = self.words
        turn = words.turn(leg)
        if not turn.text:
            return self._walk(leg) if self.words.finder.length(leg) > _LONG else Phrase("")
        goal = words.pick(("to the stairs", "towards the stairs", "to the staircase"))
        return joined(turn, "and", words.pick(lexicon.WALK[:3]), goal)

    def _through_door(self, leg: Leg, before: Leg | None) -> Phrase:
        """Leave a room for the hallway, or enter the next room."""
        words = self.words
        out = self.house.rooms[leg.into].kind == "hallway"
        long = words.finder.length(leg) > _LONG
        past = self._past(leg) if long and words.chance(words.style.landmarks) else Phrase("")
        if out:
            core = self._leave(leg)
        elif words.chance(self._door_chance(leg, before)):
            core = joined(self._pass_verb(leg), words.door(leg, before))
            if words.chance(words.style.rooms):
                core = joined(core, f"{words.within(leg.into)}to", words.room(leg.into, leg.stop))
        else:
            core = joined(self._enter_verb(leg), words.room(leg.into, leg.stop), self._door_side(leg))
        move = joined(past, "and" if past.text else "", core)
        told = "on the" in core.text or "on your" in core.text
        return self._turned(leg, move, needed=not told and not out, share=0.4 if told else 1.0)

    def _door_chance(self, leg: Leg, before: Leg | None) -> float:
        """How often the door is described rather than only the room behind it."""
        if self.words.counted_door(leg, before).text:
            return 0.8
        return 0.5 if self.words.style.rooms > 0.5 else 0.7

    def _pass_verb(self, leg: Leg) -> str:
        if self.house.doors[leg.door].style == "opening":
            return self.words.pick(("go through", "walk through", "head through"))
        return self.words.pick(("go through", "take", "walk through", "enter"))

    def _enter_verb(self, leg: Leg) -> str:
        if self.house.rooms[leg.into].kind == "porch":
            return self.words.pick(("step out onto", "go out onto", "walk out onto"))
        return self.words.pick(lexicon.ENTER)

    def _door_side(self, leg: Leg) -> Phrase:
        side = self.words.door_side(leg)
        if not side or not self.words.chance(0.6):
            return Phrase("")
        own = self.words.pick(("the", "your"))
        return Phrase(f"on {own} {side}", (Claim("door side", leg.start, door=leg.door, side=side),))

    def _leave(self, leg: Leg) -> Phrase:
        """Out into the hallway."""
        words = self.words
        if words.chance(0.25):
            return joined(words.pick(("go", "walk", "head")), "out into", words.room(leg.into, leg.stop))
        core = joined(words.pick(lexicon.EXIT), words.room(leg.room, leg.start))
        if words.chance(words.style.landmarks * 0.5):
            near = words.fresh(words.finder.beside_door(leg.door, leg.stop - 1))
            if near:
                landmark = words.landmark(near[0], leg.stop - 1)
                core = joined(core, "through the door", words.pick(lexicon.BESIDE[:3]), landmark)
        elif words.chance(0.15):
            core = joined(core, "and enter", words.room(leg.into, leg.stop))
        return core

    def _inside(self, leg: Leg, *, first: bool) -> Phrase:
        """Walk within a room."""
        turn, short = self.words.turn(leg), self.words.finder.length(leg) < _SHORT
        if not turn.text and short and not first:
            return Phrase("")
        told = bool(turn.text) or self.words.chance(self.words.style.detail)
        move = self._walk(leg, plain=not short and told)
        if not move.text:
            return turn
        return self._turned(leg, move, needed=True)

    def _turned(self, leg: Leg, move: Phrase, *, needed: bool, share: float = 1.0) -> Phrase:
        """Put the turn before a move; a needed turn is always said, others as often as the speaker likes."""
        turn = self.words.turn(leg)
        if not turn.text or not self.words.chance(1.0 if needed else share * self.words.style.turns):
            return move
        if leg.start > 0 and self.words.chance(0.3 * self.words.style.landmarks):
            near = self.words.fresh(self.words.finder.near(leg.start, 1.1))
            if near:
                at = joined(self.words.pick(lexicon.REACHED), self.words.landmark(near[0], leg.start))
                return joined(Phrase(f"{at.text},", at.claims), turn, "and", move)
        return joined(turn, "and", move)

    def _walk(self, leg: Leg, *, plain: bool = True) -> Phrase:
        """Walk past, towards or along something; without ``plain`` only where there is a landmark."""
        words = self.words
        verb = words.pick(lexicon.WALK)
        if words.chance(words.style.landmarks):
            past, ahead = self._past(leg), words.fresh(words.finder.ahead(leg))
            if past.text and (not ahead or words.chance(0.55)):
                return past
            if ahead:
                landmark = words.landmark(ahead[0], leg.start)
                claim = Claim("ahead", leg.start, leg.stop, ahead[0])
                return joined(verb, Phrase(words.pick(lexicon.TOWARDS), (claim,)), landmark)
        if not plain:
            return Phrase("")
        kind = self.house.rooms[leg.room].kind
        if kind == "hallway":
            way = "to the end of" if self._ends_hallway(leg) else words.pick(("down", "along", "through"))
            return joined(verb, way, words.room(leg.room, leg.start))
        if self.words.finder.length(leg) > _LONG and words.chance(0.7):
            return joined(verb, words.pick(("across", "through")), words.room(leg.room, leg.start))
        return Phrase(f"{verb} {words.pick((*lexicon.AHEAD, 'a few steps'))}")

    def _past(self, leg: Leg) -> Phrase:
        words = self.words
        passed = [(number, side) for number, side in words.finder.passed(leg) if number not in words.named]
        if not passed or not words.chance(max(0.5, words.style.landmarks)):
            return Phrase("")
        number, side = passed[0] if words.chance(0.7) else words.pick(passed)
        claim = Claim("passes", leg.start, leg.stop, number, side if side and words.chance(0.35) else "")
        landmark = words.landmark(number, leg.start)
        where = f"on {words.pick(('the', 'your'))} {claim.side}" if claim.side else ""
        return joined(Phrase(words.pick(lexicon.PAST), (claim,)), landmark, where)

    def _ends_hallway(self, leg: Leg) -> bool:
        """Whether a leg leads to the end of a hallway."""
        rect, stands = self.house.rooms[leg.room].rect, self.words.route.stands
        x, y, _ = (float(value) for value in self.words.around.position[stands[leg.stop]])
        step = math.sin(leg.heading), math.cos(leg.heading)
        if abs(step[0]) > abs(step[1]):
            left = rect.x1 - x if step[0] > 0 else x - rect.x0
        else:
            left = rect.y1 - y if step[1] > 0 else y - rect.y0
        return left < 1.3 and self.words.finder.length(leg) > 2.0
