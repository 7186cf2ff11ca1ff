"""Produce an answer: submit requests to the engine, and turn its events into a response.

If the client leaves first, the requests are cancelled.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from reprise.engine.interface.errors import EngineError
from reprise.engine.interface.events import Delta, Event, Failed, Finished, Usage
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.interface.spans import span
from reprise.server.errors import ApiError, from_engine, from_failure
from reprise.server.generation.prepare import Prepared
from reprise.server.generation.recorder import fill_record, record_lines
from reprise.server.generation.service import LeasedModel, wait_unless_gone
from reprise.server.http.error_responses import error_frame, internal_error, note_error
from reprise.server.http.executor import FORMAT, SMALL_BYTES, client_of
from reprise.server.http.request_log import record_of
from reprise.server.logs import LOGGER, RequestRecord
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
    measure_timings,
)

ResultT = TypeVar("ResultT")
SETTLE_S = 5.0
"""How long a cancelled request waits for its sequences to end: a step and a chunk if a step takes a second.
The log line lacks the usage of later ones."""
MAX_DELTAS_AT_ONCE = 256
"""Maximum deltas, and about as many log probabilities, that are parsed and formatted before the event loop
serves other requests."""
LONG_S = 60.0
"""Seconds after which a running answer without max_tokens is logged; then at doubling times."""

ChoiceEvent = tuple[int, Event]
"""(index of the choice, event)."""


class EventQueue:
    """Events of one HTTP request, in order of arrival. Use it on the event loop only.

    silence_s: receive() returns an empty list after this many seconds without an event.
    """

    def __init__(self, silence_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._events: list[ChoiceEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_received_s = self._loop.time()

    def put(self, event: ChoiceEvent) -> None:
        """Add an event."""
        self._events.append(event)
        self._wake()

    async def receive(self) -> list[ChoiceEvent]:
        """Wait for an event and return all that have arrived; none after silence_s."""
        if not self._events:
            self._waiter = self._loop.create_future()
            if self._timer is None:
                self._timer = self._loop.call_later(self._silence_s, self._check_silence)
            await self._waiter
        self._last_received_s = self._loop.time()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_silence(self) -> None:
        # The timer restarts itself for the time that is left: a new timer for each token costs too much.
        left_s = self._last_received_s + self._silence_s - self._loop.time()
        if left_s <= 0:
            self._wake()
            left_s = self._silence_s
        self._timer = self._loop.call_later(left_s, self._check_silence)


KEEP_ALIVE_S = 10.0
"""Seconds of silence after which a stream shows that the server is alive, by an event (ping,
response.in_progress) or a comment, before clients and proxies give it up."""


class Submission:
    """The sequences of one HTTP request: submits them, receives their events, cancels those still running.

    on_first: called on the event loop when the first token of any sequence has come.
    ended: usage of the sequences that have ended, normally or not, by index.
    finished: the final events of the sequences that ended normally, by index.
    deltas: the deltas of each choice of a whole response; a stream keeps none.
    """

    def __init__(
        self, leased: LeasedModel, prepared: Prepared, on_first: Callable[[], object] | None
    ) -> None:
        self.engine_requests = prepared.engine_requests
        self.num_choices = prepared.body.n
        self.ended: dict[int, Usage] = {}
        self.finished: dict[int, Finished] = {}
        self.deltas: list[list[Delta]] = [[] for _ in prepared.engine_requests]
        self._leased = leased
        # Without a constraint a grammar can only be that of the tools.
        grammar = prepared.body.requested_grammar
        self._grammar_param = grammar[1] if grammar else "tools"
        self._on_first = on_first
        self._event_queue = EventQueue(KEEP_ALIVE_S)
        self._num_submitted = 0
        self._failure: Failed | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every sequence has ended normally."""
        return len(self.finished) == len(self.engine_requests)

    @property
    def has_failed(self) -> bool:
        """Whether a sequence has failed."""
        return self._failure is not None

    @span("submission")
    def start(self, is_streaming: bool) -> None:
        """Submit all sequences to the engine, or none. Raises ApiError if the engine refuses one.

        is_streaming: receive() returns the deltas as they arrive; otherwise they are collected in deltas.
        """
        try:
            for index, engine_request in enumerate(self.engine_requests):
                self._leased.engine.submit(engine_request, partial(self._take, index, is_streaming))
                self._num_submitted += 1
        except Exception as fault:
            self._cancel()
            if isinstance(fault, EngineError):
                raise from_engine(fault) from fault
            raise

    async def receive(self) -> list[tuple[int, Delta | Finished]]:
        """Wait for an event and return all that have arrived; none after KEEP_ALIVE_S without an event.

        Raises ApiError if a sequence failed, once all earlier events have been returned.
        """
        events = await self._take_events() if self._failure is None else []
        if self._failure is not None and not events:
            raise from_failure(self._failure, self._grammar_param)
        return events

    async def close(self) -> None:
        """Cancel the sequences that have not ended, and wait up to SETTLE_S for them to end."""
        self._cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while len(self.ended) < self._num_submitted:
                    await self._take_events()
        self._event_queue.close()

    def _cancel(self) -> None:
        for index, engine_request in enumerate(self.engine_requests[: self._num_submitted]):
            if index not in self.ended:
                self._leased.engine.cancel(engine_request.id)

    async def _take_events(self) -> list[tuple[int, Delta | Finished]]:
        """Wait for events, note which sequences ended, and return the events up to the first failure."""
        events: list[tuple[int, Delta | Finished]] = []
        for index, event in await self._event_queue.receive():
            if not isinstance(event, Delta):
                self.ended[index] = event.usage
            if isinstance(event, Failed):
                self._failure = self._failure or event
            elif self._failure is None:
                events.append((index, event))
                if isinstance(event, Finished):
                    self.finished[index] = event
        return events

    def _take(self, index: int, is_streaming: bool, event: Event) -> None:
        """Post an event; collect a delta of a whole response, without waking the event loop for each token.

        Runs on the engine's thread.
        """
        app = self._leased.app
        if isinstance(event, Delta):
            if self._on_first is not None and not event.is_prompt and event.progress is None:
                on_first, self._on_first = self._on_first, None
                app.event_bridge.post(lambda _: on_first(), None)
            if not is_streaming:
                self.deltas[index].append(event)
                return
        else:
            # In the metrics, once, even if its client has left.
            is_first = index % self.num_choices == 0
            app.metrics.count_sequence(event, is_first=is_first, model=self._leased.name)
        app.event_bridge.post(self._event_queue.put, (index, event))


class LongAnswerLog:
    """Logs that an answer still runs: after LONG_S, then each time after twice as long as before.

    max_tokens: the answer's maximum. clock: returns seconds.
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

    record: the request's log record, completed by close().
    """

    def __init__(
        self, leased: LeasedModel, record: RequestRecord, submission: Submission, prepared: Prepared
    ) -> None:
        self.submission = submission
        self._body = prepared.body
        self._leased = leased
        self._record = record
        self._parsers = [prepared.make_parser() for _ in prepared.engine_requests]
        self._events: deque[tuple[int, Delta | Finished]] = deque()
        self._ending: tuple[int, asyncio.Future[EndPart]] | None = None
        # Of an only choice, if its next prompt is expected.
        self._kept_parts: list[Part] | None = None if prepared.expect is None else []
        most = max(request.max_tokens for request in prepared.engine_requests)
        self._log = LongAnswerLog(most) if prepared.body.requested_max_tokens is None else None

    @property
    def is_complete(self) -> bool:
        """Whether every choice has finished normally and all parts have been returned."""
        return self.submission.is_complete and self._is_everything_read

    async def receive(self) -> list[tuple[int, Part]]:
        """Wait for a part and return all that have arrived, as (index of the choice, part).

        Returns an empty list after KEEP_ALIVE_S without a part, even while a long tool call is generated or
        the answer is checked. Raises ApiError if a sequence failed, once all earlier events have been
        returned.
        """
        parts: list[tuple[int, Part]] = []
        if self._events:
            # More had arrived than are read at once. Let other requests come next.
            await asyncio.sleep(0)
        deadline = time.monotonic() + KEEP_ALIVE_S
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

        If that end is first, wait for it until the deadline, a time.monotonic().
        """
        parts: list[tuple[int, Part]] = []
        if self._ending is not None:
            index, task = self._ending
            await asyncio.wait({task}, timeout=None if deadline is None else deadline - time.monotonic())
            if not task.done():
                return []
            self._ending = None
            parts.append((index, task.result()))
        num_read = 0
        with span("output"):
            while num_read < MAX_DELTAS_AT_ONCE and self._events and self._ending is None:
                index, event = self._events.popleft()
                num_read += max(1, len(event.logprobs)) if isinstance(event, Delta) else 1
                parts += ((index, part) for part in self._read(index, event))
        return parts

    def _read(self, index: int, event: Delta | Finished) -> list[Part]:
        """Return the shown parts of a choice's event. Start making its EndPart if that takes long."""
        parser = self._parsers[index]
        if isinstance(event, Delta):
            parts = [*parser.read(event), *_reports(event)]
        else:
            parts = []
            if event.stop is not None and self._body.include_stop_str_in_output:
                parts += parser.read(Delta(event.stop))
            if self._body.return_token_ids:
                answer = () if self._body.is_scoring else event.tokens
                prompt = self.submission.engine_requests[index].prompt
                parts.append(ReportPart(tokens=ChoiceTokens(answer, prompt)))
            parts += parser.end(event)
            if parser.make_end is not None:
                self._ending = (index, asyncio.ensure_future(parser.make_end()))
        if not self._body.shows_reasoning:
            parts = [part for part in parts if not isinstance(part, ReasoningPart)]
        if self._kept_parts is not None:
            self._kept_parts += parts
        return parts

    @property
    def kept(self) -> ChoiceOutput:
        """The only choice, as the client was sent it, if its next prompt is expected."""
        return ChoiceOutput.of(self._kept_parts or ())

    async def format(self, write: Callable[[], bytes], *, is_long: bool = False) -> bytes:
        """Call a presenter's function that formats output; return its frames.

        It runs on a thread if is_long or with log probabilities, which take seconds for a long answer.
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
        has_failed = submission.has_failed
        await submission.close()
        fill_record(record, submission.engine_requests, submission.ended, submission.num_choices)
        if submission.is_complete:
            record.finish_reason = " ".join(end.reason for _, end in sorted(submission.finished.items()))
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

    at_end: awaited once, however the stream ends. The generator of the frames cannot clean up: if the client
        disconnects early enough, it never starts.
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


_LINE_ENDS = {end.encode(): json.dumps(end)[1:-1].encode() for end in "\x85\u2028\u2029"}
"""Where some clients end a line besides a line break: httpx's iter_lines, so Ollama's package for Python."""


def in_its_lines(frame: bytes) -> bytes:
    """Escape what some clients would take for the end of a line. frame: of JSON, so it stands in strings."""
    for end, escape in _LINE_ENDS.items():
        frame = frame.replace(end, escape)
    return frame


def known_stream(frames: bytes) -> Response:
    """Return a stream of existing events. frames: the events."""
    headers = {"Cache-Control": "no-cache"}
    return Response(in_its_lines(frames), headers=headers, media_type="text/event-stream")


async def write_frames(
    output: RequestOutput, presenter: Presenter, scope: Scope, first: Events
) -> AsyncIterator[bytes]:
    """Yield the frames of a stream, from the first parts to the end or to an error.

    scope: the request's.
    first: the parts received before the headers were sent; empty if none arrived within KEEP_ALIVE_S.
    """
    events = first
    try:
        frame = presenter.format_opening(output.usage())
        while not output.is_complete:
            written = await _format_parts(output, presenter, events) if events else presenter.format_silence()
            yield in_its_lines(frame + written)
            frame = b""
            events = await output.receive()
        frame += await output.format(partial(presenter.format_end, events, output.usage(), output.timings()))
    except Exception as fault:  # noqa: BLE001 - logged by internal_error
        # The status has been sent already, so the error, or that of a bug in the server, is the last event.
        told = note_error(fault, scope) if isinstance(fault, ApiError) else internal_error(scope)
        frame = presenter.format_error(told) or error_frame(told, scope)
    yield in_its_lines(frame)


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

    prepare: see prepare.py; it runs on a thread. Raises ClientGoneError, and ApiError before any of the
        response is sent.
    """
    prepared = await leased.run_in_turn(request, prepare)
    body, start_views = prepared.body, None
    if prepared.view_slices is not None:
        start_views = _make_first_view(leased, client_of(request), prepared.view_slices)
    submission = Submission(leased, prepared, start_views)
    output = RequestOutput(leased, record_of(request), submission, prepared)
    submission.start(is_streaming=body.stream)

    async def end() -> None:
        # A client that left early does not come back with the whole answer.
        is_taken = output.is_complete
        await output.close()
        if prepared.expect and is_taken and [one.reason for one in submission.finished.values()] == ["stop"]:
            _in_background(leased, _expect(leased, client_of(request), partial(prepared.expect, output.kept)))
        if leased.app.recorder and submission.finished:
            ends = [(prepared.engine_requests[at], end) for at, end in sorted(submission.finished.items())]
            leased.app.recorder.record(partial(record_lines, leased.engine, leased.settings, body, ends))

    async with contextlib.AsyncExitStack() as at_end:
        at_end.push_async_callback(end)
        if body.stream:
            # Once a stream has begun, its response notices when the client leaves.
            first = await _unless_gone(output.receive(), request.receive)
            frames = write_frames(output, presenter, request.scope, first)
            return TokenStream(frames, presenter.stream_type, at_end=at_end.pop_all().aclose)
        outputs = await _unless_gone(output.wait_for_choices(), request.receive)
        write = partial(presenter.format_response, outputs, output.usage(), output.timings())
        # Some repeat what is in the request.
        is_long = len(await request.body()) > SMALL_BYTES
        return Response(await output.format(write, is_long=is_long), media_type="application/json")


async def _unless_gone(work: Coroutine[Any, Any, ResultT], receive: Receive) -> ResultT:
    """Return the work's result. Raises ClientGoneError, and cancels the work, if the client leaves first."""
    task = asyncio.ensure_future(work)
    try:
        await wait_unless_gone(task, receive)
        return task.result()
    finally:
        task.cancel()


def _in_background(leased: LeasedModel, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin work that no answer waits for, and that ends with the server."""
    task = asyncio.ensure_future(work)
    leased.app.background.add(task)
    task.add_done_callback(leased.app.background.discard)
    return task


async def _expect(leased: LeasedModel, client: str, render: Callable[[], list[GenerationRequest]]) -> None:
    """Let the engine read ahead the prompts that will follow an answer. Errors are only logged."""
    try:
        if requests := await leased.app.executor.background.run(client, render):
            leased.engine.expect(requests)
    except Exception:  # noqa: BLE001 - logged
        LOGGER.exception("the next prompt of a conversation cannot be rendered")


def _make_first_view(leased: LeasedModel, client: str, slices: Iterator[None]) -> Callable[[], object]:
    """Make the first slice of views, with those of earlier turns. Return a function that starts the rest.

    Call it after the first token, which it would delay.
    """

    def begin(after: asyncio.Task[None] | None) -> asyncio.Task[None]:
        return _in_background(leased, _make_views(leased, client, slices, after))

    return partial(begin, begin(None))


async def _make_views(
    leased: LeasedModel, client: str, slices: Iterator[None], after: asyncio.Task[None] | None
) -> None:
    """Make the first slice or, after its task, the others. No answer needs views: errors are only logged."""
    try:
        if after is not None:
            await asyncio.wait({after})
        work = partial(next, slices, True)
        while await leased.app.executor.background.run(client, work) is None and after is not None:
            pass
    except Exception:  # noqa: BLE001 - logged
        LOGGER.exception("the views of a conversation cannot be made")


def response_head(request: Request, leased: LeasedModel, model: str | None) -> ResponseHead:
    """Return the common first fields of the response to a request. model: the name in the request, if any."""
    return ResponseHead(
        id=record_of(request).unique,
        created=int(time.time()),
        model=model or leased.name,
        system_fingerprint=leased.fingerprint,
    )
