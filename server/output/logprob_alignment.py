"""Match the log probabilities of tokens to the text that those tokens produced."""

from collections import deque
from collections.abc import Sequence

from engine.request import TokenLogprob


class LogprobAlignment:
    """Assigns log probabilities to consecutive stretches of text by counting bytes.

    A token belongs to the stretch in which its first byte lies.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._num_text_bytes = 0
        self._num_token_bytes = 0

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the log probabilities of the next tokens."""
        for entry in logprobs:
            self._waiting.append((self._num_token_bytes, entry))
            self._num_token_bytes += len(entry.token_bytes)

    def take(self, text: str) -> tuple[TokenLogprob, ...]:
        """Return the tokens that start in the next stretch of text. Call it for all text, in order."""
        if not self._waiting:
            return ()
        self._num_text_bytes += len(text.encode())
        taken = []
        while self._waiting and self._waiting[0][0] < self._num_text_bytes:
            taken.append(self._waiting.popleft()[1])
        if not self._waiting:
            # Otherwise tokens without text, and bytes that are not valid UTF-8, would shift all later tokens.
            self._num_token_bytes = self._num_text_bytes = 0
        return tuple(taken)

    def skip(self, text: str) -> None:
        """Drop the tokens of the next stretch of text."""
        self.take(text)

    def take_rest(self) -> tuple[TokenLogprob, ...]:
        """Return the tokens that never produced text."""
        waiting, self._waiting = self._waiting, deque()
        return tuple(entry for _, entry in waiting)
