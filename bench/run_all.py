"""`reprise bench all`: make every figure of README.md and docs/results.md again, in one run.

Each figure is a command and the table that the documentation shows of its result. The tables are written
between `<!-- figures: NAME -->` and `<!-- end -->`, so that none is copied by hand. docs/figures.json keeps
their cells, with command, date and machine, so that a test can tell whether a page still shows them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import document, options, outputs
from bench.errors import BenchError
from bench.serving import run_peers, run_serve
from bench.tables import Column, Row, interval, markdown
from bench.workloads import WORKLOADS

SUMMARY = "Make every published figure again, and write the tables of the documentation."
ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/results.md")
RECORD = "docs/figures.json"
_START = ("-c", "import sys; from cli.main import main; sys.exit(main())", "bench")
_BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Figure:
    """A table of the documentation.

    command: arguments of `reprise bench`. quick: arguments for a run that only shows that it works.
    rows: takes the rows from the document that the command writes. columns: of the table.
    """

    name: str
    command: str
    quick: str
    rows: Callable[[Mapping[str, Any]], Sequence[Row]]
    columns: Sequence[Column]


def _of(section: str, part: str = "rows") -> Callable[[Mapping[str, Any]], Sequence[Row]]:
    return lambda found: [row for row in found[section][part] if row.get("turn") is None]


def _chats(row: Row) -> str:
    known = WORKLOADS.get(row["workload"])
    length = f", {row['prompt_tokens']} tokens" if row.get("prompt_tokens") else ""
    return f"{known.summary if known else row['workload']} (`{row['workload']}`{length})"


_CHATS = Column(_chats, "chats")
_SPEEDS = [
    Column("tokens_per_forward", "tokens per forward pass", "1"),
    Column("acceptance", "accepted", "%"),
    Column("plain_tps", "tokens/s without", "0"),
    Column("decode_tps", "tokens/s with", "0"),
    Column("speedup", "speedup", "2"),
]
_OF_TRANSLATION = [
    Column("draft_model", "draft model"), Column("strategy", "strategy"), Column("workload", "chats"),
    Column(lambda row: "engine's" if row["is_adaptive"] else row["num_draft_tokens"], "k"),
    Column("acceptance", "accepted", "%"), Column("tokens_per_forward", "tokens per forward pass", "1"),
    Column("speedup", "speedup", "2"), Column("parity", "tokens"),
]  # fmt: skip
_OF_FITS = [
    Column("num_draft_tokens", "draft length"),
    Column("step_cost", "cost of a step, in plain steps", "2"),
    Column("break_even", "break-even acceptance rate", "2"),
    Column(interval, "95 % interval"),
]
_OF_CHOICES = [
    Column("workload", "chats"), Column("draft_type", "draft type"),
    Column("num_draft_tokens", "maximum draft length"), Column("acceptance", "accepted", "%"),
    Column("speedup", "speedup", "2"), Column(interval, "95 % interval"),
]  # fmt: skip
_OF_TURNS = [
    Column("number", "turn"),
    Column("num_prompt_tokens", "prompt tokens"),
    Column("num_cached_tokens", "cached"),
    Column("warm_ms", "first token, ms", "0"),
    Column("cold_ms", "first token without the cache, ms", "0"),
]
_OF_WARM = [
    Column("pair", "answering model"),
    Column("draft_type", "draft type"),
    Column("memory", "table"),
    Column("speedup", "speedup", "2"),
]
_DRAFTING = "decode --workloads edits,passages,records,quotes,free,trap --cases 8"
_OTHERS = "json_rag,code,edits_short,agent,extraction,summary,remap,arithmetic"
_ECONOMICS = "economics --draft-model demo_model/draft --chats 3 --num-draft-tokens 2,4,8"
_STREAMS = "peers --streams 8 --server mlx_lm.server --server reprise --no-mlx-lm"
_ONE = "--cases 1 --repeats 1 --max-tokens 32"
_FEW = "--chats 1 --rounds 1 --max-tokens 24"

_QUICK_FITS = "--chats 1 --max-tokens 24 --num-draft-tokens 2"
_QUICK_STREAMS = "--rounds 1 --max-tokens 16"
_HINDSIGHT = [
    _CHATS, Column("speedup", "speedup", "2"), Column("of_best_width", "of the best single width", "%"),
]  # fmt: skip
_DECODE, _PEERS = _of("decode"), _of("peers")
_SERVED = [*run_serve.LEVELS[:4], *run_serve.LATENCIES[2:]]

FIGURES = [
    Figure("drafting", _DRAFTING, _ONE, _DECODE, [_CHATS, *_SPEEDS]),
    Figure("hindsight", _DRAFTING, _ONE, _DECODE, _HINDSIGHT),
    Figure(
        "batch", "decode --workloads edits --streams 8 --cases 1 --repeats 2", "--repeats 1 --max-tokens 16",
        _DECODE, [_CHATS, *_SPEEDS],
    ),
    Figure(
        "second-edit",
        "decode --workloads edits_again_cold,edits_again --draft-types auto,ngram-mod --cases 3 --repeats 2",
        _ONE, _DECODE, [_CHATS, Column("draft_type", "draft type"), *_SPEEDS],
    ),
    Figure(
        "workloads", f"decode --workloads {_OTHERS} --cases 1 --repeats 1", "--max-tokens 16", _DECODE,
        [_CHATS, *_SPEEDS, Column("parity", "tokens")],
    ),
    Figure(
        "serving",
        "serve --bare --concurrency 1,8 --against mlx_lm.server --prompt-tokens 128 --max-tokens 128",
        "--max-tokens 16 --rounds 1", lambda found: found["serve"]["levels"], _SERVED,
    ),
    Figure("break-even", _ECONOMICS, _QUICK_FITS, _of("economics", "fits"), _OF_FITS),
    Figure("choices", _ECONOMICS, _QUICK_FITS, _of("economics", "choices"), _OF_CHOICES),
    Figure(
        "translation", "translation", "--cases 1 --max-tokens 16 --num-draft-tokens 2 --workloads edits",
        _of("translation"), _OF_TRANSLATION,
    ),
    Figure(
        "peers", "peers --server mlx_lm.server --server reprise --rounds 2", _FEW, _PEERS, run_peers.COLUMNS
    ),
    Figure("streams", f"{_STREAMS} --workloads edits", _QUICK_STREAMS, _PEERS, run_peers.COLUMNS),
    Figure(
        "mixed-streams", f"{_STREAMS} --workloads edits,passage,summary,records --mixed --chats 2",
        _QUICK_STREAMS, _PEERS, run_peers.COLUMNS,
    ),
    Figure(
        "turns", "turns", "--prompt-tokens 300 --turns 2 --repeats 1", lambda found: found["turns"], _OF_TURNS
    ),
    Figure(
        "warm", "sweep --parts warm --workloads edits_short --chats 1", "--max-tokens 32 --repeats 0",
        _of("sweep", "warm"), _OF_WARM,
    ),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench all` to the parser."""
    names = ", ".join(one.name for one in FIGURES)
    parser.description = (
        "Run every command that a figure of README.md or docs/results.md comes from, write the tables of "
        f"these pages, and keep their cells in {RECORD}. This takes long; do nothing else on the machine. "
        f"The figures: {names}."
    )
    add = parser.add_argument
    add("--only", type=options.names, metavar="A,B", help="Only these figures.")
    add("--quick", action="store_true",
        help="Short runs that show that every command works; prints tables, changes no page.")  # fmt: skip
    add("--documents", type=Path, metavar="FOLDER", help="Keep the documents here, for `bench report`.")


def run(arguments: argparse.Namespace) -> int:
    """Run everything, and return 1 if a command failed."""
    return outputs.run_command("reprise bench all", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    options.check_names("--only", arguments.only or (), [one.name for one in FIGURES])
    chosen = [one for one in FIGURES if one.name in (arguments.only or [one.name])]
    record_file = ROOT / RECORD
    records = json.loads(record_file.read_text(encoding="utf-8")) if record_file.exists() else {}
    known: dict[str, dict[str, Any]] = {}
    failed = []
    with tempfile.TemporaryDirectory() as temporary, outputs.Work(len(chosen)) as work:
        folder = arguments.documents or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for one in chosen:
            work.begin(one.name)
            command = f"{one.command} {one.quick}" if arguments.quick else one.command
            try:
                known[command] = known.get(command) or _document(command, folder / f"{one.name}.json")
                records[one.name] = record_of(one, known[command])
            except BenchError as fault:
                failed.append(f"{one.name}: {fault}")
            work.advance()
            if arguments.quick and one.name in records:
                print(f"{one.name}\n\n{table_of(one, records[one.name])}")
    for line in failed:
        print(f"reprise bench all: {line}", file=sys.stderr)
    if not arguments.quick:
        record_file.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for page in PAGES:
            path = ROOT / page
            path.write_text(filled(path.read_text(encoding="utf-8"), records), encoding="utf-8")
    return int(bool(failed))


def _document(command: str, file: Path) -> dict[str, Any]:
    """Run a command in a process of its own, and return the document that it writes. Raises BenchError."""
    words = command.split()
    # `bench turns` prints its document.
    given = ["--json"] if words[0] == "turns" else ["--json", str(file)]
    done = subprocess.run(
        [sys.executable, *_START, *words, *given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        text = done.stdout if words[0] == "turns" else file.read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise BenchError(f"{command} ended with status {done.returncode}: {lines[-1]}") from None
    return found | {"command": f"reprise bench {command}"}


def record_of(figure: Figure, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what docs/figures.json keeps of a figure: command, date, machine, and the cells of its table."""
    cells = [[column.text(row) for column in figure.columns] for row in figure.rows(found)]
    now = document.new_document("")
    machine = {name: found["machine"][name] for name in ("cpu", "cores", "system", "mlx", "mlx_lm")}
    return {
        "command": found["command"],
        "date": str(found.get("date") or now["date"])[:10],
        "machine": machine,
        "cells": cells,
    }


def table_of(figure: Figure, record: Mapping[str, Any]) -> str:
    """Return the table of a figure as Markdown, and the line that says where it is from."""
    columns = [Column(str(at), one.heading) for at, one in enumerate(figure.columns)]
    rows = [{str(at): cell for at, cell in enumerate(line)} for line in record["cells"]]
    machine = record["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, mlx {machine['mlx']}"
    return f"{markdown(rows, columns)}\n`{record['command']}`, {record['date']}, {where}.\n"


def filled(text: str, records: Mapping[str, Any]) -> str:
    """Return a page with the tables of all figures that are recorded."""
    known = {one.name: one for one in FIGURES}

    def replace(block: re.Match[str]) -> str:
        name = block[2]
        return f"{block[1]}{table_of(known[name], records[name])}{block[3]}" if name in records else block[0]

    return _BLOCK.sub(replace, text)


def blocks(text: str) -> dict[str, str]:
    """Return the blocks of a page by the names of their figures."""
    return {block[2]: block[0] for block in _BLOCK.finditer(text)}
