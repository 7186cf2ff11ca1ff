"""Estimate the bytes that rows and prompts need, from the bytes of a model's caches and forward passes.

A Footprint holds the bytes per token, per row and of a forward pass. It is measured once at load, or guessed
until there is time to measure. An Estimator sums the footprints of a step:

    estimate = caches + the growth of one layer + working memory
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.columns import GROWTH_TOKENS, max_slots, round_columns
from reprise.engine.kv_cache.groups import count_cells
from reprise.engine.kv_cache.per_row import Caches, count_bytes, is_recurrent, leaves, make_caches
from reprise.engine.kv_cache.rows import Sharing, evaluate, make_batched_rows
from reprise.engine.kv_cache.sliding_window import SLACK_TOKENS, window_columns
from reprise.engine.memory.prefill_plan import PROMPT_LOGPROBS_CHUNK
from reprise.engine.sampling.logits import ALL_NEEDS, LIKELIHOOD_ARRAYS, sampling_bytes

PROBE_TOKENS = 16
"""More than 8: up to there Metal has an attention kernel of its own, which never writes scores to memory."""

SEEN_TOKENS = 1024
"""Tokens that the caches hold when the growth of a forward pass with them is measured. They are zeros."""

RECURRENT_TOKENS = 256
"""Recurrent layers compute several tokens at once in blocks of up to this many, whose memory is quadratic."""

MASK_BYTES = 2
"""Bytes of a mask per (token fed, token in the caches). Probes need no mask, rows of different lengths do."""

HELD_BYTES = 3 * 4
"""Bytes of all copies of a number that a layer computes, where that is guessed."""

HELD_EXPERTS, HELD_HEADS = 16, 128
"""Experts that compute a token, and heads of a layer, at most."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a row's caches and of a running forward pass.

    fixed_bytes: per row, whatever its length: recurrent state before and after a forward pass.
    token_bytes: per token in the caches that keep all tokens.
    windows: (bytes per token, tokens) of each kind of sliding window.
    layer_bytes: per token, in the layer whose cache takes the most bytes.
    fed_bytes: of a forward pass, per token fed.
    seen_bytes: of a forward pass, per (token fed, token in the caches) pair: masks, and attention scores
        where they are written to memory.
    logits_bytes: per position whose logits are computed.
    trace_bytes: per row, of the traces with which a verification step can roll recurrent state back.
    trace_token_bytes: of these traces, per token fed.
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
        """Make a footprint from its JSON fields. Raises TypeError or ValueError."""
        windows = tuple((int(each), int(window)) for each, window in facts["windows"])
        return cls(**(facts | {"windows": windows}))

    def row_bytes(self, num_tokens: int, chunk_tokens: int) -> int:
        """Return the bytes of a row's caches for num_tokens, when fed up to chunk_tokens at a time."""
        return self.bytes_of(num_tokens, self.window_cells(num_tokens, chunk_tokens)) + self.fixed_bytes

    def bytes_of(self, num_cells: int, window_cells: Mapping[int, int]) -> int:
        """Return the bytes of buffers with these cells (slots times columns). window_cells: per window."""
        windows = sum(each * window_cells[window] for each, window in self.windows)
        return self.token_bytes * num_cells + windows

    def window_cells(self, num_tokens: int, chunk_tokens: int, num_slots: int = 1) -> dict[int, int]:
        """Return the cells of the buffers of each window that num_slots rows share, see row_bytes()."""
        return {one: num_slots * window_columns(num_tokens, one, chunk_tokens) for _, one in self.windows}

    def growth_bytes(self, num_cells: int, window_cells: Mapping[int, int]) -> int:
        """Return the bytes of a layer's old buffer while it grows. Arguments: see bytes_of()."""
        cells = [*window_cells.values(), num_cells if self.token_bytes else 0]
        return self.layer_bytes * max(cells)

    def forward_bytes(self, num_fed: int, num_seen: int) -> int:
        """Return the bytes that a forward pass over num_fed tokens needs.

        num_seen: the sum, over these tokens, of the columns that each attends to.
        """
        return ceil(num_fed * self.fed_bytes + num_seen * self.seen_bytes)


def measure(
    model: Any,
    kv_bits: int | None = None,
    batched: bool = False,
    note: Callable[[int], None] = lambda _: None,
) -> Footprint:
    """Measure a model's footprint: feed a few tokens, and look at the caches and at MLX's peak memory.

    batched: whether rows share a forward pass. note: called with the tokens fed after most passes; may raise.
    """
    caches = make_caches(model, kv_bits)
    trace_bytes = trace_token_bytes = 0
    # So MLX waits after nearly every operation. Else it keeps what those used that have not run yet.
    usual = mx.set_memory_limit(0)
    try:
        short, short_logits = _probe(model, caches, note)
        kept = _count_kept(caches)
        for cache in leaves(caches):
            _lengthen(cache, SEEN_TOKENS)
        long, long_logits = _probe(model, caches, note)
        fed = short / PROBE_TOKENS
        if any(is_recurrent(cache) for cache in leaves(caches)):
            whole = _forward_bytes(model, make_caches(model, kv_bits), RECURRENT_TOKENS)
            fed = max(fed, whole / RECURRENT_TOKENS)
            # Rows apart keep a snapshot.
            trace_bytes = kept.fixed_bytes // 2
            if batched:
                trace_bytes, trace_token_bytes = _trace_bytes(model, kv_bits)
    finally:
        mx.set_memory_limit(usual)
    # The logits may hide the growth. Without them the last layer's attention is not computed.
    growth = max(0, long - short, long_logits - short_logits)
    return replace(
        kept,
        fed_bytes=ceil(fed),
        seen_bytes=growth / (PROBE_TOKENS * SEEN_TOKENS) + MASK_BYTES,
        logits_bytes=ceil(short_logits / PROBE_TOKENS),
        trace_bytes=trace_bytes,
        trace_token_bytes=trace_token_bytes,
    )


def guess(model: Any, kv_bits: int | None, vocab_size: int) -> Footprint:
    """Guess a model's footprint from above, without computing anything.

    The caches' bytes are exact. A forward pass is assumed to hold the outputs of all matrices of a layer.
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
        fed_bytes=HELD_BYTES * outputs // max(1, len(caches)) + kept.fixed_bytes,
        seen_bytes=HELD_BYTES * heads + MASK_BYTES,
        logits_bytes=HELD_BYTES * vocab_size,
        trace_bytes=kept.fixed_bytes // 2,
    )


def _count_kept(caches: Caches) -> Footprint:
    kept = count_bytes(caches)
    windows = tuple((each, window) for window, each in kept.windows.items())
    return Footprint(2 * kept.fixed_bytes, kept.token_bytes, windows, kept.layer_bytes)


def _trace_bytes(model: Any, kv_bits: int | None) -> tuple[int, int]:
    """Return the bytes that a verification step leaves, per row and per token fed.

    The state after the step is included, the state before it is not.
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


def _probe(model: Any, caches: Caches, note: Callable[[int], None]) -> tuple[int, int]:
    """Return the peak bytes of a forward pass over PROBE_TOKENS, without the logits and with them."""
    found = []
    # The first forward pass may have to grow the caches.
    for num_tokens in (1, PROBE_TOKENS):
        for with_logits in (False, True):
            found.append(_forward_bytes(model, caches, num_tokens, with_logits))
            note(num_tokens)
    return found[2], found[3]


def _forward_bytes(model: Any, caches: Caches, num_tokens: int, with_logits: bool = False) -> int:
    """Return the peak bytes of a forward pass, besides what the caches keep. with_logits: of all tokens."""
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


ROW_SAMPLING_BYTES = 16 + 8
"""Bytes of a row's penalties and biases per token of the vocabulary. Penalties have two arrays, both twice
while they change; a row may have another bias for its first tokens. Every row counts as having both."""

STEADY_TOKENS = 32
"""Tokens by which rows may lengthen, while none joins or leaves, before a step is estimated again."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory that one model, the target or the draft model, needs for its rows.

    sharing: what its rows share.
    width: maximum tokens that a decoding row feeds in one step.
    ids_per_token, spare_ids: n target tokens take at most n * ids_per_token + spare_ids tokens of this model.
    max_ids: the longest text, in its own tokens; None for no limit.
    """

    footprint: Footprint
    sharing: Sharing
    width: int
    ids_per_token: int = 1
    spare_ids: int = 0
    max_ids: int | None = None

    def num_ids(self, num_tokens: int) -> int:
        """Return the most tokens of this model that a text of num_tokens target tokens can take."""
        num_ids = num_tokens * self.ids_per_token + self.spare_ids
        return num_ids if self.max_ids is None else min(num_ids, self.max_ids)


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that one sequence of num_tokens needs.

    prompt_logprobs: whether log probabilities of its prompt are wanted.
    windows: window -> columns of the sequence's own buffers after the step, if known.
    vision_bytes: memory of its images until they are fed.
    """

    num_tokens: int
    prompt_logprobs: bool = True
    windows: dict[int, int] = field(default_factory=dict)
    vision_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a step needs. operation: the most that one of its operations takes."""

    total: int = 0
    operation: int = 0


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates steps of models, as upper bounds. Lengths are in tokens of the target model.

    models: the target model and, if any, the draft model. vocab_size: of the target model.
    chunk_tokens: prompt tokens fed at once for which memory is reserved.
    ahead_tokens: maximum tokens that rows gain until the next estimate, before they are rolled back.
    whole_tokens: the most tokens of an image, which must be fed at once; 0 without images.
    """

    models: SequenceOf[ModelMemory]
    vocab_size: int
    chunk_tokens: int
    ahead_tokens: int
    whole_tokens: int = 0

    def step(
        self,
        rows: SequenceOf[Demand],
        complete: SequenceOf[Demand],
        others: SequenceOf[Demand] = (),
        chunk_tokens: int | None = None,
        widest_chunk: int | None = None,
        members: BatchedRows | None = None,
    ) -> Estimate:
        """Estimate a step's memory while it runs and while prompts join the rows.

        rows: those that decode. complete: prompts that the step completes and that then join.
        others: all other prompts, with the tokens that their caches hold after the step.
        chunk_tokens: maximum tokens of a chunk in this step. widest_chunk: of all chunks so far, which sizes
            the buffers of sliding windows. Both are self.chunk_tokens unless given.
        members: the target's rows as they are now, if they share buffers and this is their next step.
        """
        if not (rows or complete or others):
            return Estimate()
        prompts = [*complete, *others]
        kept = (len(rows) + len(prompts)) * self.vocab_size * ROW_SAMPLING_BYTES
        kept += sum(one.vision_bytes for one in prompts)
        logprobs_tokens = 0
        if any(one.prompt_logprobs for one in prompts):
            logprobs_tokens = max(PROMPT_LOGPROBS_CHUNK, self.whole_tokens)
        chunk = self.chunk_tokens if chunk_tokens is None else chunk_tokens
        widest = self.chunk_tokens if widest_chunk is None else widest_chunk
        growth = forward = logits = 0
        for model in self.models:
            if model is self.models[0]:
                held, growing = self._caches(model, rows, complete, others, widest, members)
                passes = self._forward_bytes(model, rows, prompts, chunk)
            else:
                # Draft prefill takes the text of rows. The others' has not begun: see draft_prefill_bytes().
                held, growing = self._caches(model, rows, complete, (), widest, None)
                passes = self._forward_bytes(model, rows, [*rows, *complete], self.chunk_tokens)
            kept, growth, forward = kept + held, max(growth, growing), max(forward, passes)
            # Rows that have a forward each have their logits padded, and then joined.
            num_copies = 1 if model.sharing or len(rows) == 1 else 3
            num_positions = max(num_copies * len(rows) * model.width, logprobs_tokens)
            logits = max(logits, num_positions * model.footprint.logits_bytes)
        num_arrays = max(ALL_NEEDS.num_arrays if rows else 0.0, LIKELIHOOD_ARRAYS)
        num_draws = max(len(rows) * self.models[0].width, logprobs_tokens)
        for_sampling = sampling_bytes(num_draws, num_arrays, self.vocab_size)
        looking = max((one.vision_bytes for one in prompts), default=0)
        # No operation of sampling takes more than half of what a portion does; half of a growth is its keys.
        operation = max(forward, for_sampling // 2, growth // 2, looking)
        return Estimate(kept + growth + max(forward, logits + for_sampling), operation)

    def _caches(
        self,
        model: ModelMemory,
        rows: SequenceOf[Demand],
        complete: SequenceOf[Demand],
        others: SequenceOf[Demand],
        widest_chunk: int,
        members: BatchedRows | None,
    ) -> tuple[int, int]:
        """Return the bytes of a model's caches and of a growing layer. Arguments: see step()."""
        footprint, joined = model.footprint, [*rows, *complete]
        kept = len(rows) * (footprint.trace_bytes + model.width * footprint.trace_token_bytes)
        growing = [0]
        for one in others if model.sharing else [*joined, *others]:
            columns = self._prompt_columns(model, one.num_tokens)
            windows = footprint.window_cells(columns, widest_chunk) | one.windows
            kept += footprint.bytes_of(columns, windows) + footprint.fixed_bytes
            growing.append(footprint.growth_bytes(columns, windows))
        if not model.sharing:
            return kept, sum(growing)
        if not joined:
            return kept, max(growing)
        longest = model.num_ids(max(_lengths(joined))) + self.ahead_tokens + SLACK_TOKENS

        def shared_windows(joining: SequenceOf[Demand]) -> dict[int, int]:
            """Return the cells of the windows that rows share, once these prompts joined them."""
            if members is None:
                return footprint.window_cells(longest, model.width, max_slots(len(rows) + len(joining)))
            joins, width = _lengths(joining), model.width + STEADY_TOKENS
            return {each: members.window_cells(each, joins, width) for _, each in footprint.windows}

        # Prompts join one by one, and until then each has buffers of its own. Of those that have not yet, the
        # rows' buffers later take at least what each has now, but for what is to spare in its own.
        own = sum(self._prompt_columns(model, one.num_tokens) for one in complete)
        later = GROWTH_TOKENS * max(0, len(complete) - 1)
        cells = max(
            self.num_cells(model, _lengths(rows)) + own, self.num_cells(model, _lengths(joined)) + later
        )
        windows, own_windows = shared_windows(complete), footprint.window_cells(longest, widest_chunk)
        apart = sum(footprint.bytes_of(0, own_windows | one.windows) for one in complete)
        kept += footprint.token_bytes * cells + footprint.fixed_bytes * len(joined)
        kept += max(footprint.bytes_of(0, windows), footprint.bytes_of(0, shared_windows(())) + apart)
        return kept, max(*growing, footprint.growth_bytes(cells, windows))

    def _forward_bytes(
        self, model: ModelMemory, rows: SequenceOf[Demand], prompts: SequenceOf[Demand], chunk_tokens: int
    ) -> int:
        """Return the bytes of a step's largest forward pass, over its rows or over a chunk of a prompt."""
        longest = model.num_ids(max(_lengths(prompts), default=0))
        num_fed, num_seen = min(chunk_tokens, longest), model.width * self.num_cells(model, _lengths(rows))
        return max(
            model.footprint.forward_bytes(len(rows) * model.width, num_seen),
            model.footprint.forward_bytes(num_fed, num_fed * (longest + self.ahead_tokens)),
        )

    def num_cells(self, model: ModelMemory, rows: SequenceOf[int]) -> int:
        """Return the most cells, slots times columns, that rows of these lengths take in shared buffers."""
        longest = [model.num_ids(length) + self.ahead_tokens for length in rows]
        columns = [round_columns(most) if model.sharing else most + GROWTH_TOKENS for most in longest]
        # How many ids a text has less than it may have is not known if it is translated.
        shortest = [length - 1 if model.ids_per_token == 1 else 0 for length in rows]
        return count_cells(list(zip(shortest, longest, strict=True)), columns, model.sharing.first_limit)

    def _prompt_columns(self, model: ModelMemory, length: int) -> int:
        # A buffer fed in odd chunks may end up to one growth step beyond what it has to hold.
        return model.num_ids(length) + self.ahead_tokens + GROWTH_TOKENS

    def draft_prefill_bytes(self, num_tokens: int) -> int:
        """Return the bytes of a draft prefill's caches, until a row owns them."""
        draft = self.models[-1]
        # Rows that do not share buffers are counted as if they held the text already.
        columns = self._prompt_columns(draft, num_tokens)
        return draft.footprint.row_bytes(columns, self.chunk_tokens) if draft.sharing else 0


def _lengths(demands: SequenceOf[Demand]) -> list[int]:
    return [one.num_tokens for one in demands]
