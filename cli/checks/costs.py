"""Check the file of learned costs, and describe the costs of steps in plain words."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprise.cli.checks.check import Check
from reprise.engine.speculative.costs.cost_table import StepPrice
from reprise.engine.speculative.costs.kept_costs import ratios_of

FILE, MODEL = "costs of steps", "costs of a model"

_DAY_S = 86_400

EXAMPLE_WIDTH = 8
"""Maximum width of the step whose cost is told beside a plain one's."""

MAX_MODELS = 5
"""Entries that are told of, those written last: each version of MLX has its own."""


def check_costs(file: str | None) -> Iterator[Check]:
    """Check the file of learned step costs: whether it can be read, its age, and the costs of each model."""
    if file is None:
        yield Check(FILE, "ok", "learned anew after every start (--costs-file none)")
        return
    path = Path(file)
    try:
        kept = dict(json.loads(path.read_text()))
        age_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        kept, age_s = {}, 0.0
    except (OSError, ValueError, TypeError) as fault:
        yield Check(FILE, "warning", f"{path} cannot be read: {fault}", "delete it; costs are learned again")
        return
    if not kept:
        yield Check(FILE, "ok", "nothing is learned yet; the requests of a server teach it")
        return
    yield Check(FILE, "ok", f"of {len(kept)} model(s), written {max(age_s, 0) / _DAY_S:.0f} days ago")
    for entry in list(kept.values())[: -MAX_MODELS - 1 : -1]:
        yield _check_model(entry)


def _check_model(entry: Any) -> Check:
    """Check the costs of one model."""
    try:
        of_one_row = {width: ratio for (rows, width), ratio in ratios_of(entry).items() if rows == 1}
    except ValueError:
        return Check(MODEL, "warning", "unusable", "nothing is to be done: the model's requests replace them")
    narrow = [width for width in of_one_row if width <= EXAMPLE_WIDTH]
    if not narrow:
        return Check(MODEL, "ok", f"{entry.get('model')}: nothing of steps of up to {EXAMPLE_WIDTH} tokens")
    price = StepPrice(1, max(narrow), of_one_row[max(narrow)], is_seen=True)
    return Check(MODEL, "ok", f"{entry.get('model')}: {price.describe()}")
