"""Decide by estimates what fits into memory, at admission and at every step.

A request is admitted if its prompt and a part of its answer fit, so running requests may outgrow memory
together. Then the prefix cache shrinks first, and after it the youngest request is preempted. The oldest
never is, and any sequence fits alone: MemoryBudget.max_tokens() limits the context to that.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, replace
from functools import partial
from typing import Protocol
from weakref import ref

import mlx.core as mx

from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import MemoryLimit
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.columns import GROWTH_TOKENS
from reprise.engine.kv_cache.per_row import leaves
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.kv_cache.recurrent import MAX_LATER_STATES
from reprise.engine.kv_cache.rows import Rows, Sharing
from reprise.engine.kv_cache.sliding_window import BLOCK_TOKENS, WindowKVCache
from reprise.engine.memory.estimate import (
    STEADY_TOKENS,
    Demand,
    Estimate,
    Estimator,
    Footprint,
    ModelMemory,
    guess,
    measure,
)
from reprise.engine.memory.prefill_plan import (
    RESERVED_CHUNK_TOKENS,
    count_fitting,
    find_fitting,
    limit_chunks,
)
from reprise.engine.model.device import usable_bytes, wire_weights
from reprise.engine.model.loading import LoadedModel
from reprise.engine.speculative.draft_model.draft_prefill import MAX_IDS_PER_TOKEN, MAX_UNSETTLED, SPARE_IDS
from reprise.engine.speculative.draft_model.model import MAX_BACKLOG_TOKENS, DraftModel
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, RowDrafter
from reprise.engine.vision.image_features import Sight
from reprise.engine.vision.tower import Features

log = logging.getLogger("reprise.engine")


class Holder(Protocol):
    """A loaded model that holds memory. shared: see MemoryBudget."""

    weight_bytes: int
    shared: "SharedMemory | None"

    @property
    def held_bytes(self) -> int:
        """Bytes of a model's memory, its weights included."""

    @property
    def prefix_bytes(self) -> int:
        """Bytes of its cached prefixes."""

    def give_up(self, num_bytes: int) -> int:
        """Drop cached prefixes to free num_bytes, or all; return the bytes that were freed."""


class SharedMemory:
    """Divides the machine's memory among models. Used by the engine's thread only.

    limit_bytes: of all models together. loading_bytes: reserved for the model that is being loaded.
    unload: unloads an idle model in favor of the given one, or of one to be loaded (None). Returns False if
        none is idle.
    """

    def __init__(self, limit_bytes: int, unload: Callable[[Holder | None], bool]) -> None:
        self.limit_bytes = limit_bytes
        self.loading_bytes = 0
        self.holders: list[Holder] = []
        self._unload = unload

    def beside(self, holder: Holder | None) -> int:
        """Return the bytes held by all other models, a loading one included."""
        return self.loading_bytes + sum(one.held_bytes for one in self.holders if one is not holder)

    def make_room(self, num_bytes: int, holder: Holder | None = None) -> bool:
        """Drop others' prefixes, then unload idle models, until num_bytes are left; return whether they are.

        num_bytes: bytes besides the holder's weights. holder: None for a model to be loaded.
        """
        own_bytes = holder.weight_bytes if holder else 0
        while (lacking := num_bytes + own_bytes + self.beside(holder) - self.limit_bytes) > 0:
            others = [one for one in self.holders if one is not holder]
            if not any(one.give_up(lacking) for one in others) and not self._unload(holder):
                return False
        return True


ANSWER_TOKENS = GROWTH_TOKENS
"""Answer tokens for which a sequence must have room to be admitted."""

COMPARED_TOKENS = 1024
"""Tokens at which the models' caches are compared, to divide the prefix cache's memory."""

KEPT_SHARE = 64
"""Cached image features take at most 1/KEPT_SHARE of the memory besides weights."""


class MemoryBudget:
    """Compares the memory that rows need with the memory there is. Lengths are in tokens.

    weight_bytes: memory for weights. room_bytes: memory for everything else, if no other model is loaded.
    largest_chunk_tokens: most prompt tokens fed at once. chunk_tokens: as many have their memory reserved.
    sight: encodes images, if the model has a tower. image_bytes: the most that an image takes until it is
        fed.
    shared: the memory that other models share with this one; None if there are no others.
    used_bytes: make_room()'s last estimate, without weights and prefixes.
    prefixes: the prefix caches, which give up memory that rows need, in this order.
    lacks_memory: whether other programs lack memory. is_tight: whether new requests wait until nothing runs,
        as they do for the first minute of that; see pressure.py.
    """

    def __init__(
        self,
        weight_bytes: int,
        room_bytes: int,
        estimator: Estimator,
        largest_chunk_tokens: int,
        sight: Sight | None = None,
        image_bytes: int = 0,
    ) -> None:
        self.weight_bytes, self.room_bytes = weight_bytes, room_bytes
        self.shared: SharedMemory | None = None
        self._reserved_bytes = 0
        self._reserved_for: ref[Sequence] | None = None
        self._estimator = estimator
        self.chunk_tokens = estimator.chunk_tokens
        self._largest_chunk_tokens = largest_chunk_tokens
        self._sight, self._image_bytes = sight, image_bytes
        self.prefixes: list[PrefixCache | BoundedCache[Features]] = []
        if sight:
            sight.kept.limit_bytes = room_bytes // KEPT_SHARE
            self.prefixes.append(sight.kept)
        self.used_bytes = 0
        self.lacks_memory = self.is_tight = False
        # The last estimate, if only rows ran: its room, and the row lengths up to which it holds.
        self._steady: tuple[int, list[tuple[Sequence, int]]] = 0, []
        # The shortest length that may_begin() refused, the bytes left then, and the sequences that decoded
        # and prefilled.
        self._refused_tokens = self._refused_bytes = 0
        self._refused_beside: tuple[list[ref[Sequence]], list[ref[Sequence]]] = ([], [])

    @property
    def left_bytes(self) -> int:
        """Bytes that other models leave now for this model, without its weights."""
        return self.room_bytes if self.shared is None else self.room_bytes - self.shared.beside(self)

    @property
    def held_bytes(self) -> int:
        """The bytes that this model takes from other models."""
        return self.weight_bytes + max(self.used_bytes + self.prefix_bytes, self._reserved_bytes)

    def give_up(self, num_bytes: int) -> int:
        """Drop cached prefixes to free num_bytes, or all; return the bytes that were freed."""
        kept = self.prefix_bytes
        self._shrink_prefixes(max(0, kept - num_bytes))
        return kept - self.prefix_bytes

    @property
    def prefix_bytes(self) -> int:
        """The bytes of all cached prefixes."""
        return sum(cache.num_bytes for cache in self.prefixes)

    def max_tokens(self, limit: int) -> int:
        """Return the length, up to limit, of the longest sequence that fits alone; 0 if none fits."""
        return count_fitting(self.bytes_alone, limit, self.room_bytes)

    def bytes_alone(self, num_tokens: int) -> int:
        """Return the bytes that a lone sequence of num_tokens needs."""
        alone = [Demand(num_tokens, vision_bytes=self._image_bytes)]
        return max(self._estimator.step(alone, []).total, self._estimator.step([], alone).total)

    def may_begin(
        self, sequence: Sequence, members: SequenceOf[Sequence], prefilling: SequenceOf[Sequence]
    ) -> bool:
        """Whether a waiting sequence fits beside those that decode (members) and those that prefill."""
        # Alone it always fits, since the context is limited; without this it might wait forever.
        if not (members or prefilling):
            return self._reserve([sequence])
        length = _length_to_admit(sequence)
        # The same sequences only grow, so what did not fit beside them does not fit now.
        running = [ref(s) for s in members], [ref(s) for s in prefilling]
        left_bytes = self.left_bytes
        if (
            running == self._refused_beside
            and length >= self._refused_tokens
            and left_bytes <= self._refused_bytes
        ):
            return False
        rows = [self._demand(s, _length_to_admit(s)) for s in members]
        prompts = [self._demand(s, _length_to_admit(s)) for s in (*prefilling, sequence)]
        if self._estimator.step(rows, prompts).total <= left_bytes:
            return True
        self._refused_beside, self._refused_tokens, self._refused_bytes = running, length, left_bytes
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
        room_bytes, steady = self._steady
        only_rows = not (prefilling or draft_prefills)
        if only_rows and room_bytes == self.room_bytes and len(steady) == len(members):
            # The last estimate had room for this step as well.
            pairs = zip(members, steady, strict=True)
            if all(one is s and len(s.tokens) <= limit for s, (one, limit) in pairs):
                return True
        self._steady = 0, []
        if not self._reserve([*members, *prefilling]):
            return False
        shared = rows[0] if isinstance(rows[0], BatchedRows) else None
        # The caches of all layers with the same window are alike.
        own = [
            {one.window: one for one in leaves(s.prefill.caches) if isinstance(one, WindowKVCache)}
            for s in prefilling
        ]
        feed = partial(self._feed, members, prefilling, own, shared)
        estimate = feed(self.chunk_tokens)
        beside = sum(self._estimator.draft_prefill_bytes(len(s.tokens)) for s in draft_prefills)
        self._shrink_prefixes(self.left_bytes - estimate.total - beside)
        spare = self.left_bytes - estimate.total - beside - self.prefix_bytes
        if prefilling and spare > 0:
            # At most half of it: buffers may grow ahead of need into the rest.
            most, max_bytes = self._largest_chunk_tokens, estimate.total + spare // 2
            larger = feed(most)
            if larger.total > max_bytes:
                larger = feed(find_fitting(lambda num: feed(num).total, self.chunk_tokens, most, max_bytes))
            spare -= larger.total - estimate.total
            estimate = larger
        # MLX dispatches ahead of the device, into all memory that is left. Above this limit it waits for the
        # device before each operation.
        mx.set_memory_limit(max(0, self.weight_bytes + self.room_bytes - estimate.operation))
        if spare < 0:
            return False
        self.used_bytes = estimate.total + beside
        # A row that joins takes as many columns as the others have by then.
        num_joining = 1 + sum(s.prefill.max_chunk_tokens == s.num_to_prefill for s in prefilling)
        for model, model_rows in zip(self._estimator.models, rows, strict=True):
            footprint = model.footprint
            if isinstance(model_rows, BatchedRows) and footprint.token_bytes:
                # Prompts have buffers of their own until they join.
                num_cells = self._estimator.num_cells(model, [len(s.tokens) for s in members])
                # Larger buffers also need more memory when they grow.
                cell_bytes = footprint.token_bytes + footprint.layer_bytes
                model_rows.limit_growth(num_cells + spare // len(rows) // num_joining // cell_bytes)
                held = sum(slots * columns for slots, columns in model_rows.extents)
                self.used_bytes += max(0, held - num_cells) * cell_bytes
        # With other models, the memory left and MLX's limit change while they run.
        if only_rows and not self.shared:
            self._steady = self.room_bytes, [(s, len(s.tokens) + STEADY_TOKENS) for s in members]
        return True

    def _reserve(self, running: SequenceOf[Sequence]) -> bool:
        """Reserve what the oldest sequence will need at its end; return whether it fits with other models."""
        if self.shared is None:
            return True
        oldest = min(running, key=lambda s: s.timing.submitted_at, default=None)
        if oldest and self._reserved_for is not None and self._reserved_for() is oldest:
            return True
        # The previous reservation is free again.
        self._reserved_bytes, self._reserved_for = 0, None
        if oldest is None:
            return True
        needed = self.bytes_alone(len(oldest.request.prompt) + oldest.request.max_tokens)
        if not self.shared.make_room(needed, self):
            return False
        self._reserved_bytes, self._reserved_for = needed, ref(oldest)
        return True

    def _feed(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        own: SequenceOf[Mapping[int, WindowKVCache]],
        rows: BatchedRows | None,
        num_tokens: int,
    ) -> Estimate:
        """Let the next step feed num_tokens of prompts; return its estimate.

        own: each prompt's cache of each window. rows: of the target model, if they share buffers.
        """
        limit_chunks(prefilling, num_tokens)
        complete, others, widest, largest = [], [], 0, 0
        for sequence, by_window in zip(prefilling, own, strict=True):
            prefill, chunk = sequence.prefill, sequence.prefill.max_chunk_tokens
            widest, largest = max(widest, chunk, prefill.widest_chunk), max(largest, chunk)
            windows = {window: one.columns_after(chunk) for window, one in by_window.items()}
            if chunk == sequence.num_to_prefill:
                complete.append(self._demand(sequence, len(sequence.tokens), windows))
            else:
                others.append(self._demand(sequence, prefill.num_computed + chunk, windows))
        decoding = [self._demand(s, len(s.tokens)) for s in members]
        return self._estimator.step(decoding, complete, others, largest, widest, rows)

    def may_copy(self, num_tokens: int, model: int = 0, num_copies: int = 1, num_held: int = 0) -> bool:
        """Drop cached prefixes until copies of a row's caches fit; return whether they do.

        model: 0 for the target model, -1 for the draft model.
        num_held: leading tokens whose keys and values are not copied.
        """
        return self._drop_for(num_copies * self.copy_bytes(num_tokens, model, num_held))

    def copy_bytes(self, num_tokens: int, model: int = 0, num_held: int = 0) -> int:
        """Return the bytes of a copy of a row's caches. Arguments: see may_copy()."""
        memory = self._estimator.models[model]
        copied = memory.footprint.row_bytes(memory.num_ids(num_tokens), self.chunk_tokens)
        return copied - memory.footprint.token_bytes * num_held

    def has_room_for(self, sequence: Sequence, num_held: int) -> bool:
        """Whether a sequence can be prefilled alone and kept as a prefix beside all cached prefixes.

        Not while the machine lacks memory. num_held: leading tokens that are cached.
        """
        alone, num_tokens = self.bytes_alone(len(sequence.tokens) + 1), len(sequence.tokens)
        needed = alone + self.copy_bytes(num_tokens, num_held=num_held)
        return not self.lacks_memory and needed + self.prefix_bytes <= self.left_bytes

    def state_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the target's state after num_tokens, as the prefix cache keeps it."""
        footprint = self._estimator.models[0].footprint
        # Recurrent state is counted before and after a forward pass.
        windows = sum(each * min(num_tokens, window + BLOCK_TOKENS) for each, window in footprint.windows)
        return footprint.fixed_bytes // 2 + windows

    def reserve_draft_prefill(self, num_tokens: int) -> bool:
        """Reserve memory for a draft prefill until the next make_room(); return whether there is enough.

        num_tokens: the text's length in tokens of the target.
        """
        needed = self._estimator.draft_prefill_bytes(num_tokens)
        if fits := self._drop_for(needed):
            self.used_bytes += needed
        return fits

    def _drop_for(self, num_bytes: int) -> bool:
        """Drop cached prefixes until num_bytes fit beside the last step; return whether they do."""
        left = self.left_bytes - self.used_bytes - num_bytes
        if left >= 0:
            self._shrink_prefixes(left)
        return left >= 0

    def _shrink_prefixes(self, num_bytes: int) -> None:
        """Drop cached prefixes, those of the first cache first, until at most num_bytes are kept."""
        kept = self.prefix_bytes
        for cache in self.prefixes:
            others = kept - cache.num_bytes
            cache.shrink_to(max(0, num_bytes - others))
            kept = others + cache.num_bytes

    def draft_model_share(self, num_bytes: int) -> int:
        """Return the draft model's share of num_bytes, such that it holds as many tokens as the target's."""
        models = self._estimator.models
        target, *draft = [m.footprint.row_bytes(COMPARED_TOKENS, self.chunk_tokens) for m in models]
        return num_bytes * sum(draft) // (target + sum(draft))

    def _demand(self, sequence: Sequence, num_tokens: int, windows: dict[int, int] | None = None) -> Demand:
        request, vision_bytes = sequence.request, 0
        if request.images and self._sight:
            vision_bytes = self._sight.working_bytes(request.images, sequence.prefill.num_computed)
        return Demand(num_tokens, request.prompt_logprobs, windows or {}, vision_bytes)


def _length_to_admit(sequence: Sequence) -> int:
    """Return a sequence's length plus the part of its answer that admission reserves."""
    left = sequence.request.max_tokens - sequence.num_answered
    return len(sequence.tokens) + min(left, ANSWER_TOKENS)


def make_memory_budget(
    loaded: LoadedModel,
    settings: Settings,
    sharing: Sharing,
    draft_model: RowDrafter | None,
    may_draft: bool = True,
) -> MemoryBudget:
    """Make the memory budget of measured models, and lower the target's context to what fits into memory.

    may_draft: whether there are verification steps with drafts.
    Raises ModelError if the weights and one row of the context that settings ask for do not fit, or if
    weights cannot be wired as settings ask.
    """
    given = settings.memory_bytes or usable_bytes()
    # MLX's own buffer cache counts too, and is freed first.
    mx.set_memory_limit(given)
    if settings.wire_weights:
        wire_weights()
    weight_bytes = loaded.info.weight_bytes
    if loaded.room_bytes is not None:
        given = min(given, weight_bytes + loaded.room_bytes)
    footprint = find_footprint(loaded, settings.kv_bits, bool(sharing))
    width = 1 + settings.num_draft_tokens * may_draft
    if loaded.info.can_decode_windows:
        # A step may settle the whole window, and the next one feeds that and a new window.
        width = max(width, 2 * settings.wedlm_window_size)
    models = [ModelMemory(footprint, sharing, width)]
    if isinstance(draft_model, HeadDrafter):
        weight_bytes += draft_model.num_bytes
        models = _with_head(models[0], draft_model)
    elif draft_model:
        weight_bytes += draft_model.loaded.info.weight_bytes
        models.append(_of_draft_model(draft_model))
    room_bytes, whole_tokens, image_bytes = given - weight_bytes, 0, 0
    vision = loaded.info.vision
    sight = loaded.sight if vision else None
    if sight and vision:
        whole_tokens = vision.max_tokens if sight.tower.sees_whole_image else 0
        most = min(vision.max_tokens, vision.part_tokens or vision.max_tokens)
        image_bytes = sight.tower.forecast_bytes((vision.merge_size, most * vision.merge_size))
    chunk_tokens = max(whole_tokens, min(RESERVED_CHUNK_TOKENS, settings.prefill_chunk_tokens))
    estimator = Estimator(models, loaded.info.vocab_size, chunk_tokens, width + STEADY_TOKENS, whole_tokens)
    largest = max(chunk_tokens, settings.prefill_chunk_tokens)
    budget = MemoryBudget(weight_bytes, room_bytes, estimator, largest, sight, image_bytes)
    _limit_context(loaded, settings, budget)
    return budget


def find_footprint(loaded: LoadedModel, kv_bits: int | None, batched: bool) -> Footprint:
    """Return the memory that a model needs besides its weights; measured unless it is known."""
    return loaded.findings.find(
        f"footprint, {kv_bits} bits, {'' if batched else 'not '}batched",
        lambda: measure(loaded.model, kv_bits, batched, loaded.findings.note_pass),
        lambda _: True,
        asdict,
        Footprint.of,
        meanwhile=lambda: guess(loaded.model, kv_bits, loaded.info.vocab_size),
    )


def _with_head(target: ModelMemory, head: HeadDrafter) -> list[ModelMemory]:
    """Return the memory of the target, including the states kept for a head, and that of the head.

    The head's own forward pass takes no more than one of the whole target.
    """
    footprint, state_bytes = target.footprint, head.state_bytes
    # Prompts and rows keep states; for a head that reads the target's caches only rows do, the newest one and
    # the one before it. A forward pass has states twice: apart, and joined.
    of_text = 0 if head.head.reads_target else state_bytes
    kept = replace(
        footprint,
        fixed_bytes=footprint.fixed_bytes + 2 * (state_bytes - of_text),
        token_bytes=footprint.token_bytes + of_text,
        fed_bytes=footprint.fed_bytes + 2 * of_text,
        logits_bytes=footprint.logits_bytes + 2 * state_bytes,
    )
    token_bytes, windows, layer_bytes = head.measure_caches()
    own = Footprint(
        0,
        token_bytes,
        tuple((each, window) for window, each in windows.items()),
        layer_bytes,
        kept.fed_bytes,
        # A draft puts its own keys and values behind all that a layer holds, in a copy for each token: of the
        # last, of the next, and one in use.
        footprint.seen_bytes + 3 * layer_bytes / MAX_BACKLOG_TOKENS,
        footprint.logits_bytes,
    )
    return [replace(target, footprint=kept), ModelMemory(own, Sharing.BUFFERS, MAX_BACKLOG_TOKENS)]


def _of_draft_model(draft_model: DraftModel) -> ModelMemory:
    """Return the memory of a draft model, including the states kept after drafted tokens."""
    loaded, sharing = draft_model.loaded, draft_model.sharing
    footprint = find_footprint(loaded, None, bool(sharing))
    if sharing:
        later_bytes = MAX_LATER_STATES * (footprint.fixed_bytes // 2)
        footprint = replace(footprint, trace_bytes=footprint.trace_bytes + later_bytes)
    memory = ModelMemory(footprint, sharing, MAX_BACKLOG_TOKENS, max_ids=loaded.info.context_tokens)
    if draft_model.translation.pair is None:
        return memory
    width = MAX_BACKLOG_TOKENS + MAX_UNSETTLED
    return replace(memory, width=width, ids_per_token=MAX_IDS_PER_TOKEN, spare_ids=SPARE_IDS)


def _limit_context(loaded: LoadedModel, settings: Settings, budget: MemoryBudget) -> None:
    info, longest = loaded.info, loaded.info.context_tokens
    max_tokens, given = budget.max_tokens(longest), budget.weight_bytes + budget.room_bytes
    have = f"{_in_mib(given)} of memory (--memory-bytes), {_in_mib(budget.weight_bytes)} of it for weights,"
    if max_tokens < 2:
        least = _in_mib(budget.bytes_alone(2))
        raise ModelError(f"{have} leave no room for a row of {info.name}: even a short one takes {least}")
    if max_tokens == longest:
        return
    needed = _in_mib(budget.bytes_alone(longest))
    if settings.max_context_tokens:
        message = f"--max-context-tokens {longest} takes {needed}; {have} hold {max_tokens} tokens: lower it"
        raise ModelError(message)
    message = "%s hold a context of %d tokens; the model's own limit is %d, which take %s"
    log.warning(message, have, max_tokens, longest, needed)
    first, second = budget.bytes_alone(max_tokens), budget.bytes_alone(max_tokens + GROWTH_TOKENS)
    limit = MemoryLimit(budget.room_bytes, max_tokens, first, (second - first) / GROWTH_TOKENS)
    loaded.info = replace(info, context_tokens=max_tokens, memory_limit=limit)


def _in_mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
