"""`reprise bench workloads`: show the generated chats of the benchmarks, or write them to a file.

Print a table of the generated chats, which are the same for everyone with the same seed. With --show, print
one chat of each workload in full. With --write, write JSON lines, one per turn, for `--prompts FILE` of other
benchmarks and for `reprise bench replay --pairs FILE`. The answers are the right answers, not a model's.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.markup import escape

from bench import options, outputs, tables
from bench.options import Flag
from bench.tables import Column
from bench.workloads import VERSION, WORKLOADS, Chat, Turn, lengths_of, make_chats
from bench.workloads.chats import render, render_turn
from config.settings import BUNDLED_MODEL

COLUMNS = [
    Column("name", "workload"), Column("summary", "description"), Column("turns", "turns", "0"),
    Column("first", "first prompt", "0"), Column("last", "last prompt", "0"), Column("answer", "answer", "0"),
]  # fmt: skip

_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench workloads` to the parser."""
    options.add(parser, workloads=None, model=None, prompt_tokens=None, seed=1)
    options.declare(
        parser,
        Flag("--chats", options.count, "N", 4, "Chats of each workload and length."),
        Flag("--show", None, None, None, "Print the first chat of each workload instead of the table."),
        Flag("--write", options.output_file, "FILE", None, "Write all turns with a right answer to FILE."),
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or write, and return the exit status."""
    names = tuple(WORKLOADS) if arguments.workloads is None else arguments.workloads
    options.check_names("--workloads", names, tuple(WORKLOADS))
    # Imported here, because it loads mlx-lm, which takes a while.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)

    def count_tokens(text: str) -> int:
        return len(render(tokenizer, text))

    made = [
        (
            f"{name} {length or ''}".strip(),
            make_chats(name, arguments.chats, arguments.seed, count_tokens, length),
        )
        for name in names
        for length in lengths_of(name, arguments.prompt_tokens)
    ]
    console = outputs.make_console(_WIDTH)
    if arguments.write:
        count = write_turns(arguments.write, made, tokenizer)
        console.print(f"wrote {count} turns to {escape(str(arguments.write))}", soft_wrap=True)
        if without := [name for name, chats in made if chats[0].turns[-1].reference is None]:
            console.print(f"left out, because they have no right answer: {', '.join(without)}")
    elif arguments.show:
        for name, chats in made:
            _show(console, name, chats[0])
    else:
        rows = [{"name": name} | size(chats, tokenizer) for name, chats in made]
        tables.print_rows(console, rows, COLUMNS, "Workloads", group="none")
        console.print("lengths of prompts and right answers in tokens, means", style="dim")
        console.print(f"version {VERSION}, seed {arguments.seed}, {arguments.chats} chats of each")
    return 0


def size(chats: Sequence[Chat], tokenizer: Any) -> dict[str, Any]:
    """Return the row of the table for chats of one workload, at least one."""
    answers = [
        len(tokenizer.encode_answer(turn.reference))
        for chat in chats
        for turn in chat.turns
        if turn.is_measured and turn.reference is not None
    ]
    return {
        "summary": WORKLOADS[chats[0].workload].summary,
        "turns": mean(len(chat.turns) for chat in chats),
        "first": mean(len(render_turn(tokenizer, chat.turns[0])) for chat in chats),
        "last": mean(len(render_turn(tokenizer, chat.turns[-1])) for chat in chats),
        "answer": mean(answers) if answers else None,
    }


def write_turns(path: Path, made: Sequence[tuple[str, Sequence[Chat]]], tokenizer: Any) -> int:
    """Write a line per turn with a right answer; return the number of lines. Raises OSError."""
    lines = [
        {"workload": chat.workload, "chat": f"{name} {number}", "turn": at, **_request(turn),
         "prompt": tokenizer.decode(render_turn(tokenizer, turn)), "output": turn.reference}
        for name, chats in made
        for number, chat in enumerate(chats, 1)
        for at, turn in enumerate(chat.turns, 1)
        if turn.reference is not None
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def _request(turn: Turn) -> dict[str, Any]:
    """Return the turn as the body of a chat completion request."""
    body: dict[str, Any] = {"messages": list(turn.messages)}
    if turn.tools:
        body["tools"] = list(turn.tools)
    if turn.schema is not None:
        form = {"name": "answer", "schema": json.loads(turn.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


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
