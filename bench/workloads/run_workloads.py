"""`reprise bench workloads`: list, show or export the generated chats of the benchmarks.

Lengths are counted with the model's tokenizer; its weights are not loaded.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import options
from bench.errors import ArgumentsError
from bench.outputs import make_console
from bench.rendering import render, render_turn
from bench.workloads import VERSION, WORKLOADS, Chat, Turn, lengths_of, make_chats
from config.settings import BUNDLED_MODEL

SUMMARY = "Show the generated chats of the benchmarks, or write them to a file."
_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Size:
    """Means over chats. first_tokens, last_tokens: lengths of the prompts of the first and the last turn.

    answer_tokens: length of the right answers; None if there are none.
    """

    num_turns: float
    first_tokens: float
    last_tokens: float
    answer_tokens: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench workloads` to the parser."""
    parser.description = (
        "Print a table of the generated chats, which are the same for everyone with the same seed. With "
        "--show, print one chat of each workload in full. With --write, write JSON lines, one per turn, for "
        "`--prompts FILE` of other benchmarks and for `reprise bench replay --pairs FILE`. The answers are "
        "the right answers, not a model's."
    )
    add = parser.add_argument
    add("--workloads", type=_names, default=tuple(WORKLOADS), metavar="A,B",
        help="Default: all.")  # fmt: skip
    add("--model", type=options.model_folder, metavar="DIR",
        help="Model whose tokenizer and chat template are used. Default: the bundled model.")  # fmt: skip
    add("--prompt-tokens", type=options.levels, metavar="N,M",
        help="Lengths of first prompts, for workloads with a choice. Default: the workload's.")  # fmt: skip
    add("--chats", type=options.count, default=4, metavar="N",
        help="Chats of each workload and length. Default: 4.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Seed of the chats. Default: 1.")
    add("--show", action="store_true", help="Print the first chat of each workload instead of the table.")
    add("--write", type=options.output_file, metavar="FILE",
        help="Write all turns with a right answer to FILE.")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print or write, and return the exit status."""
    # Imported here, because it loads mlx-lm, which takes a while.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)

    def count_tokens(text: str) -> int:
        return len(render(tokenizer, text))

    made = [
        (chat_name(name, length), make_chats(name, arguments.chats, arguments.seed, count_tokens, length))
        for name in arguments.workloads
        for length in lengths_of(name, arguments.prompt_tokens)
    ]
    console = make_console(_WIDTH)
    if arguments.write:
        try:
            count = write_turns(arguments.write, made, tokenizer)
        except ArgumentsError as fault:
            print(f"reprise bench workloads: {fault}", file=sys.stderr)
            return 2
        console.print(f"wrote {count} turns to {escape(str(arguments.write))}", soft_wrap=True)
        if without := [name for name, chats in made if chats[0].turns[-1].reference is None]:
            console.print(f"left out, because they have no right answer: {', '.join(without)}")
    elif arguments.show:
        for name, chats in made:
            _show(console, name, chats[0])
    else:
        console.print(_table([(name, chats[0].workload, size(chats, tokenizer)) for name, chats in made]))
        console.print(f"version {VERSION}, seed {arguments.seed}, {arguments.chats} chats of each")
    return 0


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in WORKLOADS:
            raise argparse.ArgumentTypeError(f"{name or 'empty'} is not one of {', '.join(WORKLOADS)}")
    return names


def chat_name(workload: str, prompt_tokens: int | None) -> str:
    """Return the display name of a workload at a prompt length."""
    return workload if prompt_tokens is None else f"{workload} {prompt_tokens}"


def size(chats: Sequence[Chat], tokenizer: Any) -> Size:
    """Measure the length of chats. chats: at least one."""
    answers = [
        len(tokenizer.encode_answer(turn.reference))
        for chat in chats
        for turn in chat.turns
        if turn.is_measured and turn.reference is not None
    ]
    return Size(
        mean(len(chat.turns) for chat in chats),
        mean(len(render_turn(tokenizer, chat.turns[0])) for chat in chats),
        mean(len(render_turn(tokenizer, chat.turns[-1])) for chat in chats),
        mean(answers) if answers else None,
    )


def write_turns(path: Path, made: Sequence[tuple[str, Sequence[Chat]]], tokenizer: Any) -> int:
    """Write a line per turn with a right answer; return the number of lines. Raises ArgumentsError."""
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for name, chats in made:
                for line in _lines(name, chats, tokenizer):
                    file.write(json.dumps(line) + "\n")
                    count += 1
    except OSError as fault:
        raise ArgumentsError(f"cannot write {path}: {fault.strerror}") from fault
    return count


def _lines(name: str, chats: Sequence[Chat], tokenizer: Any) -> Iterator[dict[str, Any]]:
    for number, chat in enumerate(chats, 1):
        for at, turn in enumerate(chat.turns, 1):
            if turn.reference is not None:
                where = {"workload": chat.workload, "chat": f"{name} {number}", "turn": at}
                pair = {"prompt": tokenizer.decode(render_turn(tokenizer, turn)), "output": turn.reference}
                yield where | _request(turn) | pair


def _request(turn: Turn) -> dict[str, Any]:
    """Return the turn as the body of a chat completion request."""
    body: dict[str, Any] = {"messages": list(turn.messages)}
    if turn.tools:
        body["tools"] = list(turn.tools)
    if turn.schema is not None:
        form = {"name": "answer", "schema": json.loads(turn.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def _table(sizes: Sequence[tuple[str, str, Size]]) -> Table:
    table = Table(title="Workloads")
    table.add_column("workload", no_wrap=True)
    table.add_column("description")
    for name in ("turns", "first prompt", "last prompt", "answer"):
        table.add_column(name, justify="right")
    for name, workload, one in sizes:
        answer = "-" if one.answer_tokens is None else f"{one.answer_tokens:.0f}"
        numbers = (f"{one.num_turns:g}", f"{one.first_tokens:.0f}", f"{one.last_tokens:.0f}", answer)
        table.add_row(name, WORKLOADS[workload].summary, *numbers)
    table.caption = "lengths of prompts and right answers in tokens, means"
    return table


def _show(console: Console, name: str, chat: Chat) -> None:
    console.rule(name)
    num_shown = 0
    for at, turn in enumerate(chat.turns, 1):
        # Messages of earlier turns are not printed again, unless this turn does not continue them.
        is_continued = len(turn.messages) > num_shown
        for message in turn.messages[num_shown if is_continued else 0 :]:
            content = message["content"] or json.dumps(message.get("tool_calls"))
            console.print(f"[bold]{message['role']}[/bold]")
            console.print(content, markup=False, highlight=False, soft_wrap=True)
        answer = "no single right answer" if turn.reference is None else turn.reference
        console.print(f"[bold green]right answer {at}[/bold green]")
        console.print(answer, markup=False, highlight=False, soft_wrap=True)
        num_shown = len(turn.messages) + 1
