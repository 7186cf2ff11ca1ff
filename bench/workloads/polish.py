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


def in_polish(turns: Sequence[Turn], rng: random.Random) -> list[Turn]:
    """Return the turns of a chat with Polish words in messages and references. Tools and schemas stay."""
    supplies = [iter(rng.sample(polish, len(polish))) for _, polish in _KINDS]
    known: dict[str, str] = {}

    def translate(match: re.Match[str]) -> str:
        """Replace nouns, adjectives and names by Polish ones, one for one, until they run out."""
        word, lower = match[0], match[0].lower()
        if lower not in known:
            kind = next((at for at, (english, _) in enumerate(_KINDS) if lower in english), None)
            known[lower] = lower if kind is None else next(supplies[kind], lower)
        other = known[lower]
        # Words that are not ours keep their capitals, so they are returned unchanged.
        return word if other == lower else other.capitalize() if word[0].isupper() else other

    def respell(text: str) -> str:
        return _WORD.sub(translate, text)

    return [
        replace(
            turn,
            messages=tuple({**one, "content": respell(one["content"])} for one in turn.messages),
            reference=None if turn.reference is None else respell(turn.reference),
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
