"""Verify drafts: one forward pass over all rows, and keep the tokens that the target model chooses too.

    newest token + draft -> one forward pass -> sample every drafted position and the one after the draft
    -> accept drafted tokens while they equal the sampled ones -> commit those and the next sampled token

Every position is sampled with its own noise, and penalties and masks see the drafted tokens before it. So
the committed tokens are exactly those of plain decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from drafters.base import NO_DRAFT, Draft
from engine.kv_cache.rows import Rows
from engine.sampling.entropy import find_entropies
from engine.sampling.grammar import Mask
from engine.sampling.logprobs import Likelihood, measure
from engine.sampling.sampler import Draw, Sampler
from engine.speculative.acceptance import count_accepted
from engine.speculative.streaming_window import Window
from engine.stations import station


# Not frozen, as it takes twice as long to create: a step has one for each row.
@dataclass(slots=True)
class RowInput:
    """What a verification step feeds for one row.

    newest: its newest committed token, the only one that its cache lacks, unless the row streams.
    draft: (k,) tokens of `source` to verify.
    position: absolute index of the first token to be sampled: the number of committed tokens.
    num_wanted: tokens that the draft model is still to draft for this row, in the target's vocabulary.
    num_to_draft: tokens that it drafts for them, in its own vocabulary.
    masks: (k + 1,) tokens that the grammar allows at each drafted position and after; empty without one.
    mask_tokens: the model's mask tokens to feed behind the draft. What it predicts there are the next drafts.
    window: what is fed in place of a draft if the row streams (streaming_window.py); None if it does not.
    pending: the committed tokens that a streaming row's cache lacks, the newest last.
    """

    newest: int
    position: int
    draft: Sequence[int] = ()
    source: Draft = NO_DRAFT
    num_wanted: int = 0
    num_to_draft: int = 0
    masks: Sequence[Mask] = ()
    mask_tokens: Sequence[int] = ()
    window: Window | None = None
    pending: Sequence[int] = ()

    @property
    def width(self) -> int:
        """Tokens fed for this row."""
        if self.window:
            return len(self.pending) + len(self.window.places)
        return 1 + len(self.draft) + len(self.mask_tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one row commits.

    verified: the row's input. tokens: the accepted draft tokens and the bonus token, so at least one; of a
        streaming row what is settled, perhaps nothing.
    likelihoods: of each token, None where the request does not want log probabilities.
    predicted, entropies: (mask tokens,) what the model predicts at each, the first for the place of the bonus
        token, and how uncertain it is, in nats; empty if a drafted token was rejected.
    window: what stands right of these tokens; None if the row does not stream.
    """

    verified: RowInput
    tokens: list[int]
    likelihoods: list[Likelihood | None]
    predicted: Sequence[int] = ()
    entropies: Sequence[float] = ()
    window: Window | None = None

    @property
    def num_final(self) -> int:
        """How many of the tokens fed stay in the row's cache: those that precede its newest committed one."""
        if self.window:
            return len(self.verified.pending) - (not self.tokens)
        return len(self.tokens)


class _Draws:
    """The tokens to draw in a step, row by row, and the places in the logits that each needs.

    draws, positions, places, wanted: (draws,) arguments of Sampler.sample() and measure().
    uncertain: (masks,) places of the logits whose entropy is needed.
    """

    def __init__(self, inputs: Sequence[RowInput], width: int, wanted: Sequence[int | None]) -> None:
        """width: of the forward pass. wanted: GenerationRequest.top_logprobs of each row."""
        self.draws: list[Draw] = []
        self.positions: list[int] = []
        self.places: list[int] = []
        self.wanted: list[int | None] = []
        self.uncertain: list[int] = []
        for row, (row_input, num_top) in enumerate(zip(inputs, wanted, strict=True)):
            if row_input.window:
                self._add_holes(row, row_input, row_input.window, row * width, num_top)
            else:
                self._add_draft(row, row_input, row * width, num_top)

    def _add_draft(self, row: int, row_input: RowInput, start: int, num_top: int | None) -> None:
        num_drafted, num_masked = len(row_input.draft), len(row_input.mask_tokens)
        self.places += range(start, start + row_input.width)
        self.uncertain += range(start + 1 + num_drafted, start + row_input.width)
        masks: Sequence[Mask | None] = row_input.masks or [None] * (num_drafted + 1)
        self.draws += [Draw(row, row_input.draft[:at], mask) for at, mask in enumerate(masks)]
        self.draws += [Draw(row, row_input.draft)] * num_masked
        # The first mask stands where the bonus token will.
        bonus_at = row_input.position + num_drafted
        self.positions += range(row_input.position, bonus_at + 1)
        self.positions += range(bonus_at, bonus_at + num_masked)
        # None of what is predicted at a mask.
        self.wanted += [num_top] * (num_drafted + 1) + [None] * num_masked

    def _add_holes(
        self, row: int, row_input: RowInput, window: Window, start: int, num_top: int | None
    ) -> None:
        places = [start + at for at in window.logits_at(len(row_input.pending))]
        self.places += places
        self.uncertain += places
        self.draws += window.draws(row, row_input.masks)
        self.positions += [row_input.position + hole for hole in window.holes]
        self.wanted += [num_top] * len(places)


@station("dispatch")
def verify_drafts(
    rows: Rows,
    sampler: Sampler,
    inputs: Sequence[RowInput],
    wanted: Sequence[int | None],
    before: Callable[[], object],
) -> list[Outcome]:
    """Run one forward pass over all rows and wait once; returns what each row commits.

    inputs: one for each row, in their order. The rows then hold every token fed; the caller rolls them back.
    wanted: GenerationRequest.top_logprobs of each row.
    before: called when all is ready to be dispatched.
    Raises whatever the forward pass raises; the rows cannot be used after that.
    """
    logits = _forward(rows, inputs)
    asked = _Draws(inputs, logits.shape[1], wanted)
    logits = logits.reshape(-1, logits.shape[-1])
    tokens = sampler.sample(logits, asked.positions, asked.draws, asked.places)
    measured = measure(logits, tokens, asked.wanted, asked.places)
    uncertain = find_entropies(logits, asked.uncertain, measured.arrays if measured else [tokens])
    with station("waiting"):
        before()
        mx.eval(tokens, uncertain, *(measured.arrays if measured else ()))
    sampled: list[int] = tokens.tolist()  # type: ignore[assignment]
    entropies: list[float] = uncertain.tolist()  # type: ignore[assignment]
    likelihoods: list[Likelihood | None] = measured.read() if measured else [None] * len(sampled)
    outcomes: list[Outcome] = []
    start = start_masked = 0
    for row_input in inputs:
        holes = row_input.window.holes if row_input.window else None
        end = start + (row_input.width if holes is None else len(holes))
        end_masked = start_masked + len(row_input.mask_tokens if holes is None else holes)
        conclude = _accept if holes is None else _fill
        given = sampled[start:end], likelihoods[start:end], entropies[start_masked:end_masked]
        outcomes.append(conclude(row_input, *given))
        start, start_masked = end, end_masked
    return outcomes


def _forward(rows: Rows, inputs: Sequence[RowInput]) -> mx.array:
    """Feed the inputs; return logits (rows, largest width, vocabulary), not yet evaluated."""
    fed = [
        [*one.pending, *one.window.tokens] if one.window else [one.newest, *one.draft, *one.mask_tokens]
        for one in inputs
    ]
    if not any(row_input.window for row_input in inputs):
        return rows.forward_ragged(fed)
    return rows.forward_ragged(
        fed, [one.window.ranks(len(one.pending)) if one.window else None for one in inputs]
    )


def _accept(
    row_input: RowInput,
    sampled: list[int],
    likelihoods: list[Likelihood | None],
    entropies: list[float],
) -> Outcome:
    """Return what a row commits of its draft. Arguments: of all its draws, entropies of those at masks."""
    bonus_at = len(row_input.draft)
    num_kept = count_accepted(row_input.draft, sampled[: bonus_at + 1]) + 1
    outcome = Outcome(row_input, sampled[:num_kept], likelihoods[:num_kept])
    if entropies and num_kept == bonus_at + 1:
        return replace(outcome, predicted=sampled[num_kept:], entropies=entropies)
    return outcome


def _fill(
    row_input: RowInput,
    sampled: list[int],
    likelihoods: list[Likelihood | None],
    entropies: list[float],
) -> Outcome:
    """Return what a row that streams commits. Arguments: of its holes."""
    assert row_input.window
    settled, window = row_input.window.fill(sampled, entropies, likelihoods)
    tokens, found = [one.token for one in settled], [one.likelihood for one in settled]
    return Outcome(row_input, tokens, found, window=window)
