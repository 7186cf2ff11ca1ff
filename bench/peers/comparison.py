"""Compare replies: a row per peer and workload, with ratios to the first peer of the same run."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from bench.peers.rounds import Record
from bench.statistics import compare, percentile, rate

Weighted = list[tuple[float, float]]


def compared(records: Sequence[Record], names: Sequence[str], plain: str) -> list[dict[str, Any]]:
    """Return the rows of the "peers" section of a result document.

    names: of the peers; ratios are to the first. plain: the peer whose texts the others should equal.
    """
    workloads = dict.fromkeys(record.workload for record in records)
    texts = {
        record.question: record.reply.text
        for record in records
        if record.peer == plain and record.reply.error is None
    }
    return [
        _row(
            [record for record in records if record.workload == workload],
            name, names[0], workload, {} if name == plain else texts,
        )
        for workload in workloads
        for name in names
    ]  # fmt: skip


def _row(
    records: Sequence[Record], name: str, first: str, workload: str, texts: dict[int, str]
) -> dict[str, Any]:
    of_peer = [record for record in records if record.peer == name]
    measured = [record for record in of_peer if record.is_measured]
    good = [record for record in measured if record.reply.error is None]
    faults = [record.reply.error for record in of_peer if record.reply.error]
    speeds, decode_speeds = _by_round(records, name, _speed), _by_round(records, name, _decode_speed)
    ratio = compare(speeds, _by_round(records, first, _speed))
    decode_ratio = compare(decode_speeds, _by_round(records, first, _decode_speed))
    firsts: Weighted = [(at, 1.0) for one in good if (at := one.reply.first_token_s) is not None]
    gaps = [pair for one in good for pair in _gaps(one)]
    # Servers format tool calls differently, so those answers are not compared.
    judged = [one for one in good if one.question in texts and not one.has_tools]
    num_equal = sum(_bare(one.reply.text) == _bare(texts[one.question]) for one in judged)
    return {
        "name": name,
        "workload": workload,
        "requests": len(measured),
        "failed": len(measured) - len(good),
        "tokens": sum(one.reply.num_tokens for one in good),
        "tokens_per_s": _median(speeds),
        "tokens_per_s_low": min((one for one in speeds if one), default=None),
        "tokens_per_s_high": max((one for one in speeds if one), default=None),
        "decode_tps": _median(decode_speeds),
        "ttft_ms": _ms(firsts, 0.5),
        "ttft_p95_ms": _ms(firsts, 0.95),
        "inter_token_ms": _ms(gaps, 0.5),
        "inter_token_p95_ms": _ms(gaps, 0.95),
        "speedup": ratio.of_medians if ratio else None,
        "speedup_low": ratio.lowest if ratio else None,
        "speedup_high": ratio.highest if ratio else None,
        "decode_speedup": decode_ratio.of_medians if decode_ratio else None,
        "equal": num_equal if judged else None,
        "judged": len(judged),
        "parity": None if not judged else "PASS" if num_equal == len(judged) else "FAIL",
        "error": faults[0] if faults else None,
    }


def _by_round(records: Sequence[Record], name: str, take: Any) -> list[float | None]:
    numbers = sorted({record.round_number for record in records if record.round_number > 0})
    return [
        take([r for r in records if r.peer == name and r.round_number == number and r.is_measured])
        for number in numbers
    ]


def _speed(records: Sequence[Record]) -> float | None:
    """Return tokens per second over whole requests, prefill included; None if one failed."""
    if any(record.reply.error for record in records):
        return None
    return rate(sum(r.reply.num_tokens for r in records), sum(r.reply.duration_s for r in records))


def _decode_speed(records: Sequence[Record]) -> float | None:
    """Return tokens per second after the first arrival; None if a request failed."""
    if any(record.reply.error for record in records):
        return None
    decoded = [record.reply.decoded for record in records]
    return rate(sum(tokens for tokens, _ in decoded), sum(seconds for _, seconds in decoded))


def _gaps(record: Record) -> Weighted:
    """Return (seconds per token, tokens) for every arrival after the first."""
    arrivals = record.reply.arrivals
    return [
        ((at - before) / tokens, tokens) for (before, _), (at, tokens) in pairwise(arrivals) if tokens > 0
    ]


def _bare(text: str) -> str:
    """Strip whitespace, and the replacement characters of a text that was cut within a character."""
    return text.rstrip("\ufffd").strip()


def _ms(weighted: Weighted, share: float) -> float | None:
    return 1000 * percentile(weighted, share) if weighted else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
