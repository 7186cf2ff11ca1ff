"""The vocabulary of the workloads: plain English words and invented names, drawn at random.

The bundled model was trained on these words. Names have no meaning, so a model can only copy them.
"""

import keyword
import random
import tomllib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from bench import lexicon

NOUNS, ADJECTIVES, VERBS, FIELDS, NAMES = (
    lexicon.NOUNS[:180], lexicon.ADJECTIVES[:60], lexicon.VERBS[:80], lexicon.FIELDS, lexicon.NAMES[:240],
)  # fmt: skip
IDENTIFIER_WORDS = sorted({*NOUNS, *ADJECTIVES, *VERBS} - set(keyword.kwlist))
_FILE = Path(__file__).parent / "phrases.toml"
PHRASES: dict[str, list[str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
"""Forms of requests and sentences, by kind."""

ItemT = TypeVar("ItemT")
_NUM_SINGLE = 160
"""Number of names used alone; the others are used in pairs, so that no name is part of another."""


def kept(made: Iterator[ItemT]) -> Callable[[int], list[ItemT]]:
    """Return a function that returns the first items, which are made on demand and kept."""
    items: list[ItemT] = []

    def first(count: int) -> list[ItemT]:
        items.extend(islice(made, max(0, count - len(items))))
        return items[:count]

    return first


def names(rng: random.Random) -> Iterator[str]:
    """Yield distinct names of people: single words first, then pairs."""
    yield from rng.sample(NAMES[:_NUM_SINGLE], _NUM_SINGLE)
    yield from _distinct(lambda: " ".join(rng.sample(NAMES[_NUM_SINGLE:], 2)))


def identifiers(rng: random.Random) -> Iterator[str]:
    """Yield distinct identifiers of one or two words."""
    return _distinct(lambda: "_".join(rng.sample(IDENTIFIER_WORDS, rng.choice((1, 1, 2)))))


def phrase(rng: random.Random, kind: str, **names: Any) -> str:
    """Return one of the PHRASES of a kind, with the names filled in."""
    return rng.choice(PHRASES[kind]).format(**names)


def thing(rng: random.Random) -> str:
    """Return an adjective and a noun."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def number(rng: random.Random) -> int:
    """Return a whole number of up to four digits."""
    return rng.randrange(rng.choice((10, 100, 100, 100, 1000, 10000)))


def value(rng: random.Random) -> str | int:
    """Return a value for a field: a name, a word, two words or a number."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(NAMES)
    if kind < 0.6:
        return rng.choice(NOUNS) if kind < 0.45 else thing(rng)
    return number(rng)


def _distinct(make: Callable[[], str]) -> Iterator[str]:
    """Yield the results of make without repetitions."""
    seen: set[str] = set()
    while True:
        made = make()
        if made not in seen:
            seen.add(made)
            yield made
