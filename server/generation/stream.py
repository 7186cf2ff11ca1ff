"""Turn the engine's events into a response: whole, or as a stream."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial

from fastapi import Request, Response
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from reprise.engine.interface.events import Delta, Finished
from reprise.engine.interface.spans import span
from reprise.server.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGoneError
from reprise.server.generation.prepare import Prepared
from reprise.server.generation.recorder import record_lines
from reprise.server.generation.service import LeasedModel
from reprise.server.generation.submit import Submission
from reprise.server.http.error_responses import error_frame, internal_error, note_error
from reprise.server.http.executor import FORMAT, PROMPT_LOG, SMALL_BYTES, client_of
from reprise.server.http.request_log import record_of
from reprise.server.logs import LOGGER, RequestRecord, is_logging_prompts, log_prompt
from reprise.server.output.parser_base import MakeParser
from reprise.server.output.parts import (
    ChoiceOutput,
    ChoiceTokens,
    EndPart,
    Events,
    Part,
    ReasoningPart,
    ReportPart,
    TextPart,
    merge_events,
)
from reprise.server.output.presenter import (
    Json,
    Presenter,
    ResponseHead,
    count_usage,
    fill_record,
    measure_timings,
)
from reprise.server.requests.generation_fields import GenerationFields

MAX_DELTAS_AT_ONCE = 256
"""Maximum deltas, and about as many log probabilities, that are parsed and formatted before the event loop
serves other requests."""

LONG_S = 60.0
"""Seconds after which it is logged that an answer without max_tokens still runs; then after twice as many."""


class LongAnswerLog:
    """Logs that an answer still runs: after LONG_S, then each time after twice as long as before.

    max_tokens: at most so many tokens come. clock: returns seconds.
    """

    def __init__(self, max_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tokens, self._clock = max_tokens, clock
        self._started_s, self._due_s = clock(), LONG_S

    def look(self) -> None:
        """Log the answer if that is due."""
        taken_s = self._clock() - self._started_s
        if taken_s < self._due_s:
            return
        self._due_s = max(2 * self._due_s, taken_s)
        LOGGER.info(
            "it has run for %.0f s and sets no max_tokens: it may take up to %d tokens (--default-max-tokens "
            "limits such requests)",
            taken_s, self._max_tokens,
        )  # fmt: skip


class RequestOutput:
    """Parsed output of a submission, with one parser for each choice.

    record: the request's log record, completed by close(). body: the request, whose fields say which parts of
        the output are returned.
    """

    def __init__(
        self,
        leased: LeasedModel,
        record: RequestRecord,
        submission: Submission,
        make_parser: MakeParser,
        body: GenerationFields,
    ) -> None:
        self.submission = submission
        self._body = body
        self._leased = leased
        self._record = record
        self._parsers = [make_parser() for _ in submission.engine_requests]
        self._events: deque[tuple[int, Delta | Finished]] = deque()
        self._ending: tuple[int, asyncio.Future[EndPart]] | None = None
        most = max(request.max_tokens for request in submission.engine_requests)
        self._log = LongAnswerLog(most) if body.requested_max_tokens is None else None

    @property
    def is_complete(self) -> bool:
        """Whether every choice has finished normally and all parts have been returned."""
        return self.submission.is_complete and self._is_everything_read

    async def receive(self) -> list[tuple[int, Part]]:
        """Wait for a part and return all that have arrived, as (index of the choice, part).

        Returns an empty list after keep_alive_s without a part, even while a long tool call is generated or
        the answer is checked. Raises ApiError if a sequence failed, once all earlier events have been
        returned, and ClientGoneError if the client has disconnected.
        """
        parts: list[tuple[int, Part]] = []
        if self._events:
            # More had arrived than are read at once. Let other requests come next.
            await asyncio.sleep(0)
        deadline = time.monotonic() + self._leased.settings.keep_alive_s
        while not parts and time.monotonic() <= deadline:
            if not self._is_everything_read:
                parts += await self._read_events(deadline)
            elif events := await self._receive_events():
                self._events.extend(events)
            else:
                break
        return parts

    async def wait_for_choices(self) -> Sequence[ChoiceOutput]:
        """Wait for all choices to finish and return them. Raises as receive() does."""
        while not self.submission.is_complete:
            await self._receive_events()
        outputs = []
        for index, deltas in enumerate(self.submission.deltas):
            parts: list[Part] = []
            for start in range(0, len(deltas) + 1, MAX_DELTAS_AT_ONCE):
                self._events.extend((index, delta) for delta in deltas[start : start + MAX_DELTAS_AT_ONCE])
                if start + MAX_DELTAS_AT_ONCE > len(deltas):
                    self._events.append((index, self.submission.finished[index]))
                while not self._is_everything_read:
                    # Merged here and not only at the end: that would be much work at once.
                    parts += (part for _, part in merge_events(await self._read_events()))
                    # Let other requests come next.
                    await asyncio.sleep(0)
            outputs.append(ChoiceOutput.of(parts))
        return outputs

    async def _receive_events(self) -> list[tuple[int, Delta | Finished]]:
        events = await self.submission.receive()
        if self._log and not self.submission.is_complete:
            self._log.look()
        return events

    @property
    def _is_everything_read(self) -> bool:
        return not self._events and self._ending is None

    async def _read_events(self, deadline: float | None = None) -> list[tuple[int, Part]]:
        """Return the parts of the next events, up to the end of a choice that must be checked.

        If that end is first, wait for it until the deadline, a time.monotonic(). Raises ClientGoneError if
        the client has left.
        """
        parts: list[tuple[int, Part]] = []
        if self._ending is not None:
            index, task = self._ending
            if not await self.submission.client.wait_for(task, deadline):
                return []
            self._ending = None
            parts.append((index, task.result()))
        num_read = 0
        with span("output"):
            while num_read < MAX_DELTAS_AT_ONCE and self._events and self._ending is None:
                index, event = self._events.popleft()
                num_read += max(1, len(event.logprobs)) if isinstance(event, Delta) else 1
                parts += self._note_parts(index, self._read(index, event))
        return parts

    def _note_parts(self, index: int, parts: list[Part]) -> list[tuple[int, Part]]:
        """Return a choice's new parts with its index. If its EndPart takes long, begin to make it."""
        make_end = self._parsers[index].make_end
        if make_end is not None:
            self._ending = (index, asyncio.ensure_future(make_end()))
        shown = (
            parts if self._body.shows_reasoning else (p for p in parts if not isinstance(p, ReasoningPart))
        )
        return [(index, part) for part in shown]

    def _read(self, index: int, event: Delta | Finished) -> list[Part]:
        """Return the parts of a choice's event, and what it reports."""
        parser = self._parsers[index]
        if isinstance(event, Delta):
            return [*parser.read(event), *_reports(event)]
        parts: list[Part] = []
        if event.stop is not None and self._body.include_stop_str_in_output:
            parts += parser.read(Delta(event.stop))
        if self._body.return_token_ids:
            answer = () if self._body.is_scoring else event.tokens
            prompt = self.submission.engine_requests[index].prompt
            parts.append(ReportPart(tokens=ChoiceTokens(answer, prompt)))
        return parts + parser.end(event)

    async def format(self, write: Callable[[], bytes], *, is_long: bool = False) -> bytes:
        """Call a presenter's function that formats output; return its frames.

        It runs on a thread if is_long, or if there are log probabilities: for a long answer it takes seconds.
        """
        run = span("format")(write)
        if is_long or any(request.top_logprobs is not None for request in self.submission.engine_requests):
            return await FORMAT.run(run)
        return run()

    def usage(self) -> Json:
        """Return the token counts so far."""
        submission = self.submission
        num_reasoning = sum(parser.num_reasoning_tokens for parser in self._parsers)
        usage = count_usage(
            submission.engine_requests, submission.ended, submission.num_choices, num_reasoning
        )
        if self._body.is_scoring:
            # The token that the engine needs to generate is not part of the response.
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def timings(self) -> Json:
        """Return the timings. All sequences must have ended."""
        ended = self.submission.ended
        return measure_timings([ended[index] for index in range(len(self.submission.engine_requests))])

    async def close(self) -> None:
        """Cancel the sequences that still run, and complete the log record."""
        submission, record = self.submission, self._record
        if self._ending is not None:
            self._ending[1].cancel()
        for index, deltas in enumerate(submission.deltas if is_logging_prompts() else ()):
            answered = "".join(delta.text for delta in deltas)
            await PROMPT_LOG.run(copy_context().run, log_prompt, f"answered [{index}]", answered)
        has_failed = submission.has_failed
        await submission.close()
        fill_record(record, submission.engine_requests, submission.ended, submission.num_choices)
        if submission.is_complete:
            finished = submission.finished
            record.finish_reason = " ".join(
                finished[i].reason for i in range(len(submission.engine_requests))
            )
        else:
            record.finish_reason = "error" if has_failed else "cancelled"


def _reports(delta: Delta) -> list[ReportPart]:
    """Return a delta's extras: log probabilities, usage and progress."""
    fields: Json = {}
    if (told := delta.progress) is not None:
        fields["prompt_progress"] = {
            "total": told.num_tokens,
            "cache": told.num_cached,
            "processed": told.num_processed,
            "time_ms": round(1000 * told.taken_s, 3),
        }
    if delta.usage is not None:
        fields["timings"] = measure_timings([delta.usage])
    return [ReportPart(fields, delta.origins)] if fields or delta.origins else []


class TokenStream(EventSourceResponse):
    """A stream of server-sent events, or of JSON lines, that cleans up however it ends.

    at_end: awaited once, however the stream ends. The clean-up cannot be done by the generator of the frames:
        if the client disconnects early enough, the generator never starts.
    """

    def __init__(
        self, frames: AsyncIterator[bytes], content_type: str, at_end: Callable[[], Awaitable[None]]
    ) -> None:
        # No pings: the library sends them at fixed intervals, write_frames() only after a silence.
        super().__init__(frames, headers={"Cache-Control": "no-cache"}, media_type=content_type, ping=0)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See starlette.responses.Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._at_end()


def known_stream(frames: bytes) -> Response:
    """Return a stream of events that were all made before it begins. frames: the events."""
    return Response(frames, headers={"Cache-Control": "no-cache"}, media_type="text/event-stream")


async def write_frames(
    output: RequestOutput, presenter: Presenter, scope: Scope, first: Events
) -> AsyncIterator[bytes]:
    """Yield the frames of a stream, from the first parts to the end or to an error.

    scope: the request's.
    first: the parts received before the headers were sent; empty if none arrived within keep_alive_s.
    """
    events = first
    try:
        frame = presenter.format_opening(output.usage())
        while not output.is_complete:
            written = await _format_parts(output, presenter, events) if events else presenter.format_silence()
            yield frame + written
            frame = b""
            events = await output.receive()
        frame += await output.format(partial(presenter.format_end, events, output.usage(), output.timings()))
    except Exception as fault:  # noqa: BLE001 - logged by internal_error
        # The status has been sent already, so the error, or that of a bug in the server, is the last event.
        told = note_error(fault, scope) if isinstance(fault, ApiError) else internal_error(scope)
        frame = presenter.format_error(told) or error_frame(told, scope)
    yield frame


async def _format_parts(output: RequestOutput, presenter: Presenter, events: Events) -> bytes:
    write = partial(presenter.format_parts, events)
    if all(isinstance(part, TextPart) for _, part in events):
        return span("format")(write)()
    # Where a text ends, some APIs repeat all of it with its log probabilities.
    return await output.format(write)


async def answer(
    request: Request, leased: LeasedModel, prepare: Callable[[], Prepared], presenter: Presenter
) -> Response:
    """Prepare a request, and generate the whole response or the beginning of a stream.

    prepare: see prepare.py; it runs on a thread. Raises ApiError before any of the response is sent.
    """
    prepared = await leased.run_in_turn(request, prepare)
    body, record, make_views = prepared.body, record_of(request), None
    if prepared.view_slices is not None:
        make_views = leased.views.start(client_of(request), prepared.view_slices)
    submission = Submission(leased, prepared.engine_requests, body.n, _grammar_param(body), make_views)
    output = RequestOutput(leased, record, submission, prepared.make_parser, body)
    submission.start(is_streaming=body.stream)

    async def end() -> None:
        await output.close()
        if leased.app.recorder and submission.finished:
            ends = [(prepared.engine_requests[at], end) for at, end in sorted(submission.finished.items())]
            leased.app.recorder.record(partial(record_lines, leased.engine, leased.settings, body, ends))

    is_handed_over = False
    try:
        # Once a stream has begun, its response notices when the client leaves.
        async with submission.client.watching(request.receive):
            if not body.stream:
                outputs = await output.wait_for_choices()
                write = partial(presenter.format_response, outputs, output.usage(), output.timings())
                # Some repeat what is in the request.
                is_long = len(await request.body()) > SMALL_BYTES
                whole = await output.format(write, is_long=is_long)
                return Response(whole, media_type="application/json")
            first = await output.receive()
        frames = write_frames(output, presenter, request.scope, first)
        is_handed_over = True
        return TokenStream(frames, presenter.stream_type, at_end=end)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not is_handed_over:
            await end()


def _grammar_param(body: GenerationFields) -> str:
    """Return the field that a request's grammar comes from. Without a constraint it can only be the tools."""
    return body.requested_grammar[1] if body.requested_grammar else "tools"


def response_head(request: Request, leased: LeasedModel, model: str | None) -> ResponseHead:
    """Return the head of the response to a request. model: the name that it gives, if it gives one."""
    return ResponseHead(
        id=record_of(request).unique,
        created=int(time.time()),
        model=model or leased.name,
        system_fingerprint=leased.fingerprint,
    )
