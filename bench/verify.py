"""`reprise verify`: compare drafted answers with plain ones, token by token; with --speed, their times.

Answer prompts three times plainly and three times with each draft type, greedily and with a temperature.
Compare all pairs token by token, at many widths. Then list the step widths that are exact here.
Without --exact, kernels that depend on a step's width may decide near-ties differently; differences are
reported but are no failure. With --exact, any difference gives exit status 1.

With --speed, answers are timed instead: with drafting as `reprise serve` drafts and without, alternating.
Exit status 1 then means that a request exceeded the bound on drafting by more than noise.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import comb, sqrt
from pathlib import Path
from statistics import mean, median, quantiles

from reprise.bench import document, options
from reprise.bench.answering import PLAIN, Answering, Arm, Case, check
from reprise.bench.document import Column
from reprise.bench.experiment import ArgumentsError, Progress, Row, grouped, total_parity
from reprise.bench.local_engine import equal_costs
from reprise.bench.options import Flag
from reprise.bench.workloads import Chat, read_prompts
from reprise.config.settings import Settings
from reprise.engine.interface.request import DraftType
from reprise.engine.speculative.costs.cost_table import WIDTHS, grid_up_to
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, PROBING_SHARE

POLISH = Path(__file__).parent / "workloads" / "polish.jsonl"
TOO_LONG = "every chat is too long for this model's context"
RUNS, TEMPERATURES, EXACT_ROWS = 3, (0.0, 0.8), (1, 2, 4)
COMPARED = [
    Column("draft_type", "drafts"), Column("parity_pairs", "pairs"), Column("parity", "equal"),
    Column("parity_differing", "differ"), Column("drafted_tokens", "drafted"),
    Column("accepted_tokens", "accepted"),
    Column("first_divergence", "first difference",
           lambda first: f"token {first['token']}, margin {first['margin']:.2g}" if first else "-"),
]  # fmt: skip
WIDTHS_TITLE = "Tokens per row and step whose logits equal those of plain decoding, byte for byte"

ROUNDS = 5
# Drafting gains from the first two; answers of the others cannot be looked up, so that it only loses.
TIMED_WORKLOADS = ("code", "passage", "free", "trap")
# The experiment turns them around in the second of two runs: a round is plain, drafted, drafted, plain.
TIMED_ARMS = {"plain": PLAIN, "drafted": Arm("auto")}
TIMES = {"first token": "first_token_s", "answer": "answer_s"}
TIMED = [
    Column(lambda row: row["chat"] + " *" * row["answers_differ"], "chat"),
    Column(lambda row: f"{row['prompt_tokens']} + {row['answer_tokens']}", "tokens"), Column("time", "time"),
    Column(lambda row: 1000 * row["plain_s"], "plain", "1"),
    Column(lambda row: 1000 * row["drafted_s"], "drafted", "1"),
    Column(lambda row: row["drafted_s"] / row["plain_s"], "ratio", "2"),
    Column(lambda row: 1000 * row["bound_s"], "bound", "1"),
    Column(lambda row: 1000 * row["noise_s"], "noise", "1"), Column("verdict", "verdict"),
]  # fmt: skip
NOTES = """\
bound: the most that drafting may take, {percent:g} % and {steps:g} plain steps more than without.
noise: 3 standard errors of the difference of two medians, judged by the spread of the plain runs.
slow: above the bound by more than the noise. over: slow, and above the bound in each round. unclear: above
the bound otherwise.
*: answers differ; `reprise verify` shows where. Their times are scaled to the same number of tokens."""

# Three standard errors of the difference of two medians of n values, in interquartile ranges over sqrt(n).
# For normal noise: one is sqrt(pi / 2) * sqrt(2) standard deviations, each 0.741 interquartile ranges.
NOISE = 3 * 1.31
# Probability below which an excess of slow drafted runs is not taken for chance.
MAX_CHANCE = 0.001

FLAGS = (
    *options.shared(
        model=None, draft_model=None, prompts=None, prompt_tokens=(200, 600), max_tokens=128, seed=1,
        json=None,
    ),
    *options.of_settings("num_draft_tokens", *options.MACHINES),
    Flag("--speed", None, None, None, "Time each request, and compare with the bound on drafting."),
    Flag("--exact", None, None, None, "Draft only at widths that a trial at start found to be exact."),
    Flag("--rounds", options.count, "N", None,
         "With --speed: rounds of four answers, plain, drafted, drafted, plain. Default: 5."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Verify, print, and return the exit status."""
    if arguments.rounds and not arguments.speed:
        raise ArgumentsError("--rounds needs --speed")
    chats = read_prompts(arguments.prompts) if arguments.prompts else []
    names = ("model", "draft_model", "draft_translation", "num_draft_tokens", "exact", *options.MACHINES)
    settings, costs = Settings(**options.settings(arguments, *names)), None
    if not arguments.speed:
        settings = replace(settings, prefix_cache_bytes=0, max_rows=1)
        costs = equal_costs(*grid_up_to(WIDTHS, arguments.num_draft_tokens + 1))
    with Progress() as progress, Answering(arguments, progress, settings, costs) as local:
        return (_time if arguments.speed else _compare)(local, chats)


def _compare(local: Answering, chats: Sequence[Chat]) -> int:
    """Compare all turns of the user's chats, or the first of generated ones; report a row per draft type."""
    info, arguments = local.engine.info, local.arguments
    types: list[DraftType] = ["suffix", "ngram-simple", "ngram-mod"]
    if info.head or arguments.draft_model:
        types.append(info.head or "draft-model")
    if info.mask_token_id is not None:
        types.append("wedlm")
    arguments.workloads = ("code", "passage")
    cases: dict[str, Case] = {}
    for chat in chats or [*local.chats(1), *(_polish() if arguments.draft_model else ())]:
        for turn, temperature in product(chat.turns if chats else chat.turns[:1], TEMPERATURES):
            asked = replace(turn, temperature=temperature, schema=None, max_tokens=None)
            cases[str(len(cases))] = Case(replace(chat, turns=(asked,)))
    runs = local.compare({"plain": PLAIN} | {name: Arm(name) for name in types}, cases, RUNS)
    checks = grouped(check(local, cases, runs), "arm")
    rows = [
        {"draft_type": name, "drafted_tokens": sum(run["num_drafted"] for run in drafted),
         "accepted_tokens": sum(run["num_accepted"] for run in drafted),
         **total_parity(checks[name,])}
        for (name,), drafted in grouped(runs, "arm").items() if name != "plain"
    ]  # fmt: skip
    if not rows:
        raise ArgumentsError(TOO_LONG)
    # The exact widths by number of rows and circumstance, and what a batch shares.
    shapes = [*product(EXACT_ROWS, local.engine.costs.widths[1:])]
    exact = local.engine.find_exact(shapes, partial(local.progress.show, "trying which widths are exact"))
    widths = [
        {"rows": num_rows, "with": circumstance, "exact": found}
        for num_rows in EXACT_ROWS
        for circumstance, found in exact.by_circumstance(num_rows).items()
    ]
    notes = [f"batch: {info.batching}. Contexts tried: {', '.join(map(str, exact.lengths))} tokens."]
    notes += [f"rank {number}: {described}" for number, described in enumerate(info.ranks)]
    console = document.make_console(120)
    document.print_rows(console, widths, [Column(one, one) for one in widths[0]], WIDTHS_TITLE, "rows")
    title = f"Drafted against plain answers of {info.name}{', exact mode' * arguments.exact}"
    document.print_rows(console, rows, COMPARED, title)
    section = {"what": "tokens", "rows": rows, "exact": exact.describe()}
    document.report(arguments, document.new_document(arguments, info, verify=section), notes, console)
    return int(arguments.exact and any(row["parity"] == "FAIL" for row in rows))


def _polish() -> list[Chat]:
    """Return a chat of each kind with Polish words: vocabularies differ in how they tokenize diacritics."""
    return [*{chat.workload: chat for chat in read_prompts(POLISH)}.values()]


def _time(local: Answering, chats: Sequence[Chat]) -> int:
    """Report two rows per request that has room for an answer: of its first token, and of the answer.

    Drafters forget what they saw before each run of a chat, or they would draft its own earlier answer.
    Prompts are in the prefix cache, so that prefill does not hide what drafting costs before the first token.
    """
    engine, arguments, runs = local.engine, local.arguments, list[Row]()
    arguments.workloads = TIMED_WORKLOADS
    chats, num_rounds = chats or local.chats(1), arguments.rounds or ROUNDS
    for number in range(num_rounds):
        # All chats before the next round, so that no disturbance lasts for all rounds of a chat.
        # The first run compiles kernels and fills the prefix cache.
        for at, chat in enumerate(chats):
            label = f"round {number + 1} of {num_rounds}: "
            runs += local.compare(TIMED_ARMS, {str(at): Case(chat, is_first=not number)}, 2, label)
    rows = []
    for (case, turn), of_turn in grouped(runs, "case", "turn").items():
        plain, drafted = ([run for run in of_turn if run["arm"] == arm] for arm in ("plain", "drafted"))
        length, chat = plain[0]["num_tokens"], chats[int(case)]
        place = {
            "chat": f"{chat.workload} {turn}", "answer_tokens": length,
            "prompt_tokens": len(local.prompt_of(chat.turns[turn - 1])),
            "answers_differ": any(run["tokens"] != plain[0]["tokens"] for run in of_turn),
        }  # fmt: skip
        for run in of_turn:
            # Without exact mode near-ties may be decided differently; then lengths may differ too.
            run["answer_s"] = run["decode_s"] * length / run["num_tokens"]
        step_s = median(run["answer_s"] for run in plain) / length
        for time, field in TIMES.items():
            plain_s, drafted_s = ([run[field] for run in arm] for arm in (plain, drafted))
            judged = judge(plain_s, drafted_s, step_s, engine.settings.draft_overhead)
            rows.append(place | {"time": time} | judged)
    if not rows:
        raise ArgumentsError(TOO_LONG)
    over, unclear = (sum(row["verdict"] == one for row in rows) for one in ("over", "unclear"))
    num_plain, num_drafted = (sum(row[f"num_slow_{arm}"] for row in rows) for arm in ("plain", "drafted"))
    num_runs = sum(len(row["plain_runs_s"]) for row in rows)
    share = 100 * (engine.settings.draft_overhead + PROBING_SHARE)
    chance = "which may be" if is_chance(num_plain, num_drafted) else "which is no"
    notes = (
        NOTES.format(percent=share, steps=ALLOWANCE_STEPS),
        f"{len(rows)} times of {len(rows) // 2} requests: {over} over the bound, {unclear} unclear",
        f"slow single times: {num_drafted} of {num_runs} with drafting, {num_plain} without, {chance} chance",
    )
    section = {"what": "speed", "rows": rows}
    result = document.new_document(arguments, engine.info, local.step_costs, verify=section)
    title = f"Milliseconds of each request to {engine.info.name}, without drafting and with it"
    console = document.make_console(120)
    document.print_rows(console, rows, TIMED, title, group="chat")
    document.report(arguments, result, notes, console)
    return int(over > 0 or not is_chance(num_plain, num_drafted))


def judge(plain_s: Sequence[float], drafted_s: Sequence[float], step_s: float, overhead: float) -> Row:
    """Judge one request's times to a given point, in repeated runs with drafting and without.

    plain_s, drafted_s: seconds of the runs, two of each round. step_s: seconds of a plain step.
    overhead: the setting draft_overhead.

    Returns the medians; bound_s, the most that drafted_s may be; noise_s, by how much the medians may differ
    by chance; and the numbers of slow runs and the verdict, as NOTES define them.
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
    return {
        "plain_s": median(plain_s), "drafted_s": median(drafted_s), "bound_s": limit_s, "noise_s": noise_s,
        "num_slow_plain": sum(one > slow_s for one in plain_s),
        "num_slow_drafted": sum(one > slow_s for one in drafted_s),
        "verdict": "over" if is_over else "unclear" if median(drafted_s) > limit_s else "within",
        "plain_runs_s": plain_s, "drafted_runs_s": drafted_s,
    }  # fmt: skip


def is_chance(num_slow_plain: int, num_slow_drafted: int) -> bool:
    """Return whether chance can explain the excess of slow drafted runs over slow plain ones (sign test).

    A disturbance of the machine hits both kinds with the same probability, because the runs alternate.
    """
    num = num_slow_plain + num_slow_drafted
    num_as_bad = sum(comb(num, k) for k in range(num_slow_drafted, num + 1))
    return bool(num_as_bad / 2**num > MAX_CHANCE)
