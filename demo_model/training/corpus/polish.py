"""Put Polish words into the corpus: text with diacritics, for a model of another vocabulary.

The sentences stay English and the tasks stay the same. Nouns, adjectives and names become Polish, each the
same throughout a conversation.
"""

import random
import re

from reprise.bench.lexicon import (
    ADJECTIVES,
    COINED,
    NAMES,
    NOUNS,
    POLISH_ADJECTIVES,
    POLISH_NAMES,
    POLISH_NOUNS,
)

_KINDS = [
    (set(NOUNS) | set(COINED), POLISH_NOUNS),
    (set(ADJECTIVES), POLISH_ADJECTIVES),
    ({name.lower() for name in NAMES}, [name.lower() for name in POLISH_NAMES]),
]


def in_polish(pieces: list[tuple[str, bool]], rng: random.Random) -> list[tuple[str, bool]]:
    """Replace the nouns, adjectives and names of a rendered conversation by Polish ones."""
    known: dict[str, str] = {}
    supplies = [iter(rng.sample(words, len(words))) for _, words in _KINDS]

    def respell(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word not in known:
            kind = next((k for k, (words, _) in enumerate(_KINDS) if word in words), None)
            known[word] = word if kind is None else next(supplies[kind], word)
        return known[word].capitalize() if match[0][0].isupper() else known[word]

    return [(re.sub(r"[A-Za-z]+", respell, text), is_answer) for text, is_answer in pieces]
