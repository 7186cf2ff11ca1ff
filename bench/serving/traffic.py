"""Questions, and who answers them: servers over HTTP, and mlx_lm's loops in child processes.

An answer is a row: "request" is its place among those asked together, "tokens" those received (counted_by
says how; 0 if it failed), "started_s" since the first was sent, "duration_s" until the end of
the stream, "arrivals" [seconds since the request, tokens] of each read with text, "error" why it failed.
Below are speeds and times of answers, by round and over all rounds.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import httpx

from bench.errors import BenchError
from bench.experiment import Row
from bench.serving.client import IDLE_LIMIT_S, Transcript, post, read_answer
from bench.serving.processes import BareLoop
from bench.statistics import percentile, rate, share_tokens


@dataclass(frozen=True, slots=True)
class Question:
    """One request. ids: its token ids, for peers that take no messages. number: of all questions asked."""

    messages: tuple[dict[str, Any], ...]
    ids: tuple[int, ...]
    workload: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    is_measured: bool = True
    number: int = 0


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What every request contains besides its prompt; all are greedy.

    forbidden_ids: tokens that would end the answer early; they get a logit bias of -100.
    """

    max_tokens: int
    forbidden_ids: tuple[int, ...] = ()

    def body(self, model: str, question: Question) -> bytes:
        """Build the body of POST /v1/chat/completions."""
        fields: dict[str, Any] = {
            "model": model, "messages": list(question.messages), "max_tokens": self.max_tokens,
            "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if question.tools:
            fields["tools"] = list(question.tools)
        if self.forbidden_ids:
            fields["logit_bias"] = {str(token): -100 for token in self.forbidden_ids}
        return json.dumps(fields).encode()


@dataclass
class Server:
    """An OpenAI-compatible server.

    url: without /v1. model: the name to send; None: the first model that the server lists.
    count_tokens: of a text on its own. idle_limit_s: a request fails after this long without data.
    """

    name: str
    url: str
    model: str | None
    count_tokens: Callable[[str], int]
    idle_limit_s: float = IDLE_LIMIT_S
    api_key: str | None = None

    def ask(self, questions: Sequence[Question], options: RequestOptions, streams: int = 1) -> list[Row]:
        """Stream chat completions, at most `streams` at the same time."""
        try:
            self.find_model()
        except BenchError as fault:
            return [failure(at, one, options, str(fault)) for at, one in enumerate(questions)]
        bodies = [options.body(self.model or "", question) for question in questions]
        began = perf_counter()
        transcripts = asyncio.run(self._drive(bodies, streams))
        return [
            self._answer(at, question, options, transcripts[at], began)
            for at, question in enumerate(questions)
        ]

    def find_model(self) -> None:
        """Take the first model that the server lists, if none is named.

        Raises BenchError if the server cannot be reached, needs another key, or lists no model.
        """
        if self.model:
            return
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            response = httpx.get(f"{self.url}/v1/models", headers=headers, timeout=30.0)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                wanted = "another API key" if self.api_key else "an API key"
                raise BenchError(f"{self.url} needs {wanted}; pass it with --server-key")
            self.model = str(response.raise_for_status().json()["data"][0]["id"])
        except httpx.ConnectError:
            raise BenchError(f"no server listens at {self.url}") from None
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
            raise BenchError(
                f"{self.url}/v1/models lists no model ({fault}); name one with NAME=URL=MODEL"
            ) from None

    async def _drive(self, bodies: Sequence[bytes], streams: int) -> dict[int, Transcript]:
        transcripts: dict[int, Transcript] = {}
        waiting = iter(enumerate(bodies))

        async def stream() -> None:
            # All streams share the iterator, so that none idles while requests are left.
            for index, body in waiting:
                url = f"{self.url}/v1/chat/completions"
                transcripts[index] = await post(url, body, self.idle_limit_s, self.api_key)

        await asyncio.gather(*(stream() for _ in range(streams)))
        return transcripts

    def _answer(
        self, at: int, question: Question, options: RequestOptions, transcript: Transcript, began: float
    ) -> Row:
        answer = read_answer(transcript)
        texts = [text for _, text in answer.chunks]
        counted = [max(1, self.count_tokens(text)) for text in texts]
        reported = answer.usage.get("completion_tokens")
        is_reported = isinstance(reported, int) and reported >= 0
        num_tokens: int = reported if is_reported else sum(counted)  # type: ignore[assignment]
        shares = share_tokens(num_tokens, texts, counted)
        arrived = [time - transcript.started for time, _ in answer.chunks]
        details = answer.usage.get("prompt_tokens_details") or {}
        return _asked(at, question, options) | {
            "num_prompt_tokens": answer.usage.get("prompt_tokens"),
            "num_cached_tokens": details.get("cached_tokens"),
            "tokens": num_tokens if answer.error is None else 0,
            "counted_by": "usage" if is_reported else "text", "num_chunks": len(answer.chunks),
            "started_s": transcript.started - began, "duration_s": answer.ended - transcript.started,
            "arrivals": _by_time(arrived, shares), "finish_reason": answer.finish_reason,
            "error": answer.error, "is_refused": answer.is_refused, "text": "".join(texts),
        }  # fmt: skip


@dataclass
class Loop:
    """mlx_lm's own generation. decode: token ids to text. end_ids: end tokens, which are not in the text."""

    name: str
    loop: BareLoop
    decode: Callable[[Sequence[int]], str]
    end_ids: frozenset[int] = frozenset()
    _fault: str | None = field(default=None, init=False)

    def ask(self, questions: Sequence[Question], options: RequestOptions, streams: int = 1) -> list[Row]:  # noqa: ARG002
        """Answer prompts one after the other. Once the process has exited, every question fails."""
        began = perf_counter()
        return [self._ask(at, one, options, began) for at, one in enumerate(questions)]

    def _ask(self, at: int, question: Question, options: RequestOptions, began: float) -> Row:
        started = perf_counter()
        if self._fault is None:
            try:
                found = self.loop.answer(question.ids, options.max_tokens)
            except (BenchError, OSError, ValueError) as fault:
                self._fault = str(fault)
        if self._fault is not None:
            return failure(at, question, options, self._fault)
        ids, times = list(found["token_ids"]), [float(time) for time in found["arrived_s"]]
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return _asked(at, question, options) | {
            "num_prompt_tokens": len(question.ids), "tokens": len(times), "counted_by": "loop",
            "started_s": started - began, "duration_s": times[-1] if times else perf_counter() - started,
            "arrivals": _by_time(times, [1.0] * len(times)),
            "finish_reason": "length" if len(times) == options.max_tokens else "stop",
            "text": self.decode(ids),
        }  # fmt: skip


Peer = Server | Loop


def failure(at: int, question: Question, options: RequestOptions, error: str) -> Row:
    """Return the row of a question that was not answered."""
    return _asked(at, question, options) | {"error": error}


def _asked(at: int, question: Question, options: RequestOptions) -> Row:
    return {
        "request": at, "question": question.number, "workload": question.workload,
        "has_tools": bool(question.tools), "is_measured": question.is_measured,
        "num_prompt_tokens_asked": len(question.ids), "max_tokens": options.max_tokens,
        "num_prompt_tokens": None, "num_cached_tokens": None, "tokens": 0, "counted_by": "usage",
        "num_chunks": 0, "started_s": 0.0, "duration_s": 0.0, "arrivals": [], "finish_reason": None,
        "error": None, "is_refused": False, "text": "",
    }  # fmt: skip


def _by_time(times: Sequence[float], tokens: Sequence[float]) -> list[list[float]]:
    """Return [time, tokens] for each time, as several chunks may come in one read."""
    found: Counter[float] = Counter()
    for time, count in zip(times, tokens, strict=True):
        found[time] += count  # type: ignore[assignment]
    return [list(pair) for pair in found.items()]


Take = Callable[[Sequence[Row]], float | None]
"""Returns one figure of the answers of a round."""


def good(rows: Sequence[Row]) -> list[Row]:
    """Return the answers that did not fail."""
    return [row for row in rows if row["error"] is None]


def throughput(rows: Sequence[Row]) -> float | None:
    """Return all tokens divided by the time from the first request to the last answer."""
    wall_s = max((row["started_s"] + row["duration_s"] for row in rows), default=0.0)
    return rate(sum(row["tokens"] for row in good(rows)), wall_s)


def request_speed(rows: Sequence[Row]) -> float | None:
    """Return the speed per stream, prefill included: all tokens divided by the duration of their requests."""
    return rate(sum(row["tokens"] for row in good(rows)), sum(row["duration_s"] for row in good(rows)))


def decode_speed(rows: Sequence[Row]) -> float | None:
    """Return the speed per stream after the first text."""
    arrivals = [row["arrivals"] for row in good(rows) if row["arrivals"]]
    tokens = sum(tokens for one in arrivals for _, tokens in one[1:])
    return rate(tokens, sum(one[-1][0] - one[0][0] for one in arrivals))


def if_none_failed(take: Take) -> Take:
    """Return the same figure, None for a round in which a request failed."""
    return lambda rows: None if any(row["error"] for row in rows) else take(rows)


def first_tokens_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (time to first text, 1) for every answer with text."""
    return [(row["arrivals"][0][0], 1.0) for row in good(rows) if row["arrivals"]]


def inter_tokens_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (seconds per token, tokens) for every arrival but the first of every answer.

    The gap before an arrival is divided equally among its tokens, and each of them counts once.
    """
    return [
        ((at - before) / tokens, tokens)
        for row in good(rows)
        for (before, _), (at, tokens) in pairwise(row["arrivals"])
        if tokens > 0
    ]


def milliseconds(weighted: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a percentile in milliseconds; None without values."""
    return 1000 * percentile(weighted, share) if weighted else None


def by_round(rows: Sequence[Row], arm: str, take: Take) -> list[float | None]:
    """Return a figure for each measured round."""
    numbers = sorted({row["round"] for row in rows if row["round"]})
    return [
        take([row for row in rows if (row["arm"], row["round"]) == (arm, number) and row["is_measured"]])
        for number in numbers
    ]


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
