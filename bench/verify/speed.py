"""`reprise verify --speed`: time every request with drafting and without, and compare with the bound.

Both ways alternate in one engine with the server's settings: costs as measured and learned, a prefix cache,
the draft type auto. The drafters forget what they saw before each run of a chat, or they would draft its own
earlier answer. Prompts are in the prefix cache, so that prefill does not hide what drafting costs before the
first token.
"""

import argparse
from collections.abc import Sequence
from math import comb, sqrt
from statistics import mean, median, quantiles
from time import perf_counter
from typing import Any

from rich.console import Console

from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.tables import Column, print_rows
from bench.workloads import Chat, make_chats
from engine.request import DraftChoice, Finished
from engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, PROBING_SHARE

NOISE_ERRORS = 3.0
"""Standard errors by which two medians may differ by chance."""

MAX_CHANCE = 0.001
"""Probability below which an excess of slow drafted runs is not taken for chance."""

_STANDARD_ERROR = 1.31
"""Standard error of the difference of two medians of n values each, in interquartile ranges over sqrt(n).

For normal noise: sqrt(pi / 2) * sqrt(2) standard deviations over sqrt(n); one is 0.741 interquartile ranges.
"""


def judge(
    plain_s: Sequence[tuple[float, float]],
    drafted_s: Sequence[tuple[float, float]],
    step_s: float,
    overhead: float,
) -> Row:
    """Judge repeated times of one request up to some point, with drafting and without.

    plain_s, drafted_s: (rounds, 2) seconds of the runs of each round, at least one round.
    step_s: seconds of a plain step. overhead: the setting draft_overhead.

    Returns medians, bound_s: the most that drafted_s may be, noise_s: how much the medians may differ by
    chance, num_slow_plain and num_slow_drafted: runs above bound_s by more than noise_s, and the verdict:
    "over" for what is above the bound beyond the noise, and in each round; neither is chance. "unclear" is
    above the bound otherwise.
    """

    def bound_s(seconds: float) -> float:
        return (1 + overhead + PROBING_SHARE) * seconds + ALLOWANCE_STEPS * step_s

    plain = [seconds for pair in plain_s for seconds in pair]
    drafted = [seconds for pair in drafted_s for seconds in pair]
    # Only the plain times: what drafting does may itself vary, and that must not hide it.
    lower, _, upper = quantiles(plain, n=4, method="inclusive")
    noise_s = NOISE_ERRORS * _STANDARD_ERROR * (upper - lower) / sqrt(len(plain))
    limit_s, slow_s = bound_s(median(plain)), bound_s(median(plain)) + noise_s
    verdict = "within"
    if median(drafted) > limit_s:
        rounds = zip(plain_s, drafted_s, strict=True)
        is_over = median(drafted) > slow_s and all(mean(d) > bound_s(mean(p)) for p, d in rounds)
        verdict = "over" if is_over else "unclear"
    return {
        "plain_s": median(plain), "drafted_s": median(drafted), "bound_s": limit_s, "noise_s": noise_s,
        "num_slow_plain": sum(one > slow_s for one in plain),
        "num_slow_drafted": sum(one > slow_s for one in drafted), "verdict": verdict,
    }  # fmt: skip


def is_chance(num_slow_plain: int, num_slow_drafted: int) -> bool:
    """Whether so many more of the drafted runs than of the plain ones may be slow by chance (sign test).

    A disturbance of the machine hits either with the same probability, because they alternate.
    """
    num = num_slow_plain + num_slow_drafted
    num_as_bad = sum(comb(num, k) for k in range(num_slow_drafted, num + 1))
    return bool(num_as_bad / 2**num > MAX_CHANCE)


ROUNDS = 5
LOOKED_UP = ("code", "passage")
WITHOUT_GAIN = ("free", "trap", "remap")
"""Workloads whose answers cannot be looked up, so that drafting can only lose."""

PLAIN, DRAFTED = DraftChoice("none"), DraftChoice()
ROUND = (PLAIN, DRAFTED, DRAFTED, PLAIN)
"""The runs of one round: a machine that slows down steadily favors neither way."""
WARM_UP = (PLAIN, DRAFTED)
"""Compiles kernels and fills the prefix cache."""

NOTES = (
    "first token: since submission. answer: from the end of prefill to the last token. Medians of all runs.",
    "bound: the most that drafting may take, {percent:g} % and {steps:g} plain steps more than without.",
    "noise: 3 standard errors of the difference of two medians, judged by the spread of the plain runs.",
    "over: above the bound by more than the noise, and above it in each round. unclear: above the bound, but",
    "not so; try more --rounds, or a machine that does nothing else.",
)
COLUMNS = [
    Column("chat", "chat"), Column("tokens", "tokens"), Column("time", "time"),
    Column("plain_s", "plain", "1"), Column("drafted_s", "drafted", "1"), Column("ratio", "ratio", "2"),
    Column("bound_s", "bound", "1"), Column("noise_s", "noise", "1"), Column("verdict", "verdict"),
]  # fmt: skip
DIFFERING = (
    "* answers differ; `reprise verify` shows where. Their times are scaled to the same number of tokens."
)


Run = tuple[Finished, float]
"""One answer to a request, and the seconds from the end of prefill to the terminal event."""


def row_of(chat: str, turn: int, plain: Sequence[Run], drafted: Sequence[Run], overhead: float) -> Row:
    """Return the row of all runs of one request.

    turn: its position in the chat, from 1. overhead: the setting draft_overhead.
    Without exact mode near-ties may be decided differently; times of other lengths are scaled to the first.
    """
    step_s = median(decode_s / len(end.tokens) for end, decode_s in plain)
    first, reports = plain[0][0], [end.usage.drafting for end, _ in drafted]
    times_s = [[[end.usage.first_token_s, decode_s] for end, decode_s in runs] for runs in (plain, drafted)]

    def judged(at: int) -> Row:
        by_way = []
        for runs, times in zip((plain, drafted), times_s, strict=True):
            shares = [len(first.tokens) / len(end.tokens) if at else 1.0 for end, _ in runs]
            scaled = [time[at] * share for time, share in zip(times, shares, strict=True)]
            by_way.append(list(zip(scaled[::2], scaled[1::2], strict=True)))
        return judge(by_way[0], by_way[1], step_s, overhead)

    return {
        "chat": chat, "turn": turn, "prompt_tokens": first.usage.num_prompt_tokens,
        "answer_tokens": len(first.tokens), "drafted_tokens": sum(one.num_drafted for one in reports),
        "accepted_tokens": sum(one.num_accepted for one in reports),
        "answers_differ": len({end.tokens for end, _ in (*plain, *drafted)}) > 1,
        "first_token": judged(0), "decode": judged(1), "plain_runs_s": times_s[0],
        "drafted_runs_s": times_s[1],
    }  # fmt: skip


def time_chats(
    local: LocalEngine, chats: Sequence[Chat], arguments: argparse.Namespace, console: Console
) -> list[Row]:
    """Return a row for every request that has room for an answer."""
    runs: dict[tuple[int, int], dict[DraftChoice, list[Run]]] = {}
    num_rounds = arguments.rounds or ROUNDS
    with Work(len(chats) * (len(WARM_UP) + num_rounds * len(ROUND)), console) as work:
        for ways in (WARM_UP, *[ROUND] * num_rounds):
            # All chats before the next round, so that no disturbance lasts for all rounds of a chat.
            for at, chat in enumerate(chats):
                for how in ways:
                    for turn, run in _answer(local, chat, how, arguments):
                        runs.setdefault((at, turn), {PLAIN: [], DRAFTED: []})[how].append(run)
                    work.advance()
    overhead = local.engine.settings.draft_overhead
    return [
        row_of(chats[at].workload, turn, by_way[PLAIN][1:], by_way[DRAFTED][1:], overhead)
        for (at, turn), by_way in sorted(runs.items(), key=lambda item: item[0])
    ]


def make_own_chats(local: LocalEngine, arguments: argparse.Namespace) -> list[Chat]:
    """Generate chats: some from which drafting gains, and some from which it cannot."""
    chosen = [(name, length) for length in arguments.prompt_tokens for name in LOOKED_UP]
    chosen += [(name, None) for name in WITHOUT_GAIN]
    return [make_chats(name, 1, arguments.seed, local.count_tokens, length)[0] for name, length in chosen]


def _answer(
    local: LocalEngine, chat: Chat, how: DraftChoice, arguments: argparse.Namespace
) -> list[tuple[int, Run]]:
    """Answer the turns of a chat; return the measured ones by their numbers."""
    local.engine.table_reset()
    runs = []
    for number, turn in enumerate(chat.turns, 1):
        requests = local.requests([turn], how, arguments.max_tokens, arguments.seed)
        if not requests:
            continue
        start_s = perf_counter()
        (end,) = local.answer(requests)
        run = end, perf_counter() - start_s - end.usage.prefill_s
        if turn.is_measured:
            runs.append((number, run))
    return runs


def print_speed(console: Console, timed: Sequence[Row], name: str, overhead: float) -> None:
    """Print two lines per request, for the first token and for the answer, and the totals."""
    rows: list[Row] = []
    for one in timed:
        lengths = f"{one['prompt_tokens']} + {one['answer_tokens']}"
        chat = f"{one['chat']} {one['turn']}" + (" *" if one["answers_differ"] else "")
        for time, judged in (("first token", one["first_token"]), ("answer", one["decode"])):
            rows.append({"chat": chat, "tokens": lengths, "time": time} | judged | _sums([judged]))
    rows.append({"chat": "all", "time": "first token"} | _sums([one["first_token"] for one in timed]))
    rows.append({"chat": "all", "time": "answer"} | _sums([one["decode"] for one in timed]))
    title = f"Milliseconds that {name} takes for each request, without drafting and with it"
    percent = 100 * (overhead + PROBING_SHARE)
    notes = [note.format(percent=percent, steps=ALLOWANCE_STEPS) for note in NOTES]
    print_rows(console, rows, COLUMNS, title, notes, group="chat")
    if any(one["answers_differ"] for one in timed):
        console.print(DIFFERING, style="yellow", highlight=False)
    verdicts = [{one[time]["verdict"] for time in ("first_token", "decode")} for one in timed]
    num_over, num_unclear = (sum(name in found for found in verdicts) for name in ("over", "unclear"))
    console.print(f"{len(timed)} requests: {num_over} over the bound, {num_unclear} unclear", highlight=False)
    num_runs, plain, drafted = sum(2 * len(one["plain_runs_s"]) for one in timed), *count_slow(timed)
    chance = "may be chance" if is_chance(plain, drafted) else "is no chance"
    console.print(
        f"single times above the bound and the noise: {drafted} of {num_runs} with drafting, "
        f"{plain} of {num_runs} without, which {chance}",
        highlight=False,
    )


def _sums(judged: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return plain and drafted times, bounds and noise in milliseconds, summed over several times."""
    names = ("plain_s", "drafted_s", "bound_s", "noise_s")
    sums = {name: 1000 * sum(one[name] for one in judged) for name in names}
    return sums | {"ratio": sums["drafted_s"] / sums["plain_s"]}


def count_slow(timed: Sequence[Row]) -> tuple[int, int]:
    """Count the plain and the drafted times, of single runs, that are above the bound and the noise."""
    judged = [one[time] for one in timed for time in ("first_token", "decode")]
    return sum(one["num_slow_plain"] for one in judged), sum(one["num_slow_drafted"] for one in judged)


def is_within_bound(timed: Sequence[Row]) -> bool:
    """Whether no request is over the bound, and single runs are slow no more often than by chance."""
    is_over = any("over" in (one["first_token"]["verdict"], one["decode"]["verdict"]) for one in timed)
    return not is_over and is_chance(*count_slow(timed))
