"""A wide step: feed drafts, sample every drafted position, keep what the model would have said anyway.

    pending tokens + draft -> one forward -> one sampled token at each drafted position and one behind
    -> accept while sampled equals drafted -> commit those and the one behind -> roll the caches back

Words: a row's pending tokens are committed but not yet in its cache: 1, or more after a cache with
recurrent state had to go back further than what was kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from drafters.base import NO_DRAFT, Draft
from engine.kv_cache.rows import Rows
from engine.sampling.grammar import Mask
from engine.sampling.logprobs import Likelihood, measure
from engine.sampling.sampler import Draw, Sampler
from engine.speculative.acceptance import count_accepted


@dataclass(frozen=True, slots=True)
class RowInput:
    """What one row takes into a wide step.

    pending: (p,) committed tokens that its cache lacks, p >= 1. draft: (k,) tokens of `source` to check.
    position: absolute index of the first token to be drawn, that is, how many are committed.
    num_wanted: tokens that the draft model is still to draft; num_to_draft: how many of its own it is to
        draft for them, as many where both have one vocabulary.
    masks: (k + 1,) what the grammar allows at each drafted position and behind; empty without a grammar.
    """

    pending: Sequence[int]
    position: int
    draft: Sequence[int] = ()
    source: Draft = NO_DRAFT
    num_wanted: int = 0
    num_to_draft: int = 0
    masks: Sequence[Mask] = ()

    @property
    def width(self) -> int:
        """Tokens that it feeds."""
        return len(self.pending) + len(self.draft)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one row's input.

    verified: that input. tokens: the accepted draft tokens and the bonus token, so at least one.
    likelihoods: of each token, None where the request does not want log probabilities.
    """

    verified: RowInput
    tokens: list[int]
    likelihoods: list[Likelihood | None]


def run(
    rows: Rows, sampler: Sampler, inputs: Sequence[RowInput], wanted: Sequence[int | None]
) -> list[Outcome]:
    """One forward over all rows and one wait; returns what each row is to commit, at least one token.

    wanted: for each row, see GenerationRequest.top_logprobs.
    feeds: one for each row, in their order. Afterwards the rows hold all that was fed: roll them back.
    Raises whatever the forward raises; the rows are then not to be used any more.
    """
    logits = rows.forward_ragged([[*row_input.pending, *row_input.draft] for row_input in inputs])
    draws: list[Draw] = []
    positions: list[int] = []
    picked = []
    for row, row_input in enumerate(inputs):
        picked.append(logits[row, len(row_input.pending) - 1 : row_input.width])
        masks: Sequence[Mask | None] = row_input.masks or [None] * (len(row_input.draft) + 1)
        draws += [Draw(row, row_input.draft[:at], mask) for at, mask in enumerate(masks)]
        positions += range(row_input.position, row_input.position + len(row_input.draft) + 1)
    joined = picked[0] if len(picked) == 1 else mx.concatenate(picked)
    tokens = sampler.sample(joined, positions, draws)
    measured = measure(joined, tokens, [wanted[draw.row] for draw in draws])
    mx.eval(tokens, *(measured.arrays if measured else ()))
    sampled: list[int] = tokens.tolist()  # type: ignore[assignment]
    likelihoods: list[Likelihood | None] = measured.read() if measured else [None] * len(sampled)
    outcomes: list[Outcome] = []
    start = 0
    for row_input in inputs:
        mine = sampled[start : start + len(row_input.draft) + 1]
        num_kept = count_accepted(row_input.draft, mine) + 1
        outcomes.append(Outcome(row_input, mine[:num_kept], likelihoods[start : start + num_kept]))
        start += len(mine)
    return outcomes
