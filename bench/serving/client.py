"""OpenAI-compatible servers as peers.

The client often shares two cores with the server, so it only stores each fragment of a response with its
time, and parses fragments once all answers of a batch have ended.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

from reprise.bench.serving.traffic import Answer, by_read
from reprise.bench.workloads import Turn
from reprise.config.loopback import takes_proxy


@dataclass
class Server:
    """A peer over HTTP. url: without /v1. idle_limit_s: a request fails after this long without data.

    forbidden_ids: end tokens, if no answer may end before max_tokens.
    """

    url: str
    model: str
    max_tokens: int
    forbidden_ids: Sequence[int] = ()
    idle_limit_s: float = 600.0
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, turns: Sequence[Turn], streams: int = 1) -> list[Answer]:
        """Stream greedy chat completions, at most `streams` at the same time, each on a new connection."""
        # Fragments are stored as they come, so they must not be compressed.
        headers = {"Accept-Encoding": "identity", **self.headers}
        limits = httpx.Limits(max_keepalive_connections=0)
        client = httpx.Client(
            base_url=self.url, headers=headers, timeout=self.idle_limit_s, limits=limits,
            trust_env=takes_proxy(self.url, has_key=bool(self.headers)),
        )  # fmt: skip
        with client, ThreadPoolExecutor(streams) as threads:
            found = list(threads.map(lambda turn: receive(client, self._body(turn)), turns))
        began = min(one.started for one in found)
        return [self._answer(one, began) for one in found]

    def _body(self, turn: Turn) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model, "messages": turn.messages, "max_tokens": self.max_tokens,
            "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if turn.tools:
            body["tools"] = turn.tools
        if self.forbidden_ids:
            body["logit_bias"] = {str(token): -100 for token in self.forbidden_ids}
        return body

    def _answer(self, stream: "Stream", began: float) -> Answer:
        stream.parse()
        texts = [text for _, text in stream.chunks]
        reported = stream.usage.get("completion_tokens")
        tokens = len(texts) if reported is None else int(reported)
        times = [at - stream.started for at, _ in stream.chunks]
        return Answer(
            started_s=stream.started - began, duration_s=stream.ended - stream.started,
            tokens=0 if stream.error else tokens, has_usage=reported is not None, text="".join(texts),
            arrivals=by_read(times, divide_tokens(tokens, texts)),
            num_prompt_tokens=stream.usage.get("prompt_tokens"), error=stream.error,
            num_cached_tokens=(stream.usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            is_early=bool(self.forbidden_ids) and not stream.error and tokens < self.max_tokens,
            is_refused=stream.status == httpx.codes.TOO_MANY_REQUESTS,
        )  # fmt: skip


@dataclass(slots=True)
class Stream:
    """The response to one request: its fragments, and fields that parse() sets. Times are perf_counter().

    chunks: the time and text of each chunk that has text. ended: when [DONE] came, or the connection ended.
    """

    started: float
    ended: float = 0.0
    status: int = 0
    fragments: list[tuple[float, bytes]] = field(default_factory=list)
    error: str | None = None
    chunks: list[tuple[float, str]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    def parse(self) -> None:
        """Read the fragments. Any error ends up in self.error; nothing is raised."""
        if self.error is None and self.status != httpx.codes.OK:
            body = b"".join(data for _, data in self.fragments)
            self.error = f"status {self.status}: {body[:200].decode(errors='replace').strip()}"
            return
        for at, event in self._events():
            if event == b"[DONE]":
                self.ended = at
                return
            try:
                self._add(json.loads(event), at)
            except (ValueError, AttributeError, TypeError):
                self.error = self.error or f"not a chunk of a chat completion: {event[:80]!r}"
        self.error = self.error or "the stream ended without [DONE]"

    def _events(self) -> Iterator[tuple[float, bytes]]:
        """Yield the data of each event, with the time when its line was complete."""
        line = b""
        for at, data in self.fragments:
            *lines, line = (line + data).split(b"\n")
            yield from ((at, one[5:].strip()) for one in lines if one.startswith(b"data:"))

    def _add(self, chunk: dict[str, Any], at: float) -> None:
        if chunk.get("error"):
            self.error = self.error or f"error in the stream: {chunk['error']}"
        self.usage |= chunk.get("usage") or {}
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
            texts = [delta.get(name) for name in ("content", "reasoning", "reasoning_content")]
            texts += [call.get(name) for call in calls for name in ("name", "arguments")]
            if text := "".join(text or "" for text in texts):
                self.chunks.append((at, text))


def receive(client: httpx.Client, body: dict[str, Any]) -> Stream:
    """Send a request, and store the fragments of its response."""
    found = Stream(perf_counter())
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            found.status = response.status_code
            for data in response.iter_raw():
                found.fragments.append((perf_counter(), data))
    except httpx.ConnectError as fault:
        found.error = f"cannot connect: {fault}"
    except httpx.ReadTimeout:
        found.error = f"no data for {client.timeout.read:g} s"
    except httpx.HTTPError as fault:
        found.error = f"connection lost: {fault!r}"
    found.ended = perf_counter()
    return found


def divide_tokens(total: int, texts: Sequence[str]) -> list[float]:
    """Estimate each chunk's tokens where only the total is known.

    The total is divided in proportion to the texts' lengths, unless there are as many chunks as tokens: then
    each chunk has one.
    """
    if len(texts) == total:
        return [1.0] * total
    scale = total / sum(map(len, texts)) if texts else 0.0
    return [len(text) * scale for text in texts]
