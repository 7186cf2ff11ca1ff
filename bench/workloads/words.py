"""The vocabulary of the workloads: plain English words and invented names, drawn at random.

The bundled model was trained on these words. Names have no meaning, so a model can only copy them.
"""

import keyword
import random
import re
from collections.abc import Callable, Iterator
from functools import cache

from reprise.bench import lexicon

NOUNS, ADJECTIVES, VERBS = lexicon.NOUNS[:180], lexicon.ADJECTIVES[:60], lexicon.VERBS[:80]
FIELDS, NAMES = lexicon.FIELDS, lexicon.NAMES[:240]
IDENTIFIER_WORDS = sorted({*NOUNS, *ADJECTIVES, *VERBS} - set(keyword.kwlist))


def names(rng: random.Random) -> Iterator[str]:
    """Yield names of people, none of which is part of another: single words first, then pairs of others."""
    single, paired = NAMES[:160], NAMES[160:]
    yield from rng.sample(single, len(single))
    yield from _distinct(lambda: " ".join(rng.sample(paired, 2)))


def identifiers(rng: random.Random) -> Iterator[str]:
    """Yield distinct identifiers of one or two words."""
    return _distinct(lambda: "_".join(rng.sample(IDENTIFIER_WORDS, rng.choice((1, 1, 2)))))


def thing(rng: random.Random) -> str:
    """Return an adjective and a noun."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def number(rng: random.Random) -> int:
    """Return a whole number of up to four digits."""
    return rng.randrange(rng.choice((10, 100, 100, 100, 1000, 10000)))


def value(rng: random.Random) -> str | int:
    """Return a value for a field: a name, a word, two words or a number."""
    kind = rng.random()
    if kind < 0.45:
        return str(rng.choice(NAMES if kind < 0.3 else NOUNS))
    return thing(rng) if kind < 0.6 else number(rng)


def polonizer(rng: random.Random) -> Callable[[str], str]:
    """Return a function that replaces the nouns, adjectives and names of a text by Polish ones.

    Vocabularies differ in how they tokenize the diacritics. A word is always replaced by the same Polish
    word, and stays as it is once the Polish words have run out.
    """
    supply_of: dict[str, Iterator[str]] = {}
    for english, polish in (
        (NOUNS, lexicon.POLISH_NOUNS), (ADJECTIVES, lexicon.POLISH_ADJECTIVES), (NAMES, lexicon.POLISH_NAMES)
    ):  # fmt: skip
        supply = map(str.lower, rng.sample(polish, len(polish)))
        supply_of |= {word.lower(): supply for word in english}

    @cache
    def polish_of(word: str) -> str:
        if word.istitle():
            return polish_of(word.lower()).capitalize()
        return next(supply_of.get(word, iter(())), word)

    return lambda text: re.sub(r"[A-Za-z]+", lambda match: polish_of(match[0]), text)


def _distinct(make: Callable[[], str]) -> Iterator[str]:
    """Yield the results of make without repetitions."""
    seen: set[str] = set()
    while True:
        if (made := make()) not in seen:
            seen.add(made)
            yield made
