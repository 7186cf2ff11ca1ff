"""From committed tokens to text that may be sent: whole characters, nothing of a stop string."""

from collections import deque
from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from engine.model.markers import ends_with
from engine.model.stop_strings import StopMatcher
from engine.model.tokenizer import Tokenizer


class Detokenizer:
    """One answer's text as it grows by tokens.

    Special tokens are no text, but for markers of thinking and calls, and what stands within a call: there
    some models write special tokens for quotes and commas.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._backend = tokenizer.backend
        self._stream = DecodeStream(skip_special_tokens=False)
        self._matcher = StopMatcher(stops)
        self._special_ids = tokenizer.special_ids
        self._call_start, self._call_end = tokenizer.markers.call_start, tokenizer.markers.call_end
        longest = max((len(marker.tokens) for marker in tokenizer.markers.all), default=1)
        self._latest: deque[int] = deque(maxlen=longest)
        self._is_in_call = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._matcher.stopped

    @property
    def stop(self) -> str | None:
        """The stop string that has come."""
        return self._matcher.matched

    def add(self, token: int) -> str:
        """Take one token; returns the text that may be sent now, often all of it, sometimes none."""
        if token in self._special_ids and not self._is_in_call:
            return ""
        self._note(token)
        piece = self._stream.step(self._backend, token)
        return self._matcher.feed(piece) if piece else ""

    def _note(self, token: int) -> None:
        """Keep track of whether the answer is within a call."""
        self._latest.append(token)
        marker = self._call_end if self._is_in_call else self._call_start
        if marker is not None and token == marker.tokens[-1]:
            self._is_in_call ^= ends_with(tuple(self._latest), marker.tokens)

    def finish(self) -> str:
        """The rest, at the end of an answer that no stop string ended. An incomplete character is lost."""
        return self._matcher.flush()
