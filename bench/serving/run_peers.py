"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, and compare.

Stream the same chats, greedily, from OpenAI-compatible servers and from mlx_lm's generate (with --draft-model
also from its speculative generate): one at a time, or --streams at once. Each batch goes to all of them
before the next one, a different one first each time. Every round has new chats, so no prefix cache contains
them; the chats of --prompts are the same in each round. Without --server, Reprise itself is started. Errors
are printed below the table. Exit status 1 if anything failed.
"""

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from statistics import median

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.bare_loop import start_loop
from bench.serving.traffic import Ask, Question
from bench.statistics import compare
from bench.tables import Column, format_value
from bench.workloads import VERSION, Chat, lengths_of, make_chats, own_chats
from engine.model.loading import load_tokenizer
from engine.text.tokenizer import Tokenizer

LOOP, SPECULATIVE = "mlx_lm generate", "mlx_lm speculative"
MIXED = "mixed"
_WIDTH = 150

NOTES = (
    *traffic.NOTES,
    "ratio: to the first line of the workload; in parentheses the lowest and highest round.",
    "decode ratio: the same per stream, from the first text on.",
    "equal texts: answers equal to those of the first line; chats with tools are not compared.",
    "mlx_lm's loops get token ids without HTTP, and have no cache between requests.",
)


def _pair(first: str, second: str, digits: str) -> Callable[[tables.Row], str]:
    return lambda row: f"{format_value(row[first], digits)} / {format_value(row[second], digits)}"


def _ratio(row: tables.Row) -> str | None:
    best, low, high = (row[name] for name in ("speedup", "speedup_low", "speedup_high"))
    return None if best is None else f"{best:.2f} ({low:.2f} to {high:.2f})"


COLUMNS = [
    Column("workload", "workload", is_key=True), Column("streams", "streams", trivial=1),
    Column("name", "peer", is_key=True), Column("requests", "requests"), Column("failed", "failed"),
    Column("tokens", "tokens"), Column("tokens_per_s", "tokens/s", "1"), Column(_ratio, "ratio"),
    Column("decode_speedup", "decode ratio", "2"),
    Column(_pair("ttft_ms", "ttft_p95_ms", "0"), "first token,\nms p50 / p95"),
    Column(_pair("inter_token_ms", "inter_token_p95_ms", "1"), "inter-token,\nms p50 / p95"),
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
        Flag("--num-draft-tokens", options.count, "N", 2, "Draft length of mlx_lm's speculative generate."),
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
    prompts = own_chats(arguments.prompts, arguments.workloads)
    tokenizer = load_tokenizer(arguments.model)
    rounds = _rounds(arguments, prompts, tokenizer)
    batches = batches_of(rounds, arguments.streams, arguments.mixed)
    record = document.new_document(arguments)
    with ExitStack() as children, outputs.Work() as work:
        peers = _peers(arguments, children, tokenizer)
        rows = traffic.ask_all(
            peers, batches, arguments.streams, work, resume=arguments.resume, key=record["command"]
        )
    found = compared(rows)
    record["peers"] = {"workloads_version": VERSION, "rows": found}
    console = outputs.make_console(_WIDTH)
    tables.print_rows(
        console, found, COLUMNS, "The same greedy chats on each peer", [*NOTES, *traffic.remarks(rows)]
    )
    outputs.finish(console, arguments, record, found)
    return int(any(row["error"] for row in found))


def batches_of(
    rounds: Sequence[Sequence[Question]], streams: int, is_mixed: bool = False
) -> list[tuple[int, list[Question]]]:
    """Return the questions of each round, the warm-up first, in batches of concurrent ones.

    is_mixed: whether a batch may have questions of several workloads, which then count as one.
    """
    batches = []
    for number, questions in enumerate(rounds):
        if is_mixed:
            questions = [replace(one, workload=MIXED) for one in questions]
            random.Random(number).shuffle(questions)
        for _, alike in groupby(questions, lambda one: one.workload):
            group = [*alike]
            batches += [(number, group[at : at + streams]) for at in range(0, len(group), streams)]
    return batches


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the "peers" section of a document; ratios and texts are to the first peer's."""
    return [_row(one, peers[0]) for peers in traffic.figures_of(rows, "workload") for one in peers]


def _row(peer: Row, first: Row) -> Row:
    speeds = peer["tokens_per_s"]
    speedup, decode_speedup = (
        compare(peer["rounds"][of], first["rounds"][of]) or {} for of in ("tokens/s", "decode tokens/s")
    )
    is_equal = peer["num_equal"] == peer["num_texts"]
    return {
        "name": peer["side"], "workload": peer["workload"], "streams": peer["concurrency"],
        "requests": peer["num_requests"], "failed": peer["num_failed"], "tokens": peer["num_tokens"],
        "tokens_per_s": median(speeds), "tokens_per_s_low": min(speeds), "tokens_per_s_high": max(speeds),
        "decode_tps": peer["decode_tokens_per_s"],
        **_milliseconds(peer["first_token_s"], "ttft"), **_milliseconds(peer["inter_token_s"], "inter_token"),
        "speedup": speedup.get("of_medians"), "speedup_low": speedup.get("lowest"),
        "speedup_high": speedup.get("highest"), "decode_speedup": decode_speedup.get("of_medians"),
        "equal": peer["num_equal"] if peer["num_texts"] else None, "judged": peer["num_texts"],
        "parity": None if not peer["num_texts"] else "PASS" if is_equal else "FAIL", "error": peer["error"],
    }  # fmt: skip


def _milliseconds(found: Mapping[str, float] | None, name: str) -> Row:
    p50, p95 = (1000 * found[share] if found else None for share in ("p50", "p95"))
    return {f"{name}_ms": p50, f"{name}_p95_ms": p95}


def _rounds(
    arguments: argparse.Namespace, prompts: list[Chat] | None, tokenizer: Tokenizer
) -> list[list[Question]]:
    """Return the questions of each round, warm-up first. Raises ArgumentsError if they cannot be asked."""
    num_rounds = 1 + arguments.rounds
    if prompts is not None:
        prompts.sort(key=lambda chat: chat.workload)
        return [_questions(prompts, tokenizer)] * num_rounds

    def count_tokens(text: str) -> int:
        return len(tokenizer.render_chat([{"role": "user", "content": text}]))

    num_chats = arguments.chats or max(3, arguments.streams)
    rounds: list[list[Question]] = [[] for _ in range(num_rounds)]
    for name in arguments.workloads:
        length = lengths_of(name, arguments.prompt_tokens)[0]
        chats = make_chats(name, num_chats * num_rounds, arguments.seed, count_tokens, length)
        for number, of_round in enumerate(rounds):
            of_round += _questions(chats[number * num_chats :][:num_chats], tokenizer)
    return rounds


def _questions(chats: Sequence[Chat], tokenizer: Tokenizer) -> list[Question]:
    questions = []
    for workload, turn in ((chat.workload, turn) for chat in chats for turn in chat.turns):
        if turn.temperature or turn.num_allowed or turn.is_endless or turn.text is not None:
            raise ArgumentsError(f"{workload} is not a greedy chat; remove it")
        ids = tokenizer.render_chat(turn.for_template(), turn.tools_for_template() or None)
        questions.append(Question(turn.messages, tuple(ids), workload, turn.tools, turn.is_measured))
    return questions


def _peers(arguments: argparse.Namespace, children: ExitStack, tokenizer: Tokenizer) -> dict[str, Ask]:
    """Start or connect all peers; mlx_lm's loops come first, because ratios are to the first peer."""
    loops: dict[str, Ask] = {}
    model, draft_model = str(arguments.model), arguments.draft_model and str(arguments.draft_model)
    if not arguments.no_mlx_lm and arguments.streams == 1:
        for name in (LOOP, SPECULATIVE) if draft_model else (LOOP,):
            drafting = (draft_model, arguments.num_draft_tokens) if name == SPECULATIVE else ()
            loops[name] = start_loop(children, tokenizer, arguments.max_tokens, model, True, *drafting)
    own = ["--draft-model", draft_model] if draft_model else []
    return loops | servers.connect(arguments, arguments.model, children, own)
