"""English instructions for a route, told from the scene and the geometry alone.

Every instruction comes with the claims it makes, so that each of them can be checked against the house.
"""

from __future__ import annotations

import numpy as np

from scenemem.houses import lexicon
from scenemem.houses.clauses import Teller
from scenemem.houses.legs import cut_into_legs
from scenemem.houses.mentions import Finder
from scenemem.houses.routes import Route
from scenemem.houses.stopping import tell_stop
from scenemem.houses.surroundings import Surroundings
from scenemem.houses.wording import Phrase, Style, Wording, joined

STYLES = (
    Style(landmarks=0.6, turns=0.95, rooms=0.6, colours=0.5, detail=0.6),  # tells every turn
    Style(landmarks=0.95, turns=0.55, rooms=0.45, colours=0.75, detail=0.4),  # goes by what there is to see
    Style(landmarks=0.35, turns=0.7, rooms=0.9, colours=0.35, detail=0.15),  # short, names the rooms
)
"""One speaker per instruction of a route."""


def instruct(around: Surroundings, route: Route, rng: np.random.Generator) -> tuple[Phrase, ...]:
    """Differently worded instructions for one route, one per style."""
    finder, legs = Finder(around, route), cut_into_legs(around, route)
    spoken = []
    for style in STYLES:
        words = Wording(finder, style, rng)
        teller = Teller(words, legs)
        clauses = [teller.tell(number) for number in range(len(legs))]
        spoken.append(_sentences(words, [clause for clause in clauses if clause.text], tell_stop(words)))
    return tuple(spoken)


def _sentences(words: Wording, clauses: list[Phrase], stop: Phrase) -> Phrase:
    """Clauses joined into sentences of one to three clauses; the stop ends the last one or stands alone."""
    sentences: list[Phrase] = []
    rest = [*clauses, stop]
    while rest:
        size = min(len(rest), int(words.pick((1, 1, 2, 2, 2, 3))))
        group, rest = rest[:size], rest[size:]
        sentence = group[0]
        for clause in group[1:]:
            plain = " and " not in sentence.text + clause.text
            link = words.pick(lexicon.LINK) if plain else ", then "
            sentence = Phrase(sentence.text + link + clause.text, sentence.claims + clause.claims)
        opener = words.pick(lexicon.OPENERS) if sentences and words.chance(0.15) else ""
        text = opener + (sentence.text if opener else sentence.text[0].upper() + sentence.text[1:])
        sentences.append(Phrase(f"{text}.", sentence.claims))
    return joined(*sentences)
