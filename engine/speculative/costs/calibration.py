"""Measure what steps cost on this machine while nothing else is to be done, and keep the costs on disk."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx

from config.settings import Settings
from config.whole_file import read_object, write_in_folder
from engine.kv_cache.rows import Rows, Sharing, make_caches, make_rows
from engine.model.loading import LoadedModel, Progress
from engine.request import ModelInfo
from engine.speculative.costs.step_costs import StepCosts, Table

log = logging.getLogger("reprise.engine")

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT_TOKENS = 48
ROUNDS = 6
"""Measurements of each shape; the fastest counts."""

PLAIN_STEPS = 4
"""Pipelined steps in one measurement of width 1."""

TOKEN_STRIDE = 7919
"""Distance of consecutive tokens in the vocabulary; a prime, so that all tokens are visited."""

CAUTIOUS_TOKENS = 8
"""Until costs are measured, a step is believed to take a plain step's time for every so many tokens fed."""

MAX_MEASURED_S = 0.25
"""A shape that would take longer is not measured but extrapolated: a request may arrive meanwhile."""

MAX_DEVIATION = 1.5
"""If the costs of one row's steps differ by more than this from those on disk, all are measured again."""

Fits = Callable[[int, int], bool]
"""Whether steps of this many rows and tokens per row fit into memory now."""


class Calibration:
    """The measurement of one model's costs, a step at a time.

    widest: the maximum width of a step.

    costs: what is believed meanwhile: the costs on disk, or cautious ones. They are replaced at the end.
    is_done: whether nothing is left to measure.
    """

    def __init__(self, loaded: LoadedModel, settings: Settings, sharing: Sharing, widest: int) -> None:
        self._model = loaded.model
        self._name = loaded.info.name
        self._vocab_size = loaded.info.vocab_size
        self._kv_bits = settings.kv_bits
        self._sharing = sharing
        self._widths = sorted({w for w in WIDTHS if w < widest} | {widest})
        # If each row has a forward of its own, a step costs one row's forward times their number.
        max_rows = settings.max_rows if sharing else 1
        self._rows = sorted({r for r in ROWS if r < max_rows} | {max_rows})
        self._path = Path(settings.calibration_file).expanduser() if settings.calibration_file else None
        self._key = _key(loaded.info, settings, widest)
        self._known = None if settings.recalibrate else self._read()
        self._measured: dict[tuple[int, int], float] = {}
        self._held: Rows | None = None
        self._left = self._measure()
        self._share = 0.0
        self.is_done = False
        self.costs = StepCosts(self._known or self._cautious(), bool(sharing))

    @property
    def is_known(self) -> bool:
        """Whether the costs were on disk."""
        return self._known is not None

    def advance(self, fits: Fits = lambda _rows, _tokens: True) -> None:
        """Make one measurement, of MAX_MEASURED_S at most by what is known; the last one ends all.

        fits: asked before each number of rows and width is measured.
        """
        self._fits = fits
        next(self._left, None)

    def release(self) -> None:
        """Free the memory that the measurement holds, because requests need it."""
        self._held = None

    def finish(self, progress: Progress) -> None:
        """Measure everything that is left. progress: called with the completed share."""
        while not self.is_done:
            self.advance()
            progress(self._share)

    def _measure(self) -> Iterator[None]:
        start_s = time.perf_counter()
        for done, num_rows in enumerate(self._rows):
            self.release()
            # All widths in every round, and each one's fastest time: other work only adds time.
            for round_number in range(ROUNDS):
                for width in self._widths:
                    if self._may_measure(num_rows, width):
                        self._held = self._held or self._make_rows(num_rows)
                        self._keep(num_rows, width, _step_s(self._held, num_rows, width, self._vocab_size))
                        self._share = (done + (round_number + 1) / ROUNDS) / len(self._rows)
                        yield
            self.release()
            mx.clear_cache()
            if num_rows == 1 and self._agrees():
                log.info("the costs of %s's steps on disk still hold", self._name)
                self.is_done = True
                return
        self._end(time.perf_counter() - start_s)

    def _end(self, taken_s: float) -> None:
        table = self._full_table()
        self.costs.replace_table(table)
        self.is_done, self._share = True, 1.0
        if self._path:
            self._write(self._path, table)
        plain_s = self.costs.seconds(1, 1)
        wide = next((w for w in self._widths if w >= 8), self._widths[-1])
        log.info(
            "measured what steps of %s cost, in %.0f s: plain %.1f ms, of width %d %.2f times that",
            self._name, taken_s, plain_s * 1e3, wide, self.costs.seconds(1, wide) / plain_s,
        )  # fmt: skip

    def _may_measure(self, num_rows: int, width: int) -> bool:
        guess_s = (PLAIN_STEPS if width == 1 else 1) * self._guess_s(num_rows, width)
        return guess_s <= MAX_MEASURED_S and self._fits(num_rows, CONTEXT_TOKENS + width)

    def _guess_s(self, num_rows: int, width: int) -> float:
        """Return what a step takes at most, by the tokens of smaller ones; 0 if none is known."""
        told = [
            seconds * (num_rows * width) / (rows * w)
            for (rows, w), seconds in self._measured.items()
            if rows <= num_rows and w <= width and (rows, w) != (num_rows, width)
        ]
        return min(told, default=0.0)

    def _keep(self, num_rows: int, width: int, taken_s: float) -> None:
        self._measured[num_rows, width] = min(taken_s, self._measured.get((num_rows, width), taken_s))

    def _full_table(self) -> dict[tuple[int, int], float]:
        """Return the measured costs; a shape that was not measured costs in proportion to its tokens."""
        return {
            (num_rows, width): self._measured.get((num_rows, width), self._guess_s(num_rows, width))
            for num_rows in self._rows
            for width in self._widths
        }

    def _agrees(self) -> bool:
        """Whether the costs on disk are much like those that one row's steps have now."""
        if self._known is None:
            return False
        ratios = [seconds / self._known[1, width] for (_, width), seconds in self._measured.items()]
        # A machine that is slower at everything changes no decision.
        return all(1 / MAX_DEVIATION < ratio / median(ratios) < MAX_DEVIATION for ratio in ratios)

    def _cautious(self) -> Table:
        """Return costs by which drafts pay only if they are accepted nearly always."""
        rows = self._make_rows(1)
        plain_s = min(_step_s(rows, 1, 1, self._vocab_size) for _ in range(2))
        return {
            (num_rows, width): plain_s * (1 + (num_rows * width - 1) / CAUTIOUS_TOKENS)
            for num_rows in self._rows
            for width in self._widths
        }

    def _make_rows(self, num_rows: int) -> Rows:
        rows = make_rows(self._model, self._sharing)
        for prompt in _varied_tokens(num_rows, CONTEXT_TOKENS, self._vocab_size):
            caches = make_caches(self._model, self._kv_bits)
            self._model(mx.array([prompt]), cache=caches)
            rows.add(caches, CONTEXT_TOKENS)
        return rows

    def _read(self) -> Table | None:
        """Return the costs on disk for this model and machine; None if there are none."""
        found = _kept(self._path).get(self._key) if self._path else None
        if not found:
            return None
        try:
            table = {(rows, width): seconds for rows, width, seconds in found}
            StepCosts(table)
        except (TypeError, ValueError):
            log.warning("the costs in %s for this model are unusable; measuring them again", self._path)
            return None
        return table

    def _write(self, path: Path, table: Table) -> None:
        kept = _kept(path) | {self._key: [[rows, width, seconds] for (rows, width), seconds in table.items()]}
        try:
            write_in_folder(path, json.dumps(kept).encode())
        except OSError as fault:
            message = "cannot write the costs to %s (%s); the next start measures them again"
            log.warning(message, path, fault)


def _varied_tokens(num_rows: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Return tokens from all over the vocabulary, each another one: num_rows lists of num_tokens.

    A mixture of experts computes more experts for different tokens than for equal ones, so equal ones would
    make wide steps and steps of several rows seem cheaper than they are with real text.
    """
    return [
        [(TOKEN_STRIDE * (row * num_tokens + at) + 3) % vocab_size for at in range(num_tokens)]
        for row in range(num_rows)
    ]


def _step_s(rows: Rows, num_rows: int, width: int, vocab_size: int) -> float:
    """Measure a step: a plain one pipelined as in the worker, a wider one awaited."""
    if width == 1:
        return _plain_step_s(rows, _varied_tokens(num_rows, PLAIN_STEPS, vocab_size))
    return _verification_step_s(rows, _varied_tokens(num_rows, width, vocab_size))


def _plain_step_s(rows: Rows, fed: list[list[int]]) -> float:
    columns = mx.array(fed, mx.int32)
    newest = mx.zeros(len(fed), mx.int32)
    mx.eval(columns, newest)
    previous: mx.array | None = None
    start = time.perf_counter()
    for at in range(PLAIN_STEPS):
        # A step waits for the tokens of the one before, as in the worker, but is fed others than those.
        tokens = mx.where(newest < 0, newest, columns[:, at])
        newest = mx.argmax(rows.forward(tokens[:, None])[:, -1], axis=-1).astype(mx.int32)
        mx.async_eval(newest)
        if previous is not None:
            previous.tolist()
        previous = newest
    newest.tolist()
    return (time.perf_counter() - start) / PLAIN_STEPS


def _verification_step_s(rows: Rows, fed: list[list[int]]) -> float:
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


def _kept(path: Path) -> dict[str, Any]:
    return read_object(path, log, "measuring the costs again")
