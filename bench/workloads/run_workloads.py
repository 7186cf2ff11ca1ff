"""`reprise bench workloads`: what there is to measure with, shown, and written for others to ask.

Sizes are counted with the tokenizer of the model, whose weights are not read.
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

from bench import argument_types
from bench.errors import ArgumentsError
from bench.outputs import make_console
from bench.rendering import Renderer, render, render_turn
from bench.workloads import VERSION, WORKLOADS, Chat, Turn, lengths_of, make_chats
from config.settings import BUNDLED_MODEL

SUMMARY = "Show the generated chats that the other benchmarks ask, or write them into a file."
_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Size:
    """Means over chats. first_tokens, last_tokens: of the prompts of a chat's first and last turn.

    answer_tokens: of a right answer; None where there is none.
    """

    num_turns: float
    first_tokens: float
    last_tokens: float
    answer_tokens: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench workloads` takes."""
    parser.description = (
        "Generated chats, the same for whoever runs them: a table of what there is; with --show, one chat of "
        "each in full; with --write, a file of JSON lines, one for each turn, that `--prompts FILE` of other "
        "benchmarks and `reprise bench replay --pairs FILE` read. Answers are those that are right, not what "
        "a model said."
    )
    add = parser.add_argument
    add("--workloads", type=_names, default=tuple(WORKLOADS), metavar="a,b",
        help="Default: all.")  # fmt: skip
    add("--model", type=argument_types.model_folder, metavar="DIR",
        help="Whose tokenizer counts, and whose chat template prompts are written with. Default: the "
        "bundled one.")  # fmt: skip
    add("--prompt-tokens", type=argument_types.levels, metavar="N,M",
        help="Lengths of the first prompts, where a workload has lengths. Default: its own.")  # fmt: skip
    add("--chats", type=argument_types.count, default=4, metavar="N", help="Of each workload and length.")
    add("--seed", type=int, default=1, metavar="N", help="Another seed makes other chats.")
    add("--show", action="store_true", help="Print the first chat of each workload instead of the table.")
    add("--write", type=argument_types.output_file, metavar="FILE",
        help="Write the turns that have a right answer.")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print or write, and return the exit status."""
    # It needs mlx-lm, which takes a while to load.
    from engine.model.mlx_lm_baseline import load_tokenizer

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
        console.print(f"{count} turns in {escape(str(arguments.write))}", soft_wrap=True)
        if without := [name for name, chats in made if chats[0].turns[-1].reference is None]:
            console.print(f"left out, as no answer is more right than another: {', '.join(without)}")
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
            raise argparse.ArgumentTypeError(f"{name or 'nothing'} is none of {', '.join(WORKLOADS)}")
    return names


def chat_name(workload: str, prompt_tokens: int | None) -> str:
    """A workload and the length asked for, as people read it."""
    return workload if prompt_tokens is None else f"{workload} {prompt_tokens}"


def size(chats: Sequence[Chat], tokenizer: Renderer) -> Size:
    """How long chats are. chats: at least one."""
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
    """Write a line for each turn that has a right answer; returns how many. Raises ArgumentsError."""
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for name, chats in made:
                for line in _lines(name, chats, tokenizer):
                    file.write(json.dumps(line) + "\n")
                    count += 1
    except OSError as fault:
        raise ArgumentsError(f"{path} cannot be written: {fault.strerror}") from fault
    return count


def _lines(name: str, chats: Sequence[Chat], tokenizer: Any) -> Iterator[dict[str, Any]]:
    for number, chat in enumerate(chats, 1):
        for at, turn in enumerate(chat.turns, 1):
            if turn.reference is not None:
                where = {"workload": chat.workload, "chat": f"{name} {number}", "turn": at}
                pair = {"prompt": tokenizer.decode(render_turn(tokenizer, turn)), "output": turn.reference}
                yield where | _request(turn) | pair


def _request(turn: Turn) -> dict[str, Any]:
    """The turn as the body of a chat completion."""
    body: dict[str, Any] = {"messages": list(turn.messages)}
    if turn.tools:
        body["tools"] = list(turn.tools)
    if turn.schema is not None:
        form = {"name": "answer", "schema": json.loads(turn.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def _table(sizes: Sequence[tuple[str, str, Size]]) -> Table:
    table = Table(title="What the benchmarks ask")
    table.add_column("workload", no_wrap=True)
    table.add_column("what it is")
    for name in ("turns", "first prompt", "last prompt", "answer"):
        table.add_column(name, justify="right")
    for name, workload, one in sizes:
        answer = "-" if one.answer_tokens is None else f"{one.answer_tokens:.0f}"
        numbers = (f"{one.num_turns:g}", f"{one.first_tokens:.0f}", f"{one.last_tokens:.0f}", answer)
        table.add_row(name, WORKLOADS[workload].summary, *numbers)
    table.caption = "prompts and right answers in tokens, means"
    return table


def _show(console: Console, name: str, chat: Chat) -> None:
    console.rule(name)
    shown = 0
    for at, turn in enumerate(chat.turns, 1):
        # What the turn before asked and what was right is there already; where it is no history, all is new.
        goes_on = len(turn.messages) > shown
        for message in turn.messages[shown if goes_on else 0 :]:
            said = message["content"] or json.dumps(message.get("tool_calls"))
            console.print(f"[bold]{message['role']}[/bold]")
            console.print(said, markup=False, highlight=False, soft_wrap=True)
        right = "nothing is more right than anything else" if turn.reference is None else turn.reference
        console.print(f"[bold green]right answer {at}[/bold green]")
        console.print(right, markup=False, highlight=False, soft_wrap=True)
        shown = len(turn.messages) + 1
