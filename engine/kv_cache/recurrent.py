"""Keep the recurrent state of all rows of a batch, and take every row back to a length of its own.

A state depends on every token before it, so nothing can be cut off. Instead, a forward that may be rolled
back traces what it fed to the recurrences and to the convolutions. Rolling back starts from the state before
that forward and computes only the recurrence again, for the tokens that are kept: a few hundredths of a
forward.

The tracing replaces functions of mlx-lm and MLX while the graph of such a forward is built: the gated delta
rule, the state-space recurrence of Mamba 2, Bailing's gated linear attention, and Conv1d. What a layer's
state was computed from is found by identity: the state that such a function returned is the one that the
layer puts into its cache. A layer that computes its state in another way can be batched, but not rolled back;
engine/kv_cache/probes.py finds out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.convolution import Conv1d
from mlx_lm.models import bailing_hybrid, bailing_moe_linear, gated_delta, ssm
from mlx_lm.models.cache import ArraysCache

from engine.kv_cache.columns import RowLengths

MAX_SINGLE_STEPS = 16
"""Widest forward in which Mamba 2 and gated linear attention take a step per token.

Their formulas for several tokens round otherwise.
"""

MAX_LATER_STATES = 4
"""Forwards of one token after a traced one whose states are kept. Each keeps a whole state in memory."""

Replay = Callable[[mx.array, int], mx.array]
"""Returns the state after the first kept[r] tokens of row r. kept: (rows,), and its maximum as a number."""


class RaggedStateCache(ArraysCache):
    """One layer's recurrent state: arrays of (rows, ...), in mlx-lm's protocol.

    cache: None for an array that no row has set yet.
    """

    cache: Any

    def __init__(self, shared: RowLengths, size: int) -> None:
        # Not super(): the lengths are a property here.
        self.cache = [None] * size
        self.left_padding = None
        self.shared = shared
        self.trace: LayerTrace | None = None
        self.tracer: Tracer | None = None

    @property
    def lengths(self) -> mx.array | None:  # type: ignore[override]
        """(rows,) tokens that the current forward adds to each row; None if no row is padded."""
        if self.trace:
            self.trace.knows_lengths = True
        return self.shared.fed

    def make_mask(self, N: int) -> mx.array | None:
        """Return (rows, N) booleans, False where a row is padded; None if no row is."""
        return None if self.shared.fed is None else mx.arange(N) < self.shared.fed[:, None]

    def advance(self, N: int) -> None:
        """Do nothing: the lengths hold for the whole forward."""

    def __getitem__(self, at: int) -> mx.array | None:
        if self.tracer:
            self.tracer.current = self.trace
        array: mx.array | None = self.cache[at]
        return array

    def __setitem__(self, at: int, value: mx.array) -> None:
        self.cache[at] = value

    def add(self, row: int) -> None:
        """Append an empty row, with zeros for its state."""
        if row:
            self.cache = [
                None if array is None else mx.concatenate([array, mx.zeros_like(array[:1])])
                for array in self.cache
            ]

    def fill(self, row: int, given: ArraysCache) -> None:
        """Set the state of a row. A state that is not set yet counts as zeros everywhere in mlx-lm."""
        num_rows = len(self.shared.lengths)
        for idx, (held, new) in enumerate(zip(self.cache, list[Any](given.cache), strict=True)):
            example = held if new is None else new
            if example is None:
                continue
            zeros = mx.zeros((num_rows, *example.shape[1:]), example.dtype)
            rows, one = (zeros if array is None else array for array in (held, new))
            self.cache[idx] = mx.concatenate([rows[:row], one[:1], rows[row + 1 :]])

    def leave(self, row: int, last: int) -> None:
        """Remove a row; the last row takes its index."""
        kept = list(range(last))
        if row != last:
            kept[row] = last
        self.cache = [None if array is None or not last else array[mx.array(kept)] for array in self.cache]

    def row_state(self, row: int) -> list[mx.array | None]:
        """Copy the state of a row: arrays of (1, ...)."""
        return [None if array is None else mx.contiguous(array[row : row + 1]) for array in self.cache]


@dataclass
class LayerTrace:
    """The inputs from which one layer's state was computed in a traced forward.

    before, after: its arrays before and after. convolved: inputs of its convolutions, with the columns of
    each that are kept as state. replays: states that were computed, and how to compute them again.
    knows_lengths: whether the layer asked which rows are padded.
    """

    before: list[mx.array | None]
    after: list[mx.array | None] = field(default_factory=list)
    convolved: list[tuple[mx.array, int]] = field(default_factory=list)
    replays: list[tuple[mx.array, Replay]] = field(default_factory=list)
    knows_lengths: bool = False
    _sources: list[Replay | None] = field(default_factory=list)

    def end(self, after: Sequence[mx.array | None], width: int) -> None:
        """Find the input of each state array. after: the arrays now. width: of the forward."""
        self.after = list(after)
        convolved = [(x, num_held) for x, num_held in self.convolved if x.shape[1] == num_held + width]
        self._sources = []
        for array in self.after:
            source = next((replay for computed, replay in self.replays if computed is array), None)
            for at, (x, num_held) in enumerate(convolved):
                # A layer with several convolutions runs them in the order of their arrays.
                if source is None and array is not None and array.shape == (len(x), num_held, x.shape[-1]):
                    source = partial(_last_columns, convolved.pop(at)[0], num_held)
                    break
            self._sources.append(source)

    def drop_padding(self, fed: mx.array, width: int) -> list[mx.array | None]:
        """Return the state's arrays without padding in the convolutions' inputs. fed: (rows,) tokens fed."""
        for idx, source in enumerate(self._sources):
            if isinstance(source, partial):
                self.after[idx] = source(fed, width)
        return list(self.after)

    def at(self, idx: int, kept: Sequence[int], widths: Sequence[int]) -> mx.array:
        """Return an array of the state after the first kept[r] tokens of row r: (rows, ...).

        widths: (rows,) tokens that were fed.
        Raises NotTracedError if it is not known how the layer computed it.
        """
        before, after, source = self.before[idx], self.after[idx], self._sources[idx]
        assert after is not None
        if all(num in (0, width) for num, width in zip(kept, widths, strict=True)):
            return _where_rows(mx.array(list(kept)) > 0, after, before)
        if source is None:
            raise NotTracedError("it is not known how a layer computes its state")
        return source(mx.array(list(kept)), max(kept))


def _last_columns(convolved: mx.array, num_held: int, kept: mx.array, _: int) -> mx.array:
    """Return the columns that a convolution needs after the first kept[r] tokens of row r."""
    places = kept[:, None] + mx.arange(num_held)
    return mx.take_along_axis(convolved, places[..., None], axis=1)


class NotTracedError(Exception):
    """A state cannot be computed again, because what it was computed from was not traced."""


class Tracer:
    """Notes the inputs from which each layer computes its state, while a forward's graph is being built.

    current: the trace of the layer that last read its state.
    """

    def __init__(self, shared: RowLengths) -> None:
        self.current: LayerTrace | None = None
        self._fed = shared.fed

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace until the end of the block."""
        replaced: list[tuple[Any, str, Any]] = [
            (gated_delta, "gated_delta_ops", self._delta),
            (gated_delta, "gated_delta_kernel", self._delta),
            (ssm, "ssm_attn", self._ssm),
            (bailing_hybrid, "recurrent_gla", partial(self._gated_linear, True)),
            (bailing_moe_linear, "recurrent_gla", partial(self._gated_linear, False)),
            (Conv1d, "__call__", self._convolution),
        ]
        originals = [getattr(owner, name) for owner, name, _ in replaced]
        try:
            for (owner, name, make), original in zip(replaced, originals, strict=True):
                setattr(owner, name, make(original))
            yield
        finally:
            for (owner, name, _), original in zip(replaced, originals, strict=True):
                setattr(owner, name, original)
            self.current = None

    def _convolution(self, original: Any) -> Any:
        def call(module: Conv1d, x: mx.array) -> mx.array:
            if self.current:
                self.current.convolved.append((x, module.weight.shape[1] - 1))
            result: mx.array = original(module, x)
            return result

        return call

    def _delta(self, original: Any) -> Any:
        def call(
            q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array,
            state: mx.array, mask: mx.array | None = None,
        ) -> tuple[mx.array, mx.array]:  # fmt: skip
            result: tuple[mx.array, mx.array] = original(q, k, v, g, beta, state, mask)

            def replay(kept: mx.array, num: int) -> mx.array:
                inputs = (array[:, :num] for array in (q, k, v, g, beta))
                again: mx.array = original(*inputs, state, mx.arange(num) < kept[:, None])[1]
                return again

            if self.current:
                self.current.replays.append((result[1], replay))
            return result

        return call

    def _trace_run(
        self, run: Callable[[int, mx.array | None], tuple[mx.array, mx.array]], width: int
    ) -> tuple[mx.array, mx.array]:
        """Run a recurrence over all tokens, and trace how to run it over fewer.

        run: given a number of tokens, and how many of them each row has, returns outputs and state.
        """
        result = run(width, self._fed)
        if self.current:
            self.current.replays.append((result[1], lambda kept, num: run(num, kept)[1]))
        return result

    def _ssm(self, original: Any) -> Any:
        def call(
            x: mx.array, A_log: mx.array, B: mx.array, C: mx.array, D: mx.array, dt: mx.array,
            dt_bias: mx.array, state: mx.array | None = None,
            time_step_limit: tuple[float, float] = (0.001, 100.0),
            mask: mx.array | None = None, lengths: mx.array | None = None, step: int = 256,
        ) -> tuple[mx.array, mx.array]:  # fmt: skip
            width = x.shape[1]
            if width == 1:
                alone: tuple[mx.array, mx.array] = original(
                    x, A_log, B, C, D, dt, dt_bias, state, time_step_limit, mask, lengths, step
                )
                return alone

            def run(num: int, real: mx.array | None) -> tuple[mx.array, mx.array]:
                if width > MAX_SINGLE_STEPS:
                    kept_mask = None if real is None else mx.arange(num) < real[:, None]
                    y, after = original(
                        x[:, :num], A_log, B[:, :num], C[:, :num], D, dt[:, :num], dt_bias, state,
                        time_step_limit, kept_mask, real, step,
                    )  # fmt: skip
                    return y, after if real is None else _where_rows(real > 0, after, state)

                def take(one: slice, before: mx.array | None) -> tuple[mx.array, mx.array]:
                    taken: tuple[mx.array, mx.array] = ssm.ssm_update(
                        x[:, one],
                        A_log,
                        B[:, one],
                        C[:, one],
                        D,
                        dt[:, one],
                        dt_bias,
                        before,
                        time_step_limit,
                    )
                    return taken

                outputs, after = _by_steps(take, num, real, state)
                return mx.concatenate(outputs, axis=1), after

            # A model may pass a mask but no lengths.
            return self._trace_run(run, width)

        return call

    def _gated_linear(self, takes_mask: bool, original: Any) -> Any:
        def call(
            q: mx.array, k: mx.array, v: mx.array, g: mx.array, scale: float,
            h: mx.array | None = None, **_: Any,
        ) -> tuple[mx.array, mx.array]:  # fmt: skip
            # A mask that the model passes is made from the same widths.
            width = q.shape[2]

            def some(tokens: slice, state: mx.array | None, **options: Any) -> tuple[mx.array, mx.array]:
                inputs = (array[:, :, tokens] for array in (q, k, v))
                result: tuple[mx.array, mx.array] = original(*inputs, g=g, scale=scale, h=state, **options)
                return result

            def run(num: int, real: mx.array | None) -> tuple[mx.array, mx.array]:
                if takes_mask and width > MAX_SINGLE_STEPS:
                    real_mask = None if real is None else mx.arange(num) < real[:, None]
                    return some(slice(num), h, mask=real_mask)
                outputs, after = _by_steps(some, num, real, h)
                return mx.concatenate(outputs, axis=2), after

            return self._trace_run(run, width)

        return call


def _by_steps(
    take: Callable[[slice, mx.array | None], tuple[mx.array, mx.array]],
    num: int,
    real: mx.array | None,
    state: mx.array | None,
) -> tuple[list[mx.array], mx.array]:
    """Take a step per token; return the outputs, and the state after the first real[r] tokens of row r.

    take: given a token's place and the state before it, None for zeros, returns its output and the state.
    """
    outputs = []
    for at in range(num):
        y, then = take(slice(at, at + 1), state)
        outputs.append(y)
        state = then if real is None else _where_rows(real > at, then, state)
    assert state is not None
    return outputs, state


def _where_rows(rows: mx.array, new: mx.array, old: mx.array | None) -> mx.array:
    """Take some rows, (rows,) booleans, from a new state, and all others from the old one; None is zeros."""
    old = mx.zeros_like(new) if old is None else old
    return mx.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)


class StateHistory:
    """The last ragged forward, so that each row's state can go back into it, at most once.

    What follows may be kept too: references to the states after each of up to MAX_LATER_STATES more forwards.

    caches: of all layers that keep state.
    """

    def __init__(self, caches: Sequence[RaggedStateCache], shared: RowLengths) -> None:
        """Begin with the forward that shared describes. Run it in the block of trace()."""
        self._caches = caches
        self._shared = shared
        self._traces = [LayerTrace(list(cache.cache)) for cache in caches]
        self._starts, self._widths = list(shared.lengths), list(shared.widths)
        # By row: its place in the traces; None if it joined later, or has gone back already.
        self._places: list[int | None] = list(range(len(self._starts)))
        self._kept: dict[int, int] = {}
        # After each forward that followed: the arrays of each cache.
        self._later: list[list[list[mx.array | None]]] = []
        self._is_followed = True

    def follow(self, keeps_state: bool) -> None:
        """Note that all rows were fed one more token. keeps_state: whether they may go back to that token."""
        if not keeps_state or len(self._later) == MAX_LATER_STATES:
            self._is_followed = False
        # Rows that joined or moved have other places in the arrays than in the traces.
        elif self._is_followed and self._places == list(range(len(self._starts))):
            self._later.append([list(cache.cache) for cache in self._caches])
        else:
            self._is_followed = False

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Trace the forward that is built in the block."""
        tracer = Tracer(self._shared)
        for cache, trace in zip(self._caches, self._traces, strict=True):
            cache.trace, cache.tracer = trace, tracer
        try:
            # A row of one token goes back to the state before or after it, which are at hand.
            if self._shared.width == 1:
                yield
            else:
                with tracer.tracing():
                    yield
            for cache, trace in zip(self._caches, self._traces, strict=True):
                trace.end(cache.cache, self._shared.width)
                # A layer that does not ask keeps the last columns, padding or not.
                if self._shared.fed is not None and not trace.knows_lengths:
                    cache.cache = trace.drop_padding(self._shared.fed, self._shared.width)
        finally:
            for cache in self._caches:
                cache.trace = cache.tracer = None

    def min_length(self, row: int) -> int | None:
        """Return the shortest length that a row can go back to; None if it cannot go back."""
        place = self._places[row]
        return None if place is None else self._starts[place]

    def go_back(self, row: int, length: int) -> int:
        """Let a row go back to a length of at least min_length; return the length that it then has.

        That is less than length if length is past the end of the traced forward and of those kept after it.
        """
        place = self._places[row]
        assert place is not None
        self._kept[row] = min(length - self._starts[place], self._widths[place] + len(self._later))
        return self._starts[place] + self._kept[row]

    def stay(self, row: int) -> None:
        """Forget how a row's state was computed: the row will not go back."""
        if row not in self._kept:
            self._places[row] = None

    def add(self) -> None:
        """Append a row, which cannot go back."""
        self._places.append(None)

    def remove(self, row: int) -> None:
        """Remove a row, after apply(); the last row takes its index."""
        self._places[row] = self._places[-1]
        self._places.pop()

    @property
    def is_over(self) -> bool:
        """Whether no row can go back any more."""
        return all(place is None for place in self._places)

    def apply(self) -> None:
        """Compute the states of the rows that went back, all at once."""
        if not self._kept:
            return
        kept = [0] * len(self._starts)
        for row, num in self._kept.items():
            kept[self._place(row)] = num
        places = mx.array([place or 0 for place in self._places])
        goes_back = mx.array([row in self._kept for row in range(len(self._places))])
        is_same = self._places == list(range(len(self._starts)))
        beyond = [max(0, num - width) for num, width in zip(kept, self._widths, strict=True)]
        within = [num - more for num, more in zip(kept, beyond, strict=True)]
        for at, (cache, trace) in enumerate(zip(self._caches, self._traces, strict=True)):
            for idx, now in enumerate(cache.cache):
                if now is None or trace.after[idx] is None:
                    continue
                then = trace.at(idx, within, self._widths)
                for more in set(beyond) - {0}:
                    later = self._later[more - 1][at][idx]
                    assert later is not None
                    then = _where_rows(mx.array(beyond) == more, later, then)
                cache.cache[idx] = _where_rows(goes_back, then if is_same else then[places], now)
        for row in self._kept:
            self._places[row] = None
        self._kept = {}

    def _place(self, row: int) -> int:
        place = self._places[row]
        assert place is not None
        return place
