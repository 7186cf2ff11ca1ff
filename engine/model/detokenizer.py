"""Turn committed tokens into text that can be sent: whole characters, and nothing of a stop string."""

from collections import deque
from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from engine.model.markers import ends_with
from engine.model.stop_strings import StopMatcher
from engine.model.tokenizer import Tokenizer


class Detokenizer:
    """Turns the tokens of one answer into text, one token at a time.

    Special tokens are dropped, except the markers of reasoning and tool calls and all special tokens inside
    a tool call: some models write special tokens for quotes and commas there.
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
        """Whether the text has reached a stop string."""
        return self._matcher.stopped

    @property
    def stop(self) -> str | None:
        """The stop string that the text has reached, if any."""
        return self._matcher.matched

    def add(self, token: int) -> str:
        """Add one token. Returns the text that can be sent now; it may be empty."""
        if token in self._special_ids and not self._is_in_call:
            return ""
        self._track_tool_call(token)
        text = self._stream.step(self._backend, token)
        return self._matcher.feed(text) if text else ""

    def _track_tool_call(self, token: int) -> None:
        """Update whether the answer is inside a tool call."""
        self._latest.append(token)
        marker = self._call_end if self._is_in_call else self._call_start
        if marker is not None and token == marker.tokens[-1]:
            self._is_in_call ^= ends_with(tuple(self._latest), marker.tokens)

    def finish(self) -> str:
        """Return the rest of the text, for an answer that no stop string ended.

        Drops an incomplete character.
        """
        return self._matcher.flush()
