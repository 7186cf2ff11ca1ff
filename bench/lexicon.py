"""The words of the workloads and of the training text, which needs nothing but the standard library."""

import random
import tomllib
from pathlib import Path

_LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()
NOUNS, ADJECTIVES, VERBS, FIELDS, POLISH_NOUNS, POLISH_ADJECTIVES, POLISH_NAMES, _ONSETS = (
    words.split() for words in _LISTS
)


def _made_up(count: int, seed: int, taken: set[str]) -> list[str]:
    """Make up words that are not taken, from random syllables."""
    rng = random.Random(seed)
    codas = ["", "", *"lnrsmkx", "nd", "rt"]
    words: list[str] = []
    while len(words) < count:
        word = "".join(rng.choice(part) for part in (_ONSETS, "aeiou", _ONSETS, "aeiou", codas))
        if word not in taken and 4 <= len(word) <= 7:
            taken.add(word)
            words.append(word)
    return words


_taken = {*NOUNS, *ADJECTIVES, *VERBS, *FIELDS}
NAMES = [word.capitalize() for word in _made_up(320, 1, _taken)]
COINED = _made_up(260, 2, _taken)
IDENTIFIER_WORDS = sorted({*NOUNS, *ADJECTIVES, *VERBS, *COINED})
