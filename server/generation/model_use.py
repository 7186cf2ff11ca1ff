"""Serve a request by the model that it names; if that model is not loaded, wait until it is.

Meanwhile a stream of events reports the progress of the load in comments, and a stream of JSON lines, which
has no comments, sends lines without text. The status is 200 by then, so an error is an event or a line.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from reprise.engine.interface.embeddings import Purpose
from reprise.engine.interface.models import ModelUse
from reprise.server.engine_types import Models
from reprise.server.errors import (
    ApiError,
    BadRequestError,
    ClientGoneError,
    ForbiddenError,
    RequestFailedError,
    from_load,
)
from reprise.server.executor import MODEL_FILES
from reprise.server.generation.service import Service, service_of
from reprise.server.generation.stream import LINES_TYPE
from reprise.server.http.disconnects import wait_unless_gone
from reprise.server.http.errors import error_frame
from reprise.server.http.model_uses import end_later
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.logs import LOGGER
from reprise.server.requests.generation_fields import KeepAlive, keep_alive_s

Answer = Callable[[Service], Awaitable[Response]]
"""Answers a request with the objects of the model that it asks for."""

QUIET_S = 0.25
"""Seconds for which a stream waits for its model without a word, so that an early error has its status."""

COMMENT_S = 1.0
"""Seconds between comments about the progress of a load."""

_STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


async def serve_model(
    request: Request,
    model: str | None,
    answer: Answer,
    *,
    silence: bytes | None = None,
    keep_alive: KeepAlive = None,
    purpose: Purpose | None = "generate",
) -> Response:
    """Answer a request by the named model; None is the model that the server started with.

    silence: sent by a stream while its model is loaded; b"" for comments. None if the response is no stream.
    keep_alive: how long to keep the model loaded after the request.
    purpose: what the model must be for; None for anything.
    Raises ApiError if the model does not exist or cannot be loaded, and the exceptions of answer().
    """
    service = service_of(request)
    service.check_ready()
    models, keep_s = service.models, None
    if not models.is_fixed:
        keep_s = keep_alive_s(keep_alive)
    else:
        # Whatever the name: there is no other.
        _check_purpose(models.first_name, models.info.purpose, purpose)
        if keep_alive is not None:
            note_ignored(request, ["keep_alive"])
    name = service.resolve(model, purpose)

    async def answer_with(use: ModelUse) -> Response:
        use.keep_s = keep_s
        end_later(request, use.end)
        _check_purpose(name, use.engine.info.purpose, purpose)
        if not models.is_fixed:
            record_of(request).model = name
        return await answer(service.of(use.engine, name))

    if (use := models.use_loaded(name)) is not None:
        return await answer_with(use)
    name = await find_loadable(service, model, purpose)
    if (use := models.use_loaded(name)) is not None:
        return await answer_with(use)
    future = await MODEL_FILES.run(_acquire, models, name)
    waiting = _Waiting(service, name, future)
    if silence is None:
        return await answer_with(await waiting.wait_long(request.receive))
    use = await waiting.wait(request.receive, QUIET_S, is_over=False)
    return LoadingStream(request, waiting, answer_with, silence) if use is None else await answer_with(use)


async def serve_body(
    request: Request,
    body: Any,
    answer: Callable[[Request, Any, Service], Awaitable[Response]],
    purpose: Purpose | None = "generate",
) -> Response:
    """Answer a request by the model that its body names. See serve_model()."""
    return await serve_model(
        request,
        body.model,
        partial(answer, request, body),
        silence=b"" if getattr(body, "stream", False) else None,
        keep_alive=getattr(body, "keep_alive", None),
        purpose=purpose,
    )


async def find_loadable(service: Service, model: str | None, purpose: Purpose | None = None) -> str:
    """Return the name of a model that requests may use.

    purpose: what the model must be for; None for anything.
    Raises ModelNotFoundError, ForbiddenError or BadRequestError.
    """
    name = service.resolve(model, purpose)
    entry = await MODEL_FILES.run(service.models.find, name)
    if entry is None:
        name = service.resolve_unknown(name, purpose)
        entry = await MODEL_FILES.run(service.models.find, name)
    if entry is not None:
        _check_purpose(name, entry.purpose, purpose)
    settings = service.settings
    may_load = settings.allow_load or name == settings.model_name or name in settings.beside
    if entry is not None and entry.state == "unloaded" and not may_load:
        raise ForbiddenError(
            f"The model '{name}' is not loaded, and this server loads none for requests. Start it with "
            "--allow-load to allow it.",
            code="loading_not_allowed",
            param="model",
        )
    return name


_WHAT: dict[Purpose, str] = {
    "generate": "generates text",
    "embed": "makes embeddings",
    "rerank": "ranks documents",
}
_WAYS_OUT: dict[Purpose, str] = {
    "generate": "Ask for a model that generates text; GET /v1/models lists what there is.",
    "embed": "Ask for a model that makes embeddings (GET /v1/models), or start the server with "
    "--embedding-model.",
    "rerank": "Ask for a model that ranks (GET /v1/models), or start the server with --rerank-model.",
}


def _check_purpose(name: str, purpose: Purpose, wanted: Purpose | None) -> None:
    """Raise BadRequestError for a model that is for something else."""
    if wanted not in (None, purpose):
        raise BadRequestError(
            f"The model '{name}' {_WHAT[purpose]}, and this endpoint is for a model that {_WHAT[wanted]}. "
            f"{_WAYS_OUT[wanted]}",
            param="model",
            code="wrong_kind_of_model",
        )


def _acquire(models: Models, name: str) -> "Future[ModelUse]":
    try:
        return models.acquire(name)
    except Exception as fault:
        raise from_load(fault) from fault


class _Waiting:
    """Waits for a model. future: its use, which is ended if it comes when nobody waits any more."""

    def __init__(self, service: Service, name: str, future: "Future[ModelUse]") -> None:
        self.service, self.name = service, name
        self._future = future

    def comment(self) -> bytes:
        """Return a comment of a stream about how far the model is."""
        entries = self.service.models.loaded_entries()
        progress = next((entry.progress for entry in entries if entry.name == self.name), None)
        what = "waiting for memory" if progress is None else f"{progress:.0%}"
        return f": loading {self.name}, {what}\n".encode()

    async def wait_long(self, receive: Receive) -> ModelUse:
        """Wait for the use of the model for --load-timeout-s. Raises as wait()."""
        use = await self.wait(receive, self.service.settings.load_timeout_s)
        assert use is not None
        return use

    async def wait(self, receive: Receive, limit_s: float, *, is_over: bool = True) -> ModelUse | None:
        """Wait for the use of the model; None after limit_s if more time is left.

        is_over: whether no time is left after limit_s. Raises ApiError if the model cannot be loaded or the
        time is over, and ClientGoneError if the client has left.
        """
        waiting = asyncio.wrap_future(self._future)
        use = None
        try:
            await wait_unless_gone(waiting, receive, limit_s)
            if waiting.done():
                use = waiting.result()
            elif is_over:
                raise from_load(TimeoutError(self.name))
        except ClientGoneError:
            is_over = True
            raise
        except ApiError:
            raise
        except Exception as fault:
            raise from_load(fault) from fault
        finally:
            if use is None and is_over:
                self.give_up()
        return use

    def give_up(self) -> None:
        """Wait no longer."""
        if not self._future.cancel():
            self._future.add_done_callback(_end_use)


def _end_use(future: "Future[ModelUse]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().end()


class LoadingStream(Response):
    """A stream that reports a model's load in comments, then goes on as the response by that model.

    silence: sent instead of each comment, unless it is empty.
    """

    def __init__(
        self,
        request: Request,
        waiting: _Waiting,
        answer: Callable[[ModelUse], Awaitable[Response]],
        silence: bytes,
    ) -> None:
        super().__init__()
        self._request, self._waiting, self._answer = request, waiting, answer
        self._silence = silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See starlette.responses.Response."""
        kind = LINES_TYPE if self._silence else "text/event-stream; charset=utf-8"
        headers = [(b"content-type", kind.encode()), *_STREAM_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            response = await self._answer(await self._wait(receive, send))
        except ClientGoneError:
            return
        except ApiError as fault:
            await send(_last(error_frame(fault, scope)))
        # A bug in the server. The status has been sent already, so the error is sent as the last event.
        except Exception:  # noqa: BLE001 - logged
            record = record_of(self._request)
            LOGGER.exception("%s %s failed in its stream", record.id, record.endpoint)
            await send(_last(error_frame(RequestFailedError.internal(record.id), scope)))
        else:
            await response(scope, receive, _without_start(send))

    async def _wait(self, receive: Receive, send: Send) -> ModelUse:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._waiting.service.settings.load_timeout_s
        while True:
            told = self._silence or self._waiting.comment()
            await send({"type": "http.response.body", "body": told, "more_body": True})
            left_s = until - loop.time()
            use = await self._waiting.wait(receive, min(COMMENT_S, left_s), is_over=left_s <= COMMENT_S)
            if use is not None:
                return use


def _last(frame: bytes) -> Message:
    return {"type": "http.response.body", "body": frame, "more_body": False}


def _without_start(send: Send) -> Send:
    async def send_rest(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return send_rest
