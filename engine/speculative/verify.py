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
    mask_tokens: the model's mask tokens to feed behind the draft. What it predicts there are the next drafts.
    """

    newest: int
    position: int
    draft: Sequence[int] = ()
    source: Draft = NO_DRAFT
    num_wanted: int = 0
    num_to_draft: int = 0
    masks: Sequence[Mask] = ()
    mask_tokens: Sequence[int] = ()

    @property
    def width(self) -> int:
        """Tokens fed for this row."""
        return 1 + len(self.draft) + len(self.mask_tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one row commits.

    verified: the row's input. tokens: the accepted draft tokens and the bonus token, so at least one.
    likelihoods: of each token, None where the request does not want log probabilities.
    predicted, entropies: (mask tokens,) what the model predicts at each, the first for the place of the bonus
        token, and how uncertain it is, in nats; empty if a drafted token was rejected.
    """

    verified: RowInput
    tokens: list[int]
    likelihoods: list[Likelihood | None]
    predicted: Sequence[int] = ()
    entropies: Sequence[float] = ()


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
    fed = [[row_input.newest, *row_input.draft, *row_input.mask_tokens] for row_input in inputs]
    logits = rows.forward_ragged(fed)
    width = logits.shape[1]
    draws: list[Draw] = []
    positions: list[int] = []
    places: list[int] = []
    masked: list[int] = []
    for row, row_input in enumerate(inputs):
        num_drafted, num_masked = len(row_input.draft), len(row_input.mask_tokens)
        start = row * width
        places += range(start, start + row_input.width)
        masked += range(start + 1 + num_drafted, start + row_input.width)
        masks: Sequence[Mask | None] = row_input.masks or [None] * (num_drafted + 1)
        draws += [Draw(row, row_input.draft[:at], mask) for at, mask in enumerate(masks)]
        draws += [Draw(row, row_input.draft)] * num_masked
        positions += range(row_input.position, row_input.position + num_drafted + 1)
        # The first mask stands where the bonus token will.
        bonus_at = row_input.position + num_drafted
        positions += range(bonus_at, bonus_at + num_masked)
    logits = logits.reshape(-1, logits.shape[-1])
    tokens = sampler.sample(logits, positions, draws, places)
    measured = measure(logits, tokens, _wanted(inputs, wanted), places)
    uncertain = find_entropies(logits, masked, measured.arrays if measured else [tokens])
    with station("waiting"):
        before()
        mx.eval(tokens, uncertain, *(measured.arrays if measured else ()))
    sampled: list[int] = tokens.tolist()  # type: ignore[assignment]
    entropies: list[float] = uncertain.tolist()  # type: ignore[assignment]
    likelihoods: list[Likelihood | None] = measured.read() if measured else [None] * len(sampled)
    outcomes: list[Outcome] = []
    start = start_masked = 0
    for row_input in inputs:
        bonus_at, end = start + len(row_input.draft), start + row_input.width
        num_kept = count_accepted(row_input.draft, sampled[start : bonus_at + 1]) + 1
        kept = slice(start, start + num_kept)
        end_masked = start_masked + len(row_input.mask_tokens)
        outcome = Outcome(row_input, sampled[kept], likelihoods[kept])
        if kept.stop == bonus_at + 1 < end:
            told = entropies[start_masked:end_masked]
            outcome = replace(outcome, predicted=sampled[bonus_at + 1 : end], entropies=told)
        outcomes.append(outcome)
        start, start_masked = end, end_masked
    return outcomes


def _wanted(inputs: Sequence[RowInput], wanted: Sequence[int | None]) -> list[int | None]:
    """Return top_logprobs of each draw, by those of each row; none of what is predicted at a mask."""
    found: list[int | None] = []
    for row_input, num_top in zip(inputs, wanted, strict=True):
        num_masked = len(row_input.mask_tokens)
        found += [num_top] * (row_input.width - num_masked) + [None] * num_masked
    return found
