"""Check that drafting changed no token: compare every plain answer with every drafted one, by token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Tokens = Sequence[int]
Margin = Callable[[tuple[int, ...]], float]
"""Returns by how much the best token leads the second best after these tokens of an answer."""


@dataclass(slots=True)
class Parity:
    """The result of comparing pairs of answers.

    first: the first token that differs in the first pair that does, and the top-2 margin there.
    """

    num_pairs: int = 0
    num_differing: int = 0
    first: dict[str, Any] | None = None

    def compare(self, plain: Sequence[Tokens], drafted: Sequence[Tokens], margin: Margin) -> None:
        """Compare each plain answer with each drafted answer to the same prompt.

        margin: called at most once per Parity.
        """
        for one, other in product(plain, drafted):
            self.num_pairs += 1
            if (at := first_difference(one, other)) is not None:
                self.num_differing += 1
                self.first = self.first or {"token": at, "margin": margin(tuple(one[:at]))}

    def add(self, other: "Parity") -> None:
        """Add the counts of other to these."""
        self.num_pairs += other.num_pairs
        self.num_differing += other.num_differing
        self.first = self.first or other.first

    def figures(self) -> dict[str, Any]:
        """Return the fields for a row of a result document."""
        return {
            "parity": "FAIL" if self.num_differing else "PASS", "parity_pairs": self.num_pairs,
            "parity_differing": self.num_differing, "first_divergence": self.first,
        }  # fmt: skip


def first_difference(one: Tokens, other: Tokens) -> int | None:
    """Return the index of the first differing token, or the shorter length if one is a prefix; else None."""
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))
