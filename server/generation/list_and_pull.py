"""List, unload and download the models that requests may ask for."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from fastapi import Request

from reprise.engine.interface.models import ModelEntry, ModelInfo
from reprise.server.errors import (
    ApiError,
    ForbiddenError,
    RequestFailedError,
    TooBusyError,
    from_load,
    retry_after,
)
from reprise.server.generation.service import (
    LOAD_TIMEOUT_S,
    Service,
    find_loadable,
    resolve,
    service_of,
    wait_unless_gone,
)
from reprise.server.http.executor import MODEL_FILES
from reprise.server.http.request_log import record_of
from reprise.server.logs import LOGGER

MAX_PULLS = 4
"""Maximum number of downloads at once. Each has a thread, which may wait long for the hub."""
PULL_RETRY_S = 30.0
REPORT_S = 0.5
"""Seconds between events about the progress of a download."""


async def named_entries(service: Service) -> dict[str, ModelEntry]:
    """Return all models' entries by each name that requests may use."""
    entries = await MODEL_FILES.run(service.models.entries)
    named = {entry.name: entry for entry in entries}
    return named | {alias: entries[0] for alias in service.model_names if alias not in named}


def known_sampling(service: Service, info: ModelInfo) -> dict[str, float]:
    """Return the model's sampling defaults; empty if requests without sampling fields do not get them."""
    return info.sampling_defaults.known if service.settings.sampling_defaults == "model" else {}


def check_loads(service: Service, *, for_requests: bool = False) -> None:
    """Raise ApiError unless models can be loaded. for_requests: also unless requests may load them."""
    service.check_ready()
    if not service.models.may_unload:
        raise ForbiddenError(
            "This server serves one model. Start it with --models-dir or --allow-load to serve several.",
            code="loading_not_allowed",
        )
    if for_requests and not service.settings.allow_load:
        raise ForbiddenError(
            "This server loads and unloads no models for requests. Start it with --allow-load to allow it.",
            code="loading_not_allowed",
        )


async def unload(request: Request, model: str | None) -> None:
    """Unload a model once its requests have ended.

    Raises ApiError, and ClientGoneError if the client disconnects first. The model then stays loaded, or
    requests for it would wait for its longest answer.
    """
    service = service_of(request)
    check_loads(service, for_requests=True)
    name = await find_loadable(service, resolve(service, model))
    unloading = asyncio.wrap_future(await MODEL_FILES.run(service.models.unload, name))
    try:
        await wait_unless_gone(unloading, request.receive, LOAD_TIMEOUT_S)
        if not unloading.done():
            raise TimeoutError(name)
        unloading.result()
    except Exception as fault:
        raise from_load(fault) from fault
    finally:
        unloading.cancel()


@dataclass(frozen=True, slots=True)
class PullState:
    """A download's progress, in bytes."""

    status: Literal["downloading", "success"]
    completed: int
    total: int


class Pull:
    """A download on a thread of its own, which does not keep the process alive.

    The constructor raises ApiError if requests may load no models, or if MAX_PULLS downloads run. A download
    counts until it ends, even if its client has left.
    """

    _slots = threading.BoundedSemaphore(MAX_PULLS)

    def __init__(self, service: Service, name: str) -> None:
        check_loads(service, for_requests=True)
        if not self._slots.acquire(blocking=False):
            message = f"{MAX_PULLS} downloads are running, which is the most. Try again later."
            raise TooBusyError(message, code="too_many_downloads", headers=retry_after(PULL_RETRY_S))
        self._models, self._name = service.models, name
        self._completed, self._total = 0, 0
        self._is_stopped = threading.Event()
        self._ended: Future[ModelEntry] = Future()
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    async def stop(self) -> None:
        """End the download, unless it has ended."""
        self._is_stopped.set()

    async def states(self, request: Request) -> AsyncIterator[PullState | ApiError]:
        """Yield the progress every REPORT_S seconds; the last state is a success or an error."""
        ended = asyncio.wrap_future(self._ended)
        # Its client may leave before it ends.
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not ended.done():
            yield PullState("downloading", self._completed, self._total)
            await asyncio.wait({ended}, timeout=REPORT_S)
        try:
            ended.result()
            yield PullState("success", self._completed, self._total)
        except Exception as fault:  # noqa: BLE001 - logged, or the client's
            record = record_of(request)
            try:
                error = from_load(fault)
            except Exception:  # noqa: BLE001 - a bug, or a stop
                LOGGER.exception("%s: a download failed", record.id)
                error = RequestFailedError.internal(record.id)
            record.note(error.code or error.type)
            yield error

    def _run(self) -> None:
        try:
            self._ended.set_result(self._models.pull(self._name, self._report))
        except BaseException as fault:  # noqa: BLE001 - raised again in states()
            self._ended.set_exception(fault)
        finally:
            self._slots.release()

    def _report(self, completed: int, total: int) -> None:
        self._completed, self._total = completed, total
        if self._is_stopped.is_set():
            raise InterruptedError("the client left")
