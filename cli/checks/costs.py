"""Check the file of measured costs, and describe the costs of steps in plain words."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprise.cli.checks.check import Check
from reprise.engine.speculative.costs.cost_table import (
    MODEL_NAMES,
    CostTable,
    Measurement,
    without_guesses,
)
from reprise.engine.speculative.costs.step_costs import StepCosts

FILE, MODEL = "costs of steps", "costs of a model"

OLD_DAYS = 180
_DAY_S = 86_400

EXAMPLE_WIDTH = 8
"""Maximum width of the step whose cost is told beside a plain one's."""

BUSY_SPREAD = 1.3
"""Spread of a measurement from which on the machine was busy meanwhile."""

MAX_MODELS = 5
"""Entries that are told of, those measured last: each version of MLX and each setting has its own."""


def check_costs(file: str | None, now_s: float | None = None) -> Iterator[Check]:
    """Check the file of measured step costs: whether it can be read, its age, and the costs of each model.

    Entries that earlier versions wrote name no model: their checks tell it by the time of a plain step.
    now_s: the time now, in seconds since 1970; None reads the clock.
    """
    if file is None:
        yield Check(FILE, "ok", "measured after every start (--calibration-file none)")
        return
    path, now_s = Path(file), time.time() if now_s is None else now_s
    try:
        kept = dict(json.loads(path.read_text()))
        age_s = now_s - path.stat().st_mtime
    except FileNotFoundError:
        kept = {}
    except (OSError, ValueError, TypeError) as fault:
        yield Check(FILE, "warning", f"{path} cannot be read: {fault}", "delete it; costs are measured again")
        return
    names = kept.pop(MODEL_NAMES, {})
    if not kept:
        yield Check(FILE, "ok", "nothing is measured yet; it is in the first idle seconds of a server")
        return
    yield _check_age(len(kept), age_s)
    newest = sorted(kept, key=lambda key: _measured_at(kept[key]), reverse=True)[:MAX_MODELS]
    for key in newest:
        name = names.get(key) if isinstance(names, dict) else None
        yield _check_model(f"{name}: " if name else "", kept[key], now_s)


def _check_age(count: int, age_s: float) -> Check:
    found = f"of {count} model(s) or setting(s), written {max(age_s, 0) / _DAY_S:.0f} days ago"
    if age_s < -_DAY_S:
        advice = "the clock was set back since, or is wrong; --recalibrate measures them again"
        return Check(FILE, "warning", f"{found}: later than now", advice)
    if age_s > OLD_DAYS * _DAY_S:
        return Check(FILE, "warning", found, "--recalibrate measures them again")
    return Check(FILE, "ok", found)


def _check_model(named: str, entry: Any, now_s: float) -> Check:
    """Check the costs of one model.

    named: the model's name and a colon, or "". entry: [rows, width, seconds, spread, measured_at] each.
    """
    try:
        known = without_guesses({(rows, width): seconds for rows, width, seconds, *_ in entry})
        table = CostTable({(r, w): Measurement(s, *more) for r, w, s, *more in entry if (r, w) in known})
    except (TypeError, ValueError):
        return Check(
            MODEL, "warning", f"{named}unusable", "the next start with the model measures them again"
        )
    plain = table.measured[1, 1]
    found = f"{named}a plain step takes {1e3 * plain.seconds:.3g} ms"
    width = max(w for r, w in table.measured if r == 1 and w <= EXAMPLE_WIDTH)
    if width == 1:
        return Check(MODEL, "ok", f"{found}; no wider one is measured, as of a draft model")
    found += f"; {StepCosts(table).price(1, width).describe(now_s)}"
    if max(plain.spread, table.measured[1, width].spread) > BUSY_SPREAD:
        advice = "--recalibrate measures them again, best while nothing else runs"
        return Check(MODEL, "warning", f"{found}, on a busy machine", advice)
    return Check(MODEL, "ok", found)


def _measured_at(entry: Any) -> float:
    """Return when an entry's newest cost was measured; 0 if that is not known."""
    try:
        return max((more[1] or 0.0 for _, _, _, *more in entry if len(more) > 1), default=0.0)
    except (TypeError, ValueError):
        return 0.0
