"""Streamed chat completions over HTTP.

The client often shares two cores with the server, so each piece of a response is only stored with its time, and
parsed after all of them have ended.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

_TEXT_FIELDS = ("content", "reasoning", "reasoning_content")


@dataclass(slots=True)
class Transcript:
    """What came for one request: status, the pieces of the body with their times, and why it broke off.

    Times are perf_counter(). started: when connecting began.
    """

    started: float
    ended: float = 0.0
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    fault: str | None = None


@dataclass(slots=True)
class Answer:
    """One streamed answer. chunks: (perf_counter(), text) of each chunk that has text.

    ended: perf_counter() of [DONE], or of the connection's end.
    """

    ended: float
    chunks: list[tuple[float, str]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None
    is_done: bool = False


def key_header(api_key: str | None) -> dict[str, str]:
    """Return the header that sends an API key, if there is one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def post_all(
    url: str, bodies: Sequence[bytes], streams: int, idle_limit_s: float, api_key: str | None = None
) -> list[Transcript]:
    """Send all bodies, at most `streams` at the same time, each on a new connection."""
    # Pieces are stored as they come, so they must not be compressed.
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **key_header(api_key)}
    limits = httpx.Limits(max_keepalive_connections=0)
    free = asyncio.Semaphore(streams)

    async with httpx.AsyncClient(
        headers=headers, limits=limits, timeout=idle_limit_s, trust_env=False
    ) as client:

        async def post(body: bytes) -> Transcript:
            async with free:
                return await _post(client, url, body)

        return await asyncio.gather(*map(post, bodies))


async def _post(client: httpx.AsyncClient, url: str, body: bytes) -> Transcript:
    seen = Transcript(perf_counter())
    try:
        async with client.stream("POST", url, content=body) as response:
            seen.status = response.status_code
            async for data in response.aiter_raw():
                seen.pieces.append((perf_counter(), data))
    except httpx.ConnectError as fault:
        seen.fault = f"cannot connect: {fault}"
    except httpx.ReadTimeout:
        seen.fault = f"no data for {client.timeout.read:g} s"
    except httpx.HTTPError as fault:
        seen.fault = f"connection lost: {fault!r}"
    seen.ended = perf_counter()
    return seen


def read_answer(transcript: Transcript) -> Answer:
    """Parse the response to one request. Any error ends up in Answer.error; nothing is raised."""
    answer = Answer(transcript.ended, error=transcript.fault)
    if not answer.error and transcript.status != httpx.codes.OK:
        body = b"".join(data for _, data in transcript.pieces)
        answer.error = f"status {transcript.status}: {_message(body)}"
        return answer
    line = b""
    for at, data in transcript.pieces:
        *lines, line = (line + data).split(b"\n")
        for one in lines:
            if one.startswith(b"data:"):
                _add_event(answer, one.removeprefix(b"data:").strip(), at)
    if not answer.error and not answer.is_done:
        answer.error = "the stream ended without [DONE]"
    return answer


def _message(body: bytes) -> str:
    """Return the message of an error body in OpenAI's shape, or else the first 200 bytes of the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip()


def _add_event(answer: Answer, data: bytes, at: float) -> None:
    if data == b"[DONE]":
        answer.is_done, answer.ended = True, at
        return
    try:
        chunk = json.loads(data)
        if chunk.get("error"):
            answer.error = answer.error or f"error in the stream: {_message(data)}"
        if isinstance(chunk.get("usage"), dict):
            answer.usage = chunk["usage"]
        for choice in chunk.get("choices") or ():
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            if text := _text(choice.get("delta") or {}):
                answer.chunks.append((at, text))
    except (ValueError, AttributeError, TypeError):
        answer.error = answer.error or f"not a chunk of a chat completion: {data[:80]!r}"


def _text(delta: dict[str, Any]) -> str:
    text = "".join(delta.get(name) or "" for name in _TEXT_FIELDS)
    functions = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    return text + "".join((one.get("name") or "") + (one.get("arguments") or "") for one in functions)
