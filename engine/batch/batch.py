"""The sequences that decode together, and what the device holds for them."""

from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mlx.core as mx

from reprise.engine.batch.device import Device
from reprise.engine.batch.sequence import Sequence
from reprise.engine.batch.stages import Prefill
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.rows import Rows, Sharing, make_rows
from reprise.engine.sampling.sampler import Sampler
from reprise.engine.speculative.draft_model.draft_prefill import TextPrefill
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, RowDrafter
from reprise.engine.speculative.heads.taps import TappedStates


class Batch:
    """The decoding sequences, in the order of their rows in the target model and in the draft model alike.

    rows: the target model's rows. draft_model: the draft model or the target's head; None if neither drafts.
    device: computes the steps of these rows.
    """

    def __init__(
        self, model: Any, vocab_size: int, sharing: Sharing, draft_model: RowDrafter | None, device: Device
    ) -> None:
        self.device = device
        self._model = model
        self.vocab_size = vocab_size
        self._sharing = sharing
        self.draft_model = draft_model
        self.clear()

    def clear(self) -> None:
        """Drop all rows, and the step in flight."""
        self.rows = make_rows(self._model, self._sharing)
        if self.draft_model:
            self.draft_model.clear()
        self.device.step = None
        self._sampler: Sampler | None = None
        # Last: if this raises, the members must still be found, for their terminal events.
        self.members: list[Sequence] = []

    @property
    def rows_by_model(self) -> list[Rows]:
        """The rows of the target model and, if there is one, of the draft model."""
        return [self.rows, *([self.draft_model.rows] if self.draft_model else [])]

    @property
    def sampler(self) -> Sampler:
        """The sampler for the present rows; a new one is made after a row joined or left."""
        if self._sampler is None:
            rows = [s.make_row_sampling(self.vocab_size) for s in self.members]
            self._sampler = Sampler(rows, self.vocab_size)
        return self._sampler

    def join(self, sequence: Sequence, draft_prefill: TextPrefill | None = None) -> None:
        """Make a prefilled sequence the last row. Its last token is fed by the next step.

        draft_prefill: of the sequence's text; None if no model drafts for it.
        If this raises, some caches may hold the sequence and others not: none of the rows can be used then.
        """
        prefill = sequence.prefill
        self.rows.add(prefill.caches, prefill.num_computed)
        if prefill.looking and (delta := prefill.looking.delta):
            assert isinstance(self.rows, BatchedRows)
            self.rows.shared.shift(len(self.members), delta)
        if self.draft_model:
            # The same drafter has made it.
            self.draft_model.add(draft_prefill)  # type: ignore[arg-type]
        # The rows own the caches from now on.
        sequence.prefill = Prefill()
        self.members.append(sequence)
        self._sampler = None
        self.device.skip_moves()

    def free(self, leaving: list[int]) -> None:
        """Remove the leaving rows, given in ascending order; the last row moves into each freed place.

        A sequence that will decode again later must not have a token in flight.
        """
        for row in reversed(leaving):
            self.rows.remove(row)
            if self.draft_model:
                self.draft_model.remove(row)
            self.members[row] = self.members[-1]
            self.members.pop()
        self._sampler = None
        self.device.skip_moves()

    def start_copies(self) -> None:
        """Start copying the rows that a joining or leaving row moved, as no step does so soon."""
        for rows in self.rows_by_model:
            if isinstance(rows, BatchedRows):
                rows.start_copies()

    def tapping(self) -> AbstractContextManager[TappedStates | None]:
        """Tap the target's states in a forward pass over all rows, if a head reads the states of any row."""
        return self.draft_model.tapping() if isinstance(self.draft_model, HeadDrafter) else nullcontext()

    def hand_over(self, tapped: TappedStates | None, num_final: SequenceOf[int]) -> list[mx.array]:
        """Hand the states of a forward pass over to the head; return them, not yet evaluated.

        num_final: (rows,) how many of the tokens fed stay in each row's caches.
        """
        if tapped is None or not isinstance(self.draft_model, HeadDrafter):
            return []
        return self.draft_model.receive(tapped, num_final)
