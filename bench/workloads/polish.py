"""Chats with Polish words: text with diacritics, which different vocabularies tokenize differently.

The requests stay in English; nouns, adjectives and names are replaced by Polish ones, consistently within a
chat and in identifiers too. The bundled Polish draft model was trained on these words.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from bench.lexicon import POLISH_ADJECTIVES, POLISH_NAMES, POLISH_NOUNS
from bench.workloads import edits, lookups
from bench.workloads.chats import Grow, Turn, Workload
from bench.workloads.words import ADJECTIVES, NAMES, NOUNS

_KINDS = (
    (frozenset(NOUNS), POLISH_NOUNS),
    (frozenset(ADJECTIVES), POLISH_ADJECTIVES),
    (frozenset(name.lower() for name in NAMES), [name.lower() for name in POLISH_NAMES]),
)
_WORD = re.compile(r"[A-Za-z]+")
_SUFFIX = "_polish"


class _Speller:
    """Replaces English words by Polish ones, one for one, until they run out."""

    def __init__(self, rng: random.Random) -> None:
        self._supplies = [iter(rng.sample(polish, len(polish))) for _, polish in _KINDS]
        self._known: dict[str, str] = {}

    def respell(self, text: str) -> str:
        """Return the text with the workloads' nouns, adjectives and names in Polish."""
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def _word(self, word: str) -> str:
        lower = word.lower()
        if lower not in self._known:
            kind = next((at for at, (english, _) in enumerate(_KINDS) if lower in english), None)
            self._known[lower] = lower if kind is None else next(self._supplies[kind], lower)
        other = self._known[lower]
        # Words that are not ours keep their capitals, so they are returned unchanged.
        return word if other == lower else other.capitalize() if word[0].isupper() else other


def in_polish(turns: Sequence[Turn], rng: random.Random) -> list[Turn]:
    """Return the turns of a chat with Polish words in messages and references. Tools and schemas stay."""
    speller = _Speller(rng)
    return [
        replace(
            turn,
            messages=tuple({**one, "content": speller.respell(one["content"])} for one in turn.messages),
            reference=None if turn.reference is None else speller.respell(turn.reference),
        )
        for turn in turns
    ]


def _variant(family: Workload) -> Workload:
    def make(rng: random.Random, grow: Grow) -> Sequence[Turn]:
        return in_polish(family.make(rng, grow), rng)

    return Workload(family.name + _SUFFIX, f"{family.summary}; with Polish words", make)


_FAMILIES = (*edits.WORKLOADS, *lookups.WORKLOADS)
_CHOSEN = ("edits", "quotes", "passages", "records")

WORKLOADS = tuple(_variant(family) for family in _FAMILIES if family.name in _CHOSEN)
