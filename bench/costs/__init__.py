"""Costs of single parts: sampling, drafters, and prefill by chunk size."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from bench import document, outputs
from bench.tables import Column, Row
from engine.interface.models import ModelInfo


def measure_all(
    arguments: argparse.Namespace,
    section: str,
    measure: Callable[..., dict[str, Any]],
    columns: Sequence[Column],
    notes: Sequence[str] = (),
    model: ModelInfo | None = None,
    **cases: Iterable[Any],
) -> int:
    """Measure all combinations, print a table, write the files, and return the exit status.

    section: of the document. cases: the values of each argument of measure, which returns a row's figures.
    """
    rows: list[Row] = []
    result = document.new_document(arguments, model) | {section: {"rows": rows}}
    combinations = [dict(zip(cases, values, strict=True)) for values in product(*cases.values())]
    with outputs.Work({"": len(combinations)}) as work:
        for case in combinations:
            work.begin(", ".join(map(str, case.values())))
            rows.append(case | measure(**case))
            work.advance()
    outputs.report(arguments, result, rows, outputs.Table(columns, notes=notes, width=100))
    return 0
