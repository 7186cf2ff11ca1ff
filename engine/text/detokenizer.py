"""Convert committed tokens into text that can be sent: whole characters, and no part of a stop string."""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence

from reprise.engine.text.markers import ends_with
from reprise.engine.text.tokenizer import Tokenizer


class StopMatcher:
    """Cuts streamed text at the first stop string that completes, independent of how the text is chunked.

    Holds back only text that could still become a stop string. If two stop strings complete at the same
    character, the longer one counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.matched is not None

    def feed(self, text: str) -> str:
        """Add text; returns the part that can be sent. At a stop string, sets matched and drops the rest."""
        if not self.stops or self.stopped:
            return "" if self.stopped else text
        text = self.held + text
        matches = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if matches:
            _, at, self.matched = min(matches)
            self.held = ""
            return text[:at]
        start = max(0, len(text) - max(map(len, self.stops)) + 1)
        while not any(stop.startswith(text[start:]) for stop in self.stops):
            start += 1
        self.held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """Return the text held back, after the last feed()."""
        text, self.held = self.held, ""
        return text


class Detokenizer:
    """Converts the tokens of one answer into text, one token at a time.

    The text equals that of all tokens decoded together. add() decodes only its token: alone, and after the
    latest token that gave text. Bytes that can no longer be a character are U+FFFD at once.

    Special tokens are dropped, except the markers of reasoning and tool calls and all special tokens inside
    a tool call: some models write special tokens for quotes and commas there.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._backend, self._decode_alone = tokenizer.backend, tokenizer.decode_alone
        self._characters = getincrementaldecoder("utf-8")(errors="replace")
        self._had_part = False
        self._before: list[int] = []
        self._text_before = ""
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

    @property
    def num_held(self) -> int:
        """The number of whole characters that are held back."""
        return len(self._matcher.held)

    @property
    def may_begin_stop(self) -> bool:
        """Whether text is held back, or a part of a character, that may be of a stop string."""
        return bool(self._matcher.stops and (self._matcher.held or self._characters.getstate()[0]))

    def add(self, token: int, *, can_stop: bool = True) -> str:
        """Add one token; return the text that can be sent now, which may be empty.

        can_stop: whether to look for stop strings: False until the answer has min_tokens.
        """
        if token in self._special_ids and not self._is_in_call:
            return ""
        if self._call_start is not None:
            self._track_tool_call(token)
        text = self._characters.decode(self._bytes_of(token))
        return self._matcher.feed(text) if text and can_stop else text

    def _bytes_of(self, token: int) -> bytes:
        """Return the bytes that the token adds to the text, maybe part of a character."""
        alone, part = self._decode_alone(token)
        if part is not None:
            self._had_part |= bool(part)
            return part
        if self._had_part and not self._before:
            # Tokenizers may drop a space at the start of a text. Any token in front shows that it is not.
            self._before, self._text_before = [token], alone
        text = alone
        if self._before:
            both: str = self._backend.decode([*self._before, token], skip_special_tokens=False)
            text = both[len(self._text_before) :]
        if text or not self._before:
            self._before, self._text_before = [token], alone
        return text.encode()

    def _track_tool_call(self, token: int) -> None:
        """Update whether the answer is inside a tool call."""
        self._latest.append(token)
        marker = self._call_end if self._is_in_call else self._call_start
        if marker is not None and token == marker.tokens[-1]:
            self._is_in_call ^= ends_with(tuple(self._latest), marker.tokens)

    def finish(self) -> str:
        """Return the rest of the text if no stop string ended the answer.

        An incomplete character becomes U+FFFD, which may complete a stop string.
        """
        rest = self._characters.decode(b"", final=True)
        return self._matcher.feed(rest) + self._matcher.flush()
