"""Cut an answer's text at its first stop string."""

from collections.abc import Sequence


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
        longest = max(map(len, self.stops)) - 1
        start = next(
            (at for at in range(max(0, len(text) - longest), len(text)) if self._could_begin(text[at:])),
            len(text),
        )
        self.held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """Return the text held back, after the last feed()."""
        text, self.held = self.held, ""
        return text

    def _could_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self.stops)
