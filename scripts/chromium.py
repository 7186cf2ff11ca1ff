"""Control a headless Chromium through a pipe, by its DevTools protocol, for tests and screenshots."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
TIMEOUT_S = 120
"""How long to wait for the browser's next message. On an idle machine it starts in less than a second."""


class PageError(Exception):
    """A script in the page threw, or the browser refused a command or stopped answering."""


def find_browser() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in [*found, *MAC] if path and Path(path).is_file()), None)


@contextmanager
def browser() -> Iterator["Page"]:
    """Start a browser with a temporary profile and yield its page; remove both afterwards.

    Raises FileNotFoundError if no browser is installed.
    """
    path = find_browser()
    if path is None:
        raise FileNotFoundError("no Chromium or Chrome is installed")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

        def connect_pipes() -> None:
            # The browser reads commands from descriptor 3 and writes answers to 4. The pipes are copied
            # first, because they may have these very numbers.
            copies = os.dup(to_read), os.dup(from_write)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        process = subprocess.Popen(
            [path, f"--user-data-dir={profile}", *FLAGS],
            preexec_fn=connect_pipes,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        pipe = _Pipe(to_write, from_read)
        try:
            yield Page(pipe)
        finally:
            with suppress(OSError, PageError):
                pipe.send("Browser.close")
            os.close(to_write)
            os.close(from_read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _Pipe:
    """A connection that exchanges JSON objects, each ended by a zero byte.

    events: the events that arrived while waiting for answers.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._num_sent = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._num_sent += 1
        command = {"id": self._num_sent, "method": method, "params": params}
        if session:
            command["sessionId"] = session
        text = json.dumps(command).encode() + b"\0"
        while text:
            text = text[os.write(self._to, text) :]
        while True:
            message = self.receive()
            if message.get("id") != self._num_sent:
                self.events.append(message)
            elif "error" in message:
                raise PageError(f"{method}: {message['error']['message']}")
            else:
                return dict(message["result"])

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], TIMEOUT_S)[0]:
                raise PageError(f"the browser sent nothing for {TIMEOUT_S} s")
            received = os.read(self._from, 1 << 20)
            if not received:
                raise PageError("the browser has exited")
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


class Page:
    """The page of a browser. file: the file that it shows, or None."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self.file: Path | None = None
        target = pipe.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = pipe.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a protocol command to the page and return its result. Raises PageError."""
        return self._pipe.send(method, self._session, **params)

    def open(self, file: Path) -> None:
        """Load a file and wait until its scripts have run."""
        self._pipe.events.clear()
        self.file = file
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._pipe.events):
            self._pipe.events.append(self._pipe.receive())
        self.settle()

    def settle(self) -> None:
        """Wait for two frames, after which the plots fit the window."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page, awaiting a promise, and return its value. Raises PageError."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if fault := answer.get("exceptionDetails"):
            raise PageError(fault.get("exception", {}).get("description") or fault["text"])
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900, scale: float = 1) -> None:
        """Set the window's size, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Set the preferred color scheme, "light" or "dark"."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def press(self, key: str) -> None:
        """Press and release a key, such as "Tab", "ArrowRight" or "Enter"."""
        codes = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowRight": 39,
        }
        named: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        if key == "Enter":
            named["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **named)

    def point_at(self, x: float, y: float) -> None:
        """Move the mouse to a point in the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path) -> None:
        """Write a screenshot of the window as a PNG file."""
        shot = self.send("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        file.write_bytes(base64.b64decode(shot["data"]))

    @property
    def requests(self) -> list[str]:
        """The addresses that the page requested since it was opened, its own first."""
        return [
            event["params"]["request"]["url"]
            for event in self._pipe.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """The exceptions, warnings and errors since the page was opened."""
        messages = []
        for event in self._pipe.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                thrown = params["exceptionDetails"]
                messages.append(thrown.get("exception", {}).get("description") or thrown["text"])
            elif event["method"] == "Log.entryAdded":
                messages.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                messages.append(str(params["args"]))
        return messages
