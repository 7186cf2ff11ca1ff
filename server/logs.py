"""The log: one line per request, as text or JSON. It has no prompts and no answers."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

from starlette.types import Scope

LOGGER = logging.getLogger("reprise")
CURRENT_ID: ContextVar[str | None] = ContextVar("reprise.request_id", default=None)
"""The id of the request that is being served. Every log line about the request carries it."""
_TEXT_LINE, _TEXT_TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"
_RECORD = "reprise.record"
MAX_IGNORED_CHARACTERS = 1000


@dataclass(slots=True)
class RequestRecord:
    """The log entry of one request, filled in while the request is served.

    id: the client's X-Request-Id, or an id made here. unique: an id made here: clients may send one twice.
    model: the name of the model that serves the request; None if the server has only one.
    finish_reason: the choices' finish reasons, in order, with spaces between; "cancelled" if the client left,
        "error" if the request failed.
    is_loop: whether a choice ended because it only repeated itself.
    error: the code of the error that was sent, as a response or in a stream; None if there was none.
    param: the field at fault, as the request calls it; None if no field is.
    num_cached_tokens: None if the client left and the engine had yet to notice.
    first_token_ms, tokens_per_s: None if no token was generated.
    num_forwards: forward passes of decoding. drafts: (drafted, accepted) tokens by the drafter's name.
    undrafted: why (almost) nothing was drafted; None otherwise, or if nothing may draft.
    wedlm_decoding: "streaming" if a WeDLM model filled in several tokens at once: the answer may differ from
        that of plain decoding.
    translation: the draft model's translation strategy, and how many drafts had each outcome.
    field_names: this API's field names -> the request's where they differ, for error messages.
    ignored: the parts of the request that had no effect, such as fields of other servers.
    relaxed: the parts of the request's schemas that are not enforced.
    """

    id: str
    unique: str
    endpoint: str
    model: str | None = None
    status: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = 0
    num_completion_tokens: int = 0
    first_token_ms: float | None = None
    tokens_per_s: float | None = None
    num_forwards: int = 0
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    undrafted: str | None = None
    wedlm_decoding: Literal["off", "streaming"] = "off"
    translation: dict[str, str | int] | None = None
    total_ms: float = 0.0
    finish_reason: str | None = None
    is_loop: bool = False
    error: str | None = None
    param: str | None = None
    ignored: list[str] = field(default_factory=list)
    field_names: dict[str, str] = field(default_factory=dict)
    relaxed: list[str] = field(default_factory=list)

    @property
    def engine_request_id(self) -> str:
        """The request's id in the engine: its id, with the unique part added if the client chose it."""
        return self.id if self.id.endswith(self.unique) else f"{self.id}-{self.unique}"

    def note(self, error: str, param: str | None = None) -> None:
        """Note an error's code and the field at fault, unless an earlier error, its cause, was noted."""
        if self.error is None:
            self.error, self.param = error, param

    @property
    def is_of_interest(self) -> bool:
        """Whether the request generated tokens or failed; requests for /health, for example, do neither."""
        return self.finish_reason is not None or self.status >= 400

    def as_fields(self) -> dict[str, object]:
        """Return the record as fields of a JSON object."""
        fields = asdict(self)
        del fields["unique"], fields["field_names"]
        if self.model is None:
            del fields["model"]
        return fields

    def as_text(self) -> str:
        """Return the record as one line of text."""
        parts = [f"{self.id} {self.endpoint} {self.status}"]
        if self.model is not None:
            parts.append(f"model {as_header([self.model])}")
        if self.error is not None:
            parts.append(self.error if self.param is None else f"{self.error} in {as_header([self.param])}")
        if self.finish_reason is not None:
            parts.append(f"{self.finish_reason} (loop)" if self.is_loop else self.finish_reason)
            cached = "" if self.num_cached_tokens is None else f" ({self.num_cached_tokens} cached)"
            parts.append(f"{self.num_prompt_tokens} prompt tokens{cached}")
            parts.append(f"{self.num_completion_tokens} completion tokens")
        if self.ignored:
            parts.append(f"ignored {as_header(self.ignored)}")
        if self.first_token_ms is not None:
            parts.append(f"first token {self.first_token_ms:.0f} ms")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.drafts:
            counts = (f"{name} {accepted}/{drafted}" for name, (drafted, accepted) in self.drafts.items())
            parts.append(f"drafts {' + '.join(counts)} accepted")
            if told := self.translation:
                results = [f"{count} {name}" for name, count in told.items() if name != "strategy" and count]
                parts[-1] += f" ({told['strategy']}: {', '.join(results) or 'no drafts'})"
        if self.undrafted:
            parts.append(f"{'few' if self.drafts else 'no'} drafts: {self.undrafted}")
        is_windowed = self.wedlm_decoding == "streaming"
        if is_windowed:
            parts.append("wedlm_decoding streaming")
        if self.drafts or is_windowed:
            parts.append(f"{self.num_completion_tokens / max(1, self.num_forwards):.1f} tokens/forward")
        return ", ".join([*parts, f"total {self.total_ms:.0f} ms"])


def as_header(names: Iterable[str]) -> str:
    """Return names as the value of a header: visible ASCII characters, and not too many."""
    # A value that begins or ends with a space is no header, so names that do are quoted, and empty ones.
    shown = (name if name and name == name.strip() else f'"{name}"' for name in dict.fromkeys(names))
    text = ", ".join(shown).encode("unicode_escape").decode()
    return text if len(text) <= MAX_IGNORED_CHARACTERS else f"{text[:MAX_IGNORED_CHARACTERS]}..."


class JsonFormatter(logging.Formatter):
    """Formats each entry as one line of JSON. A request's fields replace the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry as JSON."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        fields = getattr(record, "fields", None)
        if fields is None:
            if (request_id := CURRENT_ID.get()) is not None:
                entry["id"] = request_id
            entry["message"] = record.getMessage()
        else:
            entry |= fields
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Formats entries as text. Entries written while a request is served begin with its id."""

    def __init__(self) -> None:
        super().__init__(_TEXT_LINE, _TEXT_TIME)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the entry's line, without its traceback."""
        request_id = CURRENT_ID.get()
        if request_id is not None and not record.message.startswith(request_id):
            record.message = f"{request_id} {record.message}"
        return super().formatMessage(record)


def attach_record(scope: Scope, record: RequestRecord) -> None:
    """Attach a record to a request's scope, and its id to the log lines written while it is served."""
    scope[_RECORD] = record
    CURRENT_ID.set(record.id)


def record_in(scope: Scope) -> RequestRecord:
    """Return the record attached to a request's scope."""
    record: RequestRecord = scope[_RECORD]
    return record


def log_request(record: RequestRecord) -> None:
    """Log a request: at level info if it generated tokens or failed, else at debug, as for /health."""
    level = logging.INFO if record.is_of_interest else logging.DEBUG
    LOGGER.log(level, "%s", record.as_text(), extra={"fields": {"event": "request"} | record.as_fields()})


class LoadingLog:
    """Log the progress of a start: a line for each part, and for each tenth of one.

    every_s: seconds from the start to the first line, and between two; 0 for programs, which read every line.
    clock: returns seconds.
    """

    def __init__(self, every_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._logged: tuple[str, int] | None = None
        self._every_s, self._clock = every_s, clock
        self._logged_at = clock()

    def advance(self, what: str, share: float) -> None:
        """Log the current part and the share of it that is done, in [0, 1]. Called on the engine's thread."""
        now = self._clock()
        if (what, int(10 * share)) != self._logged and now - self._logged_at >= self._every_s:
            self._logged, self._logged_at = (what, int(10 * share)), now
            fields = {"event": "loading", "stage": what, "share": round(share, 3)}
            LOGGER.info("%s, %d %%", what, 100 * share, extra={"fields": fields})


def configure_logs(
    log_format: Literal["text", "json"],
    log_level: str,
    stream: TextIO | None = None,
) -> None:
    """Write the log to a stream, standard error by default, in the given format.

    Libraries log only warnings and errors: at level debug they would log the texts that they send.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(log_level.upper())
