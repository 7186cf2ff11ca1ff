"""The words of the bundled model's training text, of which workloads use the first ones.

Common English words, made-up names, and Polish words, all different. Nothing but the standard library is
imported, so that the training script can use it anywhere.
"""

import random
import tomllib
from pathlib import Path

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NOUNS, ADJECTIVES, VERBS, FIELDS = (_TEXTS[one].split() for one in ("nouns", "adjectives", "verbs", "fields"))
POLISH_NOUNS, POLISH_ADJECTIVES, POLISH_NAMES = (
    _TEXTS[f"polish_{one}"].split() for one in ("nouns", "adjectives", "names")
)


def _made_up(count: int, seed: int, taken: set[str]) -> list[str]:
    """Make up words that are not taken, from random syllables."""
    rng = random.Random(seed)
    onsets = _TEXTS["onsets"].split()
    vowels = "aeiou"
    codas = ["", "", "l", "n", "r", "s", "m", "k", "x", "nd", "rt"]
    words: list[str] = []
    while len(words) < count:
        word = rng.choice(onsets) + rng.choice(vowels)
        word += rng.choice(onsets) + rng.choice(vowels) + rng.choice(codas)
        if word not in taken and 4 <= len(word) <= 7:
            taken.add(word)
            words.append(word)
    return words


_taken = set(NOUNS) | set(ADJECTIVES) | set(VERBS) | set(FIELDS)
NAMES = [word.capitalize() for word in _made_up(320, 1, _taken)]
COINED = _made_up(260, 2, _taken)
IDENTIFIER_WORDS = sorted(set(NOUNS + ADJECTIVES + VERBS + COINED))
