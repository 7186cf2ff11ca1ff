"""`reprise bench all`: make every figure of README.md and docs/results.md again, and compare all else.

Runs the commands of the published tables and of the comparisons in docs/benchmarks.md, one after the other.
Tables are written between `<!-- figures: NAME -->` and `<!-- end -->` as soon as they are made, so that none
is copied by hand. With --html all results become one page. With --page nothing runs: documents of other
benchmarks (--json) are drawn as one HTML page, without network.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from reprise.bench import document, options
from reprise.bench.document import Column, Document, Row, markdown
from reprise.bench.experiment import ArgumentsError, BenchError, Progress
from reprise.engine.model.convert.conversion import folder_of
from reprise.engine.model.convert.sources import find_packaged

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/results.md")
MADE = "docs/benchmarks.md says how to make it"


class Table(NamedTuple):
    """A published table. rows: returns its rows, of a result document."""

    rows: Callable[[Document], Sequence[Row]]
    columns: Sequence[Column]


class Run(NamedTuple):
    """A command, the seconds that it takes on two cores, and the published tables that it makes, by name."""

    seconds: int
    command: str
    tables: Mapping[str, Table] = {}


EVERYDAY = {
    "edit": "a short file with one change, asked for in full", "quote": "a sentence or paragraph quoted",
    "records": "JSON records picked, changed or made of text", "summary": "a short text summarized",
    "chat": "questions with nothing to copy",
}  # fmt: skip
"""Descriptions of the chats of bench/workloads/everyday.jsonl."""


def _straight(name: str, row: Row) -> Any:
    return row["straight"] and row["straight"][name]


def _positions(row: Row) -> str:
    rates = zip(row["acceptance_by_position"], row["drafted_by_position"], strict=True)
    return ", ".join(f"{100 * rate:.0f} % of {drafted}" for rate, drafted in list(rates)[:8])


def _answered(found: Document) -> list[Row]:
    return [row for row in found["decode"]["rows"] if row["turn"] is None]


_SMOLLM2 = "--model smollm2 --prompts bench/workloads/everyday.jsonl --max-tokens 80 --cases 20 --repeats 3"
_HISTORY = "--history . --numbers plain,arrow --drafters auto --cost-curve apple-m4-pro-4bit"
_ACCEPTED, _SPEEDUP = Column("acceptance", "accepted", "%"), Column("speedup", "speedup", "2")
RUNS = {
    "smollm2": Run(3300, f"decode {_SMOLLM2}", {
        "real": Table(_answered, [
            Column(lambda row: f"{EVERYDAY[row['workload']]} (`{row['workload']}`)", "chats"),
            Column("cases", "answers"), Column("tokens_per_forward", "tokens per forward pass", "2"),
            _ACCEPTED, _SPEEDUP,
            Column(partial(_straight, "tokens_per_forward"), "per forward pass without answers that loop",
                   "2"),
            Column(partial(_straight, "speedup"), "speedup without those", "2"),
            Column(lambda row: "equal" if row["parity"] == "PASS" else "DIFFER", "tokens")]),
        "real-positions": Table(_answered, [
            Column("workload", "chats"), Column(_positions, "accepted of those drafted, from the first on")]),
        "real-costs": Table(lambda found: found["cost_curve"], [
            Column("width", "tokens in a step"), Column("plain_steps", "cost, in plain steps", "2")]),
    }),
    "agents": Run(90, f"replay {_HISTORY}", {
        "agents": Table(lambda found: found["replay"]["rows"], [
            Column("workload", "answer, and how the file was shown"), Column("pairs", "answers", "0"),
            Column("tokens_per_forward", "tokens per forward pass", "1"), _ACCEPTED, _SPEEDUP,
            Column("slowest", "slowest answer", "2")]),
    }),
    "lookup": Run(150, "decode --workloads edits,json_rag,free --draft-types ngram-simple --cases 3"),
    "warm": Run(200, "decode --workloads edits_short,passage --cases 1 --repeats 1 --max-tokens 192 "
        "--draft-types ngram-simple,ngram-mod,draft-model --draft-model demo_model/draft "
        "--warm demo_model,demo_model/draft"),
    "translation": Run(200, "decode --draft-model demo_model/draft_polish --strategies context,shared "
        "--draft-types draft-model --costs own,forced --num-draft-tokens 2,4,6 --repeats 1 "
        "--prompts bench/workloads/polish.jsonl --max-tokens 64"),
    "break-even": Run(190, "sweep --parts break-even --draft-model demo_model/draft"),
    "tables": Run(300, "sweep --parts tables"),
    "wedlm": Run(210, "decode --model demo_model/wedlm --draft-types suffix,wedlm,auto "
        "--costs own,flat --windows 4,8,16 --thresholds 0.1,0.3,0.6 --cases 2 --repeats 1 "
        "--workloads edits,records,quotes,passages,free"),
    "servers": Run(130, "serve --workloads edits,passage --concurrency 1,8 --server mlx_lm.server "
        "--server reprise"),
    "turns": Run(130, "serve --workloads passage --prompt-tokens 2000 --chats 1 --by-turn --max-tokens 48 "
        "--concurrency 1 --server reprise-uncached --server reprise"),
    "rules": Run(60, "replay --pairs bench/workloads/everyday.jsonl"),
}  # fmt: skip
"""The commands, by name, in this order."""

_MINUTES = sum(one.seconds for one in RUNS.values()) // 60
EPILOG = f"On two cores this takes about {_MINUTES} minutes; leave it alone. Runs:\n{', '.join(RUNS)}."
FLAGS = (
    options.Flag("--only", options.names, "A,B", tuple(RUNS), "Only these runs. Default: all."),
    options.Flag("--page", Path, "FILE.json", [], "Only draw documents; may be repeated.", is_repeated=True),
    options.Flag("--html", options.output_file, "FILE", None, "Write a report page to FILE."),
)


def run(arguments: argparse.Namespace) -> int:
    """Run everything, and return 1 if a command failed."""
    if arguments.page and not arguments.html:
        raise ArgumentsError("--page needs --html")
    options.check_names("--only", arguments.only, tuple(RUNS))
    documents, status = [document.read(file) for file in arguments.page], 0
    with Progress() as progress:
        for at, name in enumerate(() if arguments.page else arguments.only):
            words = RUNS[name].command.split()
            if lacking := [word for word in words if is_lacking(word)]:
                print(f"{name}: left out, there is no {lacking[0]} ({MADE})", file=sys.stderr)
                continue
            progress.show(name, at / len(arguments.only))
            try:
                found = _document(RUNS[name].command)
            except BenchError as fault:
                print(f"reprise bench all: {fault}", file=sys.stderr)
                status = 1
                continue
            documents.append(found)
            for page in map(ROOT.joinpath, PAGES):
                text = page.read_text(encoding="utf-8")
                for block, table in RUNS[name].tables.items():
                    text = filled(text, block, table_of(table, found))
                page.write_text(text, encoding="utf-8")
    if arguments.html and documents:
        from reprise.bench.page import write_page

        write_page(arguments.html, documents)
        sections = [name for name in document.SECTIONS if any(name in one for one in documents)]
        print(f"{arguments.html}: {', '.join(sections)}. Open it in any browser.")
    return status


def is_lacking(word: str) -> bool:
    """Return whether a command's word is a missing model: a path in models/, or in a package."""
    if find_packaged(word):
        return not folder_of(word).exists()
    return word.startswith("models/") and not (ROOT / word).exists()


def _document(command: str) -> Document:
    """Run a command in a process of its own, and return the document that it writes. Raises BenchError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        words = [sys.executable, "-m", "reprise", "bench", *command.split(), "--json", str(file)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise BenchError(f"{command} ended with status {done.returncode}: {lines[-1]}")
        return document.read(file) | {"command": f"reprise bench {command}"}


def table_of(table: Table, found: Document) -> str:
    """Return a table as Markdown, above a line with its command, date and machine."""
    machine, rows = found["machine"], table.rows(found)
    shown = [one for one in table.columns if any(one.value(row) is not None for row in rows)]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, mlx {machine['mlx']}"
    if load := machine.get("load_at_start"):
        where += f", load {load:.1f}"
    return f"{markdown(rows, shown)}\n`{found['command']}`, {found['date'][:10]}, {where}.\n"


def filled(text: str, name: str, table: str) -> str:
    """Return a page's text with the table between the marks with this name."""
    block = re.compile(rf"(?s)(<!-- figures: {name} -->\n).*?(<!-- end -->)")
    return block.sub(lambda found: f"{found[1]}{table}{found[2]}", text)
