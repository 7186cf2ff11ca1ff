"""Whether drafting changed a token: every plain run of a chat against every drafted one, by token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Tokens = Sequence[int]
Margin = Callable[[tuple[int, ...]], float]
"""By how much the likeliest token leads the second behind these tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two answers part: the index of the first token that differs, and the top-2 margin there."""

    token: int
    margin: float


@dataclass(slots=True)
class Parity:
    """The comparison of some pairs of runs; first is of the first pair that differs."""

    num_pairs: int = 0
    num_differing: int = 0
    first: Divergence | None = None

    @property
    def verdict(self) -> str:
        """PASS or FAIL."""
        return "FAIL" if self.num_differing else "PASS"

    def compare(self, plain: Sequence[Tokens], drafted: Sequence[Tokens], margin: Margin) -> None:
        """Compare each plain answer to a prompt with each drafted one. margin: asked at most once in all."""
        for one, other in product(plain, drafted):
            self.num_pairs += 1
            at = first_difference(one, other)
            if at is None:
                continue
            self.num_differing += 1
            if self.first is None:
                self.first = Divergence(at, margin(tuple(one[:at])))

    def add(self, other: "Parity") -> None:
        """Count other pairs in."""
        self.num_pairs += other.num_pairs
        self.num_differing += other.num_differing
        self.first = self.first or other.first

    def figures(self) -> dict[str, Any]:
        """What a row of a result document says about it."""
        first = {"token": self.first.token, "margin": self.first.margin} if self.first else None
        return {
            "parity": self.verdict,
            "parity_pairs": self.num_pairs,
            "parity_differing": self.num_differing,
            "first_divergence": first,
        }


def first_difference(one: Tokens, other: Tokens) -> int | None:
    """The index of the first token that differs, the shorter length if one is the other's beginning."""
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))
