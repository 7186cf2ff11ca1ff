"""How many tokens the draft model is to draft for a row: what comes of them, and when to try again."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from drafters.base import Draft
from engine.speculative.acceptance import Acceptance
from engine.speculative.draft_length import DraftEstimate, steady
from engine.speculative.draft_model.costs import DraftWork

MODEL = "draft-model"
MODEL_PRIOR = 0.7

KEEP_CARRIED = 0.9
FOLLOW = 0.1
CARRIED_PRIOR_TOKENS = 8.0
CARRIED_PRIOR_CYCLES = 4.0

PROBE_RATE = 0.9
"""The chance that a probe hopes for. What would not pay even so is not tried."""

PROBE_TOKENS = 2
MIN_WAIT_TOKENS = 16
MAX_WAIT_TOKENS = 256
TRUE_AGAIN = 4
"""After so many drafts in a row that came true nothing is held against the draft model any more."""

READ_ONE_PROMPT_IN = 8
"""Of requests for which the draft model would not pay, it reads the prompt of one in so many."""


@dataclass
class TokenYield:
    """How many of the target's tokens the draft model's come to: 1 each where both have one vocabulary.

    start: where it begins, what all rows have taught; None for that itself.
    """

    start: "TokenYield | None" = None
    _drafted: float = 0.0
    _carried: float = 0.0
    _cycles: float = 0.0
    _filled: float = 0.0

    @property
    def ratio(self) -> float:
        """The target's tokens for one drafted, where anything comes of a draft."""
        first = self.start.ratio if self.start else 1.0
        return (self._carried + first * CARRIED_PRIOR_TOKENS) / (self._drafted + CARRIED_PRIOR_TOKENS)

    @property
    def nonempty_rate(self) -> float:
        """How often anything comes of a draft."""
        first = self.start.nonempty_rate if self.start else 1.0
        return (self._filled + first * CARRIED_PRIOR_CYCLES) / (self._cycles + CARRIED_PRIOR_CYCLES)

    def add(self, num_drafted: int, num_carried: int) -> None:
        """num_drafted tokens came to num_carried of the target's."""
        if self.start:
            self.start.add(num_drafted, num_carried)
        self._cycles = KEEP_CARRIED * self._cycles + 1.0
        self._filled = KEEP_CARRIED * self._filled + (num_carried > 0)
        if num_carried:
            self._drafted = KEEP_CARRIED * self._drafted + num_drafted
            self._carried = KEEP_CARRIED * self._carried + num_carried


@dataclass
class DraftLength:
    """What one row may expect of the draft model.

    num_behind: of the draft model's tokens, those that the row has to be fed before the first drafted one.

    A row that drafts no more, because it does not pay, tries again after a while: two tokens, paid for by its
    ledger. If they come true it tries on at once, if not it waits twice as long as before.
    """

    acceptance: Acceptance
    token_yield: TokenYield = field(default_factory=TokenYield)
    num_behind: float = 1.0
    _tokens_since_draft: int = 0
    # The first probe is due at once: a prompt that was just read leaves nothing to catch up with.
    _wait: int = 0
    _num_true: int = 0
    _has_drafted: bool = False
    _fed_anew: float = 0.0

    def begin(self) -> None:
        """The draft model read the prompt, all but its last token."""
        self.num_behind, self._has_drafted = 1.0, False

    @property
    def rate(self) -> float:
        """The chance that a token that came of a draft is right."""
        return self.acceptance.rate(Draft((), MODEL, 0, MODEL_PRIOR))

    @property
    def num_fed(self) -> int:
        """Whole tokens to feed before the first drafted one."""
        return max(1, math.ceil(self.num_behind + self._fed_anew))

    @property
    def is_probe_due(self) -> bool:
        """Whether the row has gone long enough without drafts to try one."""
        return self._tokens_since_draft >= self._wait or self._num_true > 0

    def postpone_probe(self) -> None:
        """No probe could be made: wait again."""
        self._tokens_since_draft, self._num_true, self._wait = 0, 0, max(self._wait, MIN_WAIT_TOKENS)

    def estimate(self, limit: int, rate: float) -> DraftEstimate:
        """What to expect of drafts of up to limit of the target's tokens, if they are right at this rate."""
        chance = self.token_yield.nonempty_rate
        expected = [1.0 + chance * (tokens - 1.0) for tokens in steady(rate, limit)]
        return DraftEstimate(expected, draft=Draft((), MODEL, 0, MODEL_PRIOR), is_worth=True)

    def num_to_draft(self, num_wanted: int) -> int:
        """How many of its own tokens the draft model is to draft for so many of the target's."""
        return math.ceil(num_wanted / self.token_yield.ratio) if num_wanted else 0

    def catch_up_share(self, num_tokens: float) -> float:
        """The share of catching up that a step bears which brings so many tokens.

        A row that was away for n tokens is expected to stay for n, once it is back.
        """
        return min(1.0, num_tokens / max(1.0, self.num_behind * self.token_yield.ratio))

    def record_work(self, work: DraftWork, row: int) -> None:
        """The draft model worked for this row and others."""
        carried = work.carried[row]
        if carried is not None:
            # Where text is read anew, more is fed than what was added.
            surplus = max(0.0, work.num_fed - self.num_behind)
            self._fed_anew += FOLLOW * (surplus - self._fed_anew)
            self.token_yield.add(*carried)
        self.num_behind, self._has_drafted = float(work.left[row]), carried is not None

    def observe(self, num_tokens: int, num_judged: int, num_accepted: int) -> None:
        """So many tokens were committed, num_accepted of which were drafted, if num_judged were checked."""
        if not self._has_drafted:
            self.num_behind += num_tokens / self.token_yield.ratio
            self._tokens_since_draft += num_tokens
            return
        self._has_drafted = False
        is_whole = 0 < num_judged == num_accepted
        # The last token of a draft was never fed.
        self.num_behind += (num_tokens - num_accepted) / self.token_yield.ratio + is_whole
        was_tried = self._tokens_since_draft > 0
        self._tokens_since_draft, self._num_true = 0, self._num_true + 1 if num_accepted else 0
        if self._num_true >= TRUE_AGAIN:
            self._wait = 0
        elif not num_accepted:
            longer = 2 * self._wait if was_tried else self._wait
            self._wait = min(max(longer, MIN_WAIT_TOKENS), MAX_WAIT_TOKENS)


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """What the draft model would have to do for a step. See DraftWork, and for share, DraftLength.spread."""

    num_fed: int = 0
    num_drafted: int = 0
    share: float = 0.0

    @classmethod
    def combine(cls, asked: Iterable[tuple[DraftLength, DraftEstimate, int]]) -> "PlannedDraft":
        """asked: for each row its hopes, its offer, and how many of the target's tokens it wants of it."""
        found = [(length, estimate, num) for length, estimate, num in asked if num]
        return cls(
            max((length.num_fed for length, _, _ in found), default=0),
            max((length.num_to_draft(num) for length, _, num in found), default=0),
            max((length.catch_up_share(estimate.expected[num]) for length, estimate, num in found), default=0.0),
        )


class PromptGate:
    """Whose prompts the draft model reads: all while it pays, else those of one request in so many."""

    def __init__(self) -> None:
        # What was never tried is tried first.
        self._num_passed = READ_ONE_PROMPT_IN - 1

    def should_read(self, pays: bool) -> bool:
        """Whether it reads the next request's prompt."""
        self._num_passed = 0 if pays else (self._num_passed + 1) % READ_ONE_PROMPT_IN
        return pays or self._num_passed == 0
