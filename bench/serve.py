"""`reprise bench serve`: ask servers the same chats, many at once, and compare.

Stream chats greedily: of --workloads or --prompts. Each batch goes to all peers before the next batch, a
different peer first each time. Every round has new chats, so that no prefix cache has them; their seed is
new and printed, because a running server may have the chats of an earlier one. Answers to random words
(`words`) cannot end early (logit_bias forbids the end tokens), so all have the requested length. Ratios are
to the first peer. Exit status 1 if any request failed.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from reprise.bench import document, options, peers
from reprise.bench.document import Column, format_value, interval
from reprise.bench.experiment import ArgumentsError, Experiment, Progress, Row, grouped, measured
from reprise.bench.options import Flag
from reprise.bench.peers import Ask
from reprise.bench.statistics import compare, percentile, ratio
from reprise.bench.workloads import VERSION, Chat, Turn, lengths_of, make_chats, own_chats
from reprise.bench.workloads.chats import render
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.text.tokenizer import Tokenizer

_WIDTH = 150

NOTES = (
    "tokens/s: all tokens of a round divided by its time, prefill included; none if a request failed.",
    "tokens: as the server counts them, else chunks. first token: from connecting to the first text.",
    "inter-token: the gap before a read, divided by its tokens.",
    "ratio: to the first peer, of the medians over rounds, with the lowest and highest of a round.",
    "equal texts: answers equal to those of the first peer; chats with tools are not compared.",
    "failed: of all requests, warm-up included.",
)
"""How figures are to be read."""

FLAGS = (
    *peers.FLAGS,
    *options.shared(model=None),
    Flag("--draft-model", options.model, "MODEL", None,
         "Draft model for mlx_lm, and for a Reprise started here."),
    Flag("--concurrency", options.levels, "N,...", None,
         "Concurrent streams. Default: 1,2,4,8; with --prompts 1."),
    Flag("--prompt-tokens", options.count, "N", None,
         "Tokens of each prompt, with the chat template. Default: the shortest that a workload has."),
    Flag("--chats", options.count, "N", None,
         "Chats of each workload in each round. Default: as many as streams, at least 4."),
    Flag("--by-turn", None, None, None, "Show the turns of chats apart, and what the prefix cache had."),
    *options.of_settings("draft_type", *options.MACHINES),
    *options.shared(
        workloads=("words",), prompts=None, max_tokens=128, rounds=3, seed=None, **options.OUTPUTS
    ),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Return 1 if a request or a server failed, 2 if the arguments cannot be combined."""
    arguments.concurrency = arguments.concurrency or ((1,) if arguments.prompts else (1, 2, 4, 8))
    peers.check(arguments)
    if arguments.prompts and len(arguments.concurrency) > 1:
        raise ArgumentsError("--prompts are asked once, so of --concurrency only one number can be measured")
    own, model = own_chats(arguments.prompts, arguments.workloads), arguments.model or BUNDLED_MODEL
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(2**32)
    tokenizer, result, rows = load_tokenizer(model), document.new_document(arguments), list[Row]()
    with Progress() as progress, ExitStack() as children:
        asks = peers.start_peers(arguments, model, sorted(tokenizer.eos_ids), children)
        for at, streams in enumerate(arguments.concurrency):
            size = arguments.chats or max(4, streams)
            rounds = dealt(own, arguments.rounds, size) if own else made(arguments, tokenizer, size, at)
            rows += ask_all(asks, batches_of(rounds, streams), streams, progress)
    levels = figures_of(rows, "workload", "streams", *(["turn"] if arguments.by_turn else []))
    failures = grouped((row for row in rows if row["error"]), "arm", "error").items()
    remarks = [f"! {name}: failed: {error} (requests: {len(some)})" for (name, error), some in failures]
    settings = {"model": model.resolve().name, "seed": arguments.seed, "workloads_version": VERSION}
    result["serve"] = {"settings": settings, "levels": levels, "notes": remarks, "rows": rows}
    console = document.make_console(_WIDTH)
    document.print_rows(console, levels, COLUMNS, f"Chats of seed {arguments.seed}", "streams")
    document.report(arguments, result, [*NOTES, *remarks], console)
    return int(bool(remarks))


def dealt(own: Sequence[Chat], rounds: int, size: int) -> list[list[Chat]]:
    """Divide a user's chats into rounds of `size` chats per workload.

    The first list is the warm-up, which has only the first chat. Rounds without chats are left out.
    """
    kinds = grouped([{"kind": one.workload, "chat": one} for one in own[1:] or own], "kind").values()
    by_round = ([one["chat"] for kind in kinds for one in kind[at * size :][:size]] for at in range(rounds))
    return [[*own[:1]], *filter(None, by_round)]


def made(arguments: argparse.Namespace, tokenizer: Tokenizer, size: int, level: int) -> list[list[Chat]]:
    """Generate rounds of `size` chats per workload; the first list is the warm-up.

    level: number of the level of concurrency; each level has other chats.
    """
    num_rounds, length = 1 + arguments.rounds, arguments.prompt_tokens and [arguments.prompt_tokens]
    # Levels differ in their seeds, so that no prefix cache has the chats of one before.
    seed = arguments.seed + level
    chats = [
        make_chats(
            name, size * num_rounds, seed, lambda text: len(render(tokenizer, text)),
            lengths_of(name, length)[0],
        )
        for name in arguments.workloads
    ]  # fmt: skip
    return [[chat for alike in chats for chat in alike[at * size :][:size]] for at in range(num_rounds)]


class Batch(NamedTuple):
    """Turns requested at the same time. round: 0 for the warm-up."""

    round: int
    workload: str
    turns: Sequence[Turn]


def batches_of(rounds: Sequence[Sequence[Chat]], streams: int) -> list[Batch]:
    """Divide each round's turns into batches of `streams` concurrent turns of a workload.

    Raises ArgumentsError for a turn that is not a greedy chat.
    """
    batches = []
    for number, chats in enumerate(rounds):
        by_workload: dict[str, list[Turn]] = {}
        for chat in chats:
            if any(one.temperature or one.num_allowed or one.text for one in chat.turns):
                raise ArgumentsError(f"{chat.workload} is not a greedy chat; remove it")
            by_workload.setdefault(chat.workload, []).extend(chat.turns)
        for workload, turns in by_workload.items():
            starts = range(0, len(turns), streams)
            batches += [Batch(number, workload, turns[at : at + streams]) for at in starts]
    return batches


def ask_all(asks: dict[str, Ask], batches: Sequence[Batch], streams: int, progress: Progress) -> list[Row]:
    """Send each batch to all peers before the next, rotating who is first; return rows of answers."""

    def ask(batch: Batch, name: str) -> list[Row]:
        answers = asks[name](batch.turns, streams)
        return [
            {"request": at, "round": batch.round, "streams": streams, "workload": batch.workload,
             "turn": sum(one["role"] == "user" for one in turn.messages),
             "has_tools": bool(turn.tools), **asdict(answer)}
            for at, (turn, answer) in enumerate(zip(batch.turns, answers, strict=True))
        ]  # fmt: skip

    def label(name: str, case: str) -> str:
        number = cases[case].round
        stage = f"round {number}" if number else "warm-up"
        return f"{streams} stream{'s' * (streams > 1)}, {stage}: {name}"

    arms = {name: partial(ask, name=name) for name in asks}
    cases = {f"batch {at} of {streams} streams": batch for at, batch in enumerate(batches)}
    return Experiment(arms, cases, label=label).run(progress)


def throughput(rows: Sequence[Row]) -> float | None:
    """Return tokens per second: all tokens divided by the summed times of the batches."""
    batches = grouped(rows, "case").values()
    wall_s = sum(max(row["started_s"] + row["duration_s"] for row in batch) for batch in batches)
    return ratio(sum(row["tokens"] for row in rows), wall_s)


def first_tokens_ms(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return milliseconds from each request to its first text, each with the weight 1."""
    return [(1000 * row["arrivals"][0][0], 1.0) for row in rows if row["arrivals"]]


def inter_tokens_ms(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return milliseconds between tokens, weighted by tokens; the gap before a read is divided among its."""
    gaps = [(at - before, tokens) for row in rows for (before, _), (at, tokens) in pairwise(row["arrivals"])]
    return [(1000 * gap_s / tokens, tokens) for gap_s, tokens in gaps if tokens > 0]


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
    speeds = _speeds(answers)
    good = [row for row in asked if not row["error"]]
    ours, theirs = {} if answers is first else _texts(answers), _texts(first)
    equal, judged = len(ours.items() & theirs.items()), len(ours.keys() & theirs.keys())
    figures: Row = {
        "name": answers[0]["arm"], "requests": len(asked), "failed": len(errors),
        "tokens": sum(row["tokens"] for row in asked),
        "tokens_per_s": median([*filter(None, speeds)] or [0.0]),
        "equal": equal if judged else None, "judged": judged,
        "parity": ("PASS" if equal == judged else "FAIL") if judged else None,
        "error": errors[0] if errors else None,
    }  # fmt: skip
    for name in ("num_prompt_tokens", "num_cached_tokens"):
        counts = [row[name] for row in good if row[name] is not None]
        figures[name] = median(counts) if counts else None
    for name, times in (("ttft", first_tokens_ms(good)), ("inter_token", inter_tokens_ms(good))):
        for suffix, share in (("", 0.5), ("_p95", 0.95), ("_p99", 0.99)):
            figures[f"{name}{suffix}_ms"] = percentile(times, share) if times else None
    found = compare(speeds, _speeds(first)) or {}
    ends = {"speedup_low": found.get("lowest"), "speedup_high": found.get("highest")}
    return figures | {"speedup": found.get("of_medians"), **ends}


def _speeds(answers: Sequence[Row]) -> list[float | None]:
    """Return tokens per second of each measured round; None after a failure, which may ease the rest."""
    broken = {row["round"] for row in answers if row["error"]}
    rounds = grouped(measured(answers), "round")
    return [None if at in broken else throughput(of_round) for (at,), of_round in rounds.items()]


def _texts(answers: Sequence[Row]) -> dict[tuple[str, int], str]:
    """Return the measured texts. Servers format tool calls differently, so those are left out."""
    return {
        # A text that was cut within a character ends in replacement characters.
        (row["case"], row["request"]): row["text"].rstrip("\ufffd").strip()
        for row in measured(answers)
        if not row["error"] and not row["has_tools"]
    }


def _ratio_text(row: document.Row) -> str | None:
    return row["speedup"] and f"{row['speedup']:.2f} ({interval(row, 'speedup_low', 'speedup_high')})"


def _percentiles(name: str, digits: str) -> Callable[[document.Row], Any]:
    names = [f"{name}{share}_ms" for share in ("", "_p95", "_p99")]
    return lambda row: " / ".join(format_value(row[one], digits) for one in names)


COLUMNS = [
    Column("workload", "workload", is_key=True), Column("turn", "turn", is_key=True),
    Column("streams", "streams", is_key=True), Column("name", "peer", is_key=True),
    Column("requests", "requests"), Column("failed", "failed", trivial=0),
    Column("tokens", "tokens"), Column("num_prompt_tokens", "prompt", "0"),
    Column("num_cached_tokens", "cached", "0", trivial=0.0),
    Column("tokens_per_s", "tokens/s", "1"), Column(_ratio_text, "ratio"),
    Column(_percentiles("ttft", "0"), "first token,\nms p50 / p95 / p99"),
    Column(_percentiles("inter_token", "1"), "inter-token,\nms p50 / p95 / p99"),
    Column(lambda row: None if row["equal"] is None else f"{row['equal']} of {row['judged']}", "equal texts"),
]  # fmt: skip
"""The columns of a table of figures_of()."""
