"""`reprise bench all`: make every figure of README.md and docs/results.md again, in one run.

Runs every command that a figure comes from. Tables are written between `<!-- figures: NAME -->` and
`<!-- end -->` as soon as they are made, so that none is copied by hand. docs/figures.json keeps their cells,
with command, date and machine, so that a test can tell whether a page still shows them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import document, options, outputs
from bench.errors import BenchError
from bench.figures.catalog import FIGURES, PUBLISHED, RUNS, Figure, Place
from bench.tables import Column, markdown

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/results.md")
RECORD = "docs/figures.json"
QUICK_SHARE = 0.15
"""What a figure takes with --quick, relative to the whole one."""

_START = ("-c", "import sys; from cli.main import main; sys.exit(main())", "bench")
_BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SIDES = "published"
"""The block with others' figures beside ours, which is made of other tables' cells."""

Records = dict[str, dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench all` to the parser."""
    minutes = sum(one.seconds for one in RUNS) / 60
    parser.epilog = (
        f"On two cores this takes about {minutes:.0f} minutes; do nothing else on the machine.\n"
        f"The figures: {', '.join(FIGURES)}."
    )
    add = parser.add_argument
    add("--only", type=options.names, metavar="A,B", help="Only these figures.")
    add("--quick", action="store_true",
        help="Short runs that show that every command works; prints tables, changes no page.")  # fmt: skip
    add("--documents", type=Path, metavar="FOLDER", help="Keep the documents here, for `bench report`.")


def run(arguments: argparse.Namespace) -> int:
    """Run everything, and return 1 if a command failed."""
    options.check_names("--only", arguments.only or (), tuple(FIGURES))
    chosen = arguments.only or tuple(FIGURES)
    runs = [one for one in RUNS if not set(chosen).isdisjoint(one.figures)]
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary, outputs.Work(sum(one.seconds for one in runs)) as work:
        folder = arguments.documents or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        # Until something is done, the time left is what all this usually takes.
        share = QUICK_SHARE if arguments.quick else 1.0
        print(f"about {outputs.duration(share * work.weight)}", file=sys.stderr)
        try:
            for at, one in enumerate(runs):
                waiting = [name for later in runs[at:] for name in later.figures if name in chosen]
                names = [name for name in one.figures if name in chosen]
                work.begin(f"{', '.join(names)}: usually {outputs.duration(share * one.seconds)}")
                start = time.perf_counter()
                command = f"{one.command} {one.quick}" if arguments.quick else one.command
                try:
                    found = _document(command, folder / f"{names[0]}.json")
                    print(f"  {time.perf_counter() - start:.0f} s", file=sys.stderr)
                    for name in names:
                        _keep(name, found, is_quick=arguments.quick)
                except BenchError as fault:
                    failed.append(str(fault))
                work.advance(one.seconds)
        except KeyboardInterrupt:
            print(f"continue with --only {','.join(waiting)}", file=sys.stderr)
            raise
    for line in failed:
        print(f"reprise bench all: {line}", file=sys.stderr)
    return int(bool(failed))


def _document(command: str, file: Path) -> dict[str, Any]:
    """Run a command in a process of its own, and return the document that it writes. Raises BenchError."""
    words = [*command.split(), "--json", str(file)]
    file.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *_START, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["no output"]
    if done.returncode or not file.exists():
        raise BenchError(f"{command} ended with status {done.returncode}: {lines[-1]}")
    return document.read(file) | {"command": f"reprise bench {command}"}


def _keep(name: str, found: Mapping[str, Any], *, is_quick: bool) -> None:
    """Write the record of a figure, and its table on the pages; with is_quick, print the table instead."""
    figure = FIGURES[name]
    record = record_of(figure, found)
    if is_quick:
        print(f"{name}\n\n{table_of(figure, record)}", flush=True)
        return
    records = read_records() | {name: record}
    ordered = {one: records[one] for one in FIGURES if one in records}
    (ROOT / RECORD).write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), ordered), encoding="utf-8")


def read_records() -> Records:
    """Return the records of all figures that were made."""
    file = ROOT / RECORD
    found: Records = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def record_of(figure: Figure, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what docs/figures.json keeps of a figure: command, date, machine, and the cells of its table."""
    machine = {name: found["machine"][name] for name in ("cpu", "cores", "system", "mlx", "mlx_lm")}
    return {
        "command": found["command"], "date": str(found["date"])[:10], "machine": machine,
        "cells": [[column.text(row) for column in figure.columns] for row in figure.rows(found)],
    }  # fmt: skip


def table_of(figure: Figure, record: Mapping[str, Any]) -> str:
    """Return the table of a figure as Markdown, and the line that says where it is from."""
    columns = [Column(str(at), one.heading) for at, one in enumerate(figure.columns)]
    rows = [{str(at): cell for at, cell in enumerate(line)} for line in record["cells"]]
    machine = record["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, mlx {machine['mlx']}"
    return f"{markdown(rows, columns)}\n`{record['command']}`, {record['date']}, {where}.\n"


def published(records: Mapping[str, Any]) -> str:
    """Return the table of figures that others published, with the cells of our tables beside them."""
    rows = [
        {
            "what": what, "theirs": theirs,
            "ours": ", ".join(f"{_cell(records, place)} {place[3]}".strip() for place in ours),
            "from": ", ".join(dict.fromkeys(f"`{place[0]}`" for place in ours)),
        }
        for what, theirs, ours in PUBLISHED
    ]  # fmt: skip
    headings = {"what": "what", "theirs": "published", "ours": "here", "from": "our table"}
    return markdown(rows, [Column(*pair) for pair in headings.items()])


def _cell(records: Mapping[str, Any], place: Place) -> str:
    """Return a cell of a table, from the first row with these cells, or with `this` in one of them."""
    name, heading, row, _ = place
    at = [column.heading for column in FIGURES[name].columns].index(heading)
    for cells in records.get(name, {"cells": []})["cells"]:
        if all(text in (" ".join(cells[:at]) if text.startswith("`") else cells[:at]) for text in row):
            return str(cells[at])
    return "?"


def filled(text: str, records: Mapping[str, Any]) -> str:
    """Return a page with the tables of all figures that are recorded."""

    def replace(block: re.Match[str]) -> str:
        name = block[2]
        if name == _SIDES and all(place[0] in records for _, _, ours in PUBLISHED for place in ours):
            return f"{block[1]}{published(records)}{block[3]}"
        return (
            f"{block[1]}{table_of(FIGURES[name], records[name])}{block[3]}" if name in records else block[0]
        )

    return _BLOCK.sub(replace, text)


def blocks(text: str) -> dict[str, str]:
    """Return the blocks of a page by the names of their figures."""
    return {block[2]: block[0] for block in _BLOCK.finditer(text)}
