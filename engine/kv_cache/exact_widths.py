"""Find the widths whose logits equal those of width 1 byte for byte, by trying them on this machine.

Kernels differ by width and number of rows, by whether there is a mask, and with long contexts. So every width
is tried with one row and with several: several of equal length need no mask, several of different lengths do.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from typing import Any

import mlx.core as mx

from reprise.engine.kv_cache.buffers import KVSlice, State, cut_slice, rebuild, take_state
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.rows import Rows, Sharing, evaluate, make_rows

LENGTHS = (21, 70, 200)
"""Tokens in the probed rows."""

LONG_LENGTHS = (1100, 8300)
"""Tokens of long contexts. MLX's attention on Metal has other kernels from 1,024, 4,096 or 8,192 on. A
processor has not, and prefills 8,300 tokens for minutes: there only the first is tried."""

SHORT_TOKENS = 1000
"""Maximum tokens of a short context, including the step's."""

LONG_ROWS = 2
"""Maximum rows to try with long contexts; differences count for more rows too."""

CHUNK_TOKENS = 512
"""Tokens of a context that are prefilled at once."""

EQUAL, DIFFERENT, LONG = "equal lengths", "different lengths", "long contexts"
"""Circumstances: rows with short contexts, of equal lengths or of different ones; rows with long contexts."""

TOKENS_PER_PASS = 8
"""Tokens that weigh as much as a forward pass, for the progress."""

Tick = Callable[[float], None]
"""Called after a part of the work, with its weight; see _weight()."""

Shape = tuple[int, int]
"""The number of rows of a step, and the tokens that it feeds each of them at most."""


@dataclass(frozen=True)
class Exactness:
    """The shapes that were tried, and those whose logits differ from the logits of width 1.

    differing: (rows, width) tried -> the circumstances under which its logits differ.
    lengths: the lengths in tokens of the contexts that were tried.
    """

    differing: Mapping[Shape, Collection[str]] = field(default_factory=dict)
    lengths: Sequence[int] = ()

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Exactness":
        """Decode what encode() returned. Raises TypeError or ValueError if facts has another form."""
        differing = {(int(rows), int(w)): tuple(map(str, found)) for rows, w, found in facts["differing"]}
        return cls(differing, tuple(map(int, facts["lengths"])))

    def encode(self) -> dict[str, Any]:
        """Encode the trials and their results as JSON values."""
        differing = [[rows, width, sorted(found)] for (rows, width), found in self.differing.items()]
        return {"differing": differing, "lengths": list(self.lengths)}

    def shapes(self, is_long: bool = False) -> frozenset[Shape]:
        """Return the (rows, width) shapes whose logits never differed: very likely exact, but not proven.

        is_long: whether the context has more than SHORT_TOKENS.
        """
        harmless = () if is_long else (LONG,)
        return frozenset(shape for shape, found in self.differing.items() if not set(found) - set(harmless))

    def by_circumstance(self, num_rows: int) -> dict[str, str]:
        """Return, for each circumstance that was tried, the exact widths of num_rows rows in words."""
        named = {EQUAL: EQUAL, DIFFERENT: DIFFERENT} if num_rows > 1 else {EQUAL: "short contexts"}
        if set(self.lengths) & set(LONG_LENGTHS):
            named[LONG] = LONG
        of_rows = sorted((w, found) for (rows, w), found in self.differing.items() if rows == num_rows)
        return {
            name: self._words([width for width, found in of_rows if circumstance not in found])
            for circumstance, name in named.items()
        }

    def describe(self) -> str:
        """Describe the exact widths by number of rows: "1 row: 2, 3; 2 to 8 rows: none"."""
        short, long = (self._describe(self.shapes(is_long)) for is_long in (False, True))
        return short if short == long else f"{short}. Beyond {SHORT_TOKENS} tokens: {long}"

    def _describe(self, shapes: Collection[Shape]) -> str:
        described = []
        all_rows = sorted({rows for rows, _ in self.differing})
        for said, same in groupby(
            all_rows, lambda rows: self._words([w for r, w in sorted(shapes) if r == rows])
        ):
            first, *more = same
            named = f"{first} to {more[-1]} rows" if more else "1 row" if first == 1 else f"{first} rows"
            described.append(f"{named}: {said}")
        return "; ".join(described) or "nothing was tried"

    def _words(self, exact: Sequence[int]) -> str:
        tried = sorted({width for _, width in self.differing})
        return f"all up to {tried[-1]}" if list(exact) == tried else ", ".join(map(str, exact)) or "none"


@dataclass(frozen=True)
class _Text:
    """A text's caches: of its first length tokens, and after each further token.

    slices: KV slices of the first length tokens, then of one token each. states: after each slice.
    """

    length: int
    slices: Sequence[KVSlice]
    states: Sequence[State]


@dataclass(frozen=True)
class Tried:
    """A model under trial, what its rows share, and how their caches are quantized.

    context_tokens: the longest context to try. tick: called after each part of the work.
    """

    model: Any
    sharing: Sharing
    kv_bits: int | None
    vocab_size: int
    context_tokens: int
    tick: Tick = lambda _: None

    def prefill(self, length: int, num_more: int) -> _Text:
        """Prefill a text of length tokens, then num_more more."""
        tokens = [(at * 61 + 11) % self.vocab_size for at in range(length + num_more)]
        caches = make_caches(self.model, self.kv_bits)
        for at in range(0, length, CHUNK_TOKENS):
            chunk = tokens[at : min(length, at + CHUNK_TOKENS)]
            self.model(mx.array([chunk]), cache=caches)
            evaluate(caches)
            self.tick(_weight(len(chunk)))
        slices, states = [cut_slice(caches, 0, length)], [take_state(caches)]
        for at in range(length, length + num_more):
            self.model(mx.array([[tokens[at]]]), cache=caches)
            slices.append(cut_slice(caches, at, at + 1))
            states.append(take_state(caches))
        mx.eval(slices, states)
        self.tick(_weight(1, num_more))
        return _Text(length, slices, states)

    def find_differing(self, text: _Text, num_rows: int, widths: Sequence[int], is_ragged: bool) -> list[int]:
        """Return the widths whose logits differ from those of width 1.

        is_ragged: rows differ in length, and all but the first are fed fewer tokens than width.
        """
        fed = [
            [(row * 131 + at * 29) % self.vocab_size for at in range(max(widths))] for row in range(num_rows)
        ]
        narrow = self._make_rows(text, num_rows, is_ragged)
        steps = [
            narrow.forward(mx.array([[tokens[at]] for tokens in fed]))[:, 0] for at in range(max(widths))
        ]
        mx.eval(steps)
        self.tick(_weight(num_rows, max(widths)))
        differing = []
        for width in widths:
            part = [tokens[: max(1, width - is_ragged * row)] for row, tokens in enumerate(fed)]
            if not self._is_exact(self._make_rows(text, num_rows, is_ragged), part, steps):
                differing.append(width)
            self.tick(_weight(num_rows * width) + _weight(num_rows))
        return differing

    def _is_exact(self, rows: Rows, fed: Sequence[Sequence[int]], steps: Sequence[mx.array]) -> bool:
        wide = rows.forward_ragged(fed)
        # What the caches hold after a rollback must be exact too.
        kept = [len(tokens) // 2 for tokens in fed]
        for row, tokens in enumerate(fed):
            rows.roll_back(row, rows.lengths[row] - len(tokens) + kept[row])
        again = rows.forward(mx.array([[tokens[num]] for tokens, num in zip(fed, kept, strict=True)]))[:, 0]
        same = [mx.array_equal(steps[num][row], again[row]) for row, num in enumerate(kept)]
        for row, tokens in enumerate(fed):
            same += [mx.array_equal(steps[at][row], wide[row, at]) for at in range(len(tokens))]
        return bool(mx.all(mx.stack(same)).item())

    def _make_rows(self, text: _Text, num_rows: int, is_ragged: bool) -> Rows:
        rows = make_rows(self.model, self.sharing)
        for row in range(num_rows):
            more = row if is_ragged else 0
            slices = text.slices[: more + 1] if text.slices[0] else ()
            length = text.length + more
            rows.add(
                rebuild(make_caches(self.model, self.kv_bits), slices, text.states[more], length), length
            )
        return rows


def find_exact_shapes(loaded: Tried, shapes: Iterable[Shape], progress: Tick) -> Exactness:
    """Try whether the logits of each shape (rows, width) equal those of width 1, byte for byte.

    progress: called after every few forward passes, with the share of all tokens that have been fed.
    """
    widths_of: dict[int, list[int]] = {}
    for num_rows, width in sorted(shapes):
        widths_of.setdefault(num_rows, []).append(width)
    differing: dict[Shape, set[str]] = {
        (rows, w): set() for rows, widths in widths_of.items() for w in widths
    }
    if not differing:
        return Exactness()
    most_rows, widest = max(widths_of), max(width for _, width in differing)
    trials = {length: _trials(widths_of, length in LONG_LENGTHS) for length in _lengths()}
    lengths = [n for n, tried in trials.items() if tried and n + most_rows + widest <= loaded.context_tokens]
    total = sum(
        _prefill_weight(length, max(rows for rows, _ in trials[length]))
        + sum(_trial_weight(rows, widths_of[rows]) for rows, _ in trials[length])
        for length in lengths
    )
    done = 0.0

    def tick(weight: float) -> None:
        nonlocal done
        done += weight
        progress(min(1.0, done / total))

    probe = replace(loaded, tick=tick)
    for length in lengths:
        is_long = length in LONG_LENGTHS
        text = probe.prefill(length, max(rows for rows, _ in trials[length]))
        for rows, is_ragged in trials[length]:
            named = LONG if is_long else DIFFERENT if is_ragged else EQUAL
            # One difference is enough.
            widths = [width for width in widths_of[rows] if named not in differing[rows, width]]
            tick(_trial_weight(rows, widths_of[rows]) - _trial_weight(rows, widths))
            # With long contexts, more rows than were tried are as exact as these.
            alike = [more for more in widths_of if is_long and more > rows == LONG_ROWS]
            for width in probe.find_differing(text, rows, widths, is_ragged) if widths else ():
                for num_rows in (rows, *alike):
                    if width in widths_of[num_rows]:
                        differing[num_rows, width].add(named)
        del text
    mx.clear_cache()
    return Exactness(differing, lengths)


def _lengths() -> Sequence[int]:
    is_processor = mx.default_device().type == mx.DeviceType.cpu
    return *LENGTHS, *(LONG_LENGTHS[:1] if is_processor else LONG_LENGTHS)


def _trials(all_rows: Iterable[int], is_long: bool) -> list[tuple[int, bool]]:
    """Return the trials for contexts of a length: numbers of rows, and whether they are ragged."""
    tried = [rows for rows in all_rows if rows <= LONG_ROWS or not is_long]
    return [(rows, ragged) for rows, ragged in product(tried, (False, True)) if rows > 1 or not ragged]


def _weight(num_fed: int, num_passes: int = 1) -> float:
    """Return the time of forward passes of num_fed tokens each; 1 is a pass without any."""
    return num_passes * (1 + num_fed / TOKENS_PER_PASS)


def _prefill_weight(length: int, num_more: int) -> float:
    """Return the time of Tried.prefill(), in forward passes."""
    whole, rest = divmod(length, CHUNK_TOKENS)
    return _weight(CHUNK_TOKENS, whole) + _weight(rest, rest > 0) + _weight(1, num_more)


def _trial_weight(num_rows: int, widths: Sequence[int]) -> float:
    """Return the time of Tried.find_differing(), in forward passes."""
    narrow = _weight(num_rows, max(widths, default=0))
    return narrow + sum(_weight(num_rows * width) + _weight(num_rows) for width in widths)
