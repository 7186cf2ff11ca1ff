"""`reprise bench workloads`: list the generated chats of the benchmarks, or show them.

The chats are the same for everyone with the same seed. With --write, write JSON lines, one per turn with a
right answer, for `--prompts FILE` of other benchmarks and for `reprise bench replay --pairs FILE`.
"""

import argparse
import json
from collections.abc import Iterator
from statistics import mean
from typing import TYPE_CHECKING

from rich.console import Console

from bench import options, outputs, tables
from bench.options import Flag
from bench.tables import Column
from bench.workloads import VERSION, WORKLOADS, Chat, lengths_of, make_chats
from bench.workloads.chats import render, render_turn
from config.settings import BUNDLED_MODEL

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

COLUMNS = [
    Column("name", "workload", is_key=True), Column("summary", "description"), Column("turns", "turns", "0"),
    Column("first", "first prompt", "0"), Column("last", "last prompt", "0"), Column("answer", "answer", "0"),
]  # fmt: skip


FLAGS = (
    *options.shared(workloads=None, model=None, prompt_tokens=None, seed=1),
    Flag("--show", None, None, None, "Print the chats instead of the table."),
    Flag("--write", options.output_file, "FILE", None, "Write chats to FILE."),
    Flag("--chats", options.count, "N", 4, "Chats of each workload and length to write."),
)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the chats, and return the exit status."""
    names = arguments.workloads or tuple(WORKLOADS)
    options.check_names("--workloads", names, tuple(WORKLOADS))
    # Imported here, because it loads mlx-lm, which takes a while.
    from engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)
    console, rows, lines = outputs.make_console(155), [], list[str]()
    count = arguments.chats if arguments.write else 1
    for workload in names:
        for length in lengths_of(workload, arguments.prompt_tokens):
            name = f"{workload} {length or ''}".strip()
            chats = make_chats(
                workload, count, arguments.seed, lambda text: len(render(tokenizer, text)), length
            )
            if arguments.show:
                _show(console, name, chats[0])
            elif not arguments.write:
                rows.append(_row(tokenizer, name, chats[0]))
            lines += [line for at, chat in enumerate(chats, 1) for line in _lines(chat, f"{name} {at}")]
    if arguments.write:
        arguments.write.write_text("".join(lines), encoding="utf-8")
        console.print(f"wrote {len(lines)} turns to {arguments.write}", markup=False, soft_wrap=True)
    elif rows:
        note = f"lengths in tokens; of right answers the mean; version {VERSION}, seed {arguments.seed}"
        tables.print_rows(console, rows, COLUMNS, notes=[note], group="none")
    return 0


def _row(tokenizer: "Tokenizer", name: str, chat: Chat) -> tables.Row:
    answers = [turn.reference for turn in chat.turns if turn.is_measured and turn.reference]
    return {
        "name": name, "summary": WORKLOADS[chat.workload].summary, "turns": len(chat.turns),
        "first": len(render_turn(tokenizer, chat.turns[0])),
        "last": len(render_turn(tokenizer, chat.turns[-1])),
        "answer": mean(len(tokenizer.encode_answer(one)) for one in answers) if answers else None,
    }  # fmt: skip


def _lines(chat: Chat, name: str) -> Iterator[str]:
    """Yield a line of JSON for each turn that has a right answer."""
    for at, turn in enumerate(chat.turns, 1):
        line = {"workload": chat.workload, "chat": name, "turn": at, "messages": turn.messages}
        line |= {"tools": turn.tools} if turn.tools else {}
        if turn.schema:
            form = {"name": "answer", "schema": json.loads(turn.schema)}
            line["response_format"] = {"type": "json_schema", "json_schema": form}
        if turn.reference is not None:
            yield json.dumps(line | {"output": turn.reference}) + "\n"


def _show(console: Console, name: str, chat: Chat) -> None:
    """Print a chat: the messages of its last turn, and the right answer."""
    console.rule(name)
    last = chat.turns[-1]
    answer = {"role": "right answer", "content": last.reference or "no single right answer"}
    for message in (*last.messages, answer):
        console.print(f"[bold]{message['role']}[/bold]")
        text = message["content"] or json.dumps(message.get("tool_calls"))
        console.print(text, markup=False, highlight=False, soft_wrap=True)
