"""Questions, the servers that answer them, and figures of the answers.

An answer is a row: "request" is its place among those asked together, "tokens" those received (counted_by
says how; 0 if it failed), "started_s" since the first was sent, "duration_s" until the end of the stream,
"arrivals" [seconds since the request, tokens] of each read with text, "error" why it failed.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from bench.experiment import Experiment, Row
from bench.outputs import Work
from bench.serving.client import Transcript, post_all, read_answer
from bench.statistics import compare, rate, share_tokens

_REFUSED = 429
_SAME_READ_S = 0.0002
"""Chunks that follow each other faster than this came in one read: no model makes tokens so fast."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request. ids: its token ids, for peers that take no messages."""

    messages: tuple[dict[str, Any], ...]
    ids: tuple[int, ...]
    workload: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    is_measured: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """Questions asked together, at most `streams` at the same time. round: 0 is the warm-up."""

    round: int
    streams: int
    questions: Sequence[Question]


class Peer(Protocol):
    """Who answers questions."""

    name: str

    def ask(self, questions: Sequence[Question], streams: int = 1) -> list[Row]:
        """Answer all questions, and return their rows in the same order."""


@dataclass
class Server:
    """An OpenAI-compatible server.

    url: without /v1. max_tokens, forbidden_ids: of each answer; ids that would end it early can be forbidden.
    count_tokens: of a text on its own. idle_limit_s: a request fails after this long without data.
    """

    name: str
    url: str
    model: str
    count_tokens: Callable[[str], int]
    max_tokens: int
    forbidden_ids: Sequence[int] = ()
    idle_limit_s: float = 300.0
    api_key: str | None = None

    def ask(self, questions: Sequence[Question], streams: int = 1) -> list[Row]:
        """Stream greedy chat completions."""
        url = f"{self.url}/v1/chat/completions"
        bodies = [json.dumps(self._body(question)).encode() for question in questions]
        transcripts = asyncio.run(post_all(url, bodies, streams, self.idle_limit_s, self.api_key))
        began = min(one.started for one in transcripts)
        return [
            self._row(at, question, transcripts[at], began) for at, question in enumerate(questions)
        ]

    def _body(self, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model, "messages": question.messages, "max_tokens": self.max_tokens,
            "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if question.tools:
            body["tools"] = question.tools
        if self.forbidden_ids:
            body["logit_bias"] = {str(token): -100 for token in self.forbidden_ids}
        return body

    def _row(self, at: int, question: Question, transcript: Transcript, began: float) -> Row:
        answer = read_answer(transcript)
        texts = [text for _, text in answer.chunks]
        counted = [max(1, self.count_tokens(text)) for text in texts]
        reported = answer.usage.get("completion_tokens")
        tokens = sum(counted) if reported is None else int(reported)
        times = [time - transcript.started for time, _ in answer.chunks]
        return answer_row(
            at, question, self.max_tokens, num_prompt_tokens=answer.usage.get("prompt_tokens"),
            tokens=0 if answer.error else tokens, counted_by="text" if reported is None else "usage",
            started_s=transcript.started - began, duration_s=answer.ended - transcript.started,
            arrivals=by_read(times, share_tokens(tokens, texts, counted)), text="".join(texts),
            finish_reason=answer.finish_reason, error=answer.error,
            is_refused=transcript.status == _REFUSED,
        )  # fmt: skip


def answer_row(at: int, question: Question, max_tokens: int, **found: Any) -> Row:
    """Return the row of an answer. found: what is known of it."""
    return {
        "request": at, "workload": question.workload, "has_tools": bool(question.tools),
        "is_measured": question.is_measured, "max_tokens": max_tokens, "num_prompt_tokens": None, "tokens": 0,
        "counted_by": "usage", "started_s": 0.0, "duration_s": 0.0, "arrivals": [], "finish_reason": None,
        "error": None, "is_refused": False, "text": "",
    } | found  # fmt: skip


def by_read(times: Sequence[float], tokens: Sequence[float]) -> list[list[float]]:
    """Return [time, tokens] of each read, from those of each chunk."""
    found: list[list[float]] = []
    for at, (time, count) in enumerate(zip(times, tokens, strict=True)):
        if at and time - times[at - 1] < _SAME_READ_S:
            found[-1][1] += count
        else:
            found.append([time, count])
    return found


def ask_all(peers: Sequence[Peer], batches: Sequence[Batch], work: Work, **resume: Any) -> list[Row]:
    """Ask every peer each batch before the next one, a different one first each time; return the answers.

    resume: arguments of Experiment.
    """
    work.weight += len(peers) * sum(len(batch.questions) for batch in batches)

    def ask(peer: Peer, batch: Batch) -> list[Row]:
        stage = f"round {batch.round}" if batch.round else "warm-up"
        workload = f", {batch.questions[0].workload}" if batch.questions[0].workload else ""
        work.begin(f"{batch.streams} stream{'s' * (batch.streams > 1)}, {stage}: {peer.name}{workload}")
        rows = peer.ask(batch.questions, batch.streams)
        work.advance(len(rows))
        return [row | {"round": batch.round, "concurrency": batch.streams} for row in rows]

    arms = {peer.name: partial(ask, peer) for peer in peers}
    cases = {f"batch {at} of {batch.streams} streams": batch for at, batch in enumerate(batches)}
    return Experiment(arms, cases, 1, has_warm_up=lambda _: False, order="rotate", **resume).run()


Take = Callable[[Sequence[Row]], float | None]
"""Returns one figure of the answers of a round."""


def good(rows: Sequence[Row]) -> list[Row]:
    """Return the answers that did not fail."""
    return [row for row in rows if row["error"] is None]


def throughput(rows: Sequence[Row]) -> float | None:
    """Return all tokens divided by the time of all batches, which follow each other."""
    wall_s: dict[str, float] = {}
    for row in rows:
        wall_s[row["case"]] = max(wall_s.get(row["case"], 0.0), row["started_s"] + row["duration_s"])
    return rate(sum(row["tokens"] for row in rows), sum(wall_s.values()))


def decode_speed(rows: Sequence[Row]) -> float | None:
    """Return the speed per stream after the first text."""
    arrivals = [row["arrivals"] for row in good(rows) if row["arrivals"]]
    tokens = sum(tokens for one in arrivals for _, tokens in one[1:])
    return rate(tokens, sum(one[-1][0] - one[0][0] for one in arrivals))


def first_tokens_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (time to first text, 1) for every answer with text."""
    return [(row["arrivals"][0][0], 1.0) for row in good(rows) if row["arrivals"]]


def inter_tokens_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (seconds per token, tokens) for every read but the first of every answer.

    The gap before a read is divided equally among its tokens, and each of them counts once.
    """
    return [
        ((at - before) / tokens, tokens)
        for row in good(rows)
        for (before, _), (at, tokens) in pairwise(row["arrivals"])
        if tokens > 0
    ]


def by_round(rows: Sequence[Row], name: str, take: Take) -> list[float | None]:
    """Return a figure of a peer for each measured round."""
    numbers = sorted({row["round"] for row in rows if row["round"]})
    return [
        take([row for row in rows if (row["arm"], row["round"]) == (name, number) and row["is_measured"]])
        for number in numbers
    ]


def ratio(rows: Sequence[Row], ours: str, theirs: str, take: Take) -> dict[str, float] | None:
    """Compare a figure of two peers, round by round."""
    return compare(by_round(rows, ours, take), by_round(rows, theirs, take))


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def equal_texts(rows: Sequence[Row], name: str, first: str) -> tuple[int, int]:
    """Return how many texts of a peer equal those of the first one, and how many could be compared.

    Only answers of both that did not fail are. Servers format tool calls differently, so those are left out.
    """
    texts: dict[str, dict[tuple[str, int], str]] = {name: {}, first: {}}
    for row in good(rows):
        if row["arm"] in texts and not row["has_tools"]:
            # A text that was cut within a character ends in replacement characters.
            texts[row["arm"]][row["case"], row["request"]] = row["text"].rstrip("\ufffd").strip()
    ours, theirs = texts[name], texts[first]
    return len(ours.items() & theirs.items()), len(ours.keys() & theirs.keys())
