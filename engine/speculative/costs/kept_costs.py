"""Initial step costs: learned by an earlier run, or published.

A file stores learned costs by model and machine, as ratios of wider steps to plain ones. They count as
guesses: trials test them soon, real steps replace them, and two that these refute discredit the others.
"""

import hashlib
import json
import logging
import os
import time
from importlib.metadata import version
from typing import Any

from reprise.config.atomic_files import read_object, write_in_folder
from reprise.config.settings import Settings, costs_file
from reprise.engine.interface.models import ModelInfo
from reprise.engine.speculative.costs.cost_table import (
    ROWS,
    UNSEEN_S,
    WIDTHS,
    CostTable,
    Shape,
    grid_up_to,
)
from reprise.engine.speculative.costs.step_costs import StepCosts

log = logging.getLogger("reprise.engine")

METAL_QUANTISED = (
    (1, 1.0), (2, 0.99), (3, 1.13), (4, 1.43), (5, 1.75), (8, 2.84), (10, 4.5), (32, 4.5),
)  # fmt: skip
"""(tokens of a step, its cost in plain steps) on Apple's M4 Pro with 4-bit weights, as others published."""

LEAST_RATIO, MOST_RATIO = 0.01, 10_000.0
"""Ratios in the file that are believed to be ones."""

MAX_MODELS = 64
"""Models in the file; each version of MLX counts anew."""


def make_costs(info: ModelInfo, settings: Settings, batched: bool) -> StepCosts:
    """Return a model's initial step costs. batched: whether rows share a forward pass."""
    # Otherwise a step costs one row's forward times their number.
    rows = grid_up_to(ROWS, settings.max_rows if batched else 1)
    widths = grid_up_to(WIDTHS, settings.num_draft_tokens + 1)
    is_published = info.device.endswith("(Metal)") and info.dtype.endswith("-bit")
    guesses = {(1, width): ratio for width, ratio in METAL_QUANTISED[1:] if is_published}
    guesses |= read_ratios(info, settings)
    return StepCosts(CostTable({(1, 1): UNSEEN_S}, rows, widths, guesses), batched)


def read_ratios(info: ModelInfo, settings: Settings) -> dict[Shape, float]:
    """Return the step ratios that an earlier run learned here; empty if there are none."""
    if not settings.keeps_costs:
        return {}
    path = costs_file()
    entry = read_object(path, log, "costs of steps are learned anew").get(_key(info, settings), {})
    try:
        return ratios_of(entry)
    except ValueError:
        log.warning("the costs of steps in %s are unusable for this model; they are learned anew", path)
        return {}


def ratios_of(entry: Any) -> dict[Shape, float]:
    """Return the ratios in a model's entry of the file, {"ratios": [[rows, width, ratio], ...]}.

    Raises ValueError if it is not such an entry.
    """
    try:
        found = {(int(rows), int(width)): float(ratio) for rows, width, ratio in entry.get("ratios", [])}
    except (AttributeError, TypeError, OverflowError) as fault:
        raise ValueError(fault) from fault
    if not all(r > 0 and w > 1 and LEAST_RATIO <= ratio <= MOST_RATIO for (r, w), ratio in found.items()):
        raise ValueError("rows, widths and ratios are out of range")
    return found


def write_ratios(costs: StepCosts, info: ModelInfo, settings: Settings) -> None:
    """Write a model's learned step costs to the file, if there is one. Logs a failure."""
    if not settings.keeps_costs or not (learned := costs.learned_ratios()):
        return
    path, key = costs_file(), _key(info, settings)
    # Ratios that no step has refuted stay.
    before = {s: r for s, r in read_ratios(info, settings).items() if s in costs.table.guesses}
    found = sorted((before | learned).items())
    ratios = [[*shape, round(min(max(ratio, LEAST_RATIO), MOST_RATIO), 3)] for shape, ratio in found]
    kept = read_object(path, log, "it is written anew")
    kept.pop(key, None)
    kept[key] = {"model": f"{info.name} ({info.dtype})", "written_at": int(time.time()), "ratios": ratios}
    try:
        write_in_folder(path, json.dumps(dict(list(kept.items())[-MAX_MODELS:])).encode())
    except OSError as fault:
        log.warning("the costs of steps could not be kept in %s: %s", path, fault.strerror or fault)


def _key(info: ModelInfo, settings: Settings) -> str:
    facts = (info.architecture, info.num_parameters, info.weight_bytes, info.num_layers, info.vocab_size)
    machine = (info.dtype, info.device, os.cpu_count(), version("mlx"), settings.kv_bits)
    return hashlib.sha256(repr((facts, machine)).encode()).hexdigest()[:24]
