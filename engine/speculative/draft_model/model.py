"""A small model that drafts for the rows of a large one, token by token, with caches of its own.

Its rows stand in the order of the target's. It reads the committed text in ids of its own, and its drafts
come back in the target's (translation.py). It samples with the target's settings, and with the very noise
that the target will draw with at the same position (draft_sampling.py): so the two agree at temperature as
often as their distributions let them, and drafting stays exact whatever it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from engine.kv_cache.per_row import is_recurrent, leaves
from engine.kv_cache.per_row import make_caches as make_row_caches
from engine.kv_cache.probes import can_batch, rollback_fault
from engine.kv_cache.rows import make_rows
from engine.kv_cache.sliding_window import ROLLBACK_TOKENS
from engine.model.loading import LoadedModel, ModelError
from engine.sampling.sampler import Sampler
from engine.speculative.acceptance import count_accepted
from engine.speculative.draft_model.costs import DraftWork
from engine.speculative.draft_model.reader import DraftReader, GiveUp
from engine.speculative.draft_model.sampling import make_draft_sampling
from engine.speculative.translation.translation import Translation
from engine.speculative.verify import RowInput

MAX_BACKLOG_TOKENS = 64
"""Most settled ids that a row is fed before a draft; one that lacks more is brought nearer first."""

NOTHING = 0
"""Fed to a row that has nothing to be fed, as every row takes part in a forward, and then taken back."""


@dataclass
class DraftRow:
    """Where a row stands.

    reader: None where nothing is drafted.
    start: leading ids of the text that its caches hold. drafted: what they hold behind those.
    floor: a length below which it cannot go back.
    """

    reader: DraftReader | None
    start: int
    drafted: Sequence[int] = ()
    floor: int = 0


@dataclass
class Part:
    """What a row is fed before a draft.

    held: how many leading ids its caches hold. left: how many it lacks even then, or has to be fed again.
    floor: a length below which it will not go back. num_unsettled: ids of the text that may still change.
    is_next: whether what is drafted then goes on from the committed text.
    """

    held: int
    ids: Sequence[int] = ()
    floor: int = 0
    left: int = 0
    num_unsettled: int = 0
    is_next: bool = False


class DraftModel:
    """The draft model and its rows, which the worker keeps in the order of its own.

    Raises ModelError if its caches cannot be rolled back.
    """

    def __init__(self, loaded: LoadedModel, translation: Translation) -> None:
        if fault := rollback_fault(loaded.model):
            raise ModelError(f"the model {loaded.info.name} cannot draft: {fault}")
        self.loaded = loaded
        self.model = loaded.model
        self.translation = translation
        self.batched = can_batch(loaded.model)
        self._is_recurrent = any(is_recurrent(cache) for cache in leaves(make_row_caches(loaded.model)))
        self._sampling = make_draft_sampling(translation)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.rows = make_rows(self.model, self.batched)
        self._rows: list[DraftRow] = []

    def make_reader(self, num_tokens: int, give_up: GiveUp) -> DraftReader | None:
        """What reads a sequence from its prompt on; None if that is surely too long.

        give_up: called if it cannot go on.
        """
        limit = self.loaded.info.context_tokens
        if self.translation.pair is None and num_tokens >= limit:
            return None
        return DraftReader(self.translation.make_translator(), make_row_caches(self.model), limit, give_up)

    def add(self, reader: DraftReader | None) -> None:
        """A row joins as the last one, read so far by reader; without one nothing is drafted for it."""
        caches, num_held = (reader.release_caches(), reader.num_computed) if reader else ([], 0)
        self.rows.add(caches or make_row_caches(self.model), num_held)
        self._rows.append(DraftRow(reader, num_held, floor=num_held))

    def remove(self, row: int) -> None:
        """A row leaves; the last row takes its place."""
        self.rows.remove(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def fill_in(
        self, inputs: list[RowInput], committed: Sequence[Sequence[int]], sampler: Sampler
    ) -> DraftWork | None:
        """Make the drafts that feeds want; a row that is too far behind gets none, and is brought nearer.

        feeds: one for each row; those with drafts are replaced. committed: for every row, all its tokens.
        sampler: the target's, for the same rows.
        Returns what was done, None if no feed wants a draft.
        """
        num_to_draft = max(row_input.num_to_draft for row_input in inputs)
        if not num_to_draft:
            return None
        parts = [
            self._next_part(row, tokens, num_to_draft, row_input.num_wanted > 0)
            for row, (row_input, tokens) in enumerate(zip(inputs, committed, strict=True))
        ]
        # What is drafted for a row that lacks tokens is of no use to anybody.
        num_to_draft = num_to_draft if any(part.is_next for part in parts) else 0
        num_to_draft = min(num_to_draft, ROLLBACK_TOKENS - max(part.num_unsettled for part in parts))
        lines = self._draft(parts, [len(tokens) for tokens in committed], num_to_draft, sampler)
        carried: list[tuple[int, int] | None] = [None] * len(inputs)
        for row, (row_input, part, line) in enumerate(zip(inputs, parts, lines, strict=True)):
            if part.is_next:
                found = self._translate_draft(self._rows[row], line)
                draft, carried[row] = found[: row_input.num_wanted], (len(line), len(found))
                inputs[row] = replace(row_input, draft=draft, source=replace(row_input.source, tokens=draft))
        return DraftWork(
            max(len(part.ids) for part in parts), num_to_draft, [part.left for part in parts], carried
        )

    def _next_part(self, row: int, tokens: Sequence[int], num_ahead: int, is_wanted: bool) -> Part:
        """Read on, and roll the row back to what it held rightly of the text.

        num_ahead: how many are going to be drafted. is_wanted: whether for this row.
        """
        own = self._rows[row]
        num_same = self._read(own, tokens, num_ahead)
        if own.reader is None:
            return self._idle(row, own.start)
        ids, num_settled = own.reader.ids, own.reader.num_settled
        if num_same < own.start:
            right = num_same
        else:
            right = own.start + count_accepted(own.drafted, ids[own.start : own.start + len(own.drafted)])
        if self._is_recurrent:
            # State that the next draft leaves behind is to be taken back to where the text is settled.
            right = min(right, num_settled)
        # At least one id must be fed, for its logits.
        right = min(right, len(ids) - 1)
        if right < own.floor:
            return self._idle(row, own.floor)
        held = self.rows.roll_back(row, right)
        num_unsettled = len(ids) - num_settled
        end = held + 1
        if is_wanted:
            end = len(ids) if num_settled - held <= MAX_BACKLOG_TOKENS else held + MAX_BACKLOG_TOKENS
        return Part(
            held,
            ids[held:end],
            floor=max(own.floor, min(num_settled, end)),
            left=len(ids) - end + (num_unsettled if self._is_recurrent else 0),
            num_unsettled=num_unsettled,
            is_next=is_wanted and end == len(ids),
        )

    def _idle(self, row: int, length: int) -> Part:
        """For a row that has nothing to be fed."""
        held = self.rows.roll_back(row, length)
        return Part(held, floor=held)

    def _read(self, own: DraftRow, tokens: Sequence[int], num_ahead: int) -> int:
        """How many leading ids are as they were; without a reader afterwards, it could not read on."""
        if own.reader is None:
            return 0
        try:
            return own.reader.read(tokens, num_ahead)
        # Drafts are a bonus: this row has no more of them.
        except Exception as fault:
            self._give_up(own, fault)
            return 0

    def _translate_draft(self, own: DraftRow, line: Sequence[int]) -> list[int]:
        if own.reader is None:
            return []
        try:
            return own.reader.translator.translate_draft(line)
        except Exception as fault:
            self._give_up(own, fault)
            return []

    def _give_up(self, own: DraftRow, fault: Exception) -> None:
        assert own.reader is not None
        own.reader.give_up(fault)
        own.reader = None

    def _draft(
        self, parts: Sequence[Part], positions: Sequence[int], num_tokens: int, sampler: Sampler
    ) -> list[list[int]]:
        """Feed the rows and go on for num_tokens, perhaps none; returns as many for each row. One wait."""
        fed = [part.ids or [NOTHING] for part in parts]
        logits = self.rows.forward_ragged(fed, [part.floor for part in parts])
        ends = mx.array([len(ids) - 1 for ids in fed])
        last = mx.take_along_axis(logits, ends[:, None, None], axis=1)[:, 0]
        drafted: list[mx.array] = []
        draw = self._sampling.make_draw(sampler, positions, num_tokens)
        for at in range(num_tokens):
            if at:
                last = self.rows.forward(drafted[-1][:, None])[:, -1]
            drafted.append(draw(last))
        if drafted:
            lines: list[list[int]] = mx.stack(drafted, axis=1).tolist()  # type: ignore[assignment]
        else:
            mx.eval(last)
            lines = [[] for _ in fed]
        for own, part, line in zip(self._rows, parts, lines, strict=True):
            own.start, own.floor = part.held + len(part.ids), part.floor
            own.drafted = line[:-1] if part.ids else ()
        return lines
