"""What single parts cost: sampling, drafters, and prefill by chunk size."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import document, outputs
from bench.tables import Column, Row, print_rows
from engine.request import ModelInfo


def measure_all(
    arguments: argparse.Namespace,
    section: str,
    cases: Mapping[str, Callable[[], Row]],
    columns: Sequence[Column],
    note: str = "",
    group: str = "none",
    model: ModelInfo | None = None,
) -> int:
    """Measure every case, print the table, write the files, and return the exit status.

    cases: by name, each returns its row. section: of the document. group: as in print_rows().
    """
    rows: list[Row] = []
    sections: dict[str, Any] = {section: {"note": note, "rows": rows}}
    record = document.new_document(arguments, model, **sections)
    with outputs.Work(len(cases)) as work:
        for name, measure in cases.items():
            work.begin(name)
            rows.append(measure())
            work.advance()
    console = outputs.make_console(100)
    print_rows(console, rows, columns, notes=[note] if note else [], group=group)
    outputs.finish(console, arguments, record, rows)
    return 0
