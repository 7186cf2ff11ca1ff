"""Check that drafting changed no token: compare every plain answer with every drafted one, by token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Tokens = Sequence[int]
Margin = Callable[[tuple[int, ...]], float]
"""Returns by how much the best token leads the second best after these tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two answers diverge: the index of the first token that differs, and the top-2 margin there."""

    token: int
    margin: float


@dataclass(slots=True)
class Parity:
    """The result of comparing pairs of answers; first: the divergence of the first pair that differs."""

    num_pairs: int = 0
    num_differing: int = 0
    first: Divergence | None = None

    @property
    def verdict(self) -> str:
        """PASS or FAIL."""
        return "FAIL" if self.num_differing else "PASS"

    def compare(self, plain: Sequence[Tokens], drafted: Sequence[Tokens], margin: Margin) -> None:
        """Compare each plain answer with each drafted answer to the same prompt.

        margin: called at most once per Parity.
        """
        for one, other in product(plain, drafted):
            self.num_pairs += 1
            at = first_difference(one, other)
            if at is None:
                continue
            self.num_differing += 1
            if self.first is None:
                self.first = Divergence(at, margin(tuple(one[:at])))

    def add(self, other: "Parity") -> None:
        """Add the counts of other to these."""
        self.num_pairs += other.num_pairs
        self.num_differing += other.num_differing
        self.first = self.first or other.first

    def figures(self) -> dict[str, Any]:
        """Return the fields for a row of a result document."""
        first = {"token": self.first.token, "margin": self.first.margin} if self.first else None
        return {
            "parity": self.verdict,
            "parity_pairs": self.num_pairs,
            "parity_differing": self.num_differing,
            "first_divergence": first,
        }


def first_difference(one: Tokens, other: Tokens) -> int | None:
    """Return the index of the first differing token, or the shorter length if one is a prefix; else None."""
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))
