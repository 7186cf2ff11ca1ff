"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, alternating."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import argument_types, document, outputs
from bench.child import BareLoop, OwnServer, exit_on_sigterm
from bench.errors import ArgumentsError, BenchError
from bench.peers.clients import LoopPeer, Peer, Question, ServerPeer
from bench.peers.comparison import compared
from bench.peers.rounds import Record, ask_all
from bench.workloads import VERSION, Chat, lengths_of, make_chats, own_chats
from config.settings import BUNDLED_MODEL
from engine.model.tokenizer import Tokenizer

SUMMARY = "Run the same chats on several servers and on mlx_lm's own loops, and compare."
DEFAULT_WORKLOADS = "edits,passage,summary"
LOOP = "mlx_lm generate"
SPECULATIVE = "mlx_lm speculative"
_WIDTH = 150

NOTES = (
    "tokens/s: over whole requests, prefill included; median round.",
    "ratio: to the first line of the workload; in parentheses the lowest and highest round.",
    "decode ratio: the same for decoding only, from the first text on.",
    "first token, inter-token: p50 / p95 in ms. The gap before a read is divided among its tokens.",
    "equal texts: answers equal to those of the first line; chats with tools are not compared.",
    "mlx_lm's loops get token ids without HTTP, and have no cache between requests.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench peers` to the parser."""
    parser.description = (
        "Stream the same chats, greedily and one at a time, from OpenAI-compatible servers and from mlx_lm's "
        "generate (with --draft-model also from its speculative generate). Each chat goes to all of them "
        "before the next chat, and a different one is first each time. Every round has new chats, so no "
        "prefix cache contains them; the chats of --prompts are the same in each round. Without --server, "
        "Reprise itself is started. Errors are printed below the table. Exit status 1 if anything failed."
    )
    add = parser.add_argument
    add("--server", metavar="NAME=URL[=MODEL]", type=_server, action="append", default=[],
        help="A running server; MODEL defaults to the first that it lists. May be repeated.")  # fmt: skip
    add("--server-key", metavar="NAME=KEY", type=_key, action="append", default=[],
        help="API key of a --server; may be repeated.")  # fmt: skip
    add("--model", metavar="DIR", type=argument_types.model_folder, default=BUNDLED_MODEL,
        help="The model that the servers serve: used for mlx_lm's loops, for a Reprise started here, and to "
        "count tokens. Default: the bundled model.")  # fmt: skip
    add("--draft-model", metavar="DIR", type=argument_types.model_folder,
        help="Draft model for mlx_lm's speculative generate, and for a Reprise started here.")  # fmt: skip
    add("--num-draft-tokens", metavar="N", type=argument_types.count, default=2,
        help="Draft length of mlx_lm's speculative generate. Default: 2, as in mlx_lm.")  # fmt: skip
    add(
        "--no-mlx-lm",
        action="store_true",
        help="Leave mlx_lm's loops out; the first server is then what the others are compared with.",
    )
    add("--workloads", metavar="NAMES", default=DEFAULT_WORKLOADS,
        help=f"Generated workloads; only greedy ones. Default: {DEFAULT_WORKLOADS}.")  # fmt: skip
    add("--prompts", metavar="FILE", type=argument_types.input_file,
        help='Your own chats instead: JSON lines of chat requests, {"messages": [...]}.')  # fmt: skip
    add("--prompt-tokens", metavar="N", type=argument_types.count,
        help="Prompt length, for workloads of variable length. Default: the shortest.")  # fmt: skip
    add("--chats", metavar="N", type=argument_types.count, default=3,
        help="Chats of each workload in each round. Default: 3.")  # fmt: skip
    add("--rounds", metavar="N", type=argument_types.count, default=3,
        help="Measured rounds, after one warm-up round. Default: 3.")  # fmt: skip
    add("--max-tokens", metavar="N", type=argument_types.count, default=128,
        help="Maximum tokens of each answer. Default: 128.")  # fmt: skip
    add("--timeout", metavar="S", type=argument_types.count, default=120,
        help="A request fails after this many seconds without data; a server with three failures in a row is "
        "skipped. Default: 120.")  # fmt: skip
    add("--seed", metavar="N", type=int, default=1, help="Seed of the chats. Default: 1.")
    outputs.add_arguments(parser, "Write the rows of the table to FILE.")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 1 if a request failed, 2 if the arguments cannot be combined."""
    try:
        _check(arguments)
        prompts = own_chats(arguments.prompts, arguments.workloads.split(","))
        return _run(arguments, prompts)
    except (BenchError, OSError, ValueError) as fault:
        print(f"reprise bench peers: {fault}", file=sys.stderr)
        return 1 if isinstance(fault, BenchError) and not isinstance(fault, ArgumentsError) else 2


def _check(arguments: argparse.Namespace) -> None:
    names = [name for name, _, _ in arguments.server]
    for name in names:
        if names.count(name) > 1 or name in (LOOP, SPECULATIVE):
            raise ArgumentsError(f"--server: the name {name} is already taken")
    for name, _ in arguments.server_key:
        if name not in names:
            raise ArgumentsError(f"--server-key: no --server is named {name}")


def _run(arguments: argparse.Namespace, prompts: list[Chat] | None) -> int:
    # Imported here, because it loads mlx-lm: wrong arguments are reported without waiting for that.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    rounds = _rounds(arguments, prompts, tokenizer)
    console = outputs.make_console(_WIDTH)
    record = document.new_document(document.command_line(arguments))
    with exit_on_sigterm(), ExitStack() as children:
        peers = _peers(arguments, children, tokenizer, console)
        with outputs.make_progress(console) as progress:
            task = progress.add_task("running chats", total=sum(map(len, rounds)) * len(peers))

            def on_record(one: Record) -> None:
                progress.update(task, advance=1, description=f"{one.peer}, {one.workload}")

            records = ask_all(peers, rounds, arguments.max_tokens, on_record)
    names = [peer.name for peer in peers]
    rows = compared(records, names, names[0])
    record["peers"] = {
        "workloads_version": VERSION,
        "rounds": arguments.rounds,
        "max_tokens": arguments.max_tokens,
        "seed": arguments.seed,
        "rows": rows,
    }
    _print(console, rows)
    console.print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), highlight=False)
    outputs.write(arguments, record, rows)
    return int(any(row["error"] for row in rows))


def _rounds(
    arguments: argparse.Namespace, prompts: list[Chat] | None, tokenizer: Tokenizer
) -> list[list[Question]]:
    """Return the questions of each round, warm-up first. Raises ArgumentsError if they cannot be asked."""
    if not tokenizer.has_chat_template:
        raise ArgumentsError(f"{arguments.model} has no chat template, which mlx_lm's loop needs for chats")
    num_rounds = 1 + arguments.rounds
    if prompts is not None:
        questions = _questions(prompts, tokenizer)
        return [questions] * num_rounds

    def count_tokens(text: str) -> int:
        return len(tokenizer.render_chat([{"role": "user", "content": text}]))

    rounds: list[list[Question]] = [[] for _ in range(num_rounds)]
    for name in arguments.workloads.split(","):
        requested = (arguments.prompt_tokens,) if arguments.prompt_tokens else None
        length = lengths_of(name, requested)[0]
        chats = make_chats(name, arguments.chats * num_rounds, arguments.seed, count_tokens, length)
        for number in range(num_rounds):
            rounds[number] += _questions(chats[number * arguments.chats :][: arguments.chats], tokenizer)
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
            questions.append(Question(chat.workload, turn, tuple(ids)))
    return questions


def _peers(
    arguments: argparse.Namespace, children: ExitStack, tokenizer: Tokenizer, console: Console
) -> list[Peer]:
    """Start or connect all peers; mlx_lm's loops come first, because ratios are to the first peer."""
    peers: list[Peer] = []
    model, draft = str(arguments.model), str(arguments.draft_model) if arguments.draft_model else None
    drafting = ["--draft-model", draft] if draft else []
    if not arguments.no_mlx_lm:
        loops = {LOOP: ["--may-end"]}
        if draft:
            draft_length = ["--num-draft-tokens", str(arguments.num_draft_tokens)]
            loops[SPECULATIVE] = ["--may-end", *drafting, *draft_length]
        for name, flags in loops.items():
            with console.status(f"loading the model for {name}"):
                loop = children.enter_context(BareLoop(model, arguments=flags))
            peers.append(LoopPeer(name, loop, tokenizer.decode, tokenizer.eos_ids))
    servers = list(arguments.server)
    if not servers:
        with console.status("starting reprise serve"):
            own = OwnServer(["--model", model, "--recalibrate", *drafting])
            servers.append(("reprise", children.enter_context(own).url, None))
    keys = dict(arguments.server_key)
    return peers + [
        ServerPeer(
            name, url, served, lambda text: len(tokenizer.encode_answer(text)), float(arguments.timeout),
            keys.get(name),
        )
        for name, url, served in servers
    ]  # fmt: skip


def _print(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="The same greedy chats on each peer")
    for name in ("workload", "peer", "requests", "failed", "tokens", "tokens/s", "ratio", "decode ratio"):
        table.add_column(name, justify="left" if name in ("workload", "peer") else "right")
    for name in ("first token", "inter-token", "equal texts"):
        table.add_column(name, justify="right")
    for row in rows:
        spread = "-"
        if row["speedup"] is not None:
            spread = f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
        table.add_row(
            row["workload"], row["name"], str(row["requests"]), str(row["failed"]), str(row["tokens"]),
            _number(row["tokens_per_s"]), spread, _number(row["decode_speedup"], 2),
            f"{_number(row['ttft_ms'], 0)} / {_number(row['ttft_p95_ms'], 0)}",
            f"{_number(row['inter_token_ms'])} / {_number(row['inter_token_p95_ms'])}",
            "-" if row["equal"] is None else f"{row['equal']} of {row['judged']}",
        )  # fmt: skip
    console.print(table)
    errors = {f"{row['name']}: {row['error']}" for row in rows if row["error"]}
    for line in sorted(errors):
        console.print(f"! {line}", style="yellow", highlight=False, markup=False)
    for line in NOTES:
        console.print(line, style="dim", highlight=False)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _server(text: str) -> tuple[str, str, str | None]:
    """Parse NAME=URL or NAME=URL=MODEL."""
    name, _, rest = text.partition("=")
    address, _, model = rest.partition("=")
    if not name or not address:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=URL, such as other=http://127.0.0.1:8080")
    return name, argument_types.url(address), model or None


def _key(text: str) -> tuple[str, str]:
    name, _, key = text.partition("=")
    return name, argument_types.api_key(key)
