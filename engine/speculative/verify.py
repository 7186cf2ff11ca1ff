"""Verify drafts in one forward pass over all rows: keep the drafted tokens that the target samples too.

    newest token + draft -> one forward pass -> sample every drafted position and the one after the draft
    -> accept drafted tokens while they equal the sampled ones -> commit those and the next sampled token

Every position is sampled with its own noise, and penalties and masks see the drafted tokens before it. So
the committed tokens are exactly those of plain decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from reprise.drafters.base import NO_DRAFT, Draft
from reprise.engine.interface.spans import span
from reprise.engine.kv_cache.columns import Ranks
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.sampling.grammar import Mask
from reprise.engine.sampling.logits import Likelihood, Likelihoods, measure
from reprise.engine.sampling.sampler import Draw, Sampler, find_entropies
from reprise.engine.speculative.acceptance import count_accepted


@dataclass(slots=True)
class Asked:
    """The draws from the logits of one or several rows' fed tokens.

    draws, positions, wanted: (draws,) arguments of Sampler.sample() and measure().
    places: (draws,) index of the fed token whose logits each draw uses.
    uncertain: indices of the fed tokens whose logits' entropies are needed.
    """

    draws: list[Draw] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    wanted: list[int | None] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)

    def add(self, other: "Asked", start: int) -> None:
        """Add another row's draws. start: index of the first token that this row feeds."""
        self.draws += other.draws
        self.positions += other.positions
        self.places += [start + place for place in other.places]
        self.wanted += other.wanted
        self.uncertain += [start + place for place in other.uncertain]


# Not frozen, as it takes twice as long to create: a step has one for each row.
@dataclass(slots=True)
class RowInput:
    """One row's input to a verification step: its newest token, then a draft.

    newest: the row's newest committed token, the only one that its cache lacks.
    draft: (k,) tokens of `source` to verify.
    position: absolute index of the first token to be sampled: the number of committed tokens.
    num_wanted: tokens, in the target's vocabulary, for the draft model to draft.
    num_to_draft: tokens in the draft model's vocabulary that it drafts for these.
    masks: (k + 1,) which tokens the grammar allows at each drafted position and after the draft, None where
        it allows all; empty without a grammar.
    mask_tokens: mask tokens to feed after the draft; the target's predictions there are the next drafts.
    """

    newest: int
    position: int
    draft: Sequence[int] = ()
    source: Draft = NO_DRAFT
    num_wanted: int = 0
    num_to_draft: int = 0
    masks: Sequence[Mask | None] = ()
    mask_tokens: Sequence[int] = ()

    @property
    def tokens(self) -> list[int]:
        """The tokens to feed."""
        return [self.newest, *self.draft, *self.mask_tokens]

    @property
    def ranks(self) -> Ranks | None:
        """The ranks of the tokens fed, by which they attend to each other; see Rows.forward_ragged()."""
        return None

    @property
    def width(self) -> int:
        """Number of tokens fed."""
        return 1 + len(self.draft) + len(self.mask_tokens)

    @property
    def least_width(self) -> int:
        """Number of tokens that the row would feed without drafting."""
        return 1

    def ask(self, row: int, num_top: int | None) -> Asked:
        """Return the draws of the drafted tokens, of the token after them, and of the masks' predictions.

        num_top: GenerationRequest.top_logprobs.
        """
        num_drafted, num_masked = len(self.draft), len(self.mask_tokens)
        draws = [Draw(row, self.draft[:at], mask) for at, mask in enumerate(self.masks)]
        draws = draws or [Draw(row, self.draft[:at]) for at in range(num_drafted + 1)]
        # The first mask stands where the bonus token will.
        bonus_at = self.position + num_drafted
        return Asked(
            draws + [Draw(row, self.draft)] * num_masked,
            [*range(self.position, bonus_at + 1), *range(bonus_at, bonus_at + num_masked)],
            list(range(self.width)),
            # None of what is predicted at a mask.
            [num_top] * (num_drafted + 1) + [None] * num_masked,
            list(range(1 + num_drafted, self.width)),
        )

    def conclude(
        self, sampled: list[int], likelihoods: list[Likelihood | None], entropies: list[float]
    ) -> "Outcome":
        """Conclude the row's step, which commits the accepted tokens and the bonus token.

        sampled, likelihoods: one for each draw of ask(). entropies: in nats, one for each mask token.
        """
        bonus_at = len(self.draft)
        num_kept = count_accepted(self.draft, sampled[: bonus_at + 1]) + 1
        is_whole = num_kept == bonus_at + 1
        return Outcome(
            self,
            sampled[:num_kept],
            likelihoods[:num_kept],
            num_kept,
            sampled[num_kept:] if is_whole else (),
            entropies if is_whole else (),
        )


@dataclass(slots=True)
class Outcome:
    """One row's result of a verification step.

    verified: the row's input. tokens: the accepted draft tokens and the bonus token, so at least one. With a
        window, the tokens that are settled, perhaps none.
    likelihoods: one for each token, None where the request does not want log probabilities.
    num_final: how many of the fed tokens stay in the cache: those before the newest committed one.
    predicted, entropies: (mask tokens,) the prediction at each mask token and its entropy in nats. The first
        is for the bonus token's position. Empty if a drafted token was rejected.
    """

    verified: RowInput
    tokens: list[int]
    likelihoods: list[Likelihood | None]
    num_final: int
    predicted: Sequence[int] = ()
    entropies: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """A forward pass over all rows and the draws from its logits, not yet computed.

    inputs, asked: one for each row.
    """

    inputs: Sequence[RowInput]
    asked: Sequence[Asked]
    tokens: mx.array
    entropies: mx.array
    measured: Likelihoods | None

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to compute before outcomes()."""
        return [self.tokens, self.entropies, *(self.measured.arrays if self.measured else ())]

    def outcomes(self) -> list[Outcome]:
        """Return each row's outcome."""
        sampled: list[int] = self.tokens.tolist()  # type: ignore[assignment]
        entropies: list[float] = self.entropies.tolist()  # type: ignore[assignment]
        none: list[Likelihood | None] = [None] * len(sampled)
        measured = self.measured.fetch() if self.measured else none
        outcomes: list[Outcome] = []
        start = start_uncertain = 0
        for row_input, asked in zip(self.inputs, self.asked, strict=True):
            end, end_uncertain = start + len(asked.draws), start_uncertain + len(asked.uncertain)
            uncertain = entropies[start_uncertain:end_uncertain]
            outcomes.append(row_input.conclude(sampled[start:end], measured[start:end], uncertain))
            start, start_uncertain = end, end_uncertain
        return outcomes


@span("dispatch")
def feed_drafts(
    rows: Rows, sampler: Sampler, inputs: Sequence[RowInput], wanted: Sequence[int | None]
) -> Verification:
    """Build one forward pass over all rows, and draw at every drafted position.

    inputs: one for each row, in their order. The rows then hold every token fed; the caller rolls them back.
    wanted: GenerationRequest.top_logprobs of each row.
    Raises whatever the forward pass raises; the rows cannot be used after that.
    """
    ranks = [row_input.ranks for row_input in inputs]
    logits = rows.forward_ragged([one.tokens for one in inputs], ranks if any(ranks) else ())
    asked = [one.ask(row, num_top) for row, (one, num_top) in enumerate(zip(inputs, wanted, strict=True))]
    of_all, width = Asked(), logits.shape[1]
    for row, of_row in enumerate(asked):
        of_all.add(of_row, row * width)
    logits = logits.reshape(-1, logits.shape[-1])
    tokens = sampler.sample(logits, of_all.positions, of_all.draws, of_all.places)
    measured = measure(logits, tokens, of_all.wanted, of_all.places)
    entropies = find_entropies(logits, of_all.uncertain, measured.arrays if measured else [tokens])
    return Verification(inputs, asked, tokens, entropies, measured)
