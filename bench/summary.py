"""Summarize rounds: a line per server and level, ratios between servers, and remarks."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.measurement import Measurement, Round, first_tokens_s, inter_tokens_s
from bench.statistics import Percentiles, Ratio, compare, percentile, percentiles


@dataclass(frozen=True, slots=True)
class Line:
    """One server at one level, over its measured rounds.

    tokens_per_s: throughput of each round. decode_tokens_per_s, request_tokens_per_s: per stream, medians
    over rounds. Percentiles are over all requests, or all tokens, of all rounds.
    num_failed, num_refused, num_ended_early: over all requests, warm-up included; refused (429) requests also
    count as failed.
    """

    side: str
    concurrency: int
    num_requests: int
    tokens_per_s: tuple[float, ...]
    decode_tokens_per_s: float | None
    request_tokens_per_s: float | None
    first_token_s: Percentiles | None
    inter_token_s: Percentiles | None
    num_failed: int
    num_refused: int
    num_ended_early: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of two servers at one level. higher_is_better: whether a ratio above 1 is good."""

    concurrency: int
    side: str
    against: str
    quantity: str
    higher_is_better: bool
    ratio: Ratio | None


def summarize(rounds: Sequence[Round]) -> list[Line]:
    """Return a line per server and level, in the order of their first rounds."""
    groups: dict[tuple[int, str], list[Round]] = {}
    for one in rounds:
        groups.setdefault((one.concurrency, one.side), []).append(one)
    return [_line(group) for group in groups.values()]


def compare_servers(rounds: Sequence[Round], side: str, against: str) -> list[Comparison]:
    """Compare throughput, time to first token and inter-token time at each level."""
    quantities = {
        "tokens/s": (True, lambda one: one.tokens_per_s),
        "first token p50": (False, lambda one: _at(0.50, first_tokens_s([one]))),
        "inter-token p50": (False, lambda one: _at(0.50, inter_tokens_s([one]))),
        "inter-token p99": (False, lambda one: _at(0.99, inter_tokens_s([one]))),
    }
    levels = dict.fromkeys(one.concurrency for one in rounds)
    return [
        _comparison(rounds, level, side, against, name, *how)
        for level in levels
        for name, how in quantities.items()
    ]


def compare_with_bare_loop(rounds: Sequence[Round], side: str, bare: str) -> list[Comparison]:
    """Compare decode speed and whole-request speed at one stream."""
    return [
        _comparison(rounds, 1, side, bare, "decode tokens/s", True, lambda one: one.decode_tokens_per_s),
        _comparison(rounds, 1, side, bare, "request tokens/s", True, lambda one: one.request_tokens_per_s),
    ]


def remarks(rounds: Sequence[Round]) -> list[str]:
    """Return remarks on answers that affect how the figures are to be read."""
    seen: Counter[tuple[str, str]] = Counter()
    for one in rounds:
        for measurement in one.measurements:
            seen.update((one.side, remark) for remark in _remarks(measurement))
    return [f"{side}: {remark} ({_times(count)})" for (side, remark), count in seen.items()]


def num_failed(rounds: Sequence[Round]) -> int:
    """Return the number of failed requests, warm-ups included."""
    return sum(m.error is not None for one in rounds for m in one.measurements)


def _remarks(m: Measurement) -> list[str]:
    if m.error is not None:
        return [f"failed: {m.error}"]
    remarks = []
    if m.ended_early:
        reason = m.finish_reason or "no finish reason"
        remarks.append(f"ended early, {m.num_completion_tokens} of {m.max_tokens} tokens, {reason}")
    if m.num_completion_tokens > m.max_tokens:
        remarks.append(f"sent {m.num_completion_tokens} tokens; the limit was {m.max_tokens}")
    if m.counted_by == "text":
        remarks.append("reported no usage; tokens were counted from the text")
    elif m.num_chunks > m.num_completion_tokens:
        remarks.append("sent more text chunks than its usage counts tokens")
    if m.num_prompt_tokens not in (None, m.num_prompt_tokens_asked):
        remarks.append("counted other prompt tokens than --model's tokenizer; does it serve that model?")
    # All prompts share the first tokens of the chat template, so some cached tokens are expected.
    if (m.num_cached_tokens or 0) > m.num_prompt_tokens_asked // 4:
        remarks.append("took more than a quarter of a prompt from its prefix cache")
    return remarks


def _line(rounds: Sequence[Round]) -> Line:
    measured = [one for one in rounds if one.number > 0]
    everything = [m for one in rounds for m in one.measurements]
    return Line(
        side=rounds[0].side,
        concurrency=rounds[0].concurrency,
        num_requests=sum(len(one.measurements) for one in measured),
        tokens_per_s=tuple(one.tokens_per_s or 0.0 for one in measured),
        decode_tokens_per_s=_median([one.decode_tokens_per_s for one in measured]),
        request_tokens_per_s=_median([one.request_tokens_per_s for one in measured]),
        first_token_s=percentiles(first_tokens_s(measured)),
        inter_token_s=percentiles(inter_tokens_s(measured)),
        num_failed=sum(m.error is not None for m in everything),
        num_refused=sum(m.is_refused for m in everything),
        num_ended_early=sum(m.ended_early for m in everything),
    )


def _comparison(
    rounds: Sequence[Round],
    level: int,
    side: str,
    against: str,
    quantity: str,
    higher_is_better: bool,
    take: Callable[[Round], float | None],
) -> Comparison:
    def series(name: str) -> list[float | None]:
        return [
            take(one) for one in rounds if one.side == name and one.concurrency == level and one.number > 0
        ]

    ratio = compare(series(side), series(against))
    return Comparison(level, side, against, quantity, higher_is_better, ratio)


def _at(share: float, weighted: list[tuple[float, float]]) -> float | None:
    return percentile(weighted, share) if weighted else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _times(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
