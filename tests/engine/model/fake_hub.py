"""A server on this machine that answers huggingface_hub as the hub does, with large files elsewhere."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants

COMMIT = "c0ffee" + "0" * 34
MODEL = "some-org/some-model"


@dataclass
class FakeHub:
    """What the server holds, and what it was asked. large: names of the files that are in Git LFS."""

    files: dict[str, bytes]
    large: set[str]
    is_gated: bool = False
    ignores_ranges: bool = False
    damaged: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    """What some files are called instead of their digests."""
    endpoint: str = ""
    ranges: list[tuple[str, str | None]] = field(default_factory=list)
    """Names of the large files that were asked for, each with the header Range."""
    tokens: set[str] = field(default_factory=set)
    tokens_elsewhere: set[str] = field(default_factory=set)
    """What the header Authorization held, at the hub and where it redirects to."""

    def file_info(self, name: str) -> tuple[str, int]:
        """Return the name that the hub gives to the content of a file, and its size."""
        data = self.files[name]
        if name in self.large:
            return self.names.get(name) or hashlib.sha256(data).hexdigest(), len(data)
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), len(data)


@contextmanager
def serve(files: Mapping[str, bytes], large: set[str]) -> Iterator[FakeHub]:
    """Serve files as the hub would, under the name MODEL."""
    hub = FakeHub(dict(files), large)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


def use(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that asks the hub ask this one, and keep what it gets in a cache of its own."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[FakeHub]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not path.startswith("/elsewhere/"):
            self.hub.tokens.update(self.headers.get_all("authorization", []))
        api = f"/api/models/{MODEL}"
        if path in (api, f"{api}/revision/main"):
            self._send_json({"id": MODEL, "sha": COMMIT, "siblings": [*map(self._sibling, self.hub.files)]})
        elif path == f"{api}/tree/{COMMIT}":
            self._send_json([self._entry(name) for name in self.hub.files])
        elif found := re.fullmatch(rf"/{MODEL}/resolve/{COMMIT}/(.+)", path):
            self._resolve(found[1])
        elif found := re.fullmatch(r"/elsewhere/(.+)", path):
            self.hub.tokens_elsewhere.update(self.headers.get_all("authorization", []))
            self._send_large(found[1])
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _sibling(self, name: str) -> dict[str, Any]:
        oid, size = self.hub.file_info(name)
        lfs = {"lfs": {"size": size, "sha256": oid, "pointerSize": 100}} if name in self.hub.large else {}
        return {"rfilename": name, "size": size, "blobId": oid, **lfs}

    def _entry(self, name: str) -> dict[str, Any]:
        oid, size = self.hub.file_info(name)
        lfs = {"lfs": {"size": size, "oid": oid, "pointerSize": 100}} if name in self.hub.large else {}
        return {"type": "file", "path": name, "size": size, "oid": oid, **lfs}

    def _resolve(self, name: str) -> None:
        if self.hub.is_gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            return
        oid, size = self.hub.file_info(name)
        known = {"X-Repo-Commit": COMMIT, "ETag": f'"{oid}"', "X-Linked-Size": str(size)}
        if name in self.hub.large:
            # The same server under another name counts as another host.
            place = self.hub.endpoint.replace("127.0.0.1", "localhost") + f"/elsewhere/{name}"
            self._send(302, b"", known | {"X-Linked-ETag": f'"{oid}"', "Location": place})
        else:
            self._send(200, self.hub.files[name], known)

    def _send_large(self, name: str) -> None:
        asked = self.headers.get("Range")
        self.hub.ranges.append((name, asked))
        if self.hub.ignores_ranges:
            asked = None
        data = self.hub.files[name]
        if name in self.hub.damaged:
            data = bytes(len(data))
        begin = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        rest = data[begin:]
        if asked:
            self._send(206, rest, {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"})
        else:
            self._send(200, rest, {})

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            # Who reads it may have gone.
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        """Stay silent."""
