"""The slowdown budget: the bound on how much drafting may slow a sequence down.

    T <= (1 + overhead) * T_plain + 6 plain steps

T is the decoding time of the sequence so far, T_plain what its tokens would have taken in plain steps. Every
step commits at least one token, so a step is allowed if the bound would hold even if it brought only one.
"""

ALLOWANCE_STEPS = 6.0
"""Plain steps that drafting may cost a sequence before it has saved any time."""

NEIGHBOUR_OVERHEAD = 0.25
"""The overhead that the drafts of other rows in the batch may cause a sequence without a draft."""


class SlowdownBudget:
    """Keeps one sequence within the bound.

    overhead: maximum slowdown in the long run, as a fraction of the plain time, such as 0.02.
    spent_s: decoding time so far. plain_s: what the same tokens would have taken in plain steps.
    """

    def __init__(self, overhead: float) -> None:
        self.overhead = overhead
        self.spent_s = 0.0
        self.plain_s = 0.0

    def allows(self, step_s: float, plain_step_s: float, has_draft: bool) -> bool:
        """Whether the bound holds after a step of step_s seconds even if it commits one token only.

        plain_step_s: seconds of a plain step of the same rows.
        has_draft: whether the sequence itself has a draft in that step.
        """
        overhead = self.overhead if has_draft else max(self.overhead, NEIGHBOUR_OVERHEAD)
        plain_s = self.plain_s + plain_step_s
        return self.spent_s + step_s <= (1 + overhead) * plain_s + ALLOWANCE_STEPS * plain_step_s

    def charge(self, step_s: float, plain_step_s: float, num_tokens: int) -> None:
        """Add a step of step_s seconds that committed num_tokens, each of them worth one plain step."""
        self.spent_s += step_s
        self.plain_s += num_tokens * plain_step_s
