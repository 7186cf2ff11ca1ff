"""Estimate each request's memory before admission, and again before every step.

A request is admitted if its prompt and a part of its answer fit, so running requests may outgrow memory
together. Then the prefix cache shrinks first, and after it the youngest request is preempted. The oldest
never is, and any sequence fits alone: MemoryBudget.max_tokens() limits the context to that.
"""

import logging
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from weakref import ref

import mlx.core as mx

from config.settings import Settings
from engine.kv_cache.batched import GROWTH_TOKENS, round_columns
from engine.kv_cache.rows import BatchedRows, Rows
from engine.model.loading import LoadedModel, ModelError
from engine.prefix_cache.trie import PrefixCache
from engine.request import MemoryLimit
from engine.scheduler.footprint import Footprint, measure
from engine.scheduler.machine_memory import usable_bytes
from engine.scheduler.speculation import MAX_PENDING
from engine.sequence import Sequence
from engine.speculative.draft_model.model import DraftModel
from engine.speculative.draft_model.reader import MAX_IDS_PER_TOKEN, SPARE_IDS

log = logging.getLogger("reprise.engine")

ANSWER_TOKENS = GROWTH_TOKENS
"""Answer tokens for which a sequence must have room to be admitted."""

RESERVED_CHUNK_TOKENS = 256
"""Prompt tokens of a chunk for which memory is reserved. A step may feed more if there is memory left."""

SHARED_TOKENS = 1024
"""Tokens at which the models' caches are compared, to share the prefix cache's memory."""

Running = tuple[list[ref[Sequence]], list[ref[Sequence]]]
"""Sequences that decode and sequences that prefill. Weak, so that none is kept after its end."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory that one model, the target or the draft model, needs for its rows.

    batched: whether its rows share buffers.
    ids_per_token, spare_ids: n target tokens take at most n * ids_per_token + spare_ids ids of this model.
    max_ids: the longest text that it reads, in its own ids; None for no limit.
    """

    footprint: Footprint
    batched: bool
    ids_per_token: int = 1
    spare_ids: int = 0
    max_ids: int | None = None

    def num_ids(self, num_tokens: int) -> int:
        """Return the maximum length of a text of num_tokens target tokens, in this model's ids."""
        num_ids = num_tokens * self.ids_per_token + self.spare_ids
        return num_ids if self.max_ids is None else min(num_ids, self.max_ids)


class MemoryBudget:
    """Estimates how much memory rows need, and compares it with the budget. Lengths are in tokens.

    room_bytes: memory for everything but weights. models: the target model and, if any, the draft model.
    max_fed: maximum tokens that one forward pass feeds to all rows.
    chunk_tokens: prompt tokens fed at once for which memory is reserved. largest_chunk_tokens: maximum.
    ahead_tokens: maximum tokens by which a step lengthens a row before it is rolled back.
    max_chunk_tokens: prompt tokens that the next step may feed; make_room() sets it.
    prefixes: the prefix caches, which give up memory that rows need, the first one first.
    """

    def __init__(
        self,
        room_bytes: int,
        models: SequenceOf[ModelMemory],
        max_fed: int,
        chunk_tokens: int,
        largest_chunk_tokens: int,
        ahead_tokens: int,
    ) -> None:
        self.room_bytes = room_bytes
        self._models = models
        self._max_fed = max_fed
        self._chunk_tokens = chunk_tokens
        self._largest_chunk_tokens = largest_chunk_tokens
        self._ahead_tokens = ahead_tokens
        self.prefixes: list[PrefixCache] = []
        self._used_bytes = 0
        self.max_chunk_tokens = chunk_tokens
        # The shortest length that may_begin() refused, and the running sequences that took the memory.
        self._refused_tokens = 0
        self._refused_beside: Running = ([], [])

    def max_tokens(self, limit: int) -> int:
        """Return the longest sequence, up to limit, that fits alone; 0 if none fits."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_alone(middle) <= self.room_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def bytes_alone(self, num_tokens: int) -> int:
        """Return what a sequence of that length needs with no other sequence running."""
        return max(self._bytes([num_tokens], []), self._bytes([], [num_tokens]))

    def may_begin(
        self, sequence: Sequence, members: SequenceOf[Sequence], prefilling: SequenceOf[Sequence]
    ) -> bool:
        """Whether a waiting sequence fits beside those that decode (members) and those that prefill."""
        # Alone it always fits, since the context is limited; without this it might wait forever.
        if not (members or prefilling):
            return True
        length = _length_to_admit(sequence)
        # The same sequences only grow, so what did not fit beside them does not fit now.
        running = [ref(s) for s in members], [ref(s) for s in prefilling]
        if running == self._refused_beside and length >= self._refused_tokens:
            return False
        rows, prompts = [_length_to_admit(s) for s in members], [_length_to_admit(s) for s in prefilling]
        if self._bytes(rows, [*prompts, length]) <= self.room_bytes:
            return True
        self._refused_beside, self._refused_tokens = running, length
        return False

    def make_room(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        rows: SequenceOf[Rows],
        reading: SequenceOf[Sequence] = (),
    ) -> bool:
        """Drop cached prefixes until the next step fits; return whether it does.

        rows: of each model. Their buffers may grow ahead of need into the memory that is left over.
        reading: sequences whose text the draft model is reading, in caches that are not a row's yet.
        """
        lengths, prompts = [len(s.tokens) for s in members], [len(s.tokens) for s in prefilling]
        self.max_chunk_tokens = self._chunk_tokens
        needed = self._bytes(lengths, prompts) + sum(self._reading_bytes(len(s.tokens)) for s in reading)
        self._shrink_prefixes(self.room_bytes - needed)
        if needed > self.room_bytes:
            return False
        spare = self.room_bytes - needed - sum(cache.num_bytes for cache in self.prefixes)
        self._used_bytes = needed
        if prompts:
            # Of half at most: buffers may grow ahead of need into the rest.
            token_bytes = self._fed_token_bytes(max([*lengths, *prompts]))
            more = min(spare // 2 // token_bytes, self._largest_chunk_tokens - self._chunk_tokens)
            self.max_chunk_tokens += more
            self._used_bytes += more * token_bytes
            spare -= more * token_bytes
        for model, model_rows in zip(self._models, rows, strict=True):
            if isinstance(model_rows, BatchedRows) and model.footprint.token_bytes:
                token_bytes = model.footprint.token_bytes
                num_cells = self._num_cells(model, lengths)
                model_rows.limit_growth(num_cells + spare // len(self._models) // token_bytes)
                slots, columns = model_rows.extent
                self._used_bytes += max(0, slots * columns - num_cells) * token_bytes
        return True

    def may_measure(self, lengths: SequenceOf[int]) -> bool:
        """Whether rows of these lengths, and a step over them, fit beside the cached prefixes alone."""
        held = sum(cache.num_bytes for cache in self.prefixes)
        return self._bytes(lengths, []) + held <= self.room_bytes

    def may_copy(self, num_tokens: int, model: int = 0) -> bool:
        """Drop cached prefixes until a copy of a row's caches fits; return whether it does.

        model: 0 for the target model, -1 for the draft model.
        """
        memory = self._models[model]
        copied = memory.footprint.row_bytes(memory.num_ids(num_tokens), self._chunk_tokens)
        left = self.room_bytes - self._used_bytes - copied
        if left >= 0:
            self._shrink_prefixes(left)
        return left >= 0

    def reserve_reading(self, num_tokens: int) -> bool:
        """Reserve memory until the next make_room() for reading a text; return whether there is enough.

        num_tokens: target tokens of the text.
        """
        needed = self._reading_bytes(num_tokens)
        left = self.room_bytes - self._used_bytes - needed
        if left >= 0:
            self._shrink_prefixes(left)
            self._used_bytes += needed
        return left >= 0

    def _shrink_prefixes(self, num_bytes: int) -> None:
        """Drop cached prefixes, those of the first cache first, until at most num_bytes are kept."""
        kept = sum(cache.num_bytes for cache in self.prefixes)
        for cache in self.prefixes:
            others = kept - cache.num_bytes
            cache.shrink_to(max(0, num_bytes - others))
            kept = others + cache.num_bytes

    def _reading_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the caches with which the draft model reads a text, until they are a row's."""
        draft = self._models[-1]
        # Rows that do not share buffers are counted as if they held the text already.
        return self._row_bytes(draft.footprint, draft.num_ids(num_tokens)) if draft.batched else 0

    def draft_model_share(self, num_bytes: int) -> int:
        """Return the part of num_bytes that holds as many of its tokens as the rest holds of the target's."""
        target, *draft = [m.footprint.row_bytes(SHARED_TOKENS, self._chunk_tokens) for m in self._models]
        return num_bytes * sum(draft) // (target + sum(draft))

    def _bytes(self, rows: SequenceOf[int], prompts: SequenceOf[int]) -> int:
        """Return what rows and prompts of these lengths need while the next step runs."""
        lengths = [*rows, *prompts]
        if not lengths:
            return 0
        total = 0
        for model in self._models:
            footprint = model.footprint
            if not model.batched:
                total += sum(self._row_bytes(footprint, model.num_ids(length)) for length in lengths)
                continue
            # A sequence that is alone keeps the buffers of its prefill.
            if rows or len(prompts) > 1:
                total += footprint.token_bytes * self._num_cells(model, lengths)
            total += sum(self._row_bytes(footprint, model.num_ids(length)) for length in prompts)
        return total + max(
            model.footprint.forward_bytes(self._max_fed, model.num_ids(max(lengths)) + self._ahead_tokens)
            for model in self._models
        )

    def _fed_token_bytes(self, longest: int) -> int:
        """Return what each further token of a chunk needs; the longest row or prompt has longest tokens."""
        return 1 + max(
            model.footprint.forward_bytes(1, model.num_ids(longest))
            # The buffer of a sliding window has room for two chunks.
            + 2 * sum(each for each, _ in model.footprint.windows)
            for model in self._models
        )

    def _row_bytes(self, footprint: Footprint, length: int) -> int:
        # A buffer fed in odd chunks may end up to one growth step beyond what it has to hold.
        return footprint.row_bytes(length + self._ahead_tokens + GROWTH_TOKENS, self._chunk_tokens)

    def _num_cells(self, model: ModelMemory, lengths: SequenceOf[int]) -> int:
        """Return the cells, slots times columns, of a buffer that rows of these lengths share."""
        return len(lengths) * round_columns(model.num_ids(max(lengths, default=0)) + self._ahead_tokens)


def make_memory_budget(
    loaded: LoadedModel, settings: Settings, batched: bool, draft_model: DraftModel | None
) -> MemoryBudget:
    """Measure what the models need, and lower the model's context to what fits into memory.

    Raises ModelError if the weights and one row do not fit, or the context that settings ask for does not.
    """
    given = settings.memory_bytes or usable_bytes()
    if settings.memory_bytes:
        # MLX's own buffer cache counts too, and is freed first.
        mx.set_memory_limit(given)
    weight_bytes = loaded.info.weight_bytes
    models = [ModelMemory(measure(loaded.model, settings.kv_bits), batched)]
    if draft_model:
        weight_bytes += draft_model.loaded.info.weight_bytes
        id_limits = (MAX_IDS_PER_TOKEN, SPARE_IDS) if draft_model.translation.pair else (1, 0)
        max_ids = draft_model.loaded.info.context_tokens
        models.append(ModelMemory(measure(draft_model.model), draft_model.batched, *id_limits, max_ids))
    widest = settings.num_draft_tokens + 1 + MAX_PENDING
    chunk_tokens = min(RESERVED_CHUNK_TOKENS, settings.prefill_chunk_tokens)
    memory_budget = MemoryBudget(
        given - weight_bytes,
        models,
        max_fed=max(chunk_tokens, settings.max_rows * widest),
        chunk_tokens=chunk_tokens,
        largest_chunk_tokens=settings.prefill_chunk_tokens,
        ahead_tokens=widest,
    )
    _limit_context(loaded, settings, memory_budget, given, weight_bytes)
    return memory_budget


def _limit_context(
    loaded: LoadedModel, settings: Settings, memory_budget: MemoryBudget, given: int, weight_bytes: int
) -> None:
    info = loaded.info
    max_tokens = memory_budget.max_tokens(info.context_tokens)
    have = f"{_in_mib(given)} of memory (--memory-bytes), {_in_mib(weight_bytes)} of it for weights,"
    if max_tokens < 2:
        raise ModelError(
            f"{have} leave no room for a row of {info.name}: even a short one takes "
            f"{_in_mib(memory_budget.bytes_alone(2))}"
        )
    if max_tokens == info.context_tokens:
        return
    if settings.max_context_tokens:
        raise ModelError(
            f"--max-context-tokens {info.context_tokens} takes "
            f"{_in_mib(memory_budget.bytes_alone(info.context_tokens))}; "
            f"{have} hold {max_tokens} tokens: lower it"
        )
    log.warning(
        "%s hold a context of %d tokens; the model's own limit is %d, which take %s",
        have, max_tokens, info.context_tokens, _in_mib(memory_budget.bytes_alone(info.context_tokens)),
    )  # fmt: skip
    first = memory_budget.bytes_alone(max_tokens)
    second = memory_budget.bytes_alone(max_tokens + GROWTH_TOKENS)
    limit = MemoryLimit(memory_budget.room_bytes, max_tokens, first, (second - first) / GROWTH_TOKENS)
    loaded.info = replace(info, context_tokens=max_tokens, memory_limit=limit)


def _length_to_admit(sequence: Sequence) -> int:
    """Return a sequence's length with the part of its answer for which admission needs room."""
    left = sequence.request.max_tokens - sequence.num_answered
    return len(sequence.tokens) + min(left, ANSWER_TOKENS)


def _in_mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
