"""The log: one line for each request, as text or JSON; what was asked and answered only on request."""

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

from starlette.types import Scope

LOGGER = logging.getLogger("reprise")
_PROMPTS = logging.getLogger("reprise.prompts")
_PROMPTS.disabled = True
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
CURRENT_ID: ContextVar[str | None] = ContextVar("reprise.request_id", default=None)
"""The id of the request that is being served; lines of the log have it, whoever writes them."""
_TEXT_LINE, _TEXT_TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"
_RECORD = "reprise.record"


@dataclass(slots=True)
class RequestRecord:
    """What the log says of one request. Filled in while the request is served.

    id: what the request is called: the client's X-Request-Id, or one made here.
    unique: made here, so no other request has it, whatever clients send.
    finish_reason: of its choices, in order; "cancelled" if the client left, "error" if it failed.
    error: the code of what went wrong, before or after a stream began.
    first_token_ms, tokens_per_s: None where no token was made.
    num_forwards: those of decoding. drafts: (drafted, accepted) tokens by the drafter's name.
    translation: how drafts of the draft model were translated, and how many were, by what became of them.
    """

    id: str
    unique: str
    endpoint: str
    status: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    first_token_ms: float | None = None
    tokens_per_s: float | None = None
    num_forwards: int = 0
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    translation: dict[str, str | int] | None = None
    total_ms: float = 0.0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def engine_request_id(self) -> str:
        """What the engine calls the request: its id, and where a client chose that, what makes it unique."""
        return self.id if self.id.endswith(self.unique) else f"{self.id}-{self.unique}"

    def note(self, error: str) -> None:
        """Take down the code of what went wrong; the first is the cause of what follows."""
        self.error = self.error or error

    def as_text(self) -> str:
        """The record as people read it."""
        parts = [f"{self.id} {self.endpoint} {self.status}"]
        if self.error is not None:
            parts.append(self.error)
        if self.finish_reason is not None:
            parts.append(self.finish_reason)
            parts.append(f"in {self.num_prompt_tokens} (cached {self.num_cached_tokens})")
            parts.append(f"out {self.num_completion_tokens}")
        if self.first_token_ms is not None:
            parts.append(f"first token {self.first_token_ms:.0f} ms")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.drafts:
            told = " + ".join(f"{name} {right}/{all_}" for name, (all_, right) in self.drafts.items())
            parts.append(f"drafts {told} accepted")
            if self.translation:
                parts[-1] += f" ({_told(self.translation)})"
            parts.append(f"{self.num_completion_tokens / max(1, self.num_forwards):.1f} tokens/forward")
        return ", ".join([*parts, f"{self.total_ms:.0f} ms"])


def _told(translation: Mapping[str, str | int]) -> str:
    """Its counts in words, those of nothing left out."""
    counts = [f"{count} {name}" for name, count in translation.items() if name != "strategy" and count]
    return f"{translation['strategy']}: {', '.join(counts) or 'none asked for'}"


class JsonFormatter(logging.Formatter):
    """One JSON object on each line; a request's fields stand beside time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
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
    """Lines for people; what is said while a request is served begins with its id."""

    def __init__(self) -> None:
        super().__init__(_TEXT_LINE, _TEXT_TIME)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """See logging.Formatter."""
        request_id = CURRENT_ID.get()
        if request_id is not None and not record.message.startswith(request_id):
            record.message = f"{request_id} {record.message}"
        return super().formatMessage(record)


def attach_record(scope: Scope, record: RequestRecord) -> None:
    """Give a request its record, and the log its id, for as long as the request is served."""
    scope[_RECORD] = record
    CURRENT_ID.set(record.id)


def record_in(scope: Scope) -> RequestRecord:
    """The log record of the request that is being served."""
    record: RequestRecord = scope[_RECORD]
    return record


def log_request(record: RequestRecord) -> None:
    """Write a request's line; looks at /health and the like show only at level debug."""
    level = logging.INFO if record.finish_reason is not None or record.status >= 400 else logging.DEBUG
    LOGGER.log(level, "%s", record.as_text(), extra={"fields": _fields(record)})


def _fields(record: RequestRecord) -> dict[str, object]:
    fields = {"event": "request"} | asdict(record)
    del fields["unique"]
    return fields


def is_logging_prompts() -> bool:
    """Whether the log takes what is asked and answered."""
    return _PROMPTS.isEnabledFor(logging.INFO)


def log_prompt(what: str, text: str) -> None:
    """Write down what was asked or answered, on one line, where the log takes that and there is something."""
    if text and is_logging_prompts():
        _PROMPTS.info("%s %s", what, _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text))


def configure_logs(
    log_format: Literal["text", "json"],
    log_level: str,
    stream: TextIO | None = None,
    *,
    log_prompts: bool = False,
) -> None:
    """Send the log to a stream, standard error by default, in the chosen format.

    log_prompts: what is asked and answered as well, at level info.
    Libraries speak only from warnings on: at debug they would log what they send.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    # transformers logs by a handler of its own, and warns of every long prompt.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(log_level.upper())
    _PROMPTS.disabled = not log_prompts
