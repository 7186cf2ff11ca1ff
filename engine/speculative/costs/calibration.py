"""Measure what steps cost on this machine while nothing else is to be done, and keep the costs on disk."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx

from reprise.config.settings import Settings
from reprise.config.whole_file import read_object, write_in_folder
from reprise.engine.interface.models import ModelInfo
from reprise.engine.kv_cache.per_row import cache_arrays, make_caches
from reprise.engine.kv_cache.rows import Rows, Sharing, make_rows
from reprise.engine.model.loading import LoadedModel, Progress
from reprise.engine.speculative.costs.cost_table import (
    MODEL_NAMES,
    CostTable,
    Measurement,
    Shape,
    without_guesses,
)
from reprise.engine.speculative.costs.step_costs import StepCosts

log = logging.getLogger("reprise.engine")

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DECIDING_WIDTHS = (1, 2, 4, 8, 16, 32)
"""Measured before the others, which lie between them."""

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT_TOKENS = 16

ROUNDS, LONG_ROUNDS = 6, 2
"""Measurements of each shape, and of one whose steps are long; the fastest counts."""

LONG_S = 0.1
"""Seconds from which on a step is long: it varies less, and a request may arrive meanwhile."""

PLAIN_STEPS = 4
"""Pipelined steps in one measurement of width 1, unless they are long."""

TOKEN_STRIDE = 7919
"""Distance of consecutive tokens in the vocabulary; a prime, so that all tokens are visited."""

MAX_MEASURED_S, MAX_MEASURED_STEPS = 0.25, 12
"""A shape that would take longer than these seconds, and than so many plain steps of one row, is not
measured: a request may arrive meanwhile. Real steps will tell."""

MAX_DEVIATION = 1.5
"""If the costs of one row's steps differ by more than this from those on disk, all are measured again."""

Fits = Callable[[int, int], bool]
"""Whether steps of this many rows and tokens per row fit into memory now."""


class Calibration:
    """The measurement of one model's costs, a step at a time.

    widest: the maximum width of a step.

    costs: the costs on disk, or else a plain step's and guesses; each measurement is added.
    is_done: whether nothing is left to measure.
    """

    def __init__(self, loaded: LoadedModel, settings: Settings, sharing: Sharing, widest: int) -> None:
        self._model = loaded.model
        self._name = loaded.info.name
        self._named = f"{loaded.info.name} ({loaded.info.dtype})"
        self._vocab_size = loaded.info.vocab_size
        self._kv_bits = settings.kv_bits
        self._sharing = sharing
        self._widths = sorted({w for w in WIDTHS if w < widest} | {widest})
        # If each row has a forward of its own, a step costs one row's forward times their number.
        max_rows = settings.max_rows if sharing else 1
        self._rows = sorted({r for r in ROWS if r < max_rows} | {max_rows})
        self._path = Path(settings.calibration_file) if settings.calibration_file else None
        self._key = _key(loaded.info, settings, widest)
        self._known = {} if settings.recalibrate else self._read()
        self._rounds: dict[Shape, list[float]] = {}
        self._measured: dict[Shape, Measurement] = {}
        self._held: Rows | None = None
        self._left = self._measure()
        self._share = 0.0
        self.is_done = False
        known = self._known or {(1, 1): self._first()}
        self.costs = StepCosts(CostTable(known, self._rows, self._widths), bool(sharing))

    @property
    def is_known(self) -> bool:
        """Whether the costs were read from disk, so that nothing has to be measured."""
        return bool(self._known)

    def advance(self, fits: Fits = lambda _rows, _tokens: True) -> None:
        """Make one measurement; after the last one, is_done is True.

        fits: returns whether memory allows a step of (rows, width tokens); asked before each measurement.
        """
        self._fits = fits
        next(self._left, None)

    def release(self) -> None:
        """Free the memory that the measurement holds, because requests need it."""
        self._held = None

    def finish(self, progress: Progress) -> None:
        """Make all measurements that are left. progress: called with the completed share."""
        while not self.is_done:
            self.advance()
            progress(self._share)

    def _measure(self) -> Iterator[None]:
        start_s, stages = time.perf_counter(), self._stages()
        for done, (num_rows, widths) in enumerate(stages):
            yield from self._measure_widths(num_rows, widths, (done / len(stages), 1 / len(stages)))
            self.release()
            mx.clear_cache()
            if self._known and stages[done + 1 : done + 2] and stages[done + 1][0] == 1:
                continue
            if self._known and self._agrees():
                log.info("the costs of %s's steps on disk still hold", self._name)
                self._measured = self._known | self._measured
                self._write()
                self.is_done = True
                return
            self._forget_known()
            self._write()
        self._end(time.perf_counter() - start_s)

    def _stages(self) -> list[tuple[int, list[int]]]:
        """Return the shapes that are measured together, in this order: a number of rows, and widths."""
        first = [width for width in self._widths if width in DECIDING_WIDTHS]
        rest = [width for width in self._widths if width not in DECIDING_WIDTHS]
        one, *more = self._rows
        stages = [(one, first), (one, rest), *((r, first) for r in more), *((r, rest) for r in more)]
        return [(num_rows, widths) for num_rows, widths in stages if widths]

    def _measure_widths(
        self, num_rows: int, widths: list[int], progress: tuple[float, float]
    ) -> Iterator[None]:
        """Measure all widths in every round, and take each one's fastest time.

        progress: the completed share before, and the share of this.
        """
        for number in range(ROUNDS):
            for width in widths:
                shape = num_rows, width
                is_long = min(self._rounds.get(shape, [0.0])) > LONG_S
                if (number < LONG_ROUNDS or not is_long) and self._may_measure(num_rows, width):
                    yield from self._hold(num_rows)
                    assert self._held is not None
                    is_long = self.costs.table.seconds(num_rows, width) > LONG_S
                    taken_s = _step_s(self._held, num_rows, width, self._vocab_size, is_long)
                    self._rounds.setdefault(shape, []).append(taken_s)
                    self._share = progress[0] + progress[1] * (number + 1) / ROUNDS
                    yield
        # Together, as steps are compared with each other.
        for shape in [(num_rows, width) for width in widths if (num_rows, width) in self._rounds]:
            rounds = self._rounds.pop(shape)
            measured = Measurement(min(rounds), median(rounds) / min(rounds), time.time())
            self._measured[shape] = measured
            self.costs.measure(shape, measured)

    def _forget_known(self) -> None:
        """Drop the costs on disk, which no longer hold."""
        for shape in self._known.keys() - self._measured.keys():
            self.costs.table.drop(shape)
        self._known = {}

    def _end(self, taken_s: float) -> None:
        self.is_done, self._share = True, 1.0
        plain_s = self.costs.table.seconds(1, 1)
        wide = next((w for w in self._widths if w >= 8), self._widths[-1])
        log.info(
            "measured what steps of %s cost, in %.0f s: plain %.1f ms, of width %d %.2f times that",
            self._name, taken_s, plain_s * 1e3, wide, self.costs.table.seconds(1, wide) / plain_s,
        )  # fmt: skip

    def _may_measure(self, num_rows: int, width: int) -> bool:
        table = self.costs.table
        longest_s = max(MAX_MEASURED_S, MAX_MEASURED_STEPS * table.seconds(1, 1))
        return table.seconds(num_rows, width) <= longest_s and self._fits(num_rows, CONTEXT_TOKENS + width)

    def _agrees(self) -> bool:
        """Whether the costs on disk are much like those that one row's steps have now."""
        ratios = [
            measured.seconds / self._known[shape].seconds
            for shape, measured in self._measured.items()
            if shape in self._known
        ]
        # A machine that is slower at everything changes no decision.
        return len(ratios) == len(self._measured) and all(
            1 / MAX_DEVIATION < ratio / median(ratios) < MAX_DEVIATION for ratio in ratios
        )

    def _first(self) -> Measurement:
        """Measure a plain step, as nothing can be guessed without it."""
        for _ in self._hold(1):
            pass
        rows, self._held = self._held, None
        assert rows is not None
        first_s = _step_s(rows, 1, 1, self._vocab_size, True)
        return Measurement(min(first_s, _step_s(rows, 1, 1, self._vocab_size, first_s > LONG_S)))

    def _hold(self, num_rows: int) -> Iterator[None]:
        """Hold as many rows, whose prompts are computed one at a time."""
        prompts = _varied_tokens(num_rows, CONTEXT_TOKENS, self._vocab_size)
        while self._held is None or len(self._held.lengths) < num_rows:
            self._held = self._held or make_rows(self._model, self._sharing)
            caches = make_caches(self._model, self._kv_bits)
            self._model(mx.array([prompts[len(self._held.lengths)]]), cache=caches)
            mx.eval(cache_arrays(caches))
            self._held.add(caches, CONTEXT_TOKENS)
            yield

    def _read(self) -> dict[Shape, Measurement]:
        """Return the measurements on disk for this model and machine; none if there are none."""
        found = _kept(self._path).get(self._key) if self._path else None
        if not found:
            return {}
        try:
            costs = without_guesses({(rows, width): seconds for rows, width, seconds, *_ in found})
            table = {(r, w): Measurement(s, *more) for r, w, s, *more in found if (r, w) in costs}
            CostTable(table)
        except (TypeError, ValueError):
            log.warning("the costs in %s for this model are unusable; measuring them again", self._path)
            return {}
        if len(table) < len(found):
            message = "%d of the %d costs in %s for this model are guesses of an earlier version; dropped"
            log.info(message, len(found) - len(table), len(found), self._path)
        # By a plain step's cost alone nothing is known.
        return table if len(table) > 1 else {}

    def _write(self) -> None:
        """Write the costs measured so far to the disk."""
        if self._path is None:
            return
        found = [[rows, width, *astuple(each)] for (rows, width), each in self._measured.items()]
        kept = _kept(self._path)
        named = kept.get(MODEL_NAMES)
        names = (named if isinstance(named, dict) else {}) | {self._key: self._named}
        try:
            write_in_folder(self._path, json.dumps(kept | {self._key: found, MODEL_NAMES: names}).encode())
        except OSError as fault:
            message = "cannot write the costs to %s (%s); the next start measures them again"
            log.warning(message, self._path, fault)


def _varied_tokens(num_rows: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Return tokens from all over the vocabulary, each another one: num_rows lists of num_tokens.

    A mixture of experts computes more experts for different tokens than for equal ones, so equal ones would
    make wide steps and steps of several rows seem cheaper than they are with real text.
    """
    return [
        [(TOKEN_STRIDE * (row * num_tokens + at) + 3) % vocab_size for at in range(num_tokens)]
        for row in range(num_rows)
    ]


def _step_s(rows: Rows, num_rows: int, width: int, vocab_size: int, is_long: bool) -> float:
    """Measure a step: a plain one pipelined as in the worker, a wider or a long one awaited."""
    if width == 1 and not is_long:
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
