"""Log probabilities of tokens, told with the piece of text that the tokens made."""

from collections import deque
from collections.abc import Sequence

from engine.request import TokenLogprob


class Alignment:
    """Tells which tokens' log probabilities belong to which piece of text, by counting bytes."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._num_read = 0
        self._num_told = 0

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Tokens came."""
        for entry in logprobs:
            self._waiting.append((self._num_told, entry))
            self._num_told += len(entry.token_bytes)

    def take(self, text: str) -> tuple[TokenLogprob, ...]:
        """Those that begin in the next piece of text. Pieces come in order, each once."""
        if not self._waiting:
            return ()
        self._num_read += len(text.encode())
        taken = []
        while self._waiting and self._waiting[0][0] < self._num_read:
            taken.append(self._waiting.popleft()[1])
        if not self._waiting:
            # A token that is no text, or bytes that are no character, do not count for what follows.
            self._num_told = self._num_read = 0
        return tuple(taken)

    def skip(self, text: str) -> None:
        """The next piece of text is nobody's."""
        self.take(text)

    def rest(self) -> tuple[TokenLogprob, ...]:
        """Those whose text never came."""
        waiting, self._waiting = self._waiting, deque()
        return tuple(entry for _, entry in waiting)
