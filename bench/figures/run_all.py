"""`reprise bench all`: make every figure of README.md and docs/results.md again, and more, in one run.

Runs every figure's command. Tables are written between `<!-- figures: NAME -->` and `<!-- end -->` as soon as
they are made, so that none is copied by hand. docs/figures.json has the cells of the tables on pages, with
command, date and machine, so that a test can compare them. With --page nothing runs: documents of other
benchmarks (--json) are drawn as one HTML page, without network.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from reprise.bench import document, options
from reprise.bench.document import Column, format_value, markdown
from reprise.bench.experiment import ArgumentsError, BenchError, Progress
from reprise.bench.figures.catalog import FIGURES, QUICK, RUNS, Figure, Run
from reprise.engine.model.convert.conversion import folder_of
from reprise.engine.model.convert.sources import find_packaged

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/results.md")
RECORD = "docs/figures.json"

MADE = "docs/benchmarks.md says how to make it"

_BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

EPILOG = f"""\
On two cores this takes about {sum(one.seconds for one in RUNS) // 60} minutes; leave the machine alone.
The figures: {", ".join(FIGURES)}."""
FLAGS = (
    options.Flag("--only", options.names, "A,B", None, "Only these figures."),
    options.Flag("--documents", Path, "FOLDER", None, "Keep documents here, for --page."),
    options.Flag("--page", Path, "FILE.json", [], "Only draw documents; may be repeated.", is_repeated=True),
    options.Flag("--html", options.output_file, "FILE", None, "The page to write with --page."),
    options.Flag("--quick", None, None, None, "Short runs that show that every command works; prints tables, "
                 "changes no page."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run everything, and return 1 if a command failed."""
    if bool(arguments.page) != bool(arguments.html):
        raise ArgumentsError("--page and --html go together")
    if arguments.page:
        return _draw(arguments.page, arguments.html)
    wanted = arguments.only or tuple(FIGURES)
    options.check_names("--only", wanted, tuple(FIGURES))
    runs = [one for one in RUNS if not one.figures.keys().isdisjoint(wanted)]
    status = 0
    if arguments.documents:
        arguments.documents.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        progress.plan(sum(one.seconds for one in runs))
        for at, one in enumerate(runs):
            names = [name for name in one.figures if name in wanted]
            if lacking := [word for word in one.command.split() if is_lacking(word)]:
                print(f"{', '.join(names)}: left out, there is no {lacking[0]} ({MADE})", file=sys.stderr)
                continue
            progress.show(", ".join(names))
            try:
                found = _document(command_of(one, arguments.quick))
                if arguments.documents:
                    document.write(arguments.documents / f"{names[0]}.json", found)
                for name in names:
                    _keep(name, found, is_quick=arguments.quick)
            except BenchError as fault:
                print(f"reprise bench all: {fault}", file=sys.stderr)
                status = 1
            except KeyboardInterrupt:
                waiting = [name for later in runs[at:] for name in later.figures if name in wanted]
                print(f"continue with --only {','.join(waiting)}", file=sys.stderr)
                raise
            progress.advance(one.seconds)
    return status


def _draw(files: Sequence[Path], page: Path) -> int:
    from reprise.bench.page import write_page

    documents = [document.read(file) for file in files]
    write_page(page, documents)
    found = [name for name in document.SECTIONS if any(name in one for one in documents)]
    print(f"{page}: {', '.join(found)}. Open it in any browser.")
    return 0


def is_lacking(word: str) -> bool:
    """Return whether a command's word is a missing model: a path in models/, or in a package."""
    if find_packaged(word):
        return not folder_of(word).exists()
    return word.startswith("models/") and not (ROOT / word).exists()


def command_of(one: Run, is_quick: bool) -> str:
    """Return the arguments of `reprise bench` for a run.

    is_quick: append flags for a shorter run; of a flag that is given twice, the last counts.
    """
    words = one.command.split()
    return " ".join([*words, *(more for word, more in QUICK.items() if is_quick and word in words)])


def _document(command: str) -> dict[str, Any]:
    """Run a command in a process of its own, and return the document that it writes. Raises BenchError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        words = [sys.executable, "-m", "reprise", "bench", *command.split(), "--json", str(file)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise BenchError(f"{command} ended with status {done.returncode}: {lines[-1]}")
        return document.read(file) | {"command": f"reprise bench {command}"}


def _keep(name: str, found: Mapping[str, Any], *, is_quick: bool) -> None:
    """Write the entry of a figure, and its table on the pages; with is_quick, print the table instead."""
    entry = entry_of(FIGURES[name], found)
    if is_quick:
        print(f"{name}\n\n{table_of(FIGURES[name], entry)}", flush=True)
        return
    entries = read_entries() | {name: entry}
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    shown = {block[1] for text in texts for block in _BLOCK.findall(text)}
    # Entries of tables that no page shows, or that have other columns by now, are dropped.
    ordered = {
        one: entries[one]
        for one, figure in FIGURES.items()
        if one in shown
        and one in entries
        and all(len(line) == len(figure.columns) for line in entries[one]["cells"])
    }
    (ROOT / RECORD).write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), ordered), encoding="utf-8")


def read_entries() -> dict[str, dict[str, Any]]:
    """Read the entries of all figures made so far from docs/figures.json, by name."""
    file = ROOT / RECORD
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def entry_of(figure: Figure, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure's entry for docs/figures.json: command, date, machine, and the cells of its table."""
    names = "cpu", "cores", "system", "mlx", "mlx_lm", "load_at_start"
    machine = {name: found["machine"][name] for name in names if name in found["machine"]}
    return {
        "command": found["command"], "date": str(found["date"])[:10], "machine": machine,
        "cells": [[column.text(row) for column in figure.columns] for row in figure.rows_of(found)],
    }  # fmt: skip


def table_of(figure: Figure, entry: Mapping[str, Any]) -> str:
    """Return a figure's table as Markdown, above a line with its command, date and machine."""
    cells, machine = entry["cells"], entry["machine"]
    columns = [
        Column(itemgetter(at), one.heading)
        for at, one in enumerate(figure.columns)
        if any(line[at] != format_value(one.trivial, "text") for line in cells)
    ]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, mlx {machine['mlx']}"
    if load := machine.get("load_at_start"):
        where += f", load {load:.1f}"
    return f"{markdown(cells, columns)}\n`{entry['command']}`, {entry['date']}, {where}.\n"


def filled(text: str, entries: Mapping[str, Any]) -> str:
    """Return a page's text with the tables of these entries between their marks."""

    def replace(block: re.Match[str]) -> str:
        start, name, end = block.groups()
        return f"{start}{table_of(FIGURES[name], entries[name])}{end}" if name in entries else block[0]

    return _BLOCK.sub(replace, text)
