"""Parse recorded streams of OpenAI-compatible servers: text chunks, usage, errors."""

import json
from dataclasses import dataclass, field
from typing import Any

from bench.serving.exchange import NotHttpError, Response, Transcript

TOO_BUSY = 429
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content")


@dataclass(slots=True)
class Answer:
    """One streamed answer.

    chunks: (perf_counter(), text) of each chunk that has text.
    ended: perf_counter() of the read that contained [DONE], or of the connection's end.
    is_refused: the server answered 429.
    """

    ended: float
    chunks: list[tuple[float, str]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False
    is_refused: bool = False


def read_answer(transcript: Transcript) -> Answer:
    """Parse the transcript of one request. Any error ends up in Answer.error; nothing is raised."""
    answer = Answer(transcript.ended)
    response = Response()
    try:
        for at, data in transcript.reads:
            for line in response.feed(data):
                if response.status == 200 and line.startswith(b"data:"):
                    _add_chunk(answer, line[5:].strip(), at)
    except NotHttpError as fault:
        answer.error = answer.error or str(fault)
    answer.is_refused = response.status == TOO_BUSY
    answer.error = answer.error or transcript.fault or _find_error(response, answer)
    return answer


def _find_error(response: Response, answer: Answer) -> str | None:
    if response.status is None:
        return "the connection closed without an answer"
    if response.status != 200:
        return f"status {response.status}: {_message(bytes(response.body))}"
    if not answer.done:
        return "the stream ended without [DONE]"
    return None


def _message(body: bytes) -> str:
    """Return the message of an error body in OpenAI's shape, or else the first 200 bytes of the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip()


def _add_chunk(answer: Answer, payload: bytes, at: float) -> None:
    if payload == b"[DONE]":
        answer.done, answer.ended = True, at
        return
    try:
        chunk = json.loads(payload)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        answer.error = answer.error or f"a chunk is not a JSON object: {payload[:80]!r}"
        return
    if chunk.get("error"):
        answer.error = answer.error or f"error in the stream: {_message(payload)}"
        return
    usage = chunk.get("usage")
    answer.usage = usage if isinstance(usage, dict) else answer.usage
    try:
        for choice in chunk.get("choices") or ():
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            text = _text(choice.get("delta") or {})
            if text:
                answer.chunks.append((at, text))
    except (AttributeError, TypeError):
        answer.error = answer.error or f"a chunk is not a chat completion chunk: {payload[:80]!r}"


def _text(delta: dict[str, Any]) -> str:
    text = "".join(delta.get(name) or "" for name in _TEXT_FIELDS)
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        text += (function.get("name") or "") + (function.get("arguments") or "")
    return text
