"""Measurements of one request and of one round, and the quantities that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from bench.statistics import rate


@dataclass(frozen=True, slots=True)
class Arrival:
    """Text received in one read: seconds since the request was sent, and its number of tokens.

    num_tokens need not be whole: see bench.statistics.share_tokens.
    """

    at_s: float
    num_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One request, whether it succeeded or failed.

    num_prompt_tokens, num_cached_tokens: as the server reported; None if it did not.
    num_completion_tokens: tokens received; counted_by says how they were counted; 0 if the request failed.
    num_chunks: chunks with text.
    started_s: since the start of the round. duration_s: until the end of the stream.
    arrivals: chunks of the same read are one arrival.
    is_refused: it failed because the server was too busy (429).
    """

    request: int
    num_prompt_tokens_asked: int
    max_tokens: int
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_completion_tokens: int = 0
    counted_by: Literal["usage", "text", "loop"] = "usage"
    num_chunks: int = 0
    started_s: float
    duration_s: float
    arrivals: tuple[Arrival, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    is_refused: bool = False

    @property
    def ended_early(self) -> bool:
        """Whether the request succeeded, but the answer is shorter than asked."""
        return self.error is None and self.num_completion_tokens < self.max_tokens

    @property
    def first_token_s(self) -> float | None:
        """Time to the first text; None if there was no text."""
        return self.arrivals[0].at_s if self.arrivals else None

    @property
    def num_decoded_tokens(self) -> float:
        """Tokens received after the first arrival."""
        return sum(arrival.num_tokens for arrival in self.arrivals[1:])

    @property
    def decode_s(self) -> float:
        """Time from the first arrival to the last."""
        return self.arrivals[-1].at_s - self.arrivals[0].at_s if self.arrivals else 0.0

    def inter_token_s(self) -> list[tuple[float, float]]:
        """Return (seconds per token, tokens) for every arrival after the first.

        The gap before an arrival is divided equally among its tokens, and each of these tokens has weight 1
        in percentiles.
        """
        return [
            ((after.at_s - before.at_s) / after.num_tokens, after.num_tokens)
            for before, after in pairwise(self.arrivals)
            if after.num_tokens > 0
        ]


@dataclass(frozen=True, slots=True)
class Round:
    """All requests of one round, at one level against one server. Round 0 is a warm-up and is not reported.

    wall_s: from the start of the first request to the end of the last.
    """

    side: str
    concurrency: int
    number: int
    wall_s: float
    measurements: tuple[Measurement, ...]

    @property
    def succeeded(self) -> list[Measurement]:
        """The requests that did not fail."""
        return [m for m in self.measurements if m.error is None]

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput: all completion tokens divided by the wall time."""
        return rate(sum(m.num_completion_tokens for m in self.succeeded), self.wall_s)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Decode speed per stream: tokens after the first arrival, divided by the time they took."""
        good = self.succeeded
        return rate(sum(m.num_decoded_tokens for m in good), sum(m.decode_s for m in good))

    @property
    def request_tokens_per_s(self) -> float | None:
        """Speed per stream including prefill: all tokens divided by the duration of their requests."""
        good = self.succeeded
        return rate(sum(m.num_completion_tokens for m in good), sum(m.duration_s for m in good))


def first_tokens_s(rounds: Sequence[Round]) -> list[tuple[float, float]]:
    """Return (time to first text, 1) for every request that did not fail."""
    times = (m.first_token_s for one in rounds for m in one.succeeded)
    return [(time, 1.0) for time in times if time is not None]


def inter_tokens_s(rounds: Sequence[Round]) -> list[tuple[float, float]]:
    """Return (seconds per token, tokens) for every arrival of every request that did not fail."""
    return [pair for one in rounds for m in one.succeeded for pair in m.inter_token_s()]
