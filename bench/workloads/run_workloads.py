"""`reprise bench workloads`: list the generated chats of the benchmarks, or show one of each.

The chats are the same for everyone with the same seed.
"""

import argparse
import json
from statistics import mean
from typing import Any

from rich.console import Console

from bench import options, outputs, tables
from bench.options import Flag
from bench.tables import Column
from bench.workloads import VERSION, WORKLOADS, Chat, lengths_of, make_chats
from bench.workloads.chats import render, render_turn
from config.settings import BUNDLED_MODEL

COLUMNS = [
    Column("name", "workload", is_key=True), Column("summary", "description"), Column("turns", "turns", "0"),
    Column("first", "first prompt", "0"), Column("last", "last prompt", "0"), Column("answer", "answer", "0"),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench workloads` to the parser."""
    options.add(parser, workloads=None, model=None, prompt_tokens=None, seed=1)
    options.declare(
        parser,
        Flag("--chats", options.count, "N", 4, "Chats of each workload and length."),
        Flag("--show", None, None, None, "Print the first chat of each workload instead of the table."),
    )


def run(arguments: argparse.Namespace) -> int:
    """Print, and return the exit status."""
    names = arguments.workloads or tuple(WORKLOADS)
    options.check_names("--workloads", names, tuple(WORKLOADS))
    # Imported here, because it loads mlx-lm, which takes a while.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)
    console, rows = outputs.make_console(120), []
    for workload in names:
        for length in lengths_of(workload, arguments.prompt_tokens):
            chats = make_chats(
                workload, arguments.chats, arguments.seed, lambda text: len(render(tokenizer, text)), length
            )
            name = f"{workload} {length or ''}".strip()
            if arguments.show:
                _show(console, name, chats[0])
            rows.append({"name": name} | _row(chats, tokenizer))
    if not arguments.show:
        tables.print_rows(console, rows, COLUMNS, "Workloads", group="none")
        console.print("lengths of prompts and right answers in tokens, means", style="dim")
        console.print(f"version {VERSION}, seed {arguments.seed}, {arguments.chats} chats of each")
    return 0


def _row(chats: list[Chat], tokenizer: Any) -> dict[str, Any]:
    """Return the row of the table for chats of one workload, at least one."""
    answers = [turn.reference for chat in chats for turn in chat.turns if turn.is_measured and turn.reference]
    return {
        "summary": WORKLOADS[chats[0].workload].summary, "turns": mean(len(chat.turns) for chat in chats),
        "first": mean(len(render_turn(tokenizer, chat.turns[0])) for chat in chats),
        "last": mean(len(render_turn(tokenizer, chat.turns[-1])) for chat in chats),
        "answer": mean(len(tokenizer.encode_answer(one)) for one in answers) if answers else None,
    }  # fmt: skip


def _show(console: Console, name: str, chat: Chat) -> None:
    """Print a chat: of each turn what is new in it, and its right answer."""
    console.rule(name)
    num_shown = 0
    for turn in chat.turns:
        answer = {"role": "right answer", "content": turn.reference or "no single right answer"}
        for message in (*turn.messages[num_shown if len(turn.messages) > num_shown else 0 :], answer):
            console.print(f"[bold]{message['role']}[/bold]")
            text = message["content"] or json.dumps(message.get("tool_calls"))
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        num_shown = len(turn.messages) + 1
