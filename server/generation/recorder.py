"""Append a line for each finished choice to the --record file, on a thread: a slow disk delays no request.

    {"id": "req-12-0", "model": "...", "messages": [...], "tools": [...], "temperature": 0.2,
     "prompt": "<|im_start|>user...", "output": "def f...", "draft_type": "auto", "finish_reason": "stop",
     "prompt_tokens": 812, "cached_tokens": 640, "completion_tokens": 97, ...}

`reprise bench` can read a line as a request (`--prompts`) or as a pair of prompt and output (`--pairs`).
fill_record() writes the counts and times into the request's log record.
"""

import json
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.engine.interface.events import Finished, Usage
from reprise.engine.interface.request import GenerationRequest
from reprise.server.logs import LOGGER, RequestRecord
from reprise.server.output.presenter import count_by_source, count_translation, count_usage, explain_undrafted
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.generation_fields import GenerationFields
from reprise.server.requests.messages import Message

if TYPE_CHECKING:
    from reprise.engine.generating.generating_engine import GeneratingEngine

MakeLines = Callable[[], Iterable[bytes]]
"""Makes lines, each with its line break. Runs on the recorder's thread."""

MAX_WAITING = 256
LAST_LINES_S = 2.0
"""How long close() waits for a free place in the queue, and then as long again for the thread to finish."""


RECORD_BYTES = 2**30
"""Maximum size of the file, so that a server whose file is forgotten does not fill the disk."""


class Recorder:
    """Appends lines to a file until it has RECORD_BYTES. Only the file's owner may read it.

    A line is written completely or not at all. If that fails the line is dropped, which is logged the first
    time, and later lines are still tried. The constructor raises SettingsError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: queue.Queue[MakeLines | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()
        self._is_full = self._has_failed = False
        try:
            os.close(self._open())
        except OSError as fault:
            raise SettingsError(f"cannot write {path} (record): {fault.strerror or fault}") from fault

    def start(self) -> None:
        """Start the thread."""
        LOGGER.warning("prompts and outputs are recorded in %s", self.path)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def record(self, make_lines: MakeLines) -> None:
        """Queue lines for writing. Never waits, never raises; call it from one thread only."""
        if self._is_full:
            return
        try:
            self._waiting.put_nowait(make_lines)
        except queue.Full:
            self._warn_once("writing to %s is too slow; some requests are not recorded", self.path)

    def close(self) -> None:
        """Write the queued lines and stop, unless that takes longer than LAST_LINES_S."""
        try:
            self._waiting.put(None, timeout=LAST_LINES_S)
        except queue.Full:
            return
        if self._thread is not None:
            self._thread.join(LAST_LINES_S)

    def _run(self) -> None:
        while (make_lines := self._waiting.get()) is not None:
            # An error here must end neither the thread nor the server.
            try:
                self._write(make_lines())
            except OSError as fault:
                told = fault.strerror or fault
                self._warn_once("cannot write %s: %s; some requests are not recorded", self.path, told)
            except Exception:  # noqa: BLE001
                if not self._has_failed:
                    self._has_failed = True
                    LOGGER.exception("a request could not be recorded")

    def _write(self, lines: Iterable[bytes]) -> None:
        """Append lines until the file is full. Raises OSError."""
        file = self._open()
        try:
            for line in lines:
                size = os.fstat(file).st_size
                if size + len(line) > RECORD_BYTES:
                    self._is_full = True
                    message = "%s is full at %d bytes; no more requests are recorded"
                    self._warn_once(message, self.path, size)
                    return
                # If a crash cut off the last line, the next one must not be appended to it.
                has_cut_line = size and os.pread(file, 1, size - 1) != b"\n"
                self._append(file, b"\n" + line if has_cut_line else line, size)
        finally:
            os.close(file)

    def _append(self, file: int, line: bytes, size: int) -> None:
        try:
            if os.write(file, line) < len(line):
                raise OSError(0, "no space left on the disk")
        except OSError:
            os.ftruncate(file, size)
            raise

    def _open(self) -> int:
        """Open the file. Raises OSError, also if it is not a regular file."""
        # Without O_NONBLOCK, opening a pipe without a reader would block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(0, "it is not a regular file")
        os.fchmod(file, 0o600)
        return file

    def _warn_once(self, message: str, *values: object) -> None:
        """Log a warning, the first time only."""
        if message not in self._warned:
            self._warned.add(message)
            LOGGER.warning(message, *values)


RECORDED_FIELDS = {
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "chat_template_kwargs",
}
"""Fields that are recorded if they are set, beside the messages: the ones that determine the output."""


def record_lines(
    engine: "GeneratingEngine",
    settings: Settings,
    body: GenerationFields,
    ends: Sequence[tuple[GenerationRequest, Finished]],
) -> Iterator[bytes]:
    """Yield a line for each finished choice of a request."""
    # No warnings: pydantic serializes a union with a validator of its own twice, and misses the model then.
    fields = body.model_dump(
        mode="json", by_alias=True, exclude_unset=True, include=RECORDED_FIELDS, warnings=False
    )
    if isinstance(body, ChatRequest):
        fields["messages"] = [_message(message) for message in body.messages]
    if isinstance(body, ChatRequest) and body.shown_tools:
        fields["tools"] = [tool.for_template() for tool in body.shown_tools]
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    for engine_request, end in ends:
        line = {"time": now, "id": engine_request.id, "model": engine.info.name} | fields
        tokenizer, tokens = engine.tokenizer, end.tokens
        if tokens and tokens[-1] in tokenizer.eos_ids:
            tokens = tokens[:-1]
        line |= {"prompt": tokenizer.decode(engine_request.prompt), "output": tokenizer.decode(tokens)}
        line["draft_type"] = engine_request.draft.type or settings.draft_type
        if engine_request.window_settings:
            line["streaming"] = asdict(engine_request.window_settings)
        usage, drafting = end.usage, end.usage.drafting
        line |= {
            "finish_reason": end.reason,
            "prompt_tokens": usage.num_prompt_tokens,
            "cached_tokens": usage.num_cached_tokens,
            "completion_tokens": usage.num_completion_tokens,
            "draft_tokens": drafting.num_drafted,
            "accepted_tokens": drafting.num_accepted,
            "forwards": drafting.num_forwards,
        }
        yield json.dumps(line).encode() + b"\n"


def _message(message: Message) -> dict[str, Any]:
    """Return a message as a request to OpenAI's API has it, where arguments are text."""
    shown = message.for_template()
    for call in shown.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return shown


def fill_record(
    record: RequestRecord, engine_requests: Sequence[GenerationRequest], ended: Mapping[int, Usage], n: int
) -> None:
    """Write the counts and times into the request's log record."""
    counts = count_usage(engine_requests, ended, n)
    record.num_prompt_tokens = counts["prompt_tokens"]
    record.num_completion_tokens = counts["completion_tokens"]
    # Of a cancelled sequence that has yet to end nothing is known.
    is_known = len(ended) == len(engine_requests)
    record.num_cached_tokens = counts["prompt_tokens_details"]["cached_tokens"] if is_known else None
    record.num_forwards = sum(usage.drafting.num_forwards for usage in ended.values())
    record.drafts = count_by_source(ended.values())
    record.undrafted = explain_undrafted(ended.values())
    if any(request.window_settings for request in engine_requests):
        record.wedlm_decoding = "streaming"
    record.is_loop = any(usage.is_loop for usage in ended.values())
    if translation := count_translation(ended.values()):
        del translation["drafted"], translation["accepted"]
        record.translation = translation
    started = [usage for usage in ended.values() if usage.num_completion_tokens]
    if started:
        record.first_token_ms = 1000 * min(usage.first_token_s for usage in started)
        decode_s = max(usage.total_s for usage in started) - record.first_token_ms / 1000
        later = counts["completion_tokens"] - len(started)
        record.tokens_per_s = later / decode_s if later > 0 and decode_s > 0 else None
