"""Keep each answer within the stated bound: (1 + overhead) times its plain time, and a few plain steps."""

ALLOWANCE_STEPS = 6.0
"""Plain steps that drafting may cost a sequence before it has saved any time."""

RESERVE_STEPS = 1.25
"""Steps of the allowance that no draft may use: a step may take longer than any before."""

DRAFT_PREFILL_SHARE = 0.25
"""Share of a sequence's prefill time that draft prefill may take, of its text or those of other rows."""

LOW_STEPS = 3.5
"""Below this many plain steps of budget, a losing row wants plain steps measured again."""

UNSEEN_TOKENS = 8
"""Tokens that a row commits before it wants another such measurement."""

PROBING_SHARE = 0.01
"""Share of the plain time that probes may take beyond the bound: plain steps between drafted ones."""


class SlowdownBudget:
    """Keeps one sequence within the bound, whoever's drafts slow it down.

    overhead: maximum slowdown in the long run, as a fraction of the plain time, such as 0.02.
    spent_s: decoding time so far. plain_s: what the same tokens would have taken in plain steps.
    prefill_s: the time that the target took to prefill the sequence.
    num_unseen: tokens committed since the last measured plain step.
    """

    def __init__(self, overhead: float) -> None:
        self.overhead = overhead
        self.spent_s = 0.0
        self.plain_s = 0.0
        self.prefill_s = 0.0
        self.num_unseen = 0
        self._draft_prefill_s = 0.0

    def left_s(self, plain_step_s: float) -> float:
        """Return the maximum seconds of the next step such that the bound still holds, less a reserve.

        plain_step_s: seconds of a plain step of the same rows.
        """
        allowance_s = (ALLOWANCE_STEPS - RESERVE_STEPS) * plain_step_s
        return (1 + self.overhead) * (self.plain_s + plain_step_s) + allowance_s - self.spent_s

    def wants_plain(self, plain_step_s: float) -> bool:
        """Whether a plain step should be taken to measure its cost, before drafting spends more time.

        The last plain steps may have had a longer context. That matters only to a sequence that loses time.
        """
        return self.num_unseen >= UNSEEN_TOKENS and self.left_s(plain_step_s) < LOW_STEPS * plain_step_s

    @property
    def share_to_prefill_s(self) -> float:
        """The seconds that draft prefill may still take from its share of prefill time, outside the bound."""
        return max(0.0, DRAFT_PREFILL_SHARE * self.prefill_s - self._draft_prefill_s)

    def left_to_prefill_s(self, plain_step_s: float) -> float:
        """Return the maximum seconds that the next slice of draft prefill may take. See left_s()."""
        return self.left_s(plain_step_s) + self.share_to_prefill_s

    def charge_draft_prefill(self, taken_s: float) -> None:
        """Charge taken_s of draft prefill; what exceeds its share of prefill time counts as decoding time."""
        self.spent_s += max(0.0, taken_s - self.share_to_prefill_s)
        self._draft_prefill_s += taken_s

    def charge(self, step_s: float, plain_step_s: float, num_tokens: int) -> None:
        """Charge a step of step_s seconds that committed num_tokens, each of them worth plain_step_s."""
        self.spent_s += step_s
        self.plain_s += num_tokens * plain_step_s
        self.num_unseen += num_tokens
