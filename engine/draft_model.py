"""A small model that drafts for the rows of a large one, token by token, with caches of its own.

Its rows stand in the order of the target's. It samples with the target's settings, and with the very
noise that the target will draw with at the same position: so the two agree at temperature as often as
their distributions let them (a Gumbel coupling), and drafting stays exact whatever it says.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from engine.caches import Caches
from engine.caches import make_caches as make_row_caches
from engine.draft_length import DraftWork
from engine.drafted_step import Feed
from engine.drafting import count_accepted
from engine.loading import LoadedModel, ModelError
from engine.rows import can_batch, make_rows, rollback_fault
from engine.sampling import Sampler

BACKLOG_TOKENS = 64
"""Most committed tokens that a row is fed before a draft; one that lacks more is brought nearer first."""


class DraftModel:
    """The draft model and its rows, which the worker keeps in the order of its own.

    Raises ModelError if its vocabulary is not the target's, or if its caches cannot be rolled back.
    """

    def __init__(self, loaded: LoadedModel, target: LoadedModel) -> None:
        check_vocabularies(loaded, target)
        if fault := rollback_fault(loaded.model):
            raise ModelError(f"the model {loaded.info.name} cannot draft: {fault}")
        self.loaded = loaded
        self.model = loaded.model
        self.batched = can_batch(loaded.model)
        self.vocab_size = target.info.vocab_size
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.rows = make_rows(self.model, self.batched)
        self._drafted: list[tuple[int, list[int]]] = []

    def make_caches(self) -> Caches:
        """Empty caches for one prompt."""
        return make_row_caches(self.model)

    def add(self, caches: Caches, length: int) -> None:
        """A row joins as the last one; its caches hold its first length tokens, perhaps none."""
        self.rows.add(caches, length)
        self._drafted.append((length, []))

    def remove(self, row: int) -> None:
        """A row leaves; the last row takes its place."""
        self.rows.remove(row)
        self._drafted[row] = self._drafted[-1]
        self._drafted.pop()

    def fill_in(
        self, feeds: list[Feed], committed: Sequence[Sequence[int]], sampler: Sampler
    ) -> DraftWork | None:
        """Make the drafts that feeds want; a row that is too far behind gets none, and is brought nearer.

        feeds: one for each row; those with drafts are replaced. committed: for every row, all its tokens.
        sampler: the target's, for the same rows.
        Returns what was done, None if no feed wants a draft.
        """
        num_to_draft = max(feed.num_to_draft for feed in feeds)
        if not num_to_draft:
            return None
        fed, left = [], []
        for row, (feed, tokens) in enumerate(zip(feeds, committed, strict=True)):
            held = self._keep_accepted(row, tokens)
            most = BACKLOG_TOKENS if feed.num_wanted else 1
            fed.append(list(tokens[held : held + most]))
            left.append(len(tokens) - held - len(fed[row]))
        is_ready = [feed.num_wanted > 0 and not lacking for feed, lacking in zip(feeds, left, strict=True)]
        # What is drafted for a row that lacks tokens is of no use to anybody.
        num_to_draft = num_to_draft if any(is_ready) else 0
        lines = self._draft(fed, [len(tokens) for tokens in committed], num_to_draft, sampler)
        carried: list[tuple[int, int] | None] = [None] * len(feeds)
        for row, (feed, line) in enumerate(zip(feeds, lines, strict=True)):
            if is_ready[row]:
                draft, carried[row] = line[: feed.num_wanted], (len(line), len(line))
                feeds[row] = replace(feed, draft=draft, source=replace(feed.source, tokens=draft))
        return DraftWork(max(map(len, fed)), num_to_draft, left, carried)

    def _draft(
        self, fed: Sequence[Sequence[int]], positions: Sequence[int], num_tokens: int, sampler: Sampler
    ) -> list[list[int]]:
        """Feed the rows and go on for num_tokens, perhaps none; returns as many for each row. One wait."""
        logits = self.rows.forward_ragged(fed)
        # What was fed is committed: only what is drafted from here on may have to be forgotten.
        self.rows.keep()
        ends = mx.array([len(tokens) - 1 for tokens in fed])
        last = mx.take_along_axis(logits, ends[:, None, None], axis=1)[:, 0]
        drafted: list[mx.array] = []
        for at in range(num_tokens):
            if at:
                last = self.rows.forward(drafted[-1][:, None])[:, -1]
            drafted.append(sampler.sample(self._fitted(last), [position + at for position in positions]))
        if not drafted:
            mx.eval(last)
            self._drafted = [(length, []) for length in self.rows.lengths]
            return [[] for _ in fed]
        lines: list[list[int]] = mx.stack(drafted, axis=1).tolist()  # type: ignore[assignment]
        for row, line in enumerate(lines):
            self._drafted[row] = self.rows.lengths[row] - len(line) + 1, line[:-1]
        return lines

    def _keep_accepted(self, row: int, tokens: Sequence[int]) -> int:
        """Roll a row back to the drafted tokens that were committed; returns how many it then holds."""
        start, drafted = self._drafted[row]
        length = start + count_accepted(drafted, tokens[start:])
        # At least one token must be fed, for its logits.
        return self.rows.roll_back(row, min(length, len(tokens) - 1))

    def _fitted(self, logits: mx.array) -> mx.array:
        """(rows, any size) logits as the target's sampler takes them; sizes differ by padding alone."""
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return mx.pad(logits.astype(mx.float32), [(0, 0), (0, missing)], constant_values=float("-inf"))
        return logits[:, : self.vocab_size]


def check_vocabularies(draft: LoadedModel, target: LoadedModel) -> None:
    """Raise ModelError if token ids do not mean the same to both models."""
    if draft.tokenizer.fingerprint != target.tokenizer.fingerprint:
        sizes = [len(loaded.tokenizer.wrapped.get_vocab()) for loaded in (draft, target)]
        raise ModelError(
            f"the draft model {draft.info.name} has another vocabulary ({sizes[0]} tokens) than "
            f"{target.info.name} ({sizes[1]} tokens); take one of the same family, or none"
        )
