"""The server's process: bind the address, start the engine, serve until a signal, return the exit status."""

import asyncio
import errno
import gc
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Literal

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
from reprise.server.http.body import BODY_TIMEOUT_S
from reprise.server.http.connection_limits import MAX_ACCEPTED, MAX_UNACCEPTED, uvicorn_config
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

DRAIN_S = 10.0
"""Seconds that running requests get to finish when the server stops; a second signal ends them at once."""
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

    fault: why the engine died; None if it did not.
    """

    def __init__(self, engine: "Engine", settings: Settings) -> None:
        self._app = create_app(engine, settings)
        config = uvicorn_config(
            self._app,
            BODY_TIMEOUT_S,
            lifespan="on",
            backlog=MAX_ACCEPTED,
            timeout_keep_alive=KEEP_CONNECTION_S,
            timeout_graceful_shutdown=LAST_WRITES_S,
        )
        super().__init__(config)
        self.fault: str | None = None
        self._num_signals = 0
        self._engine, self._settings = engine, settings

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
        LOGGER.info("stopping: %s %g s to finish%s", running, DRAIN_S, stop_again)

    def _end_now(self, sig: int) -> None:
        """End all requests with an error, so that no stream breaks off silently, and exit."""
        num_requests = len(self.server_state.tasks)
        LOGGER.warning("stopping at once: %d requests end without the rest of their answers", num_requests)
        # On a thread: the engine may be in a step that never ends.
        threading.Thread(target=self._engine.stop, args=(0,), name="stop-now", daemon=True).start()
        give_up_at = time.monotonic() + LAST_EVENTS_S
        while self.server_state.tasks and time.monotonic() < give_up_at:
            time.sleep(0.01)
        os._exit(128 + sig)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and show the banner."""
        await super().startup(sockets)
        for bound in sockets or ():
            # asyncio has one number for this and for how many it accepts at once.
            bound.listen(MAX_UNACCEPTED)
            _announce(self._engine, self._settings, url_of(bound))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the engine, which ends every request, then close the connections."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop_engine() -> None:
            self._engine.stop(DRAIN_S)
            loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=stop_engine, name="stop", daemon=True).start()
        limit_s = DRAIN_S + STUCK_S
        try:
            await asyncio.wait_for(stopped.wait(), limit_s)
        except TimeoutError:
            LOGGER.error("the engine did not stop within %g s; exiting without it", limit_s)
            os._exit(1)
        await super().shutdown(sockets)
        num_cut = sum(
            record["error"] == "draining" and record["finish_reason"] is not None
            for record in self._app.state.service.metrics.recent
        )
        if num_cut:
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
    sections: settings of single models. prepare: called to prepare models on disk once the port is bound.
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
    configure_logs(settings.log_format, settings.log_level)
    if "MLX_RANK" in os.environ:
        if settings.may_unload:
            return _fail(
                "--models-dir, --allow-load, --embedding-model, --rerank-model and --idle-unload-s are for "
                "one machine"
            )
        settings = settings_of(settings, sections, settings.model_name)
        if (status := _follow(settings)) is not None:
            return status
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
            with _showing_progress(settings, bound) as show:
                engine = make_engine(settings, make_sources, sections, show)
            settings = engine.settings
            if engine.may_unload and settings.allow_load is None:
                settings = replace(settings, allow_load=is_loopback(bound.getsockname()[0]))
            return serve(engine, settings, bound)
        except ModelError as fault:
            return _fail(str(fault))


def _serve_with_ranks(settings: Settings, make_sources: "MakeSources | None", bound: socket.socket) -> int:
    """Serve one model that is split over several machines. Returns only with the process.

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


def _follow(settings: Settings) -> int | None:
    """On ranks other than 0, follow rank 0 until it ends, then end the process.

    Return None on rank 0, or if there are no ranks, and an exit status if the rank cannot be read.
    """
    from reprise.engine.distributed.follow import run as run_follower
    from reprise.engine.distributed.ranks import read_place

    try:
        place = read_place()
    except ModelError as fault:
        return _fail(str(fault))
    if place is not None and place.rank:
        run_follower(place, settings)
    return None


class ListenError(Exception):
    """The server cannot listen on the address; the message says why. errno: the system's, if any."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


def bind_address(host: str, port: int) -> socket.socket:
    """Bind a socket; it refuses connections until the server listens. port: 0 means any free port.

    Raises ListenError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise ListenError(f"cannot listen on {host}: {fault.strerror}") from fault
    try:
        # Without it, a restart would fail while connections of the previous process are in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as fault:
        bound.close()
        raise ListenError(f"cannot listen on {host} port {port}: {fault.strerror}", fault.errno) from fault
    return bound


def _url(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def url_of(bound: socket.socket) -> str:
    """Return the URL by which a client on this machine reaches the socket."""
    return _url(*bound.getsockname()[:2])


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def explain(fault: ListenError, settings: Settings) -> str:
    """Explain why the server cannot listen, and what to do about it. Probes the program on the port."""
    if fault.errno != errno.EADDRINUSE:
        return str(fault)
    other = "choose another with --port, or 0 for any that is free"
    url = _url(settings.host, settings.port)
    whose = {
        "reprise": f"Reprise runs there already, at {url}. Use it, or {other}",
        "silent": f"a program has it that does not answer, as Reprise while it starts. Wait, or {other}",
        "other": f"another program has it. End that, or {other}",
    }
    return f"cannot listen on {settings.host} port {settings.port}: {whose[find_user(url)]}"


def find_user(url: str) -> Literal["reprise", "silent", "other"]:
    """Name the kind of program that listens at a URL. Reprise is recognized even if it wants an API key."""
    try:
        with _OPENER.open(f"{url}/", timeout=2) as response:
            return "reprise" if "Reprise" in json.load(response)["message"] else "other"
    except urllib.error.HTTPError as refused:
        return "reprise" if "x-request-id" in refused.headers else "other"
    except (TimeoutError, urllib.error.URLError):
        return "silent"
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return "other"


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
        "with --api-key, or allow it with --insecure"
    )


def serve(engine: "Engine", settings: Settings, bound: socket.socket) -> int:
    """Start the engine, serve it on a bound socket until a signal, and return the exit status.

    Raises what engine.start() raises.
    """
    # The engine ends each stream properly when it drains; sse-starlette would cut streams off first.
    AppStatus.enable_automatic_graceful_drain = False
    server = HttpServer(engine, settings)
    engine.on_death = server.note_death
    with _showing_progress(settings, bound) as show:
        engine.start(show)
    # Also after uvicorn's own handlers are gone: the status must say how the server ended.
    signal.signal(signal.SIGTERM, server.handle_exit)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # The terminal was closed; nohup has it ignored.
        signal.signal(signal.SIGHUP, server.handle_exit)
    # Loaded objects stay, so the garbage collector can skip them.
    with frozen():
        gc.enable()
        server.run(sockets=[bound])
    if server.fault is not None:
        return _fail(f"the engine has died: {server.fault}")
    return 0


@contextmanager
def _showing_progress(settings: Settings, bound: socket.socket) -> "Iterator[StartProgress]":
    """Yield a callback that reports the start's progress to the terminal or log, and to requests."""
    with LoadingBar() as bar, WhileLoading(settings, bound) as waiting:
        show = bar.advance
        if settings.log_format == "json":
            show = LoadingLog().advance
        elif not bar.is_watched:
            show = LoadingLog(UNWATCHED_EVERY_S).advance

        def report(what: str, share: float) -> None:
            waiting.advance(what, share)
            show(what, share)

        yield report


def _announce(engine: "Engine", settings: Settings, address: str) -> None:
    info = engine.info
    if settings.log_format == "json":
        LOGGER.info("ready", extra={"fields": {"event": "ready", "address": address, "model": info.name}})
        return
    try:
        engine.table.status()
        can_draft = True
    except SharedTableError:
        can_draft = False
    drafts = describe_drafts(settings, can_draft, info)
    others = describe_models(engine.entries()[1:], settings) if engine.may_unload else ""
    text = banner(info, settings, address, engine.tokenizer, drafts, others)
    # A full disk, or a pipe that nobody reads, keeps no request from its answer.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - for the person at the terminal


def _fail(message: str) -> int:
    print(f"reprise: {message}", file=sys.stderr)  # noqa: T201 - for the person at the terminal
    return 1
