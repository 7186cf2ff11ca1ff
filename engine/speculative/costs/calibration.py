"""Measure the cost of steps once per model and machine, and keep the costs on disk."""

import hashlib
import json
import logging
import os
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from config.settings import Settings
from config.whole_file import remove_unfinished, write_whole
from engine.kv_cache.rows import Rows, make_caches, make_rows
from engine.model.loading import LoadedModel, Progress
from engine.request import ModelInfo
from engine.speculative.costs.step_costs import StepCosts

log = logging.getLogger("reprise.engine")

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXT_TOKENS = 48
ROUNDS = 6
"""Measurements of each shape; the fastest counts."""

PLAIN_STEPS = 4
"""Pipelined steps in one measurement of width 1."""


def load_costs(
    loaded: LoadedModel, settings: Settings, batched: bool, widest: int, progress: Progress
) -> StepCosts:
    """Load the costs on disk for this model and machine, or measure them and keep them on disk.

    widest: the maximum width of a step.
    """
    path = Path(settings.calibration_file).expanduser() if settings.calibration_file else None
    key = _key(loaded.info, settings, widest)
    if path and not settings.recalibrate and (found := _read(path).get(key)):
        try:
            return StepCosts({(rows, width): seconds for rows, width, seconds in found}, batched)
        except (TypeError, ValueError):
            log.warning("the costs in %s for this model are unusable; measuring them again", path)
    table = measure(loaded, settings, batched, widest, progress)
    if path:
        _write(path, key, table)
    return StepCosts(table, batched)


def measure(
    loaded: LoadedModel, settings: Settings, batched: bool, widest: int, progress: Progress
) -> dict[tuple[int, int], float]:
    """Measure seconds per step by (rows, width): plain steps pipelined as in the worker, others awaited."""
    model, vocab_size = loaded.model, loaded.info.vocab_size
    widths = sorted({w for w in WIDTHS if w < widest} | {widest})
    # If each row has a forward of its own, a step costs one row's forward times their number.
    max_rows = settings.max_rows if batched else 1
    grid = sorted({r for r in (1, 2, 4, 8, 16, 32, 64) if r < max_rows} | {max_rows})
    prompt = mx.array([[(7 * i + 3) % vocab_size for i in range(CONTEXT_TOKENS)]])
    table: dict[tuple[int, int], float] = {}
    for num_rows in grid:
        rows = make_rows(model, batched)
        for _ in range(num_rows):
            caches = make_caches(model, settings.kv_bits)
            model(prompt, cache=caches)
            rows.add(caches, CONTEXT_TOKENS)
        # All widths in every round, and each one's fastest time: other work on the machine only adds time.
        for done in range(ROUNDS):
            for width in widths:
                taken_s = (
                    _plain_step_s(rows, num_rows)
                    if width == 1
                    else _verification_step_s(rows, num_rows, width)
                )
                table[num_rows, width] = min(taken_s, table.get((num_rows, width), taken_s))
            progress((grid.index(num_rows) + (done + 1) / ROUNDS) / len(grid))
    mx.clear_cache()
    return table


def _plain_step_s(rows: Rows, num_rows: int) -> float:
    newest = mx.zeros(num_rows, mx.int32)
    mx.eval(newest)
    previous: mx.array | None = None
    start = time.perf_counter()
    for _ in range(PLAIN_STEPS):
        newest = mx.argmax(rows.forward(newest[:, None])[:, -1], axis=-1)
        mx.async_eval(newest)
        if previous is not None:
            previous.tolist()
        previous = newest
    newest.tolist()
    return (time.perf_counter() - start) / PLAIN_STEPS


def _verification_step_s(rows: Rows, num_rows: int, width: int) -> float:
    fed = [[1 + (row + at) % 7 for at in range(width)] for row in range(num_rows)]
    held = list(rows.lengths)
    start = time.perf_counter()
    mx.argmax(rows.forward_ragged(fed), axis=-1).tolist()
    for row, length in enumerate(held):
        rows.roll_back(row, length + 1)
    return time.perf_counter() - start


def _key(info: ModelInfo, settings: Settings, widest: int) -> str:
    facts = (info.architecture, info.num_parameters, info.weight_bytes, info.num_layers, info.vocab_size)
    machine = (info.dtype, info.device, os.cpu_count(), version("mlx"))
    shape = (widest, settings.max_rows, settings.kv_bits)
    return hashlib.sha256(repr((facts, machine, shape)).encode()).hexdigest()[:24]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        log.warning("cannot read the costs in %s (%s); measuring them again", path, fault)
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, key: str, table: dict[tuple[int, int], float]) -> None:
    kept = _read(path) | {key: [[rows, width, seconds] for (rows, width), seconds in table.items()]}
    remove_unfinished(path.parent, re.escape(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(kept).encode())
    except OSError as fault:
        log.warning("cannot write the costs to %s (%s); the next start measures them again", path, fault)
