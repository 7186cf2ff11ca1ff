"""Send requests to a running server, or start one while a command needs it."""

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO, Any
from urllib.parse import quote

from reprise.cli.arguments import FailedError, UsageError
from reprise.config.loopback import takes_proxy

DEFAULT_URL = "http://127.0.0.1:8000"
PATIENCE_S = 10


class NoServerError(UsageError):
    """Nothing listens at the address."""


class RefusedError(FailedError):
    """The server answers with an error; the message is its own. status: of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the address and the key of a server to the parser."""
    parser.add_argument("--url", default=DEFAULT_URL, help="Address of the server. Default: %(default)s")
    parser.add_argument("--api-key", metavar="KEY", help="Key that the server wants. Default: none")


@dataclass(frozen=True)
class Server:
    """A server at an address, without /v1 at its end. key: the API key; None without one."""

    url: str
    key: str | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Server":
        """Return the server that arguments name. Raises UsageError for an invalid address."""
        url = arguments.url.rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--url is {url}; it must start with http:// or https://")
        return cls(url, arguments.api_key)

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request. Raises RefusedError, and UsageError if no such server answers."""
        return self._read(path)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of a POST request, which has no time limit. Raises as get() does."""
        return self._read(path, body)

    def models(self) -> list[dict[str, Any]]:
        """Return the models that requests may ask for, the default first. Raises as get() does."""
        try:
            cards = [card for card in self.get("/v1/models")["data"] if card["owned_by"] == "reprise"]
        except (LookupError, TypeError):
            cards = []
        if not cards:
            raise self._no_reprise("/v1/models")
        return cards

    def model(self, name: str | None) -> dict[str, Any]:
        """Return the model of this name, or the default model for None. Raises as get() does."""
        if name is None:
            return self.models()[0]
        return self.read_model(f"/v1/models/{quote(name, safe='')}")

    def read_model(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the model that answers a GET request, or a POST request, which has no time limit.

        Raises as get() does.
        """
        card = self._read(path, body)
        if not isinstance(card, dict) or card.get("owned_by") != "reprise":
            raise self._no_reprise(path)
        return card

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any] | str]:
        """Yield the events of a stream as objects, and its comments as text. Raises as get() does.

        Raises RefusedError for an event with an error, and ConnectionError if the stream ends before its last
        event.
        """
        is_whole = False
        # A connection that breaks off within a chunk; otherwise it looks like an end.
        with self._open(path, body) as response, suppress(IncompleteRead):
            for line in response:
                text = line.decode().strip()
                if text.startswith(":"):
                    yield text[1:].strip()
                elif text.startswith("data: {"):
                    event = json.loads(text.removeprefix("data: "))
                    if "error" in event:
                        raise RefusedError(200, event["error"]["message"])
                    yield event
                elif text == "data: [DONE]":
                    is_whole = True
        if not is_whole:
            raise ConnectionError(f"{self.url} ended the connection before the answer was whole")

    def _read(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._open(path, body) as response:
            try:
                return json.load(response)
            except (OSError, ValueError, HTTPException):
                raise self._no_reprise(path) from None

    def _open(self, path: str, body: Mapping[str, Any] | None) -> HTTPResponse:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            # What only looks something up is answered at once, but a model may take long to be loaded.
            response: HTTPResponse = self._opener.open(request, timeout=PATIENCE_S if data is None else None)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise UsageError(f"{self.url} wants an API key: pass --api-key") from None
            said = _message(error) or f"{self.url}{path} answers with status {error.code}"
            raise RefusedError(error.code, said) from None
        except (OSError, ValueError, HTTPException) as error:
            said = f"no server at {self.url} ({getattr(error, 'reason', error)})"
            raise NoServerError(f"{said}: start `reprise serve`, or pass --url") from None
        return response

    @property
    def _opener(self) -> urllib.request.OpenerDirector:
        proxies: dict[str, str] | None = None if takes_proxy(self.url, has_key=bool(self.key)) else {}
        return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def _no_reprise(self, path: str) -> UsageError:
        return UsageError(f"{self.url}{path} does not answer as Reprise does")


def _message(error: urllib.error.HTTPError) -> str | None:
    """Return an error response's message; None if it is not Reprise's."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return None


Show = Callable[[str, float], None]
"""Called with the current task and its share done."""

STOP_S = 20
"""Seconds for a server to end by itself."""

_ROOT = Path(__file__).parents[2]


@contextmanager
def started(arguments: list[str], show: Show) -> Iterator[Server]:
    """Start a server for this command; yield it once it is ready; stop it when the context ends.

    arguments: those of `reprise serve`. show: called with each stage of the start and its share done.
    Raises UsageError with the server's last line of output if it does not start.
    """
    flags = ["--port", "0", "--host", "127.0.0.1", "--log-format", "json", "--log-level", "info"]
    # A key would be for others, and this server is for nobody else.
    flags += ["--api-key", ""]
    command = [sys.executable, "-P", "-m", "reprise", "serve", *arguments, *flags]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C in the terminal is for the command alone.
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
    )
    # A signal that ends this command must end the server, too.
    before = {sig: signal.signal(sig, _leave) for sig in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert process.stderr
        address = _wait_until_ready(process.stderr, show)
        # Nobody reads its log from here on, and a full pipe would stop it.
        Thread(target=process.stderr.read, daemon=True).start()
        yield Server(address)
    finally:
        _end(process)
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _leave(sig: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + sig)


def _wait_until_ready(log: IO[str], show: Show) -> str:
    """Read a server's log until its address; return the address. Raises UsageError if the log ends first."""
    last = "it ended without a word"
    for line in log:
        try:
            entry = json.loads(line)
        except ValueError:
            last = line.strip() or last
            if last.startswith("reprise: converting"):
                show(last.removeprefix("reprise: "), 0.0)
            continue
        if entry.get("event") == "ready":
            return str(entry["address"])
        if entry.get("event") == "loading":
            show(entry["stage"], entry["share"])
    raise UsageError(last.removeprefix("reprise: "))


def _end(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
