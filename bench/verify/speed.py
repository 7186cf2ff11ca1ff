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

from rich.console import Console

from bench.decode.answering import PLAIN, Answering, Arm, Case
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.tables import Column, print_rows
from bench.workloads import Chat, lengths_of, make_chats
from engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, PROBING_SHARE

NOISE = 3 * 1.31
"""Three standard errors of the difference of two medians of n values, in interquartile ranges over sqrt(n).

For normal noise: one is sqrt(pi / 2) * sqrt(2) standard deviations, each 0.741 interquartile ranges.
"""

MAX_CHANCE = 0.001
"""Probability below which an excess of slow drafted runs is not taken for chance."""

ROUNDS = 5
# Drafting gains from the first two; answers of the others cannot be looked up, so that it only loses.
WORKLOADS = ("code", "passage", "free", "trap", "remap")
# The experiment reverses them in the first of two runs: a round is plain, drafted, drafted, plain.
ARMS = {"drafted": Arm("auto"), "plain": PLAIN}

NOTES = """\
first token: since submission. answer: from the end of prefill to the last token. Medians of all runs.
bound: the most that drafting may take, {percent:g} % and {steps:g} plain steps more than without.
noise: 3 standard errors of the difference of two medians, judged by the spread of the plain runs.
over: above the bound by more than the noise, and above it in each round. unclear: above the bound, but
not so; try more --rounds, or a machine that does nothing else.
*: answers differ; `reprise verify` shows where. Their times are scaled to the same number of tokens."""
COLUMNS = [
    Column("chat", "chat"), Column("tokens", "tokens"), Column("time", "time"),
    Column("plain_s", "plain", "1"), Column("drafted_s", "drafted", "1"), Column("ratio", "ratio", "2"),
    Column("bound_s", "bound", "1"), Column("noise_s", "noise", "1"), Column("verdict", "verdict"),
]  # fmt: skip


def judge(plain_s: Sequence[float], drafted_s: Sequence[float], step_s: float, overhead: float) -> Row:
    """Judge repeated times of one request up to some point, with drafting and without.

    plain_s, drafted_s: seconds of the runs, two of each round. step_s: seconds of a plain step.
    overhead: the setting draft_overhead.

    Returns medians, bound_s: the most that drafted_s may be, noise_s: how much the medians may differ by
    chance, num_slow_plain and num_slow_drafted: runs above bound_s by more than noise_s, and the verdict:
    "over" for what is above the bound beyond the noise, and in each round; neither is chance. "unclear" is
    above the bound otherwise.
    """

    def bound_s(seconds: float) -> float:
        return (1 + overhead + PROBING_SHARE) * seconds + ALLOWANCE_STEPS * step_s

    # Only the plain times: what drafting does may itself vary, and that must not hide it.
    lower, _, upper = quantiles(plain_s, n=4, method="inclusive")
    noise_s = NOISE * (upper - lower) / sqrt(len(plain_s))
    limit_s = bound_s(median(plain_s))
    slow_s = limit_s + noise_s
    is_over = median(drafted_s) > slow_s and all(
        mean(drafted_s[at : at + 2]) > bound_s(mean(plain_s[at : at + 2])) for at in range(0, len(plain_s), 2)
    )
    verdict = "over" if is_over else "unclear" if median(drafted_s) > limit_s else "within"
    return {
        "plain_s": median(plain_s), "drafted_s": median(drafted_s), "bound_s": limit_s, "noise_s": noise_s,
        "num_slow_plain": sum(one > slow_s for one in plain_s),
        "num_slow_drafted": sum(one > slow_s for one in drafted_s), "verdict": verdict,
    }  # fmt: skip


def is_chance(num_slow_plain: int, num_slow_drafted: int) -> bool:
    """Whether so many more of the drafted runs than of the plain ones may be slow by chance (sign test).

    A disturbance of the machine hits either with the same probability, because they alternate.
    """
    num = num_slow_plain + num_slow_drafted
    num_as_bad = sum(comb(num, k) for k in range(num_slow_drafted, num + 1))
    return bool(num_as_bad / 2**num > MAX_CHANCE)


def time_chats(
    local: LocalEngine, given: Sequence[Chat] | None, arguments: argparse.Namespace, console: Console
) -> list[Row]:
    """Return a row for every request that has room for an answer. given: chats, instead of generated ones."""
    chats = given or [
        make_chats(name, 1, arguments.seed, local.count_tokens, length)[0]
        for name in WORKLOADS
        for length in lengths_of(name, arguments.prompt_tokens)
    ]
    runs: dict[tuple[int, int], dict[str, list[Row]]] = {}
    num_rounds = arguments.rounds or ROUNDS
    with Work((4 * num_rounds + 2) * len(chats), console) as work:
        answering = Answering(local, arguments.max_tokens, arguments.seed, work)
        for number in range(num_rounds):
            # All chats before the next round, so that no disturbance lasts for all rounds of a chat.
            # The first run compiles kernels and fills the prefix cache.
            cases = {str(at): Case((chat,), is_first=not number) for at, chat in enumerate(chats)}
            for run in answering.compare(ARMS, cases, 2):
                by_arm = runs.setdefault((int(run["case"]), run["turn"]), {"plain": [], "drafted": []})
                by_arm[run["arm"]].append(run)
    rows = []
    for (at, turn), by_arm in runs.items():
        prompt = local.prompt_of(chats[at].turns[turn - 1])
        place = {"chat": chats[at].workload, "turn": turn, "prompt_tokens": len(prompt)}
        rows.append(place | _row(**by_arm, overhead=local.engine.settings.draft_overhead))
    return rows


def _row(plain: Sequence[Row], drafted: Sequence[Row], overhead: float) -> Row:
    """Return the figures of all runs of one request.

    Without exact mode near-ties may be decided differently; times of other lengths are scaled to the first.
    """
    length = plain[0]["num_tokens"]
    step_s = median(run["decode_s"] / run["num_tokens"] for run in plain)

    def times_s(runs: Sequence[Row]) -> list[tuple[float, float]]:
        return [(run["first_token_s"], run["decode_s"] * length / run["num_tokens"]) for run in runs]

    plain_s, drafted_s = times_s(plain), times_s(drafted)
    first, decode = (
        judge([one[at] for one in plain_s], [one[at] for one in drafted_s], step_s, overhead) for at in (0, 1)
    )
    return {
        "answer_tokens": length, "drafted_tokens": sum(run["num_drafted"] for run in drafted),
        "accepted_tokens": sum(run["num_accepted"] for run in drafted),
        "answers_differ": any(run["tokens"] != plain[0]["tokens"] for run in (*plain, *drafted)),
        "first_token": first, "decode": decode, "plain_runs_s": plain_s, "drafted_runs_s": drafted_s,
    }  # fmt: skip


def print_speed(console: Console, timed: Sequence[Row], name: str, overhead: float) -> bool:
    """Print two lines per request, for the first token and for the answer, and the totals.

    Returns whether no request is over the bound, and single runs are slow no more often than by chance.
    """
    rows: list[Row] = []
    for one in timed:
        chat = f"{one['chat']} {one['turn']}{' *' * one['answers_differ']}"
        place = {"chat": chat, "tokens": f"{one['prompt_tokens']} + {one['answer_tokens']}"}
        for time, judged in (("first token", one["first_token"]), ("answer", one["decode"])):
            times_ms = {name: 1000 * value for name, value in judged.items() if name.endswith("_s")}
            ratio = judged["drafted_s"] / judged["plain_s"]
            rows.append(place | judged | times_ms | {"time": time, "ratio": ratio})
    title = f"Milliseconds that {name} takes for each request, without drafting and with it"
    notes = NOTES.format(percent=100 * (overhead + PROBING_SHARE), steps=ALLOWANCE_STEPS)
    print_rows(console, rows, COLUMNS, title, notes.splitlines(), group="chat")
    verdicts = [{one["first_token"]["verdict"], one["decode"]["verdict"]} for one in timed]
    num_over, num_unclear = (sum(name in found for found in verdicts) for name in ("over", "unclear"))
    plain, drafted = (sum(row[f"num_slow_{arm}"] for row in rows) for arm in ("plain", "drafted"))
    num_runs = sum(2 * len(one["plain_runs_s"]) for one in timed)
    console.print(
        f"{len(timed)} requests: {num_over} over the bound, {num_unclear} unclear\n"
        f"single times above the bound and the noise: {drafted} of {num_runs} with drafting, {plain} of "
        f"{num_runs} without, which {'may be' if is_chance(plain, drafted) else 'is no'} chance",
        highlight=False,
    )
    return not num_over and is_chance(plain, drafted)
