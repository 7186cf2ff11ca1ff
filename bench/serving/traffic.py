"""Send the same chats to several peers, batch by batch; compute figures of their answers."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from reprise.bench import document
from reprise.bench.document import Column, format_value, interval
from reprise.bench.experiment import Experiment, Progress, Row, grouped, measured
from reprise.bench.statistics import compare, percentile, ratio
from reprise.bench.workloads import Turn

NOTES = (
    "tokens/s: all tokens of a round divided by its time, prefill included; none if a request failed.",
    "decode: per stream, from the first text on. first token: from connecting to the first text.",
    "inter-token: the gap before a read, divided by its tokens.",
    "ratio: to the first peer, of the medians over rounds, with the lowest and highest of a round.",
    "equal texts: answers equal to those of the first peer; chats with tools are not compared.",
    "failed, refused (status 429), early: of all requests, warm-up included.",
)
"""How figures are to be read."""


def ratio_text(name: str) -> Callable[[document.Row], str | None]:
    """Return a function that formats a ratio of medians, with the extremes of rounds, as a cell."""
    return lambda row: row[name] and f"{row[name]:.2f} ({interval(row, f'{name}_low', f'{name}_high')})"


def _percentiles(name: str, digits: str) -> Callable[[document.Row], str]:
    names = [f"{name}{share}_ms" for share in ("", "_p95", "_p99")]
    return lambda row: " / ".join(format_value(row[one], digits) for one in names)


COLUMNS = [
    Column("model", "model", is_key=True), Column("workload", "workload", is_key=True),
    Column("turn", "turn", is_key=True), Column("streams", "streams", is_key=True),
    Column("name", "peer", is_key=True),
    Column("requests", "requests"), Column("failed", "failed", trivial=0),
    Column("refused", "refused", trivial=0), Column("early", "early", trivial=0),
    Column("tokens", "tokens"), Column("tokens_per_s", "tokens/s", "1"),
    Column(ratio_text("speedup"), "ratio"), Column("decode_speedup", "decode\nratio", "2"),
    Column(_percentiles("ttft", "0"), "first token,\nms p50 / p95 / p99"),
    Column("ttft_ratio", "first token\nratio", "2"),
    Column(_percentiles("inter_token", "1"), "inter-token,\nms p50 / p95 / p99"),
    Column("inter_token_ratio", "inter-token\nratio", "2"),
    Column(lambda row: None if row["equal"] is None else f"{row['equal']} of {row['judged']}", "equal texts"),
]  # fmt: skip
"""The columns of a table of figures_of()."""


class Batch(NamedTuple):
    """Turns requested at the same time. round: 0 for the warm-up. workload: None for random words."""

    round: int
    workload: str | None
    turns: Sequence[Turn]


@dataclass(slots=True)
class Answer:
    """A peer's answer to one turn. error: why the request failed; None if it did not.

    started_s: seconds from the start of the batch to the request. duration_s: from the request to the end of
    the stream. arrivals: [seconds since the request, tokens] of each read with text. has_usage: whether the
    peer reported numbers of tokens. is_early: the answer ended before its limit, although it must not.
    is_refused: the server had too many requests.
    """

    started_s: float = 0.0
    duration_s: float = 0.0
    tokens: int = 0
    arrivals: list[list[float]] = field(default_factory=list)
    text: str = ""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    has_usage: bool = True
    is_early: bool = False
    is_refused: bool = False
    error: str | None = None


Ask = Callable[[Sequence[Turn], int], list[Answer]]
"""Answers turns with limited concurrency, and returns the answers in order."""


def ask_all(
    peers: Mapping[str, Ask], batches: Sequence[Batch], streams: int, prefix: str = "", **resume: Any
) -> list[Row]:
    """Send each batch to all peers before the next, rotating who is first; return rows of answers.

    prefix: text before the names of cases. resume: arguments of Experiment.
    """

    def ask(batch: Batch, name: str) -> list[Row]:
        answers = peers[name](batch.turns, streams)
        return [
            {"request": at, "round": batch.round, "streams": streams, "workload": batch.workload,
             "turn": sum(one["role"] == "user" for one in turn.messages),
             "has_tools": bool(turn.tools), "is_measured": turn.is_measured, **asdict(answer)}
            for at, (turn, answer) in enumerate(zip(batch.turns, answers, strict=True))
        ]  # fmt: skip

    def label(name: str, case: str) -> str:
        number = cases[case].round
        stage = f"round {number}" if number else "warm-up"
        return f"{streams} stream{'s' * (streams > 1)}, {stage}: {name}"

    arms = {name: partial(ask, name=name) for name in peers}
    cases = {f"{prefix}batch {at} of {streams} streams": batch for at, batch in enumerate(batches)}
    with Progress() as progress:
        return Experiment(arms, cases, label=label, **resume).run(progress)


def by_read(times: Sequence[float], tokens: Sequence[float]) -> list[list[float]]:
    """Join chunks that came in the same read, and return [time, tokens] of each read.

    times, tokens: of each chunk, in seconds.
    """
    found: list[list[float]] = []
    for at, (time, count) in enumerate(zip(times, tokens, strict=True)):
        # Chunks of one read follow each other faster than any model makes tokens.
        if at and time - times[at - 1] < 0.0002:
            found[-1][1] += count
        else:
            found.append([time, count])
    return found


def throughput(rows: Sequence[Row]) -> float | None:
    """Return tokens per second: all tokens divided by the summed times of the batches."""
    batches = grouped(rows, "case").values()
    wall_s = sum(max(row["started_s"] + row["duration_s"] for row in batch) for batch in batches)
    return ratio(sum(row["tokens"] for row in rows), wall_s)


def decode_speed(rows: Sequence[Row]) -> float | None:
    """Return tokens per second of one stream, from its first text on; None if it cannot be measured."""
    arrivals = [row["arrivals"] for row in rows if row["arrivals"]]
    tokens = sum(tokens for one in arrivals for _, tokens in one[1:])
    return ratio(tokens, sum(one[-1][0] - one[0][0] for one in arrivals))


def first_tokens_s(rows: Sequence[Row]) -> dict[str, float] | None:
    """Return percentiles of the seconds from a request to its first text."""
    return _percentiles_of([(row["arrivals"][0][0], 1.0) for row in rows if row["arrivals"]])


def inter_tokens_s(rows: Sequence[Row]) -> dict[str, float] | None:
    """Return percentiles of the seconds between tokens; the gap before a read is divided among its tokens."""
    gaps = [(at - before, tokens) for row in rows for (before, _), (at, tokens) in pairwise(row["arrivals"])]
    return _percentiles_of([(gap_s / tokens, tokens) for gap_s, tokens in gaps if tokens > 0])


def _percentiles_of(weighted: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    return {f"p{at}": percentile(weighted, at / 100) for at in (50, 95, 99)} if weighted else None


RATIOS: dict[str, Callable[[Sequence[Row]], float | None]] = {
    "speedup": throughput, "decode_speedup": decode_speed,
    "ttft_ratio": lambda rows: (first_tokens_s(rows) or {}).get("p50"),
    "inter_token_ratio": lambda rows: (inter_tokens_s(rows) or {}).get("p50"),
}  # fmt: skip
"""The figures for comparing peers round by round."""


def figures_of(rows: Sequence[Row], *fields: str) -> list[Row]:
    """Return each peer's figures, in order, for each group of rows with equal fields."""
    # Another peer may begin with the questions of a group.
    order = [*dict.fromkeys(row["arm"] for row in rows)]
    groups = grouped(sorted(rows, key=lambda row: order.index(row["arm"])), *fields)
    found = []
    for values, group in groups.items():
        first, *others = grouped(group, "arm").values()
        about = dict(zip(fields, values, strict=True))
        found += [about | _figures(answers, first) for answers in (first, *others)]
    return found


def _figures(answers: Sequence[Row], first: Sequence[Row]) -> Row:
    """Return the figures of a peer. first: the first peer's answers to the same questions.

    Percentiles are over all measured rounds; counts of what went wrong include the warm-up.
    """
    asked, errors = measured(answers), [row["error"] for row in answers if row["error"]]
    speeds, decoding = ([one for one in _rounds(answers, of) if one] for of in (throughput, decode_speed))
    good = [row for row in asked if not row["error"]]
    ours, theirs = {} if answers is first else _texts(answers), _texts(first)
    equal, judged = len(ours.items() & theirs.items()), len(ours.keys() & theirs.keys())
    figures: Row = {
        "name": answers[0]["arm"], "requests": len(asked), "failed": len(errors),
        "refused": sum(row["is_refused"] for row in answers),
        "early": sum(row["is_early"] for row in answers), "tokens": sum(row["tokens"] for row in asked),
        "tokens_per_s": median(speeds or [0.0]), "tokens_per_s_low": min(speeds, default=0.0),
        "tokens_per_s_high": max(speeds, default=0.0), "decode_tps": median(decoding) if decoding else None,
        "equal": equal if judged else None, "judged": judged,
        "parity": ("PASS" if equal == judged else "FAIL") if judged else None,
        "error": errors[0] if errors else None,
    }  # fmt: skip
    for name in ("num_prompt_tokens", "num_cached_tokens"):
        counts = [row[name] for row in good if row.get(name) is not None]
        figures[name] = median(counts) if counts else None
    for name, times in (("ttft", first_tokens_s(good)), ("inter_token", inter_tokens_s(good))):
        for suffix, share in (("", "p50"), ("_p95", "p95"), ("_p99", "p99")):
            figures[f"{name}{suffix}_ms"] = times and 1000 * times[share]
    for name, take in RATIOS.items():
        found = compare(_rounds(answers, take), _rounds(first, take)) or {}
        ends = {f"{name}_low": found.get("lowest"), f"{name}_high": found.get("highest")}
        figures |= {name: found.get("of_medians"), **ends}
    return figures


def _rounds(answers: Sequence[Row], take: Callable[[Sequence[Row]], float | None]) -> list[float | None]:
    """Return a figure of each measured round."""
    # The rest of a round with a failure may be easier.
    broken = {row["round"] for row in answers if row["error"]}
    rounds = grouped(measured(answers), "round")
    return [None if at in broken else take(of_round) for (at,), of_round in rounds.items()]


def _texts(answers: Sequence[Row]) -> dict[tuple[str, int], str]:
    """Return the measured texts. Servers format tool calls differently, so those are left out."""
    return {
        # A text that was cut within a character ends in replacement characters.
        (row["case"], row["request"]): row["text"].rstrip("\ufffd").strip()
        for row in measured(answers)
        if not row["error"] and not row["has_tools"]
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return remarks on how to read the figures, each with the number of answers that it concerns."""
    seen: Counter[str] = Counter()
    for row in rows:
        if row["error"]:
            seen[f"{row['arm']}: failed: {row['error']}"] += 1
        elif not row["has_usage"]:
            seen[f"{row['arm']}: reported no usage; its chunks were counted as tokens"] += 1
        if row["is_early"]:
            seen[f"{row['arm']}: ended early, after {row['tokens']} tokens"] += 1
    return [f"! {remark} ({count} request{'s' * (count > 1)})" for remark, count in seen.items()]
