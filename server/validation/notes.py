"""The parts of a request that are left out or shown as text, for its header and log line."""

from dataclasses import dataclass, field
from typing import Literal

from server.errors import BadRequestError, shortened

MAX_NOTES = 1000
"""Maximum notes of a request that are kept."""


@dataclass(slots=True)
class Notes:
    """The parts of a request that have no effect, or another form than its API's.

    refuses: whether each of these is a fault instead (`--unknown-fields refuse`).
    silent: names of keys that the API has and that have no effect: they need no note.
    api: whose forms need no note either; "" for all.
    paths: what became of each, in order; "" if it is left out.
    """

    refuses: bool = False
    silent: frozenset[str] = frozenset()
    api: Literal["", "chats", "messages", "responses", "ollama"] = ""
    paths: dict[str, str] = field(default_factory=dict)

    def left_out(self, path: str, *, is_peers: bool = False) -> None:
        """Note a field that has no effect. is_peers: another server's field, which is never a fault."""
        if not is_peers:
            self._check(f"Unknown parameter: '{shortened(path, 200)}'.", path, "unknown_parameter")
        self._add(path, "")

    def as_text(self, path: str) -> None:
        """Note a part that the model can only be shown as text."""
        message = f"'{shortened(path, 200)}' is not supported: the model is shown text; send text."
        self._check(message, path, "unsupported_content_part")
        self._add(path, "as text")

    def understood(self, path: str, what: str = "is not in the form that this API has") -> None:
        """Note a value in another form, whose meaning is certain."""
        self._check(f"'{shortened(path, 200)}' {what}.", path, "invalid_value")
        self._add(path, "understood")

    def _check(self, message: str, path: str, code: str) -> None:
        if self.refuses:
            raise BadRequestError(message, param=shortened(path, 200), code=code)

    def _add(self, path: str, became: str) -> None:
        if len(self.paths) < MAX_NOTES:
            self.paths.setdefault(shortened(path, 200), became)

    def entries(self) -> list[str]:
        """Return the paths for header and log: `a`, or `a (as text)`, or `a (understood)`."""
        return [f"{path} ({became})" if became else path for path, became in self.paths.items()]


def notes_in(context: object) -> Notes:
    """Return the notes of the validation that a validator is part of; new ones if it has none."""
    return context if isinstance(context, Notes) else Notes()
