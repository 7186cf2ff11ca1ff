"""From committed tokens to text that may be sent: whole characters, nothing of a stop string."""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from engine.tokenizer import Tokenizer


class StopMatcher:
    """Cuts text at the first stop string to complete, however the text is dealt out.

    Holds back only what could still become a stop string. When two complete at the same character,
    the longer one counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take more text; returns what may be sent. After a match, stopped is set and nothing follows."""
        if not self.stops or self.stopped:
            return "" if self.stopped else text
        text = self.held + text
        matches = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if matches:
            self.stopped, self.held = True, ""
            return text[: min(matches)[1]]
        longest = max(map(len, self.stops)) - 1
        start = next(
            (at for at in range(max(0, len(text) - longest), len(text)) if self._could_begin(text[at:])),
            len(text),
        )
        self.held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        text, self.held = self.held, ""
        return text

    def _could_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self.stops)


class AnswerText:
    """One answer's text as it grows by tokens."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._backend = tokenizer.backend
        self._stream = DecodeStream(skip_special_tokens=True)
        self._matcher = StopMatcher(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._matcher.stopped

    def add(self, token: int) -> str:
        """Take one token; returns the text that may be sent now, often all of it, sometimes none."""
        piece = self._stream.step(self._backend, token)
        return self._matcher.feed(piece) if piece else ""

    def finish(self) -> str:
        """The rest, at the end of an answer that no stop string ended. An incomplete character is lost."""
        return self._matcher.flush()
