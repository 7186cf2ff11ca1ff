"""`reprise bench peers`: the same chats to several servers and to mlx_lm's own loops, in turns."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import argument_types, document, outputs
from bench.child import BareLoop, OwnServer, terminated_like_interrupted
from bench.errors import ArgumentsError, BenchError
from bench.peers.comparison import compared
from bench.peers.rounds import Record, ask_all
from bench.peers.sides import LoopPeer, Question, ServerPeer, Side
from bench.workloads import VERSION, Chat, lengths_of, make_chats, own_chats
from config.settings import BUNDLED_MODEL
from engine.model.tokenizer import Tokenizer

SUMMARY = "Ask several servers, and mlx_lm's own loops, the same chats in turns, and compare."
DEFAULT_WORKLOADS = "edits,passage,summary"
LOOP = "mlx_lm generate"
SPECULATIVE = "mlx_lm speculative"
_WIDTH = 150

HOW = (
    "tokens/s: of whole requests, prompts included; the median round.",
    "ratio: to the first line of a workload, and the lowest and highest over rounds.",
    "first token, inter-token: p50 / p95 in ms. The gap before a read is shared by the tokens it brought.",
    "texts: answers that are those of the first line, word for word; chats with tools are not compared.",
    "mlx_lm's loops get token ids and send nothing over HTTP; they keep nothing from request to request.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench peers` takes."""
    parser.description = (
        "Stream the same chats, greedily and one at a time, from any OpenAI-compatible servers and from "
        "mlx_lm's generate (with --draft-model also from its speculative generate), in turns: every chat to "
        "all of them before the next, and each time another one first. Every round has new chats, so that no "
        "cache knows them; --prompts are the same in each. Without --server, Reprise itself is started. What "
        "fails is a line with its error. Status 1 if anything failed."
    )
    add = parser.add_argument
    add("--server", metavar="NAME=URL[=MODEL]", type=_server, action="append", default=[],
        help="A running server and, unless it is the first that it lists, its model; may be given several "
        "times.")  # fmt: skip
    add("--server-key", metavar="NAME=KEY", type=_key, action="append", default=[],
        help="Key for one of these servers.")  # fmt: skip
    add("--model", metavar="DIR", type=argument_types.model_folder, default=BUNDLED_MODEL,
        help="The model that the servers serve: for mlx_lm's loops, for Reprise where it is started, and to "
        "count tokens. Default: the bundled one.")  # fmt: skip
    add("--draft-model", metavar="DIR", type=argument_types.model_folder,
        help="For mlx_lm's speculative generate, and for Reprise where it is started.")  # fmt: skip
    add("--num-draft-tokens", metavar="N", type=argument_types.count, default=2,
        help="Of mlx_lm's speculative generate. Default: 2, as there.")  # fmt: skip
    add(
        "--no-mlx-lm",
        action="store_true",
        help="Leave its loops out; the first server is then the first line.",
    )
    add("--workloads", metavar="NAMES", default=DEFAULT_WORKLOADS,
        help=f"Of those that are greedy. Default: {DEFAULT_WORKLOADS}.")  # fmt: skip
    add("--prompts", metavar="FILE", type=argument_types.input_file,
        help='Your own chats instead: JSON lines of chat requests, {"messages": [...]}.')  # fmt: skip
    add("--prompt-tokens", metavar="N", type=argument_types.count,
        help="How long prompts are, where a workload lets one choose. Default: its shortest.")  # fmt: skip
    add("--chats", metavar="N", type=argument_types.count, default=3,
        help="Of each workload and round. Default: 3.")  # fmt: skip
    add("--rounds", metavar="N", type=argument_types.count, default=3,
        help="After one that warms up. Default: 3.")  # fmt: skip
    add("--max-tokens", metavar="N", type=argument_types.count, default=128,
        help="Of each answer. Default: 128.")  # fmt: skip
    add("--timeout", metavar="S", type=argument_types.count, default=120,
        help="Seconds of silence after which a question is given up; three in a row end it for a server. "
        "Default: 120.")  # fmt: skip
    add("--seed", metavar="N", type=int, default=1, help="Makes the chats. Default: 1.")
    outputs.add_arguments(parser, "Write the rows.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status: 1 if a request failed, 2 if the arguments do not fit."""
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
            raise ArgumentsError(f"--server: {name} is the name of another")
    for name, _ in arguments.server_key:
        if name not in names:
            raise ArgumentsError(f"--server-key: no --server is named {name}")


def _run(arguments: argparse.Namespace, prompts: list[Chat] | None) -> int:
    # Here, because it brings mlx-lm: wrong arguments are answered without it.
    from engine.model.mlx_lm_baseline import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    rounds = _rounds(arguments, prompts, tokenizer)
    console = outputs.make_console(_WIDTH)
    record = document.new_document(document.typed(arguments))
    with terminated_like_interrupted(), ExitStack() as children:
        sides = _sides(arguments, children, tokenizer, console)
        with outputs.make_progress(console) as progress:
            task = progress.add_task("asking", total=sum(map(len, rounds)) * len(sides))

            def tell(one: Record) -> None:
                progress.update(task, advance=1, description=f"{one.side}, {one.workload}")

            records = ask_all(sides, rounds, arguments.max_tokens, tell)
    names = [side.name for side in sides]
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
    """The questions of each round, the warm-up first. Raises ArgumentsError where they cannot be asked."""
    if not tokenizer.has_chat_template:
        raise ArgumentsError(f"{arguments.model} has no chat template, so its loop cannot be asked chats")
    num_rounds = 1 + arguments.rounds
    if prompts is not None:
        questions = _questions(prompts, tokenizer)
        return [questions] * num_rounds

    def count_tokens(text: str) -> int:
        return len(tokenizer.render_chat([{"role": "user", "content": text}]))

    rounds: list[list[Question]] = [[] for _ in range(num_rounds)]
    for name in arguments.workloads.split(","):
        asked = (arguments.prompt_tokens,) if arguments.prompt_tokens else None
        length = lengths_of(name, asked)[0]
        chats = make_chats(name, arguments.chats * num_rounds, arguments.seed, count_tokens, length)
        for number in range(num_rounds):
            rounds[number] += _questions(chats[number * arguments.chats :][: arguments.chats], tokenizer)
    return rounds


def _questions(chats: Sequence[Chat], tokenizer: Tokenizer) -> list[Question]:
    questions = []
    for chat in chats:
        for turn in chat.turns:
            if turn.temperature or turn.num_allowed or turn.is_endless or turn.text is not None:
                raise ArgumentsError(f"{chat.workload} is not asked greedily as a chat; leave it out")
            ids = tokenizer.render_chat(turn.for_template(), turn.tools_for_template() or None)
            questions.append(Question(chat.workload, turn, tuple(ids)))
    return questions


def _sides(
    arguments: argparse.Namespace, children: ExitStack, tokenizer: Tokenizer, console: Console
) -> list[Side]:
    """All that are asked; mlx_lm's loops first, so that they are what the others are compared with."""
    sides: list[Side] = []
    model, draft = str(arguments.model), str(arguments.draft_model) if arguments.draft_model else None
    drafting = ["--draft-model", draft] if draft else []
    if not arguments.no_mlx_lm:
        loops = {LOOP: ["--may-end"]}
        if draft:
            given = ["--num-draft-tokens", str(arguments.num_draft_tokens)]
            loops[SPECULATIVE] = ["--may-end", *drafting, *given]
        for name, flags in loops.items():
            with console.status(f"loading the model for {name}"):
                loop = children.enter_context(BareLoop(model, arguments=flags))
            sides.append(LoopPeer(name, loop, tokenizer.decode, tokenizer.eos_ids))
    servers = list(arguments.server)
    if not servers:
        with console.status("starting reprise serve"):
            servers.append(
                ("reprise", children.enter_context(OwnServer(["--model", model, *drafting])).url, None)
            )
    keys = dict(arguments.server_key)
    return sides + [
        ServerPeer(
            name, url, served, lambda text: len(tokenizer.encode_answer(text)), float(arguments.timeout),
            keys.get(name),
        )
        for name, url, served in servers
    ]  # fmt: skip


def _print(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="The same chats, in turns, greedily")
    for name in ("workload", "side", "requests", "failed", "tokens", "tokens/s", "ratio", "decoding alone"):
        table.add_column(name, justify="left" if name in ("workload", "side") else "right")
    for name in ("first token", "inter-token", "texts"):
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
    told = {f"{row['name']}: {row['error']}" for row in rows if row["error"]}
    for line in sorted(told):
        console.print(f"! {line}", style="yellow", highlight=False, markup=False)
    for line in HOW:
        console.print(line, style="dim", highlight=False)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _server(text: str) -> tuple[str, str, str | None]:
    """NAME=URL or NAME=URL=MODEL."""
    name, _, rest = text.partition("=")
    address, _, model = rest.partition("=")
    if not name or not address:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=URL, such as other=http://127.0.0.1:8080")
    return name, argument_types.url(address), model or None


def _key(text: str) -> tuple[str, str]:
    name, _, key = text.partition("=")
    return name, argument_types.api_key(key)
