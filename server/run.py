"""Run the server process: start the engine, serve until a signal, return the exit status."""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from sse_starlette.sse import AppStatus

from reprise.config.loopback import is_loopback
from reprise.config.per_model import Section, settings_of
from reprise.config.process_memory import frozen, share_arenas
from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError, SharedTableError
from reprise.server.app import create_app
from reprise.server.banner import LoadingBar, banner, describe_drafts, describe_models
from reprise.server.http.access import load_keys
from reprise.server.http.connection import (
    MAX_ACCEPTED,
    MAX_UNACCEPTED,
    ListenError,
    bind_address,
    explain,
    url_of,
    uvicorn_config,
)
from reprise.server.http.while_loading import WhileLoading
from reprise.server.logs import LOGGER, LoadingLog, configure_logs

if TYPE_CHECKING:
    # Importing it takes seconds, see run().
    from reprise.engine.engine import Engine
    from reprise.engine.interface.models import StartProgress
    from reprise.engine.pool.residency import MakeSourcesFor
    from reprise.engine.speculative.proposers import MakeSources

Prepare = Callable[[Settings, "StartProgress"], Settings]
"""Returns settings whose models are on disk, once they are; told of the progress."""

UNWATCHED_EVERY_S = 10.0
"""Seconds between two lines of a text log about the progress of a start that no terminal shows."""

KEEP_CONNECTION_S = 75
"""How long an idle connection stays open: longer than clients keep one, so that they close it first."""
LAST_WRITES_S = 5
"""How long connections stay open after the engine has stopped, so that clients can read the last bytes."""
LAST_EVENTS_S = 2
"""How long a second signal lets requests end, each with an error: longer than a step takes."""
STUCK_S = 30
"""How long the engine may take, after the drain time, to finish its last step and write its files."""


class HttpServer(uvicorn.Server):
    """A uvicorn server that keeps listening while it drains, to answer 503, and stops when the engine dies.

    on_ready: called when clients can connect.
    count_cut: returns how many requests were ended because the server stops.
    fault: why the engine died; None if it did not.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: "Engine",
        drain_s: float,
        on_ready: Callable[[], None],
        count_cut: Callable[[], int] = int,
    ) -> None:
        super().__init__(config)
        self.fault: str | None = None
        self._num_signals = 0
        self._engine = engine
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._count_cut = count_cut

    def note_death(self, reason: str) -> None:
        """Shut down because the engine died. Called on the engine's thread."""
        self.fault = reason
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        """Drain at the first signal; end all requests and exit at the second; only exit at the third."""
        # Not should_exit: mlx.launch stops rank 0 while its clients still read why another rank was lost.
        self._num_signals += 1
        if self._num_signals == 2:
            threading.Thread(target=self._end_now, args=(sig,), name="end", daemon=True).start()
        if self._num_signals > 2:
            os._exit(128 + sig)
        if self._num_signals > 1:
            return
        self.should_exit = True
        num_running = len(self.server_state.tasks)
        if not num_running:
            LOGGER.info("stopping: no request is running")
            return
        stop_again = ". Press Ctrl-C again to stop at once" if sig == signal.SIGINT else ""
        running = f"{num_running} running requests have" if num_running > 1 else "1 running request has"
        LOGGER.info("stopping: %s %g s to finish%s", running, self._drain_s, stop_again)

    def _end_now(self, sig: int) -> None:
        """End all requests with an error, so that no stream just breaks off, and exit."""
        num_requests = len(self.server_state.tasks)
        LOGGER.warning("stopping at once: %d requests end without the rest of their answers", num_requests)
        # On a thread: the engine may be in a step that never ends.
        threading.Thread(target=self._engine.stop, args=(0,), name="stop-now", daemon=True).start()
        give_up_at = time.monotonic() + LAST_EVENTS_S
        while self.server_state.tasks and time.monotonic() < give_up_at:
            time.sleep(0.01)
        os._exit(128 + sig)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for bound in sockets or ():
            # asyncio has one number for this and for how many it accepts at once.
            bound.listen(MAX_UNACCEPTED)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the engine, which ends every request, then close the connections."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop_engine() -> None:
            self._engine.stop(self._drain_s)
            loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=stop_engine, name="stop", daemon=True).start()
        limit_s = self._drain_s + STUCK_S
        try:
            await asyncio.wait_for(stopped.wait(), limit_s)
        except TimeoutError:
            LOGGER.error("the engine did not stop within %g s; exiting without it", limit_s)
            os._exit(1)
        await super().shutdown(sockets)
        if num_cut := self._count_cut():
            were = "1 request was ended before its answer was"
            if num_cut > 1:
                were = f"{num_cut} requests were ended before their answers were"
            LOGGER.warning("stopped: %s whole", were)


def run(
    settings: Settings,
    make_sources: "MakeSourcesFor | None" = None,
    sections: Mapping[str, Section] | None = None,
    prepare: Prepare = lambda settings, _: settings,
) -> int:
    """Serve the model of the settings, or several, until a signal; return the exit status.

    make_sources: makes the drafters of a model with given settings; None turns drafting off.
    sections: settings of single models. prepare: prepares models on disk once the port is bound.
    """
    # Loading makes many objects, and hardly any that must be collected.
    gc.disable()
    try:
        return _start(settings, make_sources, sections or {}, prepare)
    finally:
        gc.enable()


def _start(
    settings: Settings,
    make_sources: "MakeSourcesFor | None",
    sections: Mapping[str, Section],
    prepare: Prepare,
) -> int:
    if "MLX_RANK" in os.environ:
        if settings.may_unload:
            return _fail(
                "--models-dir, --allow-load, --embedding-model, --rerank-model and --idle-unload-s are for "
                "one machine"
            )
        settings = settings_of(settings, sections, settings.model_name)
        if (status := follow(settings)) is not None:
            return status
    configure_logs(settings.log_format, settings.log_level, log_prompts=settings.log_prompts)
    share_arenas()
    try:
        bound = bind_address(settings.host, settings.port)
    except ListenError as fault:
        return _fail(explain(fault, settings))
    with bound:
        if error := exposure_error(settings, bound):
            return _fail(error)
        with WhileLoading(settings, bound) as waiting:
            settings = prepare(settings, waiting.advance)
        # Imported late: MLX takes seconds to import, and a port in use should be reported before that.
        from reprise.engine.engine import check_model, make_engine

        try:
            if "MLX_RANK" in os.environ:
                check_model(settings)
                return _serve_with_ranks(settings, make_sources(settings) if make_sources else None, bound)
            with LoadingBar() as bar, WhileLoading(settings, bound) as waiting:
                show = _show_progress(bar, waiting, settings)
                engine = make_engine(settings, make_sources, sections, show)
            settings = engine.settings
            if engine.may_unload and settings.allow_load is None:
                settings = replace(settings, allow_load=is_loopback(bound.getsockname()[0]))
            return serve(engine, settings, bound)
        except ModelError as fault:
            return _fail(str(fault))


def _serve_with_ranks(settings: Settings, make_sources: "MakeSources | None", bound: socket.socket) -> int:
    """Serve one model of which other machines have parts. This only ends with the process.

    Raises ModelError.
    """
    from reprise.engine.distributed.ranks import read_place
    from reprise.engine.engine import Engine
    from reprise.engine.pool.residency import Makers

    place = read_place()
    if place is None:
        return serve(Engine(settings, Makers(make_sources=make_sources)), settings, bound)
    from reprise.engine.distributed.rank_0 import Ranks, leave

    ranks = Ranks(place, settings)
    status = 1
    try:
        status = serve(Engine(settings, Makers(make_sources=make_sources, ranks=ranks)), settings, bound)
    except ModelError as fault:
        _fail(str(fault))
    finally:
        leave(ranks.release(status))


def follow(settings: Settings) -> int | None:
    """On another rank than 0, follow rank 0 until it ends, then end the process.

    Return None on rank 0, or if there are no ranks, and an exit status if the rank cannot be read.
    """
    from reprise.engine.distributed.follow import run as run_follower
    from reprise.engine.distributed.ranks import read_place

    configure_logs(settings.log_format, settings.log_level, log_prompts=settings.log_prompts)
    try:
        place = read_place()
    except ModelError as fault:
        return _fail(str(fault))
    if place is not None and place.rank:
        run_follower(place, settings)
    return None


def exposure_error(settings: Settings, bound: socket.socket) -> str | None:
    """Return an error message if other machines could use the server without an API key, else None.

    With --insecure it only logs a warning. Raises SettingsError if the key file cannot be used.
    """
    if load_keys(settings) or is_loopback(bound.getsockname()[0]):
        return None
    if settings.insecure:
        LOGGER.warning("other machines can use this server without an API key (--insecure)")
        return None
    return (
        f"listening on {settings.host} lets other machines use this server, but no API key is set; set one "
        "with --api-key or --api-key-file, or allow it with --insecure"
    )


def serve(engine: "Engine", settings: Settings, bound: socket.socket) -> int:
    """Start the engine, serve it on a bound socket until a signal, and return the exit status.

    Raises what engine.start() raises.
    """
    # The engine ends each stream properly when it drains; sse-starlette would cut streams off first.
    AppStatus.enable_automatic_graceful_drain = False
    app = create_app(engine, settings)

    def count_cut() -> int:
        return sum(
            record["error"] == "draining" and record["finish_reason"] is not None
            for record in app.state.service.metrics.recent
        )

    config = uvicorn_config(
        app,
        settings.body_timeout_s,
        lifespan="on",
        backlog=MAX_ACCEPTED,
        timeout_keep_alive=KEEP_CONNECTION_S,
        timeout_graceful_shutdown=LAST_WRITES_S,
    )
    announce = partial(_announce, engine, settings, url_of(bound))
    server = HttpServer(config, engine, settings.drain_s, announce, count_cut)
    engine.on_death = server.note_death
    with LoadingBar() as bar, WhileLoading(settings, bound) as waiting:
        engine.start(_show_progress(bar, waiting, settings))
    # Also after uvicorn's own handlers are gone: the status must say how the server ended.
    signal.signal(signal.SIGTERM, server.handle_exit)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # The terminal was closed; nohup has it ignored.
        signal.signal(signal.SIGHUP, server.handle_exit)
    # What was loaded stays, so no collection need look at it.
    with frozen():
        gc.enable()
        server.run(sockets=[bound])
    if server.fault is not None:
        return _fail(f"the engine has died: {server.fault}")
    return 0


def _show_progress(bar: LoadingBar, waiting: WhileLoading, settings: Settings) -> "StartProgress":
    """Return what tells the progress of the start: the bar on a terminal, else the log; and who asks."""
    show = bar.advance
    if settings.log_format == "json":
        show = LoadingLog().advance
    elif not bar.is_watched:
        show = LoadingLog(UNWATCHED_EVERY_S).advance

    def tell(what: str, share: float) -> None:
        waiting.advance(what, share)
        show(what, share)

    return tell


def _announce(engine: "Engine", settings: Settings, address: str) -> None:
    info = engine.info
    if settings.log_format == "json":
        LOGGER.info("ready", extra={"fields": {"event": "ready", "address": address, "model": info.name}})
        return
    drafts = describe_drafts(settings, _can_draft(engine), info)
    others = describe_models(engine.entries()[1:], settings) if engine.may_unload else ""
    text = banner(info, settings, address, engine.tokenizer, drafts, others)
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - for the person at the terminal


def _can_draft(engine: "Engine") -> bool:
    try:
        engine.table.status()
    except SharedTableError:
        return False
    return True


def _fail(message: str) -> int:
    """Print an error and return exit status 1."""
    print(f"reprise: {message}", file=sys.stderr)  # noqa: T201 - for the person at the terminal
    return 1
