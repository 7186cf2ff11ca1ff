"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, and compare.

Stream the same chats, greedily, from OpenAI-compatible servers and from mlx_lm's generate (with --draft-model
also from its speculative generate): one at a time, or --streams at once. Each batch goes to all of them
before the next one, a different one first each time. Every round has new chats, so no prefix cache contains
them; the chats of --prompts are the same in each round. Without --server, Reprise itself is started. Errors
are printed below the table. Exit status 1 if anything failed.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any

from rich.console import Console

from bench import document, options, outputs, tables
from bench.errors import ArgumentsError
from bench.experiment import Experiment, Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.processes import BareLoop, exit_on_sigterm
from bench.serving.traffic import Loop, Peer, Question, RequestOptions, failure
from bench.statistics import compare
from bench.tables import Column, format_value
from bench.workloads import VERSION, Chat, lengths_of, make_chats, own_chats
from engine.text.tokenizer import Tokenizer

LOOP = "mlx_lm generate"
SPECULATIVE = "mlx_lm speculative"
MIXED = "mixed"
MAX_FAILURES_IN_A_ROW = 3
"""A peer that fails this often in a row gets no more questions: each timeout may take minutes."""

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
    with exit_on_sigterm(), ExitStack() as children:
        peers = _peers(arguments, children, tokenizer, console)
        with outputs.Work(sum(map(len, rounds)) * len(peers)) as work:
            rows = ask_all(
                peers, rounds, RequestOptions(arguments.max_tokens), arguments.streams, work, arguments.mixed,
                {"resume": arguments.resume, "key": record["command"]},
            )  # fmt: skip
    found = compared(rows, [peer.name for peer in peers])
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


def ask_all(
    peers: Sequence[Peer],
    rounds: Sequence[Sequence[Question]],
    request: RequestOptions,
    streams: int = 1,
    work: outputs.Work | None = None,
    is_mixed: bool = False,
    resume: dict[str, Any] | None = None,
) -> list[Row]:
    """Ask every peer every question, in batches of concurrent ones; return the answers.

    rounds: the questions of each round; the first round is a warm-up. is_mixed: whether a batch may have
    questions of several workloads, which then count as one.
    """
    failed_in_a_row: Counter[str] = Counter()
    cases: dict[str, tuple[int, list[Question]]] = {}
    number = 0
    for round_number, questions in enumerate(rounds):
        numbered = [replace(one, number=number + at) for at, one in enumerate(questions)]
        number += len(numbered)
        groups = {one.workload: [two for two in numbered if two.workload == one.workload] for one in numbered}
        if is_mixed:
            # One of each workload after the other.
            turns = chain.from_iterable(zip_longest(*groups.values()))
            groups = {MIXED: [replace(one, workload=MIXED) for one in turns if one is not None]}
        for name, of_workload in groups.items():
            for at in range(0, len(of_workload), streams):
                cases[f"{round_number} {name} {at}"] = round_number, of_workload[at : at + streams]

    def ask(peer: Peer, case: tuple[int, list[Question]]) -> list[Row]:
        round_number, questions = case
        if work:
            work.begin(f"{peer.name}, {questions[0].workload}")
        if failed_in_a_row[peer.name] < MAX_FAILURES_IN_A_ROW:
            rows = peer.ask(questions, request, streams)
        else:
            why = f"skipped after {MAX_FAILURES_IN_A_ROW} failures in a row"
            rows = [failure(at, one, request, why) for at, one in enumerate(questions)]
        for row in rows:
            failed_in_a_row[peer.name] = failed_in_a_row[peer.name] + 1 if row["error"] else 0
        if work:
            work.advance(len(rows))
        return [row | {"round": round_number, "streams": streams} for row in rows]

    arms = {peer.name: lambda case, peer=peer: ask(peer, case) for peer in peers}
    return Experiment(arms, cases, 1, has_warm_up=lambda _: False, order="rotate", **(resume or {})).run()


def compared(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows of the "peers" section of a result document.

    names: of the peers; ratios are to the first, and its texts are those that the others should equal.
    """
    texts = {row["question"]: row["text"] for row in rows if row["arm"] == names[0] and row["error"] is None}
    return [
        _row([row for row in rows if row["workload"] == workload], name, names[0], texts)
        for workload in dict.fromkeys(row["workload"] for row in rows)
        for name in names
    ]


def _row(rows: Sequence[Row], name: str, first: str, texts: dict[int, str]) -> Row:
    of_peer = [row for row in rows if row["arm"] == name]
    asked = [row for row in of_peer if row["round"] and row["is_measured"]]
    answered = traffic.good(asked)
    errors = [row["error"] for row in of_peer if row["error"]]
    streams = rows[0]["streams"]
    # Batches of concurrent questions follow each other; so do single questions.
    whole = traffic.if_none_failed(_batched if streams > 1 else traffic.request_speed)
    decoding = traffic.if_none_failed(traffic.decode_speed)
    ratio, decode_ratio = (
        compare(traffic.by_round(rows, name, take), traffic.by_round(rows, first, take)) or {}
        for take in (whole, decoding)
    )
    measured = traffic.by_round(rows, name, whole)
    firsts, gaps = traffic.first_tokens_s(asked), traffic.inter_tokens_s(asked)
    # Servers format tool calls differently, so those answers are not compared.
    judged = [row for row in answered if row["question"] in texts and not row["has_tools"] and name != first]
    num_equal = sum(_bare(row["text"]) == _bare(texts[row["question"]]) for row in judged)
    return {
        "name": name, "workload": rows[0]["workload"], "streams": streams, "requests": len(asked),
        "failed": len(asked) - len(answered), "tokens": sum(row["tokens"] for row in answered),
        "tokens_per_s": traffic.middle(measured),
        "tokens_per_s_low": min((one for one in measured if one), default=None),
        "tokens_per_s_high": max((one for one in measured if one), default=None),
        "decode_tps": traffic.middle(traffic.by_round(rows, name, decoding)),
        "ttft_ms": traffic.milliseconds(firsts, 0.5), "ttft_p95_ms": traffic.milliseconds(firsts, 0.95),
        "inter_token_ms": traffic.milliseconds(gaps, 0.5),
        "inter_token_p95_ms": traffic.milliseconds(gaps, 0.95),
        "speedup": ratio.get("of_medians"), "speedup_low": ratio.get("lowest"),
        "speedup_high": ratio.get("highest"), "decode_speedup": decode_ratio.get("of_medians"),
        "equal": num_equal if judged else None, "judged": len(judged),
        "parity": None if not judged else "PASS" if num_equal == len(judged) else "FAIL",
        "error": errors[0] if errors else None,
    }  # fmt: skip


def _batched(rows: Sequence[Row]) -> float | None:
    """Return all tokens divided by the time of all batches, one after the other."""
    batches = [
        [row for row in rows if row["case"] == case] for case in dict.fromkeys(row["case"] for row in rows)
    ]
    wall_s = sum(max(row["started_s"] + row["duration_s"] for row in batch) for batch in batches)
    return sum(row["tokens"] for row in rows) / wall_s if wall_s else None


def _bare(text: str) -> str:
    """Strip whitespace, and the replacement characters of a text that was cut within a character."""
    return text.rstrip("\ufffd").strip()


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
    model = str(arguments.model)
    drafting = ["--draft-model", str(arguments.draft_model)] if arguments.draft_model else []
    if not arguments.no_mlx_lm and arguments.streams == 1:
        loops = {LOOP: ["--may-end"]}
        if drafting:
            loops[SPECULATIVE] = [
                "--may-end", *drafting, "--num-draft-tokens", str(arguments.num_draft_tokens),
            ]  # fmt: skip
        for name, flags in loops.items():
            with console.status(f"loading the model for {name}"):
                loop = children.enter_context(BareLoop(model, arguments=flags))
            peers.append(Loop(name, loop, tokenizer.decode, tokenizer.eos_ids))
    with console.status("starting servers"):
        return [*peers, *servers.connect(arguments, arguments.model, children, tokenizer, drafting)]
