"""Estimate each request's memory before admission, and again before every step.

A request is admitted if its prompt and a part of its answer fit, so running requests may outgrow memory
together. Then the prefix cache shrinks first, and after it the youngest request is preempted. The oldest
never is, and any sequence fits alone: MemoryBudget.max_tokens() limits the context to that.

MLX dispatches operations ahead of the device and keeps what they used until they have run. It may use all
memory that is left for that: before each step its own limit is set one operation below the end of memory.
Above the limit MLX waits for the device before it dispatches the next operation.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Protocol
from weakref import ref

import mlx.core as mx

from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.images import VisionInfo
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.columns import GROWTH_TOKENS
from reprise.engine.kv_cache.per_row import Caches, leaves
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.kv_cache.sliding_window import BLOCK_TOKENS, WindowKVCache
from reprise.engine.memory.estimate import STEADY_TOKENS, Demand, Estimate, Estimator, StepDemands
from reprise.engine.memory.prefill import count_fitting, divide_tokens
from reprise.engine.vision.image_features import Sight
from reprise.engine.vision.tower import Features


class Holder(Protocol):
    """A loaded model, as one that holds memory. shared: the memory of all models; None if it is alone."""

    weight_bytes: int
    shared: "SharedMemory | None"

    @property
    def held_bytes(self) -> int:
        """Bytes of a model's memory, its weights included."""

    def give_up(self, num_bytes: int) -> bool:
        """Drop cached prefixes of at least num_bytes, or all; return whether any were dropped."""


class SharedMemory:
    """Divides the machine's memory among models. Used by the engine's thread only.

    limit_bytes: the memory for all models together.
    unload: unloads an idle model; returns False if there is none. Its argument: the model that needs memory,
        None for a model that is to be loaded.
    loading_bytes: bytes reserved for the model that is being loaded.
    """

    def __init__(self, limit_bytes: int, unload: Callable[[Holder | None], bool]) -> None:
        self.limit_bytes = limit_bytes
        self.loading_bytes = 0
        self.holders: list[Holder] = []
        self._unload = unload

    def beside(self, holder: Holder | None) -> int:
        """Return the bytes that all models but the holder hold, a loading model included."""
        return self.loading_bytes + sum(one.held_bytes for one in self.holders if one is not holder)

    def make_room(self, num_bytes: int, holder: Holder | None = None) -> bool:
        """Free memory of other models until num_bytes are left for the holder; return whether they are.

        num_bytes: those besides the holder's weights. holder: None for a model to be loaded.
        Cached prefixes are dropped first, then idle models are unloaded.
        """
        own_bytes = holder.weight_bytes if holder else 0
        while (lacking := num_bytes + own_bytes + self.beside(holder) - self.limit_bytes) > 0:
            others = [one for one in self.holders if one is not holder]
            if not any(one.give_up(lacking) for one in others) and not self._unload(holder):
                return False
        return True


ANSWER_TOKENS = GROWTH_TOKENS
"""Answer tokens for which a sequence must have room to be admitted."""

CHUNK_STEP = 64
"""Prompt tokens by which chunks are lengthened while there is memory for them."""

COMPARED_TOKENS = 1024
"""Tokens at which the models' caches are compared, to divide the prefix cache's memory."""

KEPT_SHARE = 64
"""Features of images that no prompt needs now take at most 1/KEPT_SHARE of the memory beside weights."""

Droppable = PrefixCache | BoundedCache[Features]
"""What is dropped when rows need its memory."""


class MemoryBudget:
    """Compares the memory that rows need with the memory there is. Lengths are in tokens.

    weight_bytes: memory for weights. room_bytes: memory for everything else, if no other model is loaded.
    estimator: estimates how much rows need.
    largest_chunk_tokens: most prompt tokens fed at once. chunk_tokens: as many have their memory reserved.
    shared: the memory that other models share with this one; None if there are no others.
    used_bytes: estimate of the last step that make_room() was called for, without weights and prefixes.
    prefixes: what is kept for later prompts and gives up memory that rows need, the first one first.
    """

    def __init__(
        self,
        weight_bytes: int,
        room_bytes: int,
        estimator: Estimator,
        largest_chunk_tokens: int,
    ) -> None:
        self.weight_bytes = weight_bytes
        self.shared: SharedMemory | None = None
        self.room_bytes = room_bytes
        self._reserved_bytes = 0
        self._reserved_for: ref[Sequence] | None = None
        self._estimator = estimator
        self._models = estimator.models
        self.chunk_tokens = estimator.chunk_tokens
        self._largest_chunk_tokens = largest_chunk_tokens
        self._sight: Sight | None = None
        # The most that an image takes until it was fed.
        self._image_bytes = 0
        self.prefixes: list[Droppable] = []
        self.used_bytes = 0
        # Of the last estimate, if only rows ran: its room, and the lengths of rows up to which it holds.
        self._steady: tuple[int, list[tuple[Sequence, int]]] = 0, []
        # The shortest length that may_begin() refused, and the sequences that decoded and prefilled then.
        # Weak, so that none is kept after its end.
        self._refused_tokens = 0
        self._refused_beside: tuple[list[ref[Sequence]], list[ref[Sequence]]] = ([], [])

    def see(self, sight: Sight, vision: VisionInfo) -> None:
        """Count the memory of images from now on: that of the tower, and that of kept features."""
        most = min(vision.max_tokens, vision.part_tokens or vision.max_tokens)
        largest = vision.merge_size, most * vision.merge_size
        self._sight, self._image_bytes = sight, sight.tower.forecast_bytes(largest)
        sight.kept.limit_bytes = self.room_bytes // KEPT_SHARE
        self.prefixes.append(sight.kept)

    @property
    def left_bytes(self) -> int:
        """Bytes that other models leave now for everything but this model's weights."""
        return self.room_bytes if self.shared is None else self.room_bytes - self.shared.beside(self)

    @property
    def held_bytes(self) -> int:
        """The bytes that this model keeps from other models."""
        return self.weight_bytes + max(self.used_bytes + self._prefix_bytes, self._reserved_bytes)

    def give_up(self, num_bytes: int) -> bool:
        """Drop cached prefixes of at least num_bytes, or all; return whether any were dropped."""
        kept = self._prefix_bytes
        self._shrink_prefixes(max(0, kept - num_bytes))
        return self._prefix_bytes < kept

    @property
    def _prefix_bytes(self) -> int:
        return sum(cache.num_bytes for cache in self.prefixes)

    def max_tokens(self, limit: int) -> int:
        """Return the length, up to limit, of the longest sequence that fits alone; 0 if none fits."""
        return count_fitting(self.bytes_alone, limit, self.room_bytes)

    def bytes_alone(self, num_tokens: int) -> int:
        """Return the bytes that a sequence of that length needs with no other sequence running."""
        alone = [Demand(num_tokens, vision_bytes=self._image_bytes)]
        return max(self._estimator.full(alone, []).total, self._estimator.full([], alone).total)

    def may_begin(
        self,
        sequence: Sequence,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
    ) -> bool:
        """Whether a waiting sequence fits beside those that decode (members) and those that prefill."""
        # Alone it always fits, since the context is limited; without this it might wait forever.
        if not (members or prefilling):
            return self._reserve([sequence])
        length = _length_to_admit(sequence)
        # The same sequences only grow, so what did not fit beside them does not fit now.
        running = [ref(s) for s in members], [ref(s) for s in prefilling]
        if running == self._refused_beside and length >= self._refused_tokens:
            return False
        rows = [self._demand(s, _length_to_admit(s)) for s in members]
        prompts = [self._demand(s, _length_to_admit(s)) for s in (*prefilling, sequence)]
        if self._estimator.full(rows, prompts).total <= self.left_bytes:
            return True
        self._refused_beside, self._refused_tokens = running, length
        return False

    def make_room(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        rows: SequenceOf[Rows],
        draft_prefills: SequenceOf[Sequence] = (),
    ) -> bool:
        """Drop cached prefixes until the next step fits; return whether it does.

        rows: of each model. Their buffers may grow ahead of need into the memory that is left over.
        draft_prefills: sequences whose draft prefill is under way, in caches that are not a row's yet.
        """
        if self._is_steady(members, prefilling, draft_prefills):
            return True
        self._steady = 0, []
        if self.shared and not self._reserve([*members, *prefilling]):
            return False
        shared = rows[0] if isinstance(rows[0], BatchedRows) else None
        has_windows = bool(self._models[0].footprint.windows)
        own = {s: _windows_of(s.prefill.caches) for s in prefilling if has_windows}

        def estimate_step(num_tokens: int) -> Estimate:
            return self._estimate_step(members, prefilling, num_tokens, shared, own)

        estimate = estimate_step(self.chunk_tokens)
        prefilled = sum(self._draft_prefill_bytes(len(s.tokens)) for s in draft_prefills)
        self._shrink_prefixes(self.left_bytes - estimate.total - prefilled)
        spare = self.left_bytes - estimate.total - prefilled - self._prefix_bytes
        if prefilling and spare > 0:
            # Of half at most: buffers may grow ahead of need into the rest.
            larger = self._feed_more(estimate_step, estimate.total + spare // 2)
            spare -= larger.total - estimate.total
            estimate = larger
        self._limit_mlx(estimate.operation)
        if spare < 0:
            return False
        self.used_bytes = estimate.total + prefilled
        for model, model_rows in zip(self._models, rows, strict=True):
            footprint = model.footprint
            if isinstance(model_rows, BatchedRows) and footprint.token_bytes:
                # Prompts have buffers of their own until they join.
                decoding = [self._demand(s, len(s.tokens)) for s in members]
                num_cells = self._estimator.num_cells(model, decoding)
                # Larger buffers also need more memory when they grow.
                cell_bytes = footprint.token_bytes + footprint.layer_bytes
                # A row that joins takes as many columns as the others have by then.
                num_joining = 1 + sum(s.prefill.max_chunk_tokens == s.num_to_prefill for s in prefilling)
                ahead = spare // len(self._models) // num_joining // cell_bytes
                model_rows.limit_growth(num_cells + ahead)
                held = sum(slots * columns for slots, columns in model_rows.extents)
                self.used_bytes += max(0, held - num_cells) * cell_bytes
        # Beside other models both what is left and MLX's limit change while they run.
        if not (prefilling or draft_prefills or self.shared):
            self._steady = self.room_bytes, [(s, len(s.tokens) + STEADY_TOKENS) for s in members]
        return True

    def _is_steady(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        draft_prefills: SequenceOf[Sequence],
    ) -> bool:
        """Whether the last estimate had room for this step as well."""
        room_bytes, steady = self._steady
        if prefilling or draft_prefills or room_bytes != self.room_bytes or len(members) != len(steady):
            return False
        return all(
            one is s and len(s.tokens) <= limit for s, (one, limit) in zip(members, steady, strict=True)
        )

    def _reserve(self, running: SequenceOf[Sequence]) -> bool:
        """Reserve, beside other models, what the oldest sequence takes at its end; return whether it fits."""
        if self.shared is None:
            return True
        if not running:
            self._reserved_bytes, self._reserved_for = 0, None
            return True
        oldest = min(running, key=lambda s: s.timing.submitted_at)
        if self._reserved_for is not None and self._reserved_for() is oldest:
            return True
        # What the one before has reserved is free again.
        self._reserved_bytes, self._reserved_for = 0, None
        needed = self.bytes_alone(len(oldest.request.prompt) + oldest.request.max_tokens)
        if not self.shared.make_room(needed, self):
            return False
        self._reserved_bytes, self._reserved_for = needed, ref(oldest)
        return True

    def _feed_more(self, estimate_step: Callable[[int], Estimate], max_bytes: int) -> Estimate:
        """Let the step feed as many tokens of prompts as fit into max_bytes; return its estimate."""
        num_steps = -(-(self._largest_chunk_tokens - self.chunk_tokens) // CHUNK_STEP)

        def estimate(steps: int) -> Estimate:
            return estimate_step(min(self.chunk_tokens + steps * CHUNK_STEP, self._largest_chunk_tokens))

        if (largest := estimate(num_steps)).total <= max_bytes:
            return largest
        return estimate(count_fitting(lambda steps: estimate(steps).total, num_steps, max_bytes))

    def _estimate_step(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        num_tokens: int,
        rows: BatchedRows | None,
        windows: Mapping[Sequence, SequenceOf[WindowKVCache]],
    ) -> Estimate:
        """Let the next step feed num_tokens of prompts, and estimate it.

        rows: of the target model, if they share buffers. windows: each prompt's own caches, one per window.
        """
        complete, others = [], []
        chunks = divide_tokens([s.num_to_prefill for s in prefilling], num_tokens)
        if self._sight:
            chunks = [_until_image(s, chunk) for s, chunk in zip(prefilling, chunks, strict=True)]
        for sequence, chunk in zip(prefilling, chunks, strict=True):
            sequence.prefill.max_chunk_tokens = chunk
            columns = {one.window: one.columns_after(chunk) for one in windows.get(sequence, ())}
            if chunk == sequence.num_to_prefill:
                complete.append(self._demand(sequence, len(sequence.tokens), columns))
            else:
                others.append(self._demand(sequence, sequence.prefill.num_computed + chunk, columns))
        decoding = [self._demand(s, len(s.tokens)) for s in members]
        widest = max((s.prefill.widest_chunk for s in prefilling), default=0)
        most = max(chunks, default=0)
        return self._estimator.step(StepDemands(decoding, complete, others, most, max(most, widest), rows))

    def _limit_mlx(self, operation: int) -> None:
        """Make MLX wait for the device while there is no room for one more operation of that many bytes."""
        mx.set_memory_limit(max(0, self.weight_bytes + self.room_bytes - operation))

    def may_copy(self, num_tokens: int, model: int = 0, num_copies: int = 1, num_held: int = 0) -> bool:
        """Drop cached prefixes until copies of a row's caches fit; return whether they do.

        model: 0 for the target model, -1 for the draft model.
        num_held: leading tokens whose keys and values are not copied.
        """
        memory = self._models[model]
        copied = memory.footprint.row_bytes(memory.num_ids(num_tokens), self.chunk_tokens)
        copied -= memory.footprint.token_bytes * num_held
        left = self.left_bytes - self.used_bytes - num_copies * copied
        if left >= 0:
            self._shrink_prefixes(left)
        return left >= 0

    def state_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the target's state after num_tokens, as the prefix cache keeps it."""
        footprint = self._models[0].footprint
        # Recurrent state is counted before and after a forward pass.
        windows = footprint.window_bytes(lambda window: min(num_tokens, window + BLOCK_TOKENS))
        return footprint.fixed_bytes // 2 + windows

    def reserve_draft_prefill(self, num_tokens: int) -> bool:
        """Reserve memory for a draft prefill until the next make_room(); return whether there is enough.

        num_tokens: the text's length in tokens of the target.
        """
        needed = self._draft_prefill_bytes(num_tokens)
        left = self.left_bytes - self.used_bytes - needed
        if left >= 0:
            self._shrink_prefixes(left)
            self.used_bytes += needed
        return left >= 0

    def _shrink_prefixes(self, num_bytes: int) -> None:
        """Drop cached prefixes, those of the first cache first, until at most num_bytes are kept."""
        kept = self._prefix_bytes
        for cache in self.prefixes:
            others = kept - cache.num_bytes
            cache.shrink_to(max(0, num_bytes - others))
            kept = others + cache.num_bytes

    def _draft_prefill_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the caches of a text's draft prefill, until they are a row's."""
        draft = self._models[-1]
        if not draft.sharing:
            # Rows that do not share buffers are counted as if they held the text already.
            return 0
        return draft.footprint.row_bytes(self._estimator.prompt_columns(draft, num_tokens), self.chunk_tokens)

    def draft_model_share(self, num_bytes: int) -> int:
        """Return the draft model's part of num_bytes, for as many tokens as the target's part holds."""
        target, *draft = [m.footprint.row_bytes(COMPARED_TOKENS, self.chunk_tokens) for m in self._models]
        return num_bytes * sum(draft) // (target + sum(draft))

    def _demand(
        self, sequence: Sequence, num_tokens: int, windows: Mapping[int, int] | None = None
    ) -> Demand:
        request, vision_bytes = sequence.request, 0
        if request.images and self._sight:
            vision_bytes = self._sight.working_bytes(request.images, sequence.prefill.num_computed)
        return Demand(num_tokens, request.prompt_logprobs, windows or {}, vision_bytes)


def _windows_of(caches: Caches) -> list[WindowKVCache]:
    """Return a sequence's cache of each window; those of all layers are alike."""
    by_window = {one.window: one for one in leaves(caches) if isinstance(one, WindowKVCache)}
    return list(by_window.values())


def _until_image(sequence: Sequence, chunk: int) -> int:
    """Return how many of a chunk's tokens may be fed, or have to be, because of the prompt's images."""
    prefill = sequence.prefill
    if not (chunk and (looking := prefill.looking)):
        return chunk
    looking.look_at(start := prefill.num_computed)
    return max(1, looking.end_of(start, start + chunk) - start)


def _length_to_admit(sequence: Sequence) -> int:
    """Return a sequence's length with the part of its answer for which admission needs room."""
    left = sequence.request.max_tokens - sequence.num_answered
    return len(sequence.tokens) + min(left, ANSWER_TOKENS)
