"""What single parts cost: sampling, drafters, and prefill by chunk size."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from bench import document, outputs
from bench.tables import Column, Row
from engine.request import ModelInfo


def measure_all(
    arguments: argparse.Namespace,
    section: str,
    cases: list[dict[str, Any]],
    measure: Callable[..., dict[str, Any]],
    columns: list[Column],
    notes: Iterable[str] = (),
    model: ModelInfo | None = None,
) -> int:
    """Measure all cases, print a table, write the files, and return the exit status.

    cases: each the arguments of measure, which returns the figures of the row. section: of the document.
    """
    rows: list[Row] = []
    sections: dict[str, Any] = {section: {"rows": rows}}
    record = document.new_document(arguments, model, **sections)
    with outputs.Work(len(cases)) as work:
        for case in cases:
            work.begin(", ".join(map(str, case.values())))
            rows.append(case | measure(**case))
            work.advance()
    outputs.report(arguments, record, rows, columns, notes=notes, width=100)
    return 0
