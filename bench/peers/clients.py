"""The peers that are compared: servers over HTTP, and mlx_lm's loops in child processes."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from bench.answer import Answer, read_answer
from bench.child import BareLoop
from bench.errors import BenchError
from bench.exchange import post
from bench.serve import first_model
from bench.statistics import share_tokens
from bench.workloads import Turn

CountTokens = Callable[[str], int]
"""Returns the number of tokens of a text on its own."""


@dataclass(frozen=True, slots=True)
class Question:
    """A turn of a chat. prompt: its token ids, for peers that take no messages."""

    workload: str
    turn: Turn
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one question, or the error.

    arrivals: (seconds since the request, tokens) of each read that contained text.
    num_tokens: as the peer reported, or counted from the text. error: why the request failed, in one line.
    """

    text: str = ""
    num_tokens: int = 0
    duration_s: float = 0.0
    arrivals: tuple[tuple[float, float], ...] = ()
    error: str | None = None

    @property
    def first_token_s(self) -> float | None:
        """Time to the first text; None if there was no text."""
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def decoded(self) -> tuple[float, float]:
        """Tokens after the first arrival, and the time from the first to the last arrival."""
        if not self.arrivals:
            return 0.0, 0.0
        return sum(tokens for _, tokens in self.arrivals[1:]), self.arrivals[-1][0] - self.arrivals[0][0]


class Peer(Protocol):
    """Answers one question at a time."""

    name: str

    def ask(self, question: Question, max_tokens: int) -> Reply:
        """Ask and wait for the whole reply. Raises nothing: a failure is a reply with an error."""


@dataclass
class ServerPeer:
    """An OpenAI-compatible server.

    url: without /v1. model: the name to send; None: the first model that the server lists.
    idle_limit_s: a request fails after this long without data.
    """

    name: str
    url: str
    model: str | None
    count_tokens: CountTokens
    idle_limit_s: float
    api_key: str | None = None
    _model: str | None = field(default=None, init=False)

    def ask(self, question: Question, max_tokens: int) -> Reply:
        """Stream one greedy chat completion."""
        try:
            self._model = self._model or self.model or first_model(self.url, "NAME=URL=MODEL", self.api_key)
        except BenchError as fault:
            return Reply(error=str(fault))
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(question.turn.messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if question.turn.tools:
            body["tools"] = list(question.turn.tools)
        url = f"{self.url}/v1/chat/completions"
        transcript = asyncio.run(post(url, json.dumps(body).encode(), self.idle_limit_s, self.api_key))
        return _reply(read_answer(transcript), transcript.started, self.count_tokens)


def _reply(answer: Answer, started: float, count: CountTokens) -> Reply:
    counted = [max(1, count(text)) for _, text in answer.chunks]
    reported = (answer.usage or {}).get("completion_tokens")
    num_tokens = reported if isinstance(reported, int) and reported >= 0 else sum(counted)
    shares = share_tokens(num_tokens, [text for _, text in answer.chunks], counted)
    by_time: dict[float, float] = {}
    for (at, _), tokens in zip(answer.chunks, shares, strict=True):
        by_time[at] = by_time.get(at, 0.0) + tokens
    return Reply(
        text="".join(text for _, text in answer.chunks),
        num_tokens=num_tokens if answer.error is None else 0,
        duration_s=answer.ended - started,
        arrivals=tuple((at - started, tokens) for at, tokens in by_time.items()),
        error=answer.error,
    )


class LoopPeer:
    """mlx_lm's own generation. decode: token ids to text. end_ids: end tokens, which are not in the text."""

    def __init__(
        self, name: str, loop: BareLoop, decode: Callable[[Sequence[int]], str], end_ids: frozenset[int]
    ) -> None:
        self.name = name
        self._loop = loop
        self._decode = decode
        self._end_ids = end_ids
        self._fault: str | None = None

    def ask(self, question: Question, max_tokens: int) -> Reply:
        """Answer one prompt. Once the process has exited, every question fails."""

        if self._fault is None:
            started = perf_counter()
            try:
                found = self._loop.answer(question.prompt, max_tokens)
            except (BenchError, OSError, ValueError) as fault:
                self._fault = str(fault)
            else:
                return self._reply(found, perf_counter() - started)
        return Reply(error=self._fault)

    def _reply(self, found: dict[str, Any], duration_s: float) -> Reply:
        ids, times = list(found["token_ids"]), [float(at) for at in found["arrived_s"]]
        if ids and ids[-1] in self._end_ids:
            ids.pop()
        by_time: dict[float, float] = {}
        for at in times:
            by_time[at] = by_time.get(at, 0.0) + 1.0
        return Reply(
            text=self._decode(ids),
            num_tokens=len(times),
            duration_s=times[-1] if times else duration_s,
            arrivals=tuple(by_time.items()),
        )
