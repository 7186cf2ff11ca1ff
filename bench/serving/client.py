"""One streamed chat completion.

The client often shares two cores with the server, so work that it does during a stream slows the server down.
So each read is only stored with its time, and parsed after the round. "Connection: close" makes the end of
the connection the end of the response.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import h11

IDLE_LIMIT_S = 300.0
"""A request fails after this long without data."""

_OK, _TOO_BUSY = 200, 429
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content")
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything received for one request, with the time of each read, and why the connection failed.

    Times are perf_counter(). started: when connecting began. ended: when the connection was over.
    """

    started: float
    ended: float
    reads: tuple[tuple[float, bytes], ...]
    fault: str | None = None


@dataclass(slots=True)
class Answer:
    """One streamed answer.

    ended: perf_counter() of the read that contained [DONE], or of the connection's end.
    chunks: (perf_counter(), text) of each chunk that has text. is_refused: the server answered 429.
    """

    ended: float
    chunks: list[tuple[float, str]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None
    is_done: bool = False
    is_refused: bool = False


async def post(
    url: str, body: bytes, idle_limit_s: float = IDLE_LIMIT_S, api_key: str | None = None
) -> Transcript:
    """Send body as JSON on a new connection, and record the response until the connection ends."""
    parts = urlsplit(url)
    port, key = parts.port or {"https": 443}.get(parts.scheme, 80), f"Authorization: Bearer {api_key}\r\n"
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"{key if api_key else ''}Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    started, reads, fault = perf_counter(), [], None
    try:
        opened = asyncio.open_connection(parts.hostname, port, ssl=parts.scheme == "https" or None)
        reader, writer = await opened
    except OSError as refused:
        return Transcript(started, perf_counter(), (), f"cannot connect: {refused}")
    try:
        writer.write(head.encode() + body)
        while True:
            async with asyncio.timeout(idle_limit_s):
                data = await reader.read(_CHUNK)
            if not data:
                break
            reads.append((perf_counter(), data))
    except TimeoutError:
        fault = f"no data for {idle_limit_s:g} s"
    except OSError as lost:
        fault = f"connection lost: {lost}"
    finally:
        writer.transport.abort()
    return Transcript(started, perf_counter(), tuple(reads), fault)


def read_answer(transcript: Transcript) -> Answer:
    """Parse the transcript of one request. Any error ends up in Answer.error; nothing is raised."""
    answer = Answer(transcript.ended)
    body, line, status = b"", b"", None
    try:
        for at, event in _events(transcript):
            if isinstance(event, h11.Response):
                status = event.status_code
            else:
                body += event.data
                *lines, line = (line + event.data).split(b"\n")
                for one in lines if status == _OK else ():
                    if one.startswith(b"data:"):
                        _add_chunk(answer, one[5:].strip(), at)
    except h11.RemoteProtocolError as fault:
        shown = transcript.reads[-1][1][:80]
        answer.error = answer.error or f"the response is not HTTP, {fault}: {shown!r}"
    answer.is_refused = status == _TOO_BUSY
    answer.error = answer.error or transcript.fault
    if answer.error is None and status is None:
        answer.error = "the connection closed without an answer"
    elif answer.error is None and status != _OK:
        answer.error = f"status {status}: {_message(body)}"
    elif answer.error is None and not answer.is_done:
        answer.error = "the stream ended without [DONE]"
    return answer


def _events(transcript: Transcript) -> Iterator[tuple[float, h11.Response | h11.Data]]:
    """Yield the response's head and the parts of its body, each with the time of its read."""
    connection = h11.Connection(h11.CLIENT)
    # h11 reads a response only after a request; post() wrote the real one.
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "")]))
    connection.send(h11.EndOfMessage())
    for at, data in transcript.reads:
        connection.receive_data(data)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return
            if isinstance(event, h11.Response | h11.Data):
                yield at, event


def _message(body: bytes) -> str:
    """Return the message of an error body in OpenAI's shape, or else the first 200 bytes of the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip()


def _add_chunk(answer: Answer, payload: bytes, at: float) -> None:
    if payload == b"[DONE]":
        answer.is_done, answer.ended = True, at
        return
    error = None
    try:
        chunk = json.loads(payload)
        if not isinstance(chunk, dict):
            error = f"a chunk is not a JSON object: {payload[:80]!r}"
        elif chunk.get("error"):
            error = f"error in the stream: {_message(payload)}"
        else:
            if isinstance(chunk.get("usage"), dict):
                answer.usage = chunk["usage"]
            for choice in chunk.get("choices") or ():
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
                if text := _text(choice.get("delta") or {}):
                    answer.chunks.append((at, text))
    except ValueError:
        error = f"a chunk is not a JSON object: {payload[:80]!r}"
    except (AttributeError, TypeError):
        error = f"a chunk is not a chat completion chunk: {payload[:80]!r}"
    answer.error = answer.error or error


def _text(delta: dict[str, Any]) -> str:
    text = "".join(delta.get(name) or "" for name in _TEXT_FIELDS)
    functions = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    return text + "".join((one.get("name") or "") + (one.get("arguments") or "") for one in functions)
