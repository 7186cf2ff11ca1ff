"""Measure how much memory a model needs besides its weights, from what its caches really hold.

MLX dispatches operations ahead of the device, and keeps what they used until they have run. How far it gets
is a matter of timing. So forward passes are measured under a memory limit of 0, where MLX waits after nearly
every operation and takes no more than they need. budget.py limits how far MLX may run ahead.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import Caches, arrays_of, is_recurrent, leaves, make_caches
from reprise.engine.kv_cache.rows import evaluate, make_batched_rows
from reprise.engine.kv_cache.sliding_window import window_columns

DEVICE_SHARE = 0.9
"""Share of a GPU's recommended working set, or of its memory."""

HOST_SHARE = 0.75
"""Share of the machine's memory; the rest is for the process itself and for other programs."""

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_bytes() -> int:
    """Return the bytes to use by default: a share of the GPU's memory, or else of the machine's."""
    if mx.default_device().type == mx.DeviceType.gpu:
        known = mx.device_info()
        for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if name in known:
                return int(DEVICE_SHARE * int(known[name]))
    return int(HOST_SHARE * min(host_bytes(), _container_bytes()))


def working_set_bytes() -> int | None:
    """Return the bytes that the system recommends Metal to use at most; None without Metal."""
    return int(mx.device_info()["max_recommended_working_set_size"]) if mx.metal.is_available() else None


def wire_weights() -> None:
    """Make Metal keep all arrays that exist now, which are the weights, resident until the process ends.

    Later arrays are not wired. mlx-lm wires everything, up to what the GPU recommends; with that much, caches
    that grow have been reported to crash macOS (mlx-lm issues 883 and 1666, mlx issue 3186).
    Raises ModelError if there is no Metal, or the system does not let that much be wired.
    """
    limit = working_set_bytes()
    if limit is None:
        raise ModelError("--wire-weights has an effect with Metal only, on a Mac: start without it")
    # Buffers in MLX's cache would be wired too.
    mx.clear_cache()
    num_bytes = mx.get_active_memory()
    if num_bytes > limit:
        raise ModelError(
            f"--wire-weights: the weights take {num_bytes / 2**20:,.0f} MiB, and this Mac wires at most "
            f"{limit / 2**20:,.0f} MiB: start without it, or raise the limit with "
            f"sudo sysctl iogpu.wired_limit_mb={-(-num_bytes // 2**20)}"
        )
    mx.set_wired_limit(num_bytes)


def host_bytes() -> int:
    """Return the bytes of the machine's memory, whatever limit a container has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_bytes() -> float:
    for path in CGROUP_LIMITS:
        try:
            return int(Path(path).read_text())
        # There is no such file, or it holds the word "max".
        except (OSError, ValueError):
            continue
    return float("inf")


PROBE_TOKENS = 16
"""More than 8: up to there Metal has an attention kernel of its own, which never writes scores to memory."""

SEEN_TOKENS = 1024
"""Tokens that the caches hold when the growth of a forward pass with them is measured. They are zeros."""

RECURRENT_TOKENS = 256
"""Recurrent layers compute several tokens at once in blocks of up to this many, whose memory is quadratic."""

MASK_BYTES = 2
"""Of a mask, per token fed and token in the caches. The probes need none, rows of different lengths do."""

FLOAT_BYTES, HELD_COPIES = 4, 3
"""Bytes of a number, and copies of what a layer computes that are held at a time, where that is estimated."""

HELD_EXPERTS, HELD_HEADS = 16, 128
"""Experts that compute a token, and heads of a layer, at most."""

Note = Callable[[int], None]

Cells = Callable[[int], int]
"""Returns the slots times columns of the buffers of a sliding window of this many tokens."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a row's caches, and of a forward pass while it runs.

    fixed_bytes: per row, whatever its length: recurrent state before and after a forward pass.
    token_bytes: per token in the caches that keep all tokens.
    windows: (bytes per token, tokens) of each kind of sliding window.
    layer_bytes: per token, in the layer whose cache takes the most bytes.
    fed_bytes: of a forward pass, per token fed.
    seen_bytes: of a forward pass, per token fed and token in the caches: masks, and the scores of attention
        where they are written to memory.
    logits_bytes: per position whose logits are computed.
    trace_bytes: per row, of the traces that a verification step keeps to roll recurrent state back.
    trace_token_bytes: of these traces, per token that the verification step feeds.
    """

    fixed_bytes: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...] = ()
    layer_bytes: int = 0
    fed_bytes: int = 0
    seen_bytes: float = 0.0
    logits_bytes: int = 0
    trace_bytes: int = 0
    trace_token_bytes: int = 0

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Footprint":
        """Make a footprint from its fields, as JSON has them. Raises TypeError or ValueError."""
        windows = tuple((int(each), int(window)) for each, window in facts["windows"])
        return cls(**(facts | {"windows": windows}))

    def row_bytes(self, num_tokens: int, chunk_tokens: int) -> int:
        """Return the bytes of a row's caches for num_tokens, when fed up to chunk_tokens at a time."""
        windows = self.window_bytes(lambda window: window_columns(num_tokens, window, chunk_tokens))
        return self.fixed_bytes + self.token_bytes * num_tokens + windows

    def window_bytes(self, cells: Cells) -> int:
        """Return the bytes of the buffers of sliding windows. cells: returns the cells of a window."""
        return sum(each * cells(window) for each, window in self.windows)

    def growth_bytes(self, num_cells: int, window_cells: Cells) -> int:
        """Return the bytes that growing buffers take beside the grown ones, while both exist.

        Layers grow one after the other, and each has its old and its new buffer for a moment.
        num_cells: slots times columns of the buffers that keep all tokens.
        """
        cells = [window_cells(window) for _, window in self.windows]
        if self.token_bytes:
            cells.append(num_cells)
        return self.layer_bytes * max(cells, default=0)

    def forward_bytes(self, num_fed: int, num_seen: int) -> int:
        """Return the bytes that a forward pass over num_fed tokens needs.

        num_seen: the sum, over these tokens, of the columns that each attends to.
        """
        return ceil(num_fed * self.fed_bytes + num_seen * self.seen_bytes)


def measure(
    model: Any, kv_bits: int | None = None, batched: bool = False, note: Note = lambda _: None
) -> Footprint:
    """Measure a model's footprint: feed a few tokens, and look at the caches and at MLX's peak memory.

    batched: whether rows share a forward pass. note: called after most forward passes with the tokens fed;
        may raise.
    """
    caches = make_caches(model, kv_bits)
    trace_bytes = trace_token_bytes = 0
    with _tight_memory():
        short, short_logits = _probe(model, caches, note)
        kept = _count_kept(caches)
        fixed_bytes = kept.fixed_bytes
        for cache in leaves(caches):
            _lengthen(cache, SEEN_TOKENS)
        long, long_logits = _probe(model, caches, note)
        # The logits may hide the growth. Without them the last layer's attention is not computed.
        growth = max(0, long - short, long_logits - short_logits)
        fed = short / PROBE_TOKENS
        if any(is_recurrent(cache) for cache in leaves(caches)):
            whole = _forward_bytes(model, make_caches(model, kv_bits), RECURRENT_TOKENS)
            fed = max(fed, whole / RECURRENT_TOKENS)
            # Rows apart keep a snapshot.
            trace_bytes = fixed_bytes // 2
            if batched:
                trace_bytes, trace_token_bytes = _trace_bytes(model, kv_bits)
    return replace(
        kept,
        fed_bytes=ceil(fed),
        seen_bytes=growth / (PROBE_TOKENS * SEEN_TOKENS) + MASK_BYTES,
        logits_bytes=ceil(short_logits / PROBE_TOKENS),
        trace_bytes=trace_bytes,
        trace_token_bytes=trace_token_bytes,
    )


def estimate(model: Any, kv_bits: int | None, vocab_size: int) -> Footprint:
    """Estimate a model's footprint without computing anything: rather too much than too little.

    What the caches keep is exact. A forward pass is taken to hold, of each layer, all that its matrices give.
    """
    caches = make_caches(model, kv_bits)
    # Only shapes are read.
    model(mx.ones((1, PROBE_TOKENS), mx.int32), cache=caches)
    kept = _count_kept(caches)
    flat: Any = tree_flatten(model.parameters())
    matrices = [array for _, array in flat if array.ndim > 1]
    outputs = sum(array.shape[-2] * (HELD_EXPERTS if array.ndim > 2 else 1) for array in matrices)
    heads = getattr(getattr(model, "args", None), "num_attention_heads", None) or HELD_HEADS
    return replace(
        kept,
        fed_bytes=HELD_COPIES * FLOAT_BYTES * outputs // max(1, len(caches)) + kept.fixed_bytes,
        seen_bytes=HELD_COPIES * FLOAT_BYTES * heads + MASK_BYTES,
        logits_bytes=HELD_COPIES * FLOAT_BYTES * vocab_size,
        trace_bytes=kept.fixed_bytes // 2,
    )


def _count_kept(caches: Caches) -> Footprint:
    """Return the bytes that caches keep, by the shapes of their arrays."""
    fixed_bytes, token_bytes, layer_bytes = 0, 0, 0
    windows: dict[int, int] = {}
    for cache in leaves(caches):
        num_bytes = sum(array.nbytes for array in arrays_of(cache))
        keys = getattr(cache, "keys", None)
        if keys is None:
            fixed_bytes += 2 * num_bytes
            continue
        each = ceil(num_bytes / (keys[0] if isinstance(keys, tuple | list) else keys).shape[-2])
        layer_bytes = max(layer_bytes, each)
        if window := getattr(cache, "window", None) or getattr(cache, "max_size", None):
            windows[window] = windows.get(window, 0) + each
        else:
            token_bytes += each
    of_windows = tuple((each, window) for window, each in windows.items())
    return Footprint(fixed_bytes, token_bytes, of_windows, layer_bytes)


def _trace_bytes(model: Any, kv_bits: int | None) -> tuple[int, int]:
    """Return the bytes that a verification step leaves, per row and per token fed.

    The state after the step is part of them, the state before it is not.
    """
    rows = make_batched_rows(model)
    for _ in range(2):
        rows.add(make_caches(model, kv_bits), 0)
    left = []
    for width in (PROBE_TOKENS // 2, PROBE_TOKENS):
        logits = rows.forward(mx.ones((2, 1), mx.int32))
        mx.eval(logits, [array for row in range(2) for array in rows.state(row) if array is not None])
        del logits
        before = mx.get_active_memory()
        # With a mask, as it has for rows of different widths.
        mx.eval(rows.forward_ragged([[1] * width, [1] * (width - 1)]))
        left.append(max(0, mx.get_active_memory() - before))
        for row, length in enumerate(rows.lengths):
            rows.roll_back(row, length)
    token_bytes = max(0, left[1] - left[0]) / PROBE_TOKENS
    return ceil(max(0, left[0] / 2 - token_bytes * PROBE_TOKENS / 2)), ceil(token_bytes)


@contextmanager
def _tight_memory() -> Iterator[None]:
    """Make MLX wait for what it has dispatched rather than run ahead."""
    before = mx.set_memory_limit(0)
    try:
        yield
    finally:
        mx.set_memory_limit(before)


def _probe(model: Any, caches: Caches, note: Note) -> tuple[int, int]:
    """Return the peak bytes of a forward pass over PROBE_TOKENS, without the logits and with them."""
    found = []
    # The first forward pass may have to grow the caches.
    for num_tokens in (1, PROBE_TOKENS):
        for with_logits in (False, True):
            found.append(_forward_bytes(model, caches, num_tokens, with_logits))
            note(num_tokens)
    return found[2], found[3]


def _forward_bytes(model: Any, caches: Caches, num_tokens: int, with_logits: bool = False) -> int:
    """Return the peak bytes of a forward pass, besides what the caches keep.

    with_logits: whether the logits of every position are computed, as in a verification step.
    """
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    logits = model(mx.ones((1, num_tokens), mx.int32), cache=caches)
    if with_logits:
        mx.eval(logits)
    evaluate(caches)
    del logits
    return max(0, mx.get_peak_memory() - max(before, mx.get_active_memory()))


def _lengthen(cache: Any, num_tokens: int) -> None:
    """Add num_tokens zeros to a cache of keys and values, if it is one."""
    if getattr(cache, "keys", None) is None or not hasattr(cache, "update_and_fetch"):
        return
    like = []
    for held in (cache.keys, cache.values):
        if isinstance(held, tuple | list):
            packed, scales, _ = held
            like.append(((*packed.shape[:2], num_tokens, packed.shape[-1] * 32 // cache.bits), scales.dtype))
        else:
            like.append(((*held.shape[:2], num_tokens, held.shape[-1]), held.dtype))
    mx.eval(cache.update_and_fetch(*(mx.zeros(shape, dtype) for shape, dtype in like)))
