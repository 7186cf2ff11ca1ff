"""Match the log probabilities of tokens to the text that those tokens produced."""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence

from reprise.engine.interface.events import TokenLogprob


class TokenPositions:
    """Finds the positions of tokens in their text, which has a U+FFFD wherever the detokenizer puts one.

    num_characters: complete characters so far.
    """

    def __init__(self, num_characters: int = 0) -> None:
        self.num_characters = num_characters
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_bytes: bytes) -> int:
        """Move past the next token. Returns the index of the character in which its first byte lies."""
        begun = self._decoder.getstate()[0]
        # Two characters if the first byte does not continue the one that has begun.
        num_touched = len((begun + token_bytes[:1]).decode(errors="replace"))
        position = self.num_characters + max(0, num_touched - 1)
        self.num_characters += len(self._decoder.decode(token_bytes))
        return position


class PromptPositions:
    """Finds the positions of a prompt's tokens in its text, which may lack some, such as special ones."""

    def __init__(self, text: str) -> None:
        self._encoded = text.encode()
        self._at = 0
        self._num_characters = 0

    def add(self, token_bytes: bytes) -> int:
        """Move past the next token. Returns the index of the character in which the token begins."""
        is_within = self._at < len(self._encoded) and _is_continuation(self._encoded[self._at])
        position = max(0, self._num_characters - is_within)
        for found in (token_bytes, token_bytes.removeprefix(b" ")):
            if self._encoded.startswith(found, self._at):
                self._num_characters += sum(not _is_continuation(byte) for byte in found)
                self._at += len(found)
                break
        return position


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


class LogprobAlignment:
    """Assigns log probabilities to consecutive stretches of text by counting characters.

    A token belongs to the stretch in which its first byte lies.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._num_characters = 0
        self._positions = TokenPositions()

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the log probabilities of the next tokens."""
        for entry in logprobs:
            self._waiting.append((self._positions.add(entry.token_bytes), entry))

    def take(self, text: str) -> tuple[TokenLogprob, ...]:
        """Return the tokens that start in the next stretch of text. Call it for every stretch, in order."""
        if not self._waiting:
            return ()
        self._num_characters += len(text)
        taken = []
        while self._waiting and self._waiting[0][0] < self._num_characters:
            taken.append(self._waiting.popleft()[1])
        if not self._waiting:
            # Tokens without text must not shift what follows.
            self._positions.num_characters = self._num_characters = 0
        return tuple(taken)

    def skip(self, text: str) -> None:
        """Drop the tokens of the next stretch of text."""
        self.take(text)

    def take_rest(self) -> tuple[TokenLogprob, ...]:
        """Return the tokens that never produced text."""
        waiting, self._waiting = self._waiting, deque()
        return tuple(entry for _, entry in waiting)
