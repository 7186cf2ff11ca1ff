"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, and compare.

Stream the same chats, greedily, from OpenAI-compatible servers and from mlx_lm's generate (with --draft-model
also from its speculative generate): one at a time, or --streams at once. Each batch goes to all of them
before the next one, a different one first each time. Every round has new chats, so no prefix cache contains
them; the chats of --prompts are the same in each round. Without --server, Reprise itself is started. Errors
are printed below the table. Exit status 1 if anything failed.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, zip_longest

from rich.console import Console

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.bare_loop import Loop
from bench.serving.processes import stopped_at_the_end
from bench.serving.traffic import Batch, Peer, Question
from bench.statistics import percentiles
from bench.tables import Column, format_value
from bench.workloads import VERSION, Chat, lengths_of, make_chats, own_chats
from engine.text.tokenizer import Tokenizer

LOOP, SPECULATIVE = "mlx_lm generate", "mlx_lm speculative"
MIXED = "mixed"
_WIDTH = 150

NOTES = (
    "tokens/s: over whole requests, prefill included, and over all streams; median round.",
    "ratio: to the first line of the workload; in parentheses the lowest and highest round.",
    "decode ratio: the same for decoding only, per stream, from the first text on.",
    "inter-token: the gap before a read is divided among its tokens.",
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
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    rounds = _rounds(arguments, prompts, tokenizer)
    console = outputs.make_console(_WIDTH)
    record = document.new_document(arguments)
    with stopped_at_the_end() as children, outputs.Work() as work:
        peers = _peers(arguments, children, tokenizer, console)
        batches = batches_of(rounds, arguments.streams, arguments.mixed)
        rows = traffic.ask_all(peers, batches, work, resume=arguments.resume, key=record["command"])
    found = compared(rows)
    record["peers"] = {
        "workloads_version": VERSION,
        **{name: getattr(arguments, name) for name in ("rounds", "max_tokens", "seed")},
        "rows": found,
    }
    tables.print_rows(console, found, COLUMNS, "The same greedy chats on each peer")
    for line in sorted({f"{row['name']}: {row['error']}" for row in found if row["error"]}):
        console.print(f"! {line}", style="yellow", highlight=False, markup=False)
    for line in NOTES:
        console.print(line, style="dim", highlight=False)
    outputs.finish(console, arguments, record, found)
    return int(any(row["error"] for row in found))


def batches_of(rounds: Sequence[Sequence[Question]], streams: int, is_mixed: bool = False) -> list[Batch]:
    """Return the questions of each round, the warm-up first, in batches of concurrent ones.

    is_mixed: whether a batch may have questions of several workloads, which then count as one.
    """
    batches = []
    for number, questions in enumerate(rounds):
        groups: dict[str, list[Question]] = {}
        for question in questions:
            groups.setdefault(question.workload, []).append(question)
        if is_mixed:
            # One of each workload after the other.
            turns = chain.from_iterable(zip_longest(*groups.values()))
            groups = {MIXED: [replace(one, workload=MIXED) for one in turns if one is not None]}
        for group in groups.values():
            batches += [Batch(number, streams, group[at : at + streams]) for at in range(0, len(group), streams)]
    return batches


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the "peers" section of a result document; ratios and texts are to the first peer's."""
    names = list(dict.fromkeys(row["arm"] for row in rows))
    return [
        _row([row for row in rows if row["workload"] == workload], name, names[0])
        for workload in dict.fromkeys(row["workload"] for row in rows)
        for name in names
    ]


def _row(rows: Sequence[Row], name: str, first: str) -> Row:
    errors = [row["error"] for row in rows if row["arm"] == name and row["error"]]
    measured = [row for row in rows if row["round"] and row["is_measured"]]
    asked = [row for row in measured if row["arm"] == name]
    answered = traffic.good(asked)
    # A round in which a request failed has no speed: its other questions may be easier.
    failed = {(row["arm"], row["round"]) for row in rows if row["error"]}
    whole = [row for row in rows if (row["arm"], row["round"]) not in failed]
    speeds = [one for one in traffic.by_round(whole, name, traffic.throughput) if one]
    speedup = traffic.ratio(whole, name, first, traffic.throughput) or {}
    decode_speedup = traffic.ratio(whole, name, first, traffic.decode_speed) or {}
    times = {
        f"{kind}{suffix}_ms": 1000 * found[percentile] if found else None
        for kind, found in (
            ("ttft", percentiles(traffic.first_tokens_s(asked))),
            ("inter_token", percentiles(traffic.inter_tokens_s(asked))),
        )
        for suffix, percentile in (("", "p50"), ("_p95", "p95"))
    }
    num_equal, num_judged = (0, 0) if name == first else traffic.equal_texts(measured, name, first)
    return {
        "name": name, "workload": rows[0]["workload"], "streams": rows[0]["concurrency"],
        "requests": len(asked), "failed": len(asked) - len(answered),
        "tokens": sum(row["tokens"] for row in answered), "tokens_per_s": traffic.middle(speeds),
        "tokens_per_s_low": min(speeds, default=None), "tokens_per_s_high": max(speeds, default=None),
        "decode_tps": traffic.middle(traffic.by_round(whole, name, traffic.decode_speed)), **times,
        "speedup": speedup.get("of_medians"), "speedup_low": speedup.get("lowest"),
        "speedup_high": speedup.get("highest"), "decode_speedup": decode_speedup.get("of_medians"),
        "equal": num_equal if num_judged else None, "judged": num_judged,
        "parity": None if not num_judged else "PASS" if num_equal == num_judged else "FAIL",
        "error": errors[0] if errors else None,
    }  # fmt: skip


def _rounds(
    arguments: argparse.Namespace, prompts: list[Chat] | None, tokenizer: Tokenizer
) -> list[list[Question]]:
    """Return the questions of each round, warm-up first. Raises ArgumentsError if they cannot be asked."""
    if not tokenizer.has_chat_template:
        raise ArgumentsError(f"{arguments.model} has no chat template, which mlx_lm's loop needs for chats")
    num_rounds = 1 + arguments.rounds
    if prompts is not None:
        return [_questions(prompts, tokenizer)] * num_rounds

    def count_tokens(text: str) -> int:
        return len(tokenizer.render_chat([{"role": "user", "content": text}]))

    rounds: list[list[Question]] = [[] for _ in range(num_rounds)]
    num_chats = arguments.chats or max(3, arguments.streams)
    for name in arguments.workloads:
        length = lengths_of(name, arguments.prompt_tokens)[0]
        chats = make_chats(name, num_chats * num_rounds, arguments.seed, count_tokens, length)
        for number in range(num_rounds):
            rounds[number] += _questions(chats[number * num_chats :][:num_chats], tokenizer)
    return rounds


def _questions(chats: Sequence[Chat], tokenizer: Tokenizer) -> list[Question]:
    questions = []
    for chat in chats:
        for turn in chat.turns:
            if turn.temperature or turn.num_allowed or turn.is_endless or turn.text is not None:
                raise ArgumentsError(
                    f"{chat.workload} is not a greedy chat; remove it from --workloads or --prompts"
                )
            ids = tokenizer.render_chat(turn.for_template(), turn.tools_for_template() or None)
            questions.append(Question(turn.messages, tuple(ids), chat.workload, turn.tools, turn.is_measured))
    return questions


def _peers(
    arguments: argparse.Namespace, children: ExitStack, tokenizer: Tokenizer, console: Console
) -> list[Peer]:
    """Start or connect all peers; mlx_lm's loops come first, because ratios are to the first peer."""
    peers: list[Peer] = []
    model, draft_model = str(arguments.model), arguments.draft_model
    drafting = ["--draft-model", str(draft_model)] if draft_model else []
    if not arguments.no_mlx_lm and arguments.streams == 1:
        with console.status("loading the model for mlx_lm"):
            loops = [Loop(LOOP, model, tokenizer, arguments.max_tokens)]
            if draft_model:
                loops.append(replace(
                    loops[0], name=SPECULATIVE, draft_model=str(draft_model),
                    num_draft_tokens=arguments.num_draft_tokens,
                ))  # fmt: skip
            peers += [children.enter_context(loop) for loop in loops]
    with console.status("starting servers"):
        return [*peers, *servers.connect(arguments, arguments.model, children, tokenizer, drafting)]
