"""`reprise bench workloads`: list the generated chats of the benchmarks, or show them.

The chats are the same for everyone with the same seed. With --write, write JSON lines, one per turn with a
right answer, for `--prompts FILE` of other benchmarks and for `reprise bench replay --pairs FILE`.
"""

import argparse
import json
from collections.abc import Iterator
from statistics import mean

from rich.console import Console

from reprise.bench import options, outputs, tables
from reprise.bench.options import Flag
from reprise.bench.tables import Column
from reprise.bench.workloads import VERSION, WORKLOADS, Chat, lengths_of, make_chats
from reprise.bench.workloads.chats import render, render_turn
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.text.tokenizer import Tokenizer

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
    tokenizer = load_tokenizer(arguments.model or BUNDLED_MODEL)
    console, count = outputs.make_console(155), arguments.chats if arguments.write else 1
    made = {
        f"{workload} {length or ''}".strip(): make_chats(
            workload, count, arguments.seed, lambda text: len(render(tokenizer, text)), length
        )
        for workload in names
        for length in lengths_of(workload, arguments.prompt_tokens)
    }
    if arguments.write:
        every = ((f"{name} {at}", chat) for name, chats in made.items() for at, chat in enumerate(chats, 1))
        lines = [line for name, chat in every for line in _lines(name, chat)]
        arguments.write.write_text("".join(lines), encoding="utf-8")
        console.print(f"wrote {len(lines)} turns to {arguments.write}", markup=False, soft_wrap=True)
    elif arguments.show:
        for name, (chat,) in made.items():
            _show(console, name, chat)
    else:
        rows = [_row(tokenizer, name, chat) for name, (chat,) in made.items()]
        note = f"lengths in tokens; of right answers the mean; version {VERSION}, seed {arguments.seed}"
        tables.print_rows(console, rows, COLUMNS, notes=[note], group="none")
    return 0


def _row(tokenizer: Tokenizer, name: str, chat: Chat) -> tables.Row:
    prompts = [len(render_turn(tokenizer, turn)) for turn in chat.turns]
    references = [turn.reference for turn in chat.turns if turn.is_measured and turn.reference]
    return {
        "name": name, "summary": WORKLOADS[chat.workload].summary, "turns": len(prompts),
        "first": prompts[0], "last": prompts[-1],
        "answer": mean(len(tokenizer.encode_answer(one)) for one in references) if references else None,
    }  # fmt: skip


def _lines(name: str, chat: Chat) -> Iterator[str]:
    """Yield a line of JSON for each turn that has a right answer."""
    for at, turn in enumerate(chat.turns, 1):
        line = {"workload": chat.workload, "chat": name, "turn": at, "messages": turn.messages}
        if turn.tools:
            line["tools"] = turn.tools
        if turn.schema:
            form = {"name": "answer", "schema": json.loads(turn.schema)}
            line["response_format"] = {"type": "json_schema", "json_schema": form}
        if turn.answer:
            yield json.dumps(line | {"messages": (*turn.messages, turn.answer)}) + "\n"
        elif turn.reference is not None:
            yield json.dumps(line | {"output": turn.reference}) + "\n"


def _show(console: Console, name: str, chat: Chat) -> None:
    """Print the messages of a chat's last turn, and the right answer."""
    console.rule(name)
    answer = {"role": "right answer", "content": chat.turns[-1].reference or "no single right answer"}
    for message in (*chat.turns[-1].messages, answer):
        text = f"{message['role']}: {message['content'] or json.dumps(message.get('tool_calls'))}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
