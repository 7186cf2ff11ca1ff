"""Who may run, by what memory holds: predicted before a row begins, and looked at again before every step.

A row is let in for its prompt and some of its answer, not for all that it may ever say. So rows may outgrow
memory together. Then the prefix cache gives way first, and after it the youngest row, which starts over
later. The oldest never does, and memory holds any sequence alone: Admission.most_tokens sees to that.
"""

import logging
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

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
"""Of its answer, how much a row must have room for to begin."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the models, the draft model too, and whether its rows share buffers.

    ids_per_token, spare_ids: a text of n of the target's tokens is no more than n times that, and so many
        more, of the model's own. most_ids: that it ever reads.
    """

    footprint: Footprint
    batched: bool
    ids_per_token: int = 1
    spare_ids: int = 0
    max_ids: int | None = None

    def num_ids(self, num_tokens: int) -> int:
        """The most that a text of num_tokens may be."""
        num_ids = num_tokens * self.ids_per_token + self.spare_ids
        return num_ids if self.max_ids is None else min(num_ids, self.max_ids)


class MemoryBudget:
    """Knows what rows take, and what there is for them. Lengths are in tokens.

    room_bytes: for everything but weights. parts: the models, the target first.
    most_rows: that run at once. most_fed: tokens that one forward feeds to all rows.
    chunk_tokens: most of a prompt that is fed at once. ahead_tokens: most that a step adds to a row, and then
    takes back.
    """

    def __init__(
        self, room_bytes: int, parts: SequenceOf[Part], max_fed: int, chunk_tokens: int, ahead_tokens: int
    ) -> None:
        self.room_bytes = room_bytes
        self._parts = parts
        self._max_fed = max_fed
        self._chunk_tokens = chunk_tokens
        self._ahead_tokens = ahead_tokens
        self._used_bytes = 0

    def max_tokens(self, limit: int) -> int:
        """The longest sequence, up to limit, that memory holds alone; 0 if it holds none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_alone(middle) <= self.room_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def bytes_alone(self, num_tokens: int) -> int:
        """What a sequence of that length takes with nothing beside it."""
        return max(self._bytes([num_tokens], []), self._bytes([], [num_tokens]))

    def may_begin(
        self, sequence: Sequence, members: SequenceOf[Sequence], prefilling: SequenceOf[Sequence]
    ) -> bool:
        """Whether a sequence that waits fits beside those that decode and those that prefill."""
        rows, prompts = [_reach(s) for s in members], [_reach(s) for s in (*prefilling, sequence)]
        # Alone it fits, as its length was checked: whoever comes first must not wait for ever.
        return not (members or prefilling) or self._bytes(rows, prompts) <= self.room_bytes

    def make_room(
        self,
        members: SequenceOf[Sequence],
        prefilling: SequenceOf[Sequence],
        rows: SequenceOf[Rows],
        prefixes: PrefixCache | None,
    ) -> bool:
        """Whether the next step fits, at the cost of kept prefixes if need be.

        rows: of each part. What is left over, their buffers may grow into ahead of need.
        """
        lengths, prompts = [len(s.tokens) for s in members], [len(s.tokens) for s in prefilling]
        needed = self._bytes(lengths, prompts)
        if prefixes is not None:
            prefixes.shrink_to(max(0, self.room_bytes - needed))
        if needed > self.room_bytes:
            return False
        spare = self.room_bytes - needed - (prefixes.num_bytes if prefixes is not None else 0)
        self._used_bytes = needed
        for part, own in zip(self._parts, rows, strict=True):
            if isinstance(own, BatchedRows) and part.footprint.token_bytes:
                places = self._places(part, lengths)
                own.limit_growth(places + spare // len(self._parts) // part.footprint.token_bytes)
                slots, columns = own.extent
                self._used_bytes += max(0, slots * columns - places) * part.footprint.token_bytes
        return True

    def may_copy(self, num_tokens: int, prefixes: PrefixCache | None) -> bool:
        """Whether a row's caches fit a second time, at the cost of kept prefixes if need be."""
        footprint = self._parts[0].footprint
        left = self.room_bytes - self._used_bytes - footprint.row_bytes(num_tokens, self._chunk_tokens)
        if left >= 0 and prefixes is not None:
            prefixes.shrink_to(left)
        return left >= 0

    def _bytes(self, rows: SequenceOf[int], prompts: SequenceOf[int]) -> int:
        """What rows and prompts of these lengths take while the next step runs."""
        everyone = [*rows, *prompts]
        if not everyone:
            return 0
        total = 0
        for part in self._parts:
            own = part.footprint
            if not part.batched:
                total += sum(self._row_bytes(own, part.num_ids(length)) for length in everyone)
                continue
            # Who is alone brings its own buffers along.
            if rows or len(prompts) > 1:
                total += own.token_bytes * self._places(part, everyone)
            total += sum(self._row_bytes(own, part.num_ids(length)) for length in prompts)
        return total + max(
            part.footprint.forward_bytes(self._max_fed, part.num_ids(max(everyone)) + self._ahead_tokens)
            for part in self._parts
        )

    def _row_bytes(self, footprint: Footprint, length: int) -> int:
        # Fed in odd chunks, a buffer ends up to one step beyond what it has to hold.
        return footprint.row_bytes(length + self._ahead_tokens + GROWTH_TOKENS, self._chunk_tokens)

    def _places(self, part: Part, lengths: SequenceOf[int]) -> int:
        return len(lengths) * round_columns(part.num_ids(max(lengths, default=0)) + self._ahead_tokens)


def make_memory_budget(
    loaded: LoadedModel, settings: Settings, batched: bool, draft_model: DraftModel | None
) -> MemoryBudget:
    """Find out what the models take, and lower the model's context to what memory holds.

    Raises ModelError if memory does not hold the weights and a row, or the context that was asked for.
    """
    given = settings.memory_bytes or usable_bytes()
    if settings.memory_bytes:
        # What MLX keeps for later use counts too, and gives way.
        mx.set_memory_limit(given)
    weight_bytes = loaded.info.weight_bytes
    parts = [Part(measure(loaded.model, settings.kv_bits), batched)]
    if draft_model:
        weight_bytes += draft_model.loaded.info.weight_bytes
        reach = (MAX_IDS_PER_TOKEN, SPARE_IDS) if draft_model.translation.pair else (1, 0)
        most = draft_model.loaded.info.context_tokens
        parts.append(Part(measure(draft_model.model), draft_model.batched, *reach, most))
    widest = settings.num_draft_tokens + 1 + MAX_PENDING
    memory_budget = MemoryBudget(
        given - weight_bytes,
        parts,
        max_fed=max(settings.prefill_chunk_tokens, settings.max_rows * widest),
        chunk_tokens=settings.prefill_chunk_tokens,
        ahead_tokens=widest,
    )
    _limit_context(loaded, settings, memory_budget, given, weight_bytes)
    return memory_budget


def _limit_context(
    loaded: LoadedModel, settings: Settings, memory_budget: MemoryBudget, given: int, weight_bytes: int
) -> None:
    info = loaded.info
    most = memory_budget.max_tokens(info.context_tokens)
    have = f"{_shown(given)} of memory (--memory-bytes), {_shown(weight_bytes)} of it for weights,"
    if most < 2:
        raise ModelError(
            f"{have} leave no room for a row of {info.name}: even a short one takes "
            f"{_shown(memory_budget.bytes_alone(2))}"
        )
    if most == info.context_tokens:
        return
    if settings.max_context_tokens:
        raise ModelError(
            f"--max-context-tokens {info.context_tokens} takes "
            f"{_shown(memory_budget.bytes_alone(info.context_tokens))}; {have} hold {most} tokens: lower it"
        )
    log.warning(
        "%s hold a context of %d tokens; the model was made for %d, which take %s",
        have, most, info.context_tokens, _shown(memory_budget.bytes_alone(info.context_tokens)),
    )  # fmt: skip
    first, second = memory_budget.bytes_alone(most), memory_budget.bytes_alone(most + GROWTH_TOKENS)
    limit = MemoryLimit(memory_budget.room_bytes, most, first, (second - first) / GROWTH_TOKENS)
    loaded.info = replace(info, context_tokens=most, memory_limit=limit)


def _reach(sequence: Sequence) -> int:
    """How long a sequence is, with as much of its answer as has to have room."""
    left = sequence.request.max_tokens - sequence.num_answered
    return len(sequence.tokens) + min(left, ANSWER_TOKENS)


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
