"""How a model marks, in its text, what is thinking and what is a call of a tool.

Plain data and no MLX, so that the server can import it.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marker:
    """A string that begins or ends a stretch of the answer. tokens: its ids, at least one."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Markers:
    """What one model writes around its thinking and its calls; None for what it does not have.

    call_end: None where a call goes on to the end of the answer, though call_start is there.
    separators: stand around content and are no part of it.
    call_format: mlx-lm's name for how calls are written, such as json_tools.
    """

    think_start: Marker | None = None
    think_end: Marker | None = None
    call_start: Marker | None = None
    call_end: Marker | None = None
    separators: tuple[Marker, ...] = ()
    call_format: str = ""

    @property
    def can_think(self) -> bool:
        """Whether thinking can be told from content."""
        return self.think_end is not None

    @property
    def can_call(self) -> bool:
        """Whether calls can be told from content."""
        return self.call_start is not None

    @property
    def all(self) -> tuple[Marker, ...]:
        """Every marker there is."""
        some = (self.think_start, self.think_end, self.call_start, self.call_end, *self.separators)
        return tuple(marker for marker in some if marker is not None)

    def count_reasoning_tokens(self, answer: Sequence[int], is_open: bool, num_thoughts: int) -> int:
        """How many tokens of an answer are thinking, the markers among them.

        is_open: the prompt has begun the first thought. num_thoughts: further markers are only spoken of.
        """
        count, begun = 0, 0 if is_open else None
        for end in range(1, len(answer) + 1):
            if num_thoughts < 1:
                break
            marker = self.think_start if begun is None else self.think_end
            if marker is None or answer[end - 1] != marker.tokens[-1]:
                continue
            if not ends_with(answer, marker.tokens, end):
                continue
            if begun is None:
                begun = end - len(marker.tokens)
            else:
                count, begun = count + end - begun, None
                num_thoughts -= 1
        return count if begun is None or num_thoughts < 1 else count + len(answer) - begun


def ends_with(tokens: Sequence[int], ending: Sequence[int], end: int | None = None) -> bool:
    """Whether tokens[:end] ends with these. ending: at least one."""
    end = len(tokens) if end is None else end
    return end >= len(ending) and tuple(tokens[end - len(ending) : end]) == tuple(ending)
