"""The target's states that a head was not fed yet."""

from dataclasses import dataclass, field

import mlx.core as mx


@dataclass
class States:
    """The target's states of consecutive positions that the head was not fed yet.

    parts: arrays (positions, size), in order. num: the positions of all parts.
    """

    parts: list[mx.array] = field(default_factory=list)
    num: int = 0

    def add(self, part: mx.array) -> None:
        """Append the states of the next positions: (positions, size)."""
        self.parts.append(part)
        self.num += part.shape[0]

    def prepend_zeros(self, num: int) -> None:
        """Prepend zeros for num positions whose states are not known."""
        if num:
            self.parts.insert(0, mx.zeros((num, self.parts[0].shape[1]), self.parts[0].dtype))
            self.num += num

    def drop(self, start: int, num: int) -> None:
        """Remove num states after the first `start` ones."""
        whole = self.parts[0] if len(self.parts) == 1 else mx.concatenate(self.parts)
        # Copies: views would keep what is dropped in memory.
        self.parts = [mx.contiguous(part) for part in (whole[:start], whole[start + num :]) if part.size]
        mx.eval(self.parts)
        self.num -= num

    def take(self, num: int) -> mx.array:
        """Remove the first num states and return them: (num, size). num: >= 1."""
        assert 0 < num <= self.num
        whole = self.parts[0] if len(self.parts) == 1 else mx.concatenate(self.parts)
        self.num -= num
        self.parts = [whole[num:]] if self.num else []
        return whole[:num]
