"""Chats with Polish words, whose diacritics different vocabularies tokenize differently."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bench.lexicon import POLISH_ADJECTIVES, POLISH_NAMES, POLISH_NOUNS
from bench.workloads import edits, questions
from bench.workloads.chats import Grow, Turn, Workload
from bench.workloads.words import ADJECTIVES, NAMES, NOUNS

_KINDS = [
    (frozenset(word.lower() for word in english), [word.lower() for word in polish])
    for english, polish in ((NOUNS, POLISH_NOUNS), (ADJECTIVES, POLISH_ADJECTIVES), (NAMES, POLISH_NAMES))
]


def _in_polish(family: Workload, rng: random.Random, grow: Grow) -> Sequence[Turn]:
    """Make a chat; replace nouns, adjectives and names by Polish ones, one for one, until they run out."""
    turns = family.make(rng, grow)
    supplies = [(english, iter(rng.sample(polish, len(polish)))) for english, polish in _KINDS]
    known: dict[str, str] = {}

    def translate(match: re.Match[str]) -> str:
        word, lower = match[0], match[0].lower()
        if lower not in known:
            supply = next((supply for english, supply in supplies if lower in english), iter(()))
            known[lower] = next(supply, lower)
        other = known[lower]
        # Words that are not ours keep their capitals, so they are returned unchanged.
        return word if other == lower else other.capitalize() if word[0].isupper() else other

    def respell(text: str) -> str:
        return re.sub(r"[A-Za-z]+", translate, text)

    return [
        replace(
            turn, messages=tuple(one | {"content": respell(one["content"])} for one in turn.messages),
            reference=respell(turn.reference or ""),
        )
        for turn in turns
    ]  # fmt: skip


WORKLOADS = tuple(
    Workload(f"{one.name}_polish", f"{one.summary}; with Polish words", partial(_in_polish, one))
    for one in (*edits.WORKLOADS, *questions.LOOKUPS)
    if one.name in ("edits", "quotes", "passages", "records")
)
