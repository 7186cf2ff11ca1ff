"""Note the parts of a request that are left out or shown as text, for a response header and the log line."""

from dataclasses import dataclass, field
from typing import Literal

from reprise.server.errors import BadRequestError, shortened

MAX_NOTES = 1000
"""Maximum notes of a request that are kept."""


@dataclass(slots=True)
class Notes:
    """The parts of a request that have no effect, or another form than its API gives them.

    refuses: whether each such part is an error instead (`--unknown-fields refuse`).
    silent: names of keys that the API has and that have no effect here: they are not noted.
    api: the API whose own forms are not noted; "" for those of all APIs.
    paths: by the path of each part, what became of it, in order; "" if it was left out.
    """

    refuses: bool = False
    silent: frozenset[str] = frozenset()
    api: Literal["", "chats", "messages", "responses", "ollama"] = ""
    paths: dict[str, str] = field(default_factory=dict)

    def left_out(self, path: str, *, is_peers: bool = False) -> None:
        """Note a field without effect. is_peers: whether it is another server's, which is never an error."""
        if not is_peers:
            self._check(f"Unknown parameter: '{shortened(path, 200)}'.", path, "unknown_parameter")
        self._add(path, "")

    def as_text(self, path: str) -> None:
        """Note a part that the model can only be shown as text."""
        message = f"'{shortened(path, 200)}' is not supported: the model is shown text; send text."
        self._check(message, path, "unsupported_content_part")
        self._add(path, "as text")

    def understood(self, path: str, what: str = "is not in the form that this API has") -> None:
        """Note a value that is not in this API's form, but whose meaning is certain.

        what: what is wrong with the form, for the error if notes are errors.
        """
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
    """Return the Notes that a validation has as its context, or new ones if it has none."""
    return context if isinstance(context, Notes) else Notes()
