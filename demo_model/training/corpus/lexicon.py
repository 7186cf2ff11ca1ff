"""The words of the corpus: common English words and made-up names.

The tokenizer is trained so that most words are one token. Words are combined at
random, so there is nothing to memorize: a model that does well has learned to copy.
"""

import random

from reprise.bench.lexicon import ADJECTIVES, IDENTIFIER_WORDS, NAMES, NOUNS, VERBS


class Words:
    """Random words and phrases from a seeded random source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def name(self) -> str:
        """Return a name of a person or place: one or two capitalized made-up words."""
        return " ".join(self.rng.sample(NAMES, self.rng.choice((1, 1, 1, 2))))

    def names(self, count: int) -> list[str]:
        """Return names of one or two words, all with different first words."""
        first = self.rng.sample(NAMES, count)
        return [f"{n} {self.rng.choice(NAMES)}" if self.rng.random() < 0.25 else n for n in first]

    def noun(self) -> str:
        """Return a noun."""
        return self.rng.choice(NOUNS)

    def thing(self) -> str:
        """Return an adjective and a noun."""
        return f"{self.rng.choice(ADJECTIVES)} {self.rng.choice(NOUNS)}"

    def verb(self) -> str:
        """Return a verb."""
        return self.rng.choice(VERBS)

    def identifier(self) -> str:
        """Return a snake_case identifier of one or two words, sometimes with a number."""
        words = self.rng.sample(IDENTIFIER_WORDS, self.rng.choice((1, 1, 2, 2)))
        if self.rng.random() < 0.05:
            words.append(str(self.number()))
        return "_".join(words)

    def identifiers(self, count: int) -> list[str]:
        """Return different identifiers."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.identifier()] = None
        return list(found)

    def number(self) -> int:
        """Return a whole number of one to four digits."""
        return self.rng.randrange(self.rng.choice((10, 100, 100, 100, 1000, 10000)))

    def odd(self) -> str:
        """Return a string of random letters and digits, which is not a word of any tokenizer."""
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        return "".join(self.rng.choice(letters) for _ in range(self.rng.randint(3, 9)))

    def value(self) -> str | int:
        """Return a field's value: a name, a noun, two words, a number, or rarely random characters."""
        kind = self.rng.random()
        if kind < 0.3:
            return self.name()
        if kind < 0.45:
            return self.noun()
        if kind < 0.6:
            return self.thing()
        return self.number() if kind < 0.99 else self.odd()
