"""The target's states that a head has not read yet."""

from dataclasses import dataclass, field

import mlx.core as mx


@dataclass
class States:
    """The target's states of consecutive positions that the head has not read yet.

    parts: (any, size) each. num: their positions.
    """

    parts: list[mx.array] = field(default_factory=list)
    num: int = 0

    def add(self, part: mx.array) -> None:
        """Append the states of the next positions: (positions, size)."""
        self.parts.append(part)
        self.num += part.shape[0]

    def take(self, num: int) -> mx.array:
        """Remove the first num states, of one position at least, and return them: (num, size)."""
        assert 0 < num <= self.num
        whole = self.parts[0] if len(self.parts) == 1 else mx.concatenate(self.parts)
        self.num -= num
        self.parts = [whole[num:]] if self.num else []
        return whole[:num]
