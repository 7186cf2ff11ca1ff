"""Clients of every kind disconnect from the real server at random moments, and nothing of them is left."""

import asyncio
import gc
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reprise.bench.local_engine import LocalEngine
from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.memory import prefill_plan
from reprise.server import app as server_app
from reprise.server.app import create_app
from reprise.server.generation.answer import EventQueue, RequestOutput, Submission
from tests.end_to_end.trouble.traffic import SCHEMA, TOOLS
from tests.server.served import served

NUM_LEAVING = 40
"""Clients that leave, for each parameter of the test; a warm-up with fewer comes first."""
MAX_AT_ONCE = 24
QUESTION = [{"role": "user", "content": "Tell me about a red lantern. " + "The lamp is in the hall. " * 6}]
MOMENTS = ("in the head", "in the body", "before the answer", "in the answer", "after the last byte")
WAYS = ("half close", "close", "reset")
NEIGHBOUR = {
    "messages": [{"role": "user", "content": "Say twice: the lamp in the hall is red and small."}],
    "max_tokens": 24,
    "temperature": 0.8,
    "seed": 11,
    "logprobs": True,
    "top_logprobs": 3,
    "stream": True,
}
"""A client that stays. Its whole answer is compared, including the exact log probabilities."""
PER_REQUEST = (Sequence, Submission, RequestOutput, EventQueue)
"""Classes whose objects must not outlive their request."""
HELD_OVER_COUNTED = 1.25
"""MLX may allocate a buffer for a cached prefix that is a little larger than its contents."""


class Counted:
    """An app whose event loop can be asked for its number of tasks."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await self.app(scope, receive, send)

    def num_tasks(self) -> int:
        """Return the number of tasks in the server's event loop, without the one that counts."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        assert self.loop
        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(240)


@contextmanager
def serving(prefix_cache_bytes: int) -> Iterator[tuple[str, Engine, Counted]]:
    """Serve the bundled model on a real port, from this process."""
    settings = Settings(
        prefix_cache_bytes=prefix_cache_bytes,
        max_rows=6,
        num_draft_tokens=4,
        prefill_chunk_tokens=32,
    )
    with (
        patch.object(prefill_plan, "MAX_STALL_MS", 0),
        patch.object(server_app, "STORE_BYTES", 0),
        LocalEngine(settings, flat_costs()) as local,
    ):
        app = Counted(create_app(local.engine, settings))
        with served(app) as url:
            yield url, local.engine, app


@pytest.mark.parametrize(
    "prefix_cache_bytes",
    [pytest.param(0, id="nothing kept", marks=pytest.mark.slow), pytest.param(2**20, id="prefixes kept")],
)
@pytest.mark.timeout(1200)
async def test_nothing_is_left_of_clients_that_leave_and_who_stays_notices_nothing(prefix_cache_bytes):
    # Off the event loop of the test: starting and stopping wait for threads.
    entered = serving(prefix_cache_bytes)
    url, engine, app = await asyncio.to_thread(entered.__enter__)  # noqa: TID251
    try:
        alone = await _ask_neighbour(url)
        # The warm-up creates all that is created once: threads, compiled grammars, the process for templates.
        await _run_leaving_clients(url, random.Random(1), 28)
        await _wait_until_idle(engine)
        before = await asyncio.to_thread(_holdings, engine, app)  # noqa: TID251

        leaving = asyncio.create_task(_run_leaving_clients(url, random.Random(2), NUM_LEAVING))
        beside = []
        while not leaving.done():
            beside.append(await _ask_neighbour(url))
        statuses = await leaving

        await _wait_until_idle(engine)
        after = await asyncio.to_thread(_holdings, engine, app)  # noqa: TID251
        assert await _ask_neighbour(url) == alone
        ends = await _ends(url)
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)  # noqa: TID251
    assert beside
    assert [answer for answer in beside if answer != alone] == []
    bytes_before = before.pop("arrays") - before.pop("kept")
    bytes_after = after.pop("arrays") - HELD_OVER_COUNTED * after.pop("kept")
    assert after == before
    assert bytes_after <= bytes_before
    assert set(statuses) <= {200, None}
    assert statuses[200] > NUM_LEAVING // 4
    # Some requests ended before their client left, others were cancelled, and none failed.
    assert ends.keys() == {"cancelled", "stop", "length"}
    assert ends["cancelled"] > NUM_LEAVING // 10


async def _ask_neighbour(url: str) -> list[Any]:
    """Return the neighbour's answer, without ids and times."""
    async with httpx.AsyncClient(timeout=600) as http:
        response = await http.post(f"{url}/v1/chat/completions", json=NEIGHBOUR)
    assert response.status_code == 200, response.text
    *lines, done = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert done == "data: [DONE]"
    choices = [choice for line in lines for choice in json.loads(line.removeprefix("data: "))["choices"]]
    # How many tokens arrive together depends on the drafts; the tokens do not.
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    tokens = [token for choice in choices for token in (choice["logprobs"] or {}).get("content") or ()]
    return [text, tokens, choices[-1]["finish_reason"]]


async def _ends(url: str) -> dict[str, float]:
    """Return the number of sequences by how they ended."""
    async with httpx.AsyncClient(timeout=600) as http:
        families = text_string_to_metric_families((await http.get(f"{url}/metrics")).text)
    samples = [sample for family in families for sample in family.samples]
    return {one.labels["end"]: one.value for one in samples if one.name == "reprise_sequences_total"}


async def _run_leaving_clients(url: str, rng: random.Random, num_clients: int) -> Counter[int | None]:
    """Let clients connect and leave early; return how many saw each status (None: none) before leaving."""
    statuses: Counter[int | None] = Counter()
    room = asyncio.Semaphore(MAX_AT_ONCE)
    # Every kind of client occurs; all else is drawn at random.
    kinds = [KINDS[number % len(KINDS)] for number in range(num_clients)]

    async def leave(make: Callable[[random.Random], tuple[str, dict[str, Any]]]) -> None:
        async with room:
            statuses[await _leave(url, rng, *make(rng))] += 1

    await asyncio.gather(*(leave(kind) for kind in kinds))
    return statuses


async def _leave(url: str, rng: random.Random, path: str, body: dict[str, Any]) -> int | None:
    """Send a request and disconnect early; return the status, or None if none was received."""
    moment, way = rng.choice(MOMENTS), rng.choice(WAYS)
    patience_s, num_reads = rng.uniform(0, 0.2), rng.randint(1, 12)
    if moment == "after the last byte":
        body |= {"max_output_tokens" if path == "/v1/responses" else "max_tokens": rng.randint(1, 6)}
    content = json.dumps(body).encode()
    length = f"Content-Length: {len(content)}"
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", length))
    sent = f"{head}\r\n\r\n".encode() + content
    if moment == "in the head":
        sent = sent[: rng.randint(0, len(head))]
    elif moment == "in the body":
        sent = sent[: len(sent) - rng.randint(1, len(content))]
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    await writer.drain()
    received = b""
    if moment in ("in the head", "in the body", "before the answer"):
        await asyncio.sleep(patience_s)
    elif moment == "in the answer":
        for _ in range(num_reads):
            received += await reader.read(300)
    else:
        while not _is_whole(received) and (more := await reader.read(2**16)):
            received += more
    if way == "half close" and not writer.is_closing():
        writer.write_eof()
        await asyncio.sleep(patience_s)
    elif way == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
    return int(received.split()[1]) if received else None


def _is_whole(received: bytes) -> bool:
    """Return whether a response is complete, by its length or its last chunk."""
    head, _, rest = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(rest) >= int(lengths[0].split()[1]) if lengths else rest.endswith(b"0\r\n\r\n")


def _chat(rng: random.Random) -> tuple[str, dict[str, Any]]:
    n, stream = rng.choice([1, 1, 2, 4]), rng.random() < 0.7
    return "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 60, "n": n, "stream": stream}


def _edit(rng: random.Random) -> tuple[str, dict[str, Any]]:
    said = "The lantern is red. The lantern is small. " * 4
    ask = {"messages": QUESTION, "max_tokens": 60, "temperature": 0, "stream": rng.random() < 0.7}
    return "/v1/chat/completions", ask | {"prediction": {"type": "content", "content": said}}


def _complete(rng: random.Random) -> tuple[str, dict[str, Any]]:
    prompts = ["The lantern is", "In the hall", "Rain on the roof " * 8][: rng.randint(1, 3)]
    ask = {"prompt": prompts, "n": rng.randint(1, 2), "logprobs": rng.choice([None, 2]), "max_tokens": 40}
    return "/v1/completions", ask | {"stream": rng.random() < 0.7, "echo": rng.random() < 0.3}


def _respond(rng: random.Random) -> tuple[str, dict[str, Any]]:
    ask = {"input": "Tell me about the sea.", "max_output_tokens": 40, "store": rng.random() < 0.5}
    return "/v1/responses", ask | {"stream": rng.random() < 0.7}


def _message(rng: random.Random) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": QUESTION, "max_tokens": 40, "stream": rng.random() < 0.7}


def _form(rng: random.Random) -> tuple[str, dict[str, Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "size", "schema": SCHEMA, "strict": True}}
    ask = {"messages": QUESTION, "response_format": form, "max_tokens": 40}
    return "/v1/chat/completions", ask | {"stream": rng.random() < 0.7}


def _call(rng: random.Random) -> tuple[str, dict[str, Any]]:
    ask = {"messages": QUESTION, "tools": TOOLS, "tool_choice": rng.choice(["auto", "required"])}
    return "/v1/chat/completions", ask | {"max_tokens": 40, "stream": rng.random() < 0.7}


KINDS = (_chat, _edit, _complete, _respond, _message, _form, _call)


async def _wait_until_idle(engine: Engine) -> None:
    give_up_at = time.monotonic() + 300
    while (status := engine.status()).num_running or status.num_waiting:
        assert time.monotonic() < give_up_at, status
        await asyncio.sleep(0.05)


def _holdings(engine: Engine, app: Counted) -> dict[str, Any]:
    """Return the counts of all that a request could leave behind, once connections are closed."""
    give_up_at = time.monotonic() + 240
    found: dict[str, Any] = {}
    while time.monotonic() < give_up_at:
        # margin() runs between two steps, so after the last row was removed.
        engine.margin((1, 2, 3))
        gc.collect()
        seen = found
        found = {
            "rows and waiting": (engine.status().num_running, engine.status().num_waiting),
            "objects": Counter(type(one).__name__ for one in gc.get_objects() if type(one) in PER_REQUEST),
            "tasks": app.num_tasks(),
            # Pools grow by a thread where calls overlap, up to their limits. Another pool has a first one.
            "threads": sorted(
                thread.name
                for thread in threading.enumerate()
                if not re.search(r"^asyncio_|_[1-9]\d*$", thread.name)
            ),
            "files": psutil.Process().num_fds(),
            "processes": len(psutil.Process().children(recursive=True)),
            "arrays": engine.counts().active_bytes,
            "kept": sum(one["num_bytes"] for one in engine.prefix_status().values()),
        }
        if found == seen and not found["objects"]:
            break
        time.sleep(0.3)
    return found
