"""Verify drafts: one forward pass over all rows, and keep the tokens that the target model chooses too.

    newest token + draft -> one forward pass -> sample every drafted position and the one after the draft
    -> accept drafted tokens while they equal the sampled ones -> commit those and the next sampled token

Every position is sampled with its own noise, and penalties and masks see the drafted tokens before it. So
the committed tokens are exactly those of plain decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

    newest: its newest committed token, the only one that its cache lacks.
    draft: (k,) tokens of `source` to verify.
    position: absolute index of the first token to be sampled: the number of committed tokens.
    num_wanted: tokens that the draft model is still to draft for this row, in the target's vocabulary.
    num_to_draft: tokens that it drafts for them, in its own vocabulary.
    masks: (k + 1,) tokens that the grammar allows at each drafted position and after; empty without one.
    window: what is fed in place of a draft if the row streams; see streaming_window.py. None if it does not.
    pending: committed tokens that a streaming row's cache lacks, the newest last.
    """

    newest: int
    position: int
    draft: Sequence[int] = ()
    source: Draft = NO_DRAFT
    num_wanted: int = 0
    num_to_draft: int = 0
    masks: Sequence[Mask] = ()
    window: Window | None = None
    pending: Sequence[int] = ()

    @property
    def fed(self) -> list[int]:
        """The tokens fed for this row."""
        if self.window:
            return [*self.pending, *self.window.tokens]
        return [self.newest, *self.draft]

    @property
    def width(self) -> int:
        """Tokens fed for this row."""
        if self.window:
            return len(self.pending) + len(self.window.places)
        return 1 + len(self.draft)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one row commits.

    verified: the row's input. tokens: the accepted draft tokens and the bonus token, so at least one; of a
        streaming row what is settled, perhaps nothing.
    likelihoods: of each token, None where the request does not want log probabilities.
    window: what stands right of these tokens; None if the row does not stream.
    """

    verified: RowInput
    tokens: list[int]
    likelihoods: list[Likelihood | None]
    window: Window | None = None

    @property
    def num_final(self) -> int:
        """How many of the tokens fed have final keys and values, and precede the row's newest token."""
        if self.window:
            return len(self.verified.pending) - (not self.tokens)
        return len(self.tokens)


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
    width = logits.shape[1]
    draws: list[Draw] = []
    positions: list[int] = []
    places: list[int] = []
    holes: list[int] = []
    for row, row_input in enumerate(inputs):
        if window := row_input.window:
            at_holes = [row * width + at for at in window.logits_at(len(row_input.pending))]
            holes += at_holes
            places += at_holes
            draws += window.draws(row, row_input.masks)
            positions += [row_input.position + hole for hole in window.holes]
            continue
        places += range(row * width, row * width + row_input.width)
        masks: Sequence[Mask | None] = row_input.masks or [None] * (len(row_input.draft) + 1)
        draws += [Draw(row, row_input.draft[:at], mask) for at, mask in enumerate(masks)]
        positions += range(row_input.position, row_input.position + len(row_input.draft) + 1)
    logits = logits.reshape(-1, logits.shape[-1])
    tokens = sampler.sample(logits, positions, draws, places)
    measured = measure(logits, tokens, [wanted[draw.row] for draw in draws], places)
    uncertain = find_entropies(logits, holes)
    with station("waiting"):
        before()
        mx.eval(tokens, uncertain, *(measured.arrays if measured else ()))
    sampled: list[int] = tokens.tolist()  # type: ignore[assignment]
    likelihoods: list[Likelihood | None] = measured.read() if measured else [None] * len(sampled)
    entropies: list[float] = uncertain.tolist()  # type: ignore[assignment]
    outcomes: list[Outcome] = []
    start = 0
    for row_input in inputs:
        if window := row_input.window:
            end = start + len(window.holes)
            told, entropies = entropies[: end - start], entropies[end - start :]
            settled, window = window.fill(sampled[start:end], told, likelihoods[start:end])
            found = [filled.likelihood for filled in settled]
            outcomes.append(Outcome(row_input, [filled.token for filled in settled], found, window))
            start = end
            continue
        row_sampled = sampled[start : start + len(row_input.draft) + 1]
        num_kept = count_accepted(row_input.draft, row_sampled) + 1
        outcomes.append(Outcome(row_input, row_sampled[:num_kept], likelihoods[start : start + num_kept]))
        start += len(row_sampled)
    return outcomes


def _forward(rows: Rows, inputs: Sequence[RowInput]) -> mx.array:
    """Feed the inputs; return logits (rows, largest width, vocabulary), not yet evaluated."""
    fed = [row_input.fed for row_input in inputs]
    if not any(row_input.window for row_input in inputs):
        return rows.forward_ragged(fed)
    ranks = [one.window.ranks(len(one.pending)) if one.window else None for one in inputs]
    return rows.forward_ragged(fed, ranks)
