"""A headless Chromium, driven through a pipe in its DevTools protocol: for tests and screenshots."""

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
PATIENCE_S = 120
"""How long the browser may say nothing; it starts in less than a second where nothing else runs."""


class PageError(Exception):
    """The page threw, or the browser refused a command."""


def find_browser() -> str | None:
    """Where a Chromium or Chrome is installed; None if nowhere."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in [*found, *MAC] if path and Path(path).is_file()), None)


@contextmanager
def browser() -> Iterator["Page"]:
    """Start a browser with a profile of its own, and give its one page; both go afterwards.

    Raises FileNotFoundError where none is installed.
    """
    path = find_browser()
    if path is None:
        raise FileNotFoundError("no Chromium or Chrome is installed here")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

        def as_expected() -> None:
            # Commands come in by 3, answers go out by 4. Copies first: the pipes may have these very numbers.
            own = os.dup(to_read), os.dup(from_write)
            os.dup2(own[0], 3)
            os.dup2(own[1], 4)

        process = subprocess.Popen(
            [path, f"--user-data-dir={profile}", *FLAGS],
            preexec_fn=as_expected,
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
    """JSON objects, each ended by a zero byte. events: those that came while answers were awaited."""

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
            if not select.select([self._from], [], [], PATIENCE_S)[0]:
                raise PageError(f"the browser said nothing for {PATIENCE_S} s")
            some = os.read(self._from, 1 << 20)
            if not some:
                raise PageError("the browser has ended")
            self._rest += some
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


class Page:
    """The page of a browser. file: what it shows; None at first."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self.file: Path | None = None
        target = pipe.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = pipe.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the protocol to the page, and return its result. Raises PageError."""
        return self._pipe.send(method, self._session, **params)

    def open(self, file: Path) -> None:
        """Load a file, and wait until its script has run."""
        self._pipe.events.clear()
        self.file = file
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._pipe.events):
            self._pipe.events.append(self._pipe.receive())
        self.settle()

    def settle(self) -> None:
        """Wait for two frames, after which the plots have the size that there is."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page, waited for if it is a promise. Raises PageError."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if fault := answer.get("exceptionDetails"):
            raise PageError(fault.get("exception", {}).get("description") or fault["text"])
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900, scale: float = 1) -> None:
        """Give the window a size in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Let the system ask for "light" or "dark"."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def press(self, key: str) -> None:
        """Press a key and let it go: "Tab", "ArrowRight", "Enter"."""
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
        """Move the mouse to a place in the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path) -> None:
        """Write what the window shows as a PNG."""
        shot = self.send("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        file.write_bytes(base64.b64decode(shot["data"]))

    @property
    def requests(self) -> list[str]:
        """Every address that the page asked for since it was opened, its own first."""
        return [
            event["params"]["request"]["url"]
            for event in self._pipe.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """What was thrown, warned of or refused since the page was opened."""
        said = []
        for event in self._pipe.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                thrown = params["exceptionDetails"]
                said.append(thrown.get("exception", {}).get("description") or thrown["text"])
            elif event["method"] == "Log.entryAdded":
                said.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                said.append(str(params["args"]))
        return said
