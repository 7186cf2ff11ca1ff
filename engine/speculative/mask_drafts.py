"""Drafts by a WeDLM target itself: masks after the tokens of a verification step.

    fed:      newest  d1 .. dk   M   M   M
    sampled:     s0   s1 .. sk
    predicted:                  m0  m1  m2      m0 for the place of sk, m1 and m2 for the two after it

If all of d1 .. dk are accepted, m1 and m2 are drafts for the next step. They are drawn with the noise of
their own positions, as the tokens will be. Masks cost time in one step and gain tokens in the next, so a step
with masks is valued over both.

Source: the forward of WeDLM (arXiv:2512.22737). There, masks are filled; here they only draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import mul

from reprise.drafters.base import NO_DRAFT, Draft
from reprise.engine.speculative.acceptance import Acceptance, count_accepted
from reprise.engine.speculative.draft_length import DraftEstimate

MASKS = "wedlm"
"""Source of these drafts, and the draft type."""

PLACE = "wedlm place"
"""Source of the acceptance counts of the first, second ... token after a bonus token."""

MAX_MASKS = 16

PLACE_PRIORS = tuple((place, 0.85 - 0.03 * place) for place in range(MAX_MASKS))
"""Bucket and prior of each token after a bonus token."""

ENTROPY_LIMITS = (0.02, 0.1, 0.3, 0.7, 1.4, 2.5)
"""Limits of the classes of a prediction's entropy, in nats."""

ENTROPY_PRIORS = (0.97, 0.93, 0.85, 0.7, 0.5, 0.3, 0.15)
"""Prior of a prediction of each class."""

DISAGREE_FACTOR = 0.3
"""Factor on the priors of predictions that were made without knowing a bonus token of which m0 differs."""

IDLE_DECAY, REQUEST_DECAY = 0.98, 0.9
"""Factors on the weight of what was learned of places: of a request's at each step without masks, and of all
requests' at each new one. So masks that did not pay are tried again."""


class MaskDrafts:
    """One sequence's masks: their predictions, and how often such predictions are right.

    mask_token_id: the token that is fed as a mask. acceptance: the sequence's.
    draft: the last step's predictions for the next tokens; perhaps empty.
    """

    def __init__(self, mask_token_id: int, acceptance: Acceptance) -> None:
        self.mask_token_id = mask_token_id
        self._acceptance = acceptance
        acceptance.global_counts.fade(PLACE, REQUEST_DECAY)
        self._predicted = self.draft = NO_DRAFT

    def receive(self, predicted: Sequence[int], entropies: Sequence[float], bonus: int) -> None:
        """Take the masks' predictions, before the step's tokens are observed.

        predicted, entropies: (masks,) tokens and their entropies in nats, of a step whose drafts were all
            accepted. bonus: that step's bonus token.
        """
        agrees = predicted[0] == bonus
        by_token = [_evidence(entropy, agrees) for entropy in entropies[1:]]
        self._predicted = Draft(predicted[1:], MASKS, by_token=by_token)

    def observe(self, tokens: Sequence[int]) -> None:
        """Score the masks' predictions by the committed tokens of one step."""
        judged = self.draft.tokens[: len(tokens)]
        if judged:
            at_places = Draft(judged, PLACE, by_token=PLACE_PRIORS[: len(judged)])
            self._acceptance.learn(at_places, len(judged), count_accepted(judged, tokens))
        elif not self._predicted.tokens:
            self._acceptance.own.fade(PLACE, IDLE_DECAY)
        self.draft, self._predicted = self._predicted, NO_DRAFT

    def values(self, step_s: Callable[[int], float], limit: int) -> list[float]:
        """Return the value of 0, 1, 2 ... masks in a step, in tokens of plain decoding; see mask_values().

        step_s: returns the seconds of a step of a width. limit: maximum masks.
        """
        places = range(min(limit, MAX_MASKS) - 1)
        return mask_values(self._acceptance.rates(Draft(places, PLACE, by_token=PLACE_PRIORS)), step_s)


def _evidence(entropy: float, agrees: bool) -> tuple[int, float]:
    """Return the bucket and the prior of a prediction."""
    level = sum(entropy >= limit for limit in ENTROPY_LIMITS)
    if agrees:
        return level, ENTROPY_PRIORS[level]
    return level + len(ENTROPY_PRIORS), DISAGREE_FACTOR * ENTROPY_PRIORS[level]


def mask_values(rates: Sequence[float], step_s: Callable[[int], float]) -> list[float]:
    """Return the value of 0, 1, 2 ... masks, in tokens: (predictions + 2,), never decreasing.

    A step without drafts that feeds w masks is followed by one with w - 1 drafts, which feeds w masks again
    as long as all drafts are accepted, or none. The speed of the best such cycle, or of plain decoding if
    higher, is the price of time. The value of drafts is what their steps gain beyond that price.

    rates: the chance that each prediction is right if those before it are. step_s: returns the seconds of a
        step of a width.
    Source: average reward of a semi-Markov decision process (Howard 1971).
    """
    all_right = list(accumulate(rates, mul))
    tokens = list(accumulate(all_right, initial=1.0))[1:]
    # By the number of masks: the tokens that the steps with their drafts bring, and the seconds they take.
    runs = [
        ((brought, step_s(masks)), (brought / (1.0 - right), step_s(2 * masks) / (1.0 - right)))
        for masks, (right, brought) in enumerate(zip(all_right, tokens, strict=True), start=2)
    ]
    speed = 1.0 / step_s(1)
    for masks, ((once, once_s), (again, again_s)) in enumerate(runs, start=2):
        first_s = step_s(1 + masks)
        speed = max(speed, (1.0 + once) / (first_s + once_s), (1.0 + again) / (first_s + again_s))
    values = [0.0, 0.0]
    for (once, once_s), (again, again_s) in runs:
        values.append(max(values[-1], once - speed * once_s, again - speed * again_s))
    return values


def add_masks(estimate: DraftEstimate, values: Sequence[float], limit: int) -> DraftEstimate:
    """Return a draft's estimate with masks after it, shortened where masks pay more than its end.

    values: of mask_values(). limit: maximum tokens and masks together.
    """
    expected, most = estimate.expected, len(values) - 1
    num_drafted = estimate.num_tokens
    # The chance that all of the first 0, 1, 2 ... tokens are accepted.
    right = [1.0, *(after - before for before, after in pairwise(expected))]
    best = [1.0]
    splits = [0]
    for fed in range(1, min(limit, num_drafted + most) + 1):
        value, split = 0.0, 0
        for kept in range(max(0, fed - most), min(fed, num_drafted) + 1):
            worth = expected[kept] + right[kept] * values[fed - kept]
            if worth >= value:
                value, split = worth, kept
        best.append(value)
        splits.append(split)
    return replace(estimate, expected=best, splits=splits)
