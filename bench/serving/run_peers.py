"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, and compare.

Stream the same chats, greedily, from OpenAI-compatible servers and from mlx_lm's generate (with --draft-model
also from its speculative generate): one at a time, or --streams at once. Each batch goes to all of them
before the next one, a different one first each time. mlx_lm's loops get token ids without HTTP, and have no
cache between requests. Every round has new chats, so no prefix cache contains them; the chats of --prompts
are the same in each round. Ratios are to the first peer. Without --server, Reprise itself is started. Errors
are printed below the table. Exit status 1 if anything failed.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.bare_loop import start_loop
from bench.serving.traffic import Ask, Batch
from bench.statistics import compare
from bench.tables import Column, format_value, interval
from bench.workloads import VERSION, Chat, Turn, lengths_of, make_chats, own_chats
from bench.workloads.chats import render
from engine.model.loading import load_tokenizer
from engine.text.tokenizer import Tokenizer

LOOP, SPECULATIVE = "mlx_lm generate", "mlx_lm speculative"
MIXED = "mixed"


def _pair(name: str, digits: str) -> Callable[[tables.Row], str]:
    return lambda row: " / ".join(format_value(row[f"{name}{at}_ms"], digits) for at in ("", "_p95"))


def _ratio(row: tables.Row) -> str | None:
    ends = interval(row, "speedup_low", "speedup_high")
    return None if row["speedup"] is None else f"{row['speedup']:.2f} ({ends})"


COLUMNS = [
    Column("workload", "workload", is_key=True), Column("streams", "streams", trivial=1),
    Column("name", "peer", is_key=True), Column("requests", "requests"), Column("failed", "failed"),
    Column("tokens", "tokens"), Column("tokens_per_s", "tokens/s", "1"), Column(_ratio, "ratio"),
    Column("decode_speedup", "decode ratio", "2"),
    Column(_pair("ttft", "0"), "first token,\nms p50 / p95"),
    Column(_pair("inter_token", "1"), "inter-token,\nms p50 / p95"),
    Column(lambda row: None if row["equal"] is None else f"{row['equal']} of {row['judged']}", "equal texts"),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench peers` to the parser."""
    options.add(
        parser, workloads=("edits", "passage", "summary"), prompts=None, prompt_tokens=None, rounds=3,
        max_tokens=128, seed=1, resume=None, **options.OUTPUTS,
    )  # fmt: skip
    servers.add_arguments(parser)
    options.declare(
        parser,
        Flag("--draft-model", options.model_folder, "DIR", None,
         "Draft model for mlx_lm's speculative generate, and for a Reprise started here."),
        Flag("--no-mlx-lm", None, None, None,
         "Leave mlx_lm's loops out; the first server is then what others are compared with."),
        Flag("--chats", options.count, "N", None,
         "Chats of each workload in each round. Default: 3, or as many as streams."),
        Flag("--streams", options.count, "N", 1,
         "Requests at the same time; with several, mlx_lm's loops are left out."),
        Flag("--mixed", None, None, None, "Ask questions of all workloads together, as one workload."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 1 if a request failed, 2 if the arguments cannot be combined."""
    servers.check(arguments, (LOOP, SPECULATIVE))
    tokenizer = load_tokenizer(arguments.model)
    batches = batches_of(_rounds(arguments, tokenizer), arguments.streams, arguments.mixed)
    record = document.new_document(arguments)
    resume = {"resume": arguments.resume, "key": record["command"]}
    with ExitStack() as children:
        peers = _peers(arguments, children, tokenizer)
        rows = traffic.ask_all(peers, batches, arguments.streams, **resume)
    found = compared(rows)
    record["peers"] = {"workloads_version": VERSION, "rows": found}
    console = outputs.make_console(150)
    notes = [*traffic.NOTES, *traffic.remarks(rows)]
    tables.print_rows(console, found, COLUMNS, "The same greedy chats on each peer", notes)
    outputs.finish(console, arguments, record, found)
    return int(any(row["error"] for row in found))


def _rounds(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[list[Chat]]:
    """Return the chats of each round, the warm-up first."""
    num_rounds = 1 + arguments.rounds
    if (own := own_chats(arguments.prompts, arguments.workloads)) is not None:
        return [own] * num_rounds
    num_chats = arguments.chats or max(3, arguments.streams)
    rounds: list[list[Chat]] = [[] for _ in range(num_rounds)]
    for name in arguments.workloads:
        length = lengths_of(name, arguments.prompt_tokens)[0]
        chats = make_chats(
            name, num_chats * num_rounds, arguments.seed, lambda text: len(render(tokenizer, text)), length
        )
        for number, of_round in enumerate(rounds):
            of_round += chats[number * num_chats :][:num_chats]
    return rounds


def batches_of(rounds: Sequence[Sequence[Chat]], streams: int, is_mixed: bool = False) -> list[Batch]:
    """Return the turns of each round, the warm-up first, in batches of concurrent ones.

    is_mixed: whether a batch may have turns of several workloads, which then count as one.
    Raises ArgumentsError for a turn that is not a greedy chat.
    """
    batches = []
    for number, chats in enumerate(rounds):
        by_workload: dict[str, list[Turn]] = defaultdict(list)
        for chat in chats:
            if any(
                turn.temperature or turn.num_allowed or turn.is_endless or turn.text for turn in chat.turns
            ):
                raise ArgumentsError(f"{chat.workload} is not a greedy chat; remove it")
            by_workload[MIXED if is_mixed else chat.workload] += chat.turns
        for workload, turns in by_workload.items():
            if is_mixed:
                random.Random(number).shuffle(turns)
            starts = range(0, len(turns), streams)
            batches += [Batch(number, workload, turns[at : at + streams]) for at in starts]
    return batches


def _peers(arguments: argparse.Namespace, children: ExitStack, tokenizer: Tokenizer) -> dict[str, Ask]:
    """Start or connect all peers; mlx_lm's loops come first, because ratios are to the first peer."""
    drafting = [str(arguments.draft_model)] if arguments.draft_model else []
    start = partial(start_loop, children, tokenizer, arguments.max_tokens, str(arguments.model), True)
    loops: dict[str, Ask] = {}
    if not arguments.no_mlx_lm and arguments.streams == 1:
        loops[LOOP] = start()
        if drafting:
            loops[SPECULATIVE] = start(*drafting)
    own = ["--draft-model", *drafting] if drafting else []
    return loops | servers.connect(arguments, arguments.model, children, own)


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the "peers" section of a document; ratios and texts are to the first peer's."""
    groups = traffic.figures_of(rows, "workload", "concurrency")
    return [_row(one, peers[0]) for peers in groups for one in peers]


def _row(peer: Row, first: Row) -> Row:
    speeds, judged = peer["tokens_per_s"], peer["num_texts"]
    speedup, decode_speedup = (
        compare(peer["rounds"][of], first["rounds"][of]) or {} for of in ("tokens/s", "decode tokens/s")
    )
    return {
        "name": peer["side"], "workload": peer["workload"], "streams": peer["concurrency"],
        "requests": peer["num_requests"], "failed": peer["num_failed"], "tokens": peer["num_tokens"],
        "tokens_per_s": median(speeds), "tokens_per_s_low": min(speeds), "tokens_per_s_high": max(speeds),
        "decode_tps": peer["decode_tokens_per_s"],
        **_milliseconds(peer["first_token_s"], "ttft"), **_milliseconds(peer["inter_token_s"], "inter_token"),
        "speedup": speedup.get("of_medians"), "speedup_low": speedup.get("lowest"),
        "speedup_high": speedup.get("highest"), "decode_speedup": decode_speedup.get("of_medians"),
        "equal": peer["num_equal"] if judged else None, "judged": judged,
        "parity": ("PASS" if peer["num_equal"] == judged else "FAIL") if judged else None,
        "error": peer["error"],
    }  # fmt: skip


def _milliseconds(found: Mapping[str, float] | None, name: str) -> Row:
    p50, p95 = (1000 * found[share] if found else None for share in ("p50", "p95"))
    return {f"{name}_ms": p50, f"{name}_p95_ms": p95}
