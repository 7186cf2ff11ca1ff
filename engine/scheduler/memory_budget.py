"""Estimate each request's memory before admission, and again before every step.

A request is admitted if its prompt and a part of its answer fit, so running requests may outgrow memory
together. Then the prefix cache shrinks first, and after it the youngest request is preempted. The oldest
never is, and any sequence fits alone: MemoryBudget.max_tokens() limits the context to that.

    estimate = what is kept + the growth of one layer + working memory

MLX dispatches operations ahead of the device and keeps what they used until they have run. It may use all
memory that is left for that: before each step its own limit is set one operation below the end of memory.
Above the limit MLX waits for the device before it dispatches the next operation.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary, ref

import mlx.core as mx

from config.settings import Settings
from engine.kv_cache.batched import GROWTH_TOKENS, max_slots, round_columns
from engine.kv_cache.groups import count_cells
from engine.kv_cache.per_row import Caches, leaves
from engine.kv_cache.recurrent import MAX_LATER_STATES
from engine.kv_cache.rows import BatchedRows, Rows, Sharing
from engine.kv_cache.sliding_window import BLOCK_TOKENS, SLACK_TOKENS, WindowKVCache, window_columns
from engine.model.loading import LoadedModel, ModelError
from engine.prefix_cache.trie import PrefixCache
from engine.request import MemoryLimit
from engine.sampling.pieces import ALL_NEEDS, LIKELIHOOD_ARRAYS, Needs, find_needs, sampling_bytes
from engine.scheduler.footprint import Cells, Footprint, measure
from engine.scheduler.machine_memory import usable_bytes, wire_weights
from engine.scheduler.prefill_budget import count_fitting, share_tokens
from engine.scheduler.shared_memory import SharedMemory
from engine.sequence import Sequence
from engine.speculative.draft_model.model import MAX_BACKLOG_TOKENS, DraftModel
from engine.speculative.draft_model.reader import MAX_IDS_PER_TOKEN, MAX_UNSETTLED, SPARE_IDS
from engine.speculative.heads.drafter import HeadDrafter, RowDrafter

log = logging.getLogger("reprise.engine")

ANSWER_TOKENS = GROWTH_TOKENS
"""Answer tokens for which a sequence must have room to be admitted."""

PROMPT_LOGPROBS_CHUNK = 128
"""Maximum prompt tokens in one chunk whose log probabilities are wanted: each needs logits of its own."""

PENALTY_BYTES = 16
BIAS_BYTES = 8
"""What a row's penalties and its biases take per token of the vocabulary. Penalties have two arrays, both
twice while they change; a row may have another bias for its first tokens."""

RESERVED_CHUNK_TOKENS = 256
"""Prompt tokens of a chunk for which memory is reserved. A step may feed more if there is memory left."""

CHUNK_STEP = 64
"""Prompt tokens by which chunks are lengthened while there is memory for them."""

STEADY_TOKENS = 32
"""Tokens by which rows may lengthen, while none joins or leaves, before a step is estimated again."""

HELD_COPIES = 3
"""Copies of what a layer of a head holds while it drafts: of the last token, of the next, and one in use."""

SHARED_TOKENS = 1024
"""Tokens at which the models' caches are compared, to share the prefix cache's memory."""

Running = tuple[list[ref[Sequence]], list[ref[Sequence]]]
"""Sequences that decode and sequences that prefill. Weak, so that none is kept after its end."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory that one model, the target or the draft model, needs for its rows.

    sharing: what its rows share.
    width: maximum tokens that a decoding row feeds in one step.
    ids_per_token, spare_ids: n target tokens take at most n * ids_per_token + spare_ids ids of this model.
    max_ids: the longest text that it reads, in its own ids; None for no limit.
    """

    footprint: Footprint
    sharing: Sharing
    width: int
    ids_per_token: int = 1
    spare_ids: int = 0
    max_ids: int | None = None

    def num_ids(self, num_tokens: int) -> int:
        """Return the maximum length of a text of num_tokens target tokens, in this model's ids."""
        num_ids = num_tokens * self.ids_per_token + self.spare_ids
        return num_ids if self.max_ids is None else min(num_ids, self.max_ids)

    def logits_bytes(self, num_rows: int, num_positions: int) -> int:
        """Return the bytes of a step's logits, if each row computes those of num_positions tokens."""
        # Rows that have a forward each have their logits padded, and then joined.
        num_copies = 1 if self.sharing or num_rows == 1 else 3
        return num_copies * num_rows * num_positions * self.footprint.logits_bytes


@dataclass(frozen=True, slots=True)
class SamplingMemory:
    """What the sampling of one sequence takes of memory.

    row_bytes: kept for its row. num_arrays: arrays of (vocabulary,) float32 that one of its draws takes.
    prompt_logprobs: whether its prompt's log probabilities are wanted.
    """

    row_bytes: int
    num_arrays: float
    prompt_logprobs: bool

    @classmethod
    def of(
        cls, needs: Needs, vocab_size: int, logprobs: bool = True, prompt_logprobs: bool = True
    ) -> "SamplingMemory":
        """Count what these needs take, and log probabilities of the answer and of the prompt."""
        row_bytes = vocab_size * (PENALTY_BYTES * needs.penalties + BIAS_BYTES * needs.bias)
        num_arrays = max(needs.num_arrays, LIKELIHOOD_ARRAYS if logprobs else 0.0)
        return cls(row_bytes, num_arrays, prompt_logprobs)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one sequence asks of memory.

    num_tokens: its length. sampling: of its tokens.
    windows: columns of its own buffers of sliding windows after the step, if they are known, by window.
    """

    num_tokens: int
    sampling: SamplingMemory
    windows: Mapping[int, int] = field(default_factory=dict)

    def window_columns(self, num_columns: int, widest_chunk: int) -> Cells:
        """Return the columns of its own buffers; if not known, for num_columns fed in chunks."""
        return lambda window: self.windows.get(window) or window_columns(num_columns, window, widest_chunk)


@dataclass(frozen=True)
class StepDemands:
    """What a step has to have room for.

    rows: that decode. complete: prompts that the step completes, so that they join the rows. others: prompts
        that have caches of their own, with the tokens that these hold after the step.
    chunk_tokens: maximum tokens of a chunk. widest_chunk: the same of all chunks so far; buffers of sliding
        windows have room for it.
    members: the target model's rows as they are, if this is its next step.
    """

    rows: SequenceOf[Demand]
    complete: SequenceOf[Demand]
    others: SequenceOf[Demand]
    chunk_tokens: int
    widest_chunk: int
    members: BatchedRows | None = None

    @cached_property
    def joined(self) -> list[Demand]:
        """What shares buffers after the step."""
        return [*self.rows, *self.complete]

    @cached_property
    def prompts(self) -> list[Demand]:
        """All prompts."""
        return [*self.complete, *self.others]

    @cached_property
    def everyone(self) -> list[Demand]:
        """All rows and prompts."""
        return [*self.joined, *self.others]

    @cached_property
    def longest(self) -> int:
        """The length of the longest row."""
        return max((one.num_tokens for one in self.joined), default=0)

    @cached_property
    def has_prompt_logprobs(self) -> bool:
        """Whether log probabilities of any prompt are wanted."""
        return any(one.sampling.prompt_logprobs for one in self.prompts)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a step needs.

    kept: kept from step to step. growth: for the growth of one layer. working: while the step runs.
    operation: at most taken by one operation of the step.
    """

    kept: int = 0
    growth: int = 0
    working: int = 0
    operation: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.kept + self.growth + self.working


class MemoryBudget:
    """Estimates how much memory rows need, and compares it with the budget. Lengths are in tokens.

    weight_bytes: memory for weights. room_bytes: memory for everything else, if no other model is loaded.
    shared: the memory that other models share with these; None if there are no others.
    models: the target model and, if any, the draft model.
    vocab_size: of the target model.
    chunk_tokens: prompt tokens fed at once for which memory is reserved. largest_chunk_tokens: maximum.
    ahead_tokens: maximum tokens by which rows lengthen until the next estimate, before they are rolled back.
    has_masks: whether the target model predicts at masks, whose entropies every row may want.
    prefixes: the prefix caches, which give up memory that rows need, the first one first.
    """

    def __init__(
        self,
        weight_bytes: int,
        room_bytes: int,
        models: SequenceOf[ModelMemory],
        vocab_size: int,
        chunk_tokens: int,
        largest_chunk_tokens: int,
        ahead_tokens: int,
        has_masks: bool = False,
    ) -> None:
        self.weight_bytes = weight_bytes
        self.shared: SharedMemory | None = None
        self.room_bytes = room_bytes
        self._reserved_bytes = 0
        self._reserved_for: ref[Sequence] | None = None
        self._models = models
        self._vocab_size = vocab_size
        self.chunk_tokens = chunk_tokens
        self._largest_chunk_tokens = largest_chunk_tokens
        self._ahead_tokens = ahead_tokens
        self._has_masks = has_masks
        self.prefixes: list[PrefixCache] = []
        self._used_bytes = 0
        # Of the last estimate, if only rows ran: its room, and the lengths of rows up to which it holds.
        self._steady: tuple[int, list[tuple[Sequence, int]]] = 0, []
        # Of a request that is not known yet, and of sequences, none of which is kept after its end.
        self._most_sampling = SamplingMemory.of(ALL_NEEDS, vocab_size)
        self._sampling: WeakKeyDictionary[Sequence, SamplingMemory] = WeakKeyDictionary()
        # The shortest length that may_begin() refused, and the running sequences that took the memory.
        self._refused_tokens = 0
        self._refused_beside: Running = ([], [])

    @property
    def used_bytes(self) -> int:
        """The estimate for the step that make_room() was last called for, without weights and prefixes."""
        return self._used_bytes

    @property
    def left_bytes(self) -> int:
        """The memory for everything but weights that other models leave now."""
        return self.room_bytes if self.shared is None else self.room_bytes - self.shared.beside(self)

    @property
    def held_bytes(self) -> int:
        """What other models cannot have: see shared_memory.py."""
        return self.weight_bytes + max(self._used_bytes + self._prefix_bytes, self._reserved_bytes)

    def give_up(self, num_bytes: int) -> bool:
        """Drop cached prefixes of at least so many bytes, or all; return whether any were dropped."""
        kept = self._prefix_bytes
        self._shrink_prefixes(max(0, kept - num_bytes))
        return self._prefix_bytes < kept

    @property
    def _prefix_bytes(self) -> int:
        return sum(cache.num_bytes for cache in self.prefixes)

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
        """Return the bytes that a sequence of that length needs with no other sequence running."""
        alone = [Demand(num_tokens, self._most_sampling)]
        return max(self._estimate_full(alone, []).total, self._estimate_full([], alone).total)

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
        if running == self._refused_beside and length >= self._refused_tokens:
            return False
        rows = [self._demand(s, _length_to_admit(s)) for s in members]
        prompts = [self._demand(s, _length_to_admit(s)) for s in (*prefilling, sequence)]
        if self._estimate_full(rows, prompts).total <= self.left_bytes:
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
        if self._is_steady(members, prefilling, reading):
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
        read = sum(self._reading_bytes(len(s.tokens)) for s in reading)
        self._shrink_prefixes(self.left_bytes - estimate.total - read)
        spare = self.left_bytes - estimate.total - read - self._prefix_bytes
        if prefilling and spare > 0:
            # Of half at most: buffers may grow ahead of need into the rest.
            larger = self._feed_more(estimate_step, estimate.total + spare // 2)
            spare -= larger.total - estimate.total
            estimate = larger
        self._limit_mlx(estimate.operation)
        if spare < 0:
            return False
        self._used_bytes = estimate.total + read
        for model, model_rows in zip(self._models, rows, strict=True):
            footprint = model.footprint
            if isinstance(model_rows, BatchedRows) and footprint.token_bytes:
                # Prompts have buffers of their own until they join.
                num_cells = self._num_cells(model, [self._demand(s, len(s.tokens)) for s in members])
                # Larger buffers also need more memory when they grow.
                cell_bytes = footprint.token_bytes + footprint.layer_bytes
                # A row that joins takes as many columns as the others have by then.
                num_joining = 1 + sum(s.prefill.max_chunk_tokens == s.num_to_prefill for s in prefilling)
                ahead = spare // len(self._models) // num_joining // cell_bytes
                model_rows.limit_growth(num_cells + ahead)
                held = sum(slots * columns for slots, columns in model_rows.extents)
                self._used_bytes += max(0, held - num_cells) * cell_bytes
        # Beside other models both what is left and MLX's limit change at their turns.
        if not (prefilling or reading or self.shared):
            self._steady = self.room_bytes, [(s, len(s.tokens) + STEADY_TOKENS) for s in members]
        return True

    def _is_steady(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        reading: SequenceOf[Sequence],
    ) -> bool:
        """Whether the last estimate had room for this step as well."""
        room_bytes, steady = self._steady
        if prefilling or reading or room_bytes != self.room_bytes or len(members) != len(steady):
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
        chunks = share_tokens([s.num_to_prefill for s in prefilling], num_tokens)
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
        return self._estimate(StepDemands(decoding, complete, others, most, max(most, widest), rows))

    def _limit_mlx(self, operation: int) -> None:
        """Make MLX wait for the device while there is no room for one more operation of that many bytes."""
        mx.set_memory_limit(max(0, self.weight_bytes + self.room_bytes - operation))

    def may_measure(self, lengths: SequenceOf[int]) -> bool:
        """Whether rows of these lengths, and a step over them, fit beside the cached prefixes alone."""
        held = self._prefix_bytes
        rows = [Demand(length, self._most_sampling) for length in lengths]
        return self._estimate_full(rows, []).total + held <= self.left_bytes

    def may_copy(self, num_tokens: int, model: int = 0, num_copies: int = 1, num_held: int = 0) -> bool:
        """Drop cached prefixes until copies of a row's caches fit; return whether they do.

        model: 0 for the target model, -1 for the draft model.
        num_held: leading tokens whose keys and values are not copied.
        """
        memory = self._models[model]
        copied = memory.footprint.row_bytes(memory.num_ids(num_tokens), self.chunk_tokens)
        copied -= memory.footprint.token_bytes * num_held
        left = self.left_bytes - self._used_bytes - num_copies * copied
        if left >= 0:
            self._shrink_prefixes(left)
        return left >= 0

    def state_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the target's state after num_tokens, as the prefix cache keeps it."""
        footprint = self._models[0].footprint
        # Recurrent state is counted before and after a forward pass.
        windows = footprint.window_bytes(lambda window: min(num_tokens, window + BLOCK_TOKENS))
        return footprint.fixed_bytes // 2 + windows

    def reserve_reading(self, num_tokens: int) -> bool:
        """Reserve memory until the next make_room() for reading a text; return whether there is enough.

        num_tokens: target tokens of the text.
        """
        needed = self._reading_bytes(num_tokens)
        left = self.left_bytes - self._used_bytes - needed
        if left >= 0:
            self._shrink_prefixes(left)
            self._used_bytes += needed
        return left >= 0

    def _shrink_prefixes(self, num_bytes: int) -> None:
        """Drop cached prefixes, those of the first cache first, until at most num_bytes are kept."""
        kept = self._prefix_bytes
        for cache in self.prefixes:
            others = kept - cache.num_bytes
            cache.shrink_to(max(0, num_bytes - others))
            kept = others + cache.num_bytes

    def _reading_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the caches with which the draft model reads a text, until they are a row's."""
        draft = self._models[-1]
        if not draft.sharing:
            # Rows that do not share buffers are counted as if they held the text already.
            return 0
        return draft.footprint.row_bytes(self._prompt_columns(draft, num_tokens), self.chunk_tokens)

    def draft_model_share(self, num_bytes: int) -> int:
        """Return the part of num_bytes that holds as many of its tokens as the rest holds of the target's."""
        target, *draft = [m.footprint.row_bytes(SHARED_TOKENS, self.chunk_tokens) for m in self._models]
        return num_bytes * sum(draft) // (target + sum(draft))

    def _demand(
        self, sequence: Sequence, num_tokens: int, windows: Mapping[int, int] | None = None
    ) -> Demand:
        if (sampling := self._sampling.get(sequence)) is None:
            request = sequence.request
            needs = find_needs(request.sampling, self._vocab_size, request.grammar is not None)
            sampling = self._sampling[sequence] = SamplingMemory.of(
                needs,
                self._vocab_size,
                request.top_logprobs is not None or self._has_masks,
                request.prompt_logprobs,
            )
        return Demand(num_tokens, sampling, windows or {})

    def _estimate(self, step: StepDemands) -> Estimate:
        """Estimate what a step needs while it runs, and while prompts join the rows."""
        if not step.everyone:
            return Estimate()
        kept = sum(one.sampling.row_bytes for one in step.everyone)
        growth = forward = logits = 0
        for model in self._models:
            kept += self._kept_bytes(model, step)
            growth = max(growth, self._growth_bytes(model, step))
            forward = max(forward, self._forward_bytes(model, step))
            logits = max(logits, model.logits_bytes(len(step.rows), model.width))
            if step.has_prompt_logprobs:
                logits = max(logits, model.logits_bytes(1, PROMPT_LOGPROBS_CHUNK))
        for_sampling = self._sampling_bytes(step)
        working = max(forward, logits + for_sampling)
        # No operation of sampling takes more than half of what a piece does; half of a growth is its keys.
        return Estimate(kept, growth, working, max(forward, for_sampling // 2, growth // 2))

    def _estimate_full(self, rows: SequenceOf[Demand], prompts: SequenceOf[Demand]) -> Estimate:
        """Estimate rows, and prompts that were computed to their end, whichever steps that takes."""
        return self._estimate(StepDemands(rows, prompts, (), self.chunk_tokens, self.chunk_tokens))

    def _kept_bytes(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the bytes of a model's caches."""
        footprint, rows, joined = model.footprint, step.rows, step.joined
        kept = len(rows) * (footprint.record_bytes + model.width * footprint.record_token_bytes)
        for num_columns, window_cells in self._apart(model, step):
            kept += footprint.token_bytes * num_columns + footprint.fixed_bytes
            kept += footprint.window_bytes(window_cells)
        if not model.sharing or not joined:
            return kept
        kept += footprint.token_bytes * self._most_cells(model, step) + len(joined) * footprint.fixed_bytes
        most = self._most_columns(model, step)
        # Until a prompt joins, it has windows for its chunks.
        own = [footprint.window_bytes(one.window_columns(most, step.widest_chunk)) for one in step.complete]
        return kept + max(
            footprint.window_bytes(self._window_cells(model, step, step.complete)),
            footprint.window_bytes(self._window_cells(model, step, ())) + sum(own),
        )

    def _growth_bytes(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the bytes that one growing layer takes. Prompts grow one after another, and so do models."""
        apart = [model.footprint.growth_bytes(*each) for each in self._apart(model, step)]
        if not model.sharing:
            return sum(apart)
        window_cells = self._window_cells(model, step, step.complete)
        return max([model.footprint.growth_bytes(self._most_cells(model, step), window_cells), *apart])

    def _window_cells(self, model: ModelMemory, step: StepDemands, joining: SequenceOf[Demand]) -> Cells:
        """Return the slots times columns of the windows that rows share, once these prompts joined them."""
        if model is self._models[0] and (rows := step.members):
            lengths = [one.num_tokens for one in joining]
            return lambda window: rows.window_cells(window, lengths, model.width + STEADY_TOKENS)
        num_slots, most = max_slots(len(step.rows) + len(joining)), self._most_columns(model, step)
        return lambda window: num_slots * window_columns(most, window, model.width)

    def _forward_bytes(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the bytes of a step's largest forward pass, of its rows or of a chunk."""
        num_rows, width = len(step.rows), model.width
        seen = width * self._num_cells(model, step.rows)
        if model is self._models[0]:
            read, chunk = max((one.num_tokens for one in step.prompts), default=0), step.chunk_tokens
        else:
            # The draft model reads the text of rows.
            read, chunk = model.num_ids(step.longest), self.chunk_tokens
        num_fed = min(chunk, read)
        return max(
            model.footprint.forward_bytes(num_rows * width, seen),
            model.footprint.forward_bytes(num_fed, num_fed * (read + self._ahead_tokens)),
        )

    def _most_columns(self, model: ModelMemory, step: StepDemands) -> int:
        return model.num_ids(step.longest) + self._ahead_tokens + SLACK_TOKENS

    def _apart(self, model: ModelMemory, step: StepDemands) -> list[tuple[int, Cells]]:
        """Return the columns of the caches that share no buffers, of full attention and of windows."""
        prompts = [] if model.sharing else list(step.complete)
        if model is self._models[0]:
            # The draft model has not begun to read them; what it reads is counted by _reading_bytes().
            prompts += step.others
        apart = [(one, self._prompt_columns(model, one.num_tokens)) for one in prompts]
        if not model.sharing:
            apart += [(one, self._row_columns(model, one.num_tokens)) for one in step.rows]
        return [(columns, one.window_columns(columns, step.widest_chunk)) for one, columns in apart]

    def _sampling_bytes(self, step: StepDemands) -> int:
        """Return the maximum bytes of sampling and of prompts' log probabilities."""
        num_draws, num_arrays = len(step.rows) * self._models[0].width, 0.0
        if step.has_prompt_logprobs:
            num_draws, num_arrays = max(num_draws, PROMPT_LOGPROBS_CHUNK), LIKELIHOOD_ARRAYS
        num_arrays = max([num_arrays, *(one.sampling.num_arrays for one in step.rows)])
        return sampling_bytes(num_draws, num_arrays, self._vocab_size) if num_draws else 0

    def _most_cells(self, model: ModelMemory, step: StepDemands) -> int:
        """Return the most cells that rows take that share buffers, and prompts while they join them."""
        if not step.complete:
            return self._num_cells(model, step.rows)
        own = [self._prompt_columns(model, one.num_tokens) for one in step.complete]
        # They join one by one. Of those that have not yet, the rows' buffers later take at least what each
        # has now, but for what is to spare in its own.
        later = GROWTH_TOKENS * (len(own) - 1)
        return max(self._num_cells(model, step.rows) + sum(own), self._num_cells(model, step.joined) + later)

    def _num_cells(self, model: ModelMemory, rows: SequenceOf[Demand]) -> int:
        """Return the most cells that rows take that share buffers."""
        lengths = [one.num_tokens for one in rows]
        columns = [self._row_columns(model, length) for length in lengths]
        # How many ids a text has less than it may have is not known if it is translated.
        is_known = model.ids_per_token == 1
        spans = [
            (length - 1 if is_known else 0, model.num_ids(length) + self._ahead_tokens) for length in lengths
        ]
        return count_cells(spans, columns, model.sharing.first_limit)

    def _row_columns(self, model: ModelMemory, length: int) -> int:
        columns = model.num_ids(length) + self._ahead_tokens
        return round_columns(columns) if model.sharing else columns + GROWTH_TOKENS

    def _prompt_columns(self, model: ModelMemory, length: int) -> int:
        # A buffer fed in odd chunks may end up to one growth step beyond what it has to hold.
        return model.num_ids(length) + self._ahead_tokens + GROWTH_TOKENS


def make_memory_budget(
    loaded: LoadedModel,
    settings: Settings,
    sharing: Sharing,
    draft_model: RowDrafter | None,
    may_draft: bool = True,
) -> MemoryBudget:
    """Measure what the models need, and lower the model's context to what fits into memory.

    may_draft: whether there are verification steps with drafts.
    Raises ModelError if the weights and one row do not fit, the context that settings ask for does not, or
    weights cannot be wired as they ask.
    """
    given = settings.memory_bytes or usable_bytes()
    # MLX's own buffer cache counts too, and is freed first.
    mx.set_memory_limit(given)
    if settings.wire_weights:
        wire_weights()
    weight_bytes = loaded.info.weight_bytes
    if loaded.room_bytes is not None:
        given = min(given, weight_bytes + loaded.room_bytes)
    footprint = _find_footprint(loaded, settings.kv_bits, bool(sharing))
    width = 1 + settings.num_draft_tokens * may_draft
    if loaded.info.can_stream:
        # A step may settle the whole window, and the next one feeds that and a new window.
        width = max(width, 2 * settings.wedlm_window_size)
    models = [ModelMemory(footprint, sharing, width)]
    if isinstance(draft_model, HeadDrafter):
        weight_bytes += draft_model.num_bytes
        models = [_with_states(models[0], draft_model), _of_head(footprint, draft_model)]
    elif draft_model:
        weight_bytes += draft_model.loaded.info.weight_bytes
        is_translated = draft_model.translation.pair is not None
        draft_width = MAX_BACKLOG_TOKENS + (MAX_UNSETTLED if is_translated else 0)
        id_limits = (MAX_IDS_PER_TOKEN, SPARE_IDS) if is_translated else (1, 0)
        max_ids = draft_model.loaded.info.context_tokens
        models.append(
            ModelMemory(
                _drafting_footprint(draft_model),
                draft_model.sharing,
                draft_width,
                *id_limits,
                max_ids,
            )
        )
    memory_budget = MemoryBudget(
        weight_bytes,
        given - weight_bytes,
        models,
        loaded.info.vocab_size,
        chunk_tokens=min(RESERVED_CHUNK_TOKENS, settings.prefill_chunk_tokens),
        largest_chunk_tokens=settings.prefill_chunk_tokens,
        ahead_tokens=width + STEADY_TOKENS,
        has_masks=loaded.info.mask_token_id is not None,
    )
    _limit_context(loaded, settings, memory_budget, given, weight_bytes)
    return memory_budget


def _find_footprint(loaded: LoadedModel, kv_bits: int | None, batched: bool) -> Footprint:
    """Return the memory that a model needs besides its weights; measured unless it is known."""
    return loaded.findings.find(
        f"footprint, {kv_bits} bits, {'' if batched else 'not '}batched",
        lambda: measure(loaded.model, kv_bits, batched),
        lambda _: True,
        asdict,
        Footprint.of,
    )


def _with_states(target: ModelMemory, head: HeadDrafter) -> ModelMemory:
    """Add the states that prompts and rows keep for a head, and a forward pass's: apart, and joined."""
    footprint, state_bytes = target.footprint, head.state_bytes
    kept = replace(
        footprint,
        token_bytes=footprint.token_bytes + state_bytes,
        fed_bytes=footprint.fed_bytes + 2 * state_bytes,
        logits_bytes=footprint.logits_bytes + 2 * state_bytes,
    )
    return replace(target, footprint=kept)


def _of_head(target: Footprint, head: HeadDrafter) -> ModelMemory:
    """Return the memory that a head needs. Its forward pass takes no more than one of the whole target."""
    token_bytes, windows, layer_bytes = head.measure_caches()
    # A draft puts its own keys and values behind all that a layer holds, in a copy for each token.
    copied = HELD_COPIES * layer_bytes / MAX_BACKLOG_TOKENS
    footprint = Footprint(
        0,
        token_bytes,
        tuple((each, window) for window, each in windows.items()),
        layer_bytes,
        target.fed_bytes + 2 * head.state_bytes,
        target.seen_bytes + copied,
        target.logits_bytes,
    )
    return ModelMemory(footprint, Sharing.BUFFERS, MAX_BACKLOG_TOKENS)


def _drafting_footprint(draft_model: DraftModel) -> Footprint:
    """Measure what a draft model needs, with the states that it keeps after drafted tokens."""
    footprint = _find_footprint(draft_model.loaded, None, bool(draft_model.sharing))
    state_bytes = footprint.fixed_bytes // 2 if draft_model.sharing else 0
    return replace(footprint, record_bytes=footprint.record_bytes + MAX_LATER_STATES * state_bytes)


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


def _windows_of(caches: Caches) -> list[WindowKVCache]:
    """Return a sequence's cache of each window; those of all layers are alike."""
    by_window = {one.window: one for one in leaves(caches) if isinstance(one, WindowKVCache)}
    return list(by_window.values())


def _length_to_admit(sequence: Sequence) -> int:
    """Return a sequence's length with the part of its answer for which admission needs room."""
    left = sequence.request.max_tokens - sequence.num_answered
    return len(sequence.tokens) + min(left, ANSWER_TOKENS)


def _in_mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
