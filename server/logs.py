"""The log: one line for each request, as text or JSON. Never what was asked or answered."""

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

LOGGER = logging.getLogger("reprise")
_TEXT_LINE, _TEXT_TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"


@dataclass(slots=True)
class RequestRecord:
    """What the log says of one request. Filled in while the request is served.

    finish_reason: of its choices, in order; "cancelled" if the client left, "error" if it failed.
    first_token_ms, tokens_per_s: None where no token was made.
    num_forwards: those of decoding. drafts: (drafted, accepted) tokens by the drafter's name.
    """

    id: str
    endpoint: str
    status: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    first_token_ms: float | None = None
    tokens_per_s: float | None = None
    num_forwards: int = 0
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    total_ms: float = 0.0
    finish_reason: str | None = None

    def as_text(self) -> str:
        """The record as people read it."""
        parts = [f"{self.id} {self.endpoint} {self.status}"]
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
            parts.append(f"{self.num_completion_tokens / max(1, self.num_forwards):.1f} tokens/forward")
        return ", ".join([*parts, f"{self.total_ms:.0f} ms"])


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
            entry["message"] = record.getMessage()
        else:
            entry |= fields
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def log_request(record: RequestRecord) -> None:
    """Write a request's line; looks at /health and the like show only at level debug."""
    level = logging.INFO if record.finish_reason is not None or record.status >= 400 else logging.DEBUG
    LOGGER.log(level, "%s", record.as_text(), extra={"fields": {"event": "request"} | asdict(record)})


def configure_logs(log_format: Literal["text", "json"], log_level: str, stream: TextIO | None = None) -> None:
    """Send the log to a stream, standard error by default, in the chosen format.

    Libraries speak only from warnings on: at debug they would log what they send.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT_LINE, _TEXT_TIME)
    )
    # transformers logs by a handler of its own, and warns of every long prompt.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(log_level.upper())
