"""The ledger: what a sequence has taken against what it would have taken without drafts."""

ALLOWANCE_STEPS = 6.0
"""Plain steps that drafting may cost a sequence before it has earned any (the B of the bound)."""

NEIGHBOUR_OVERHEAD = 0.25
"""The share by which the drafts of others in the batch may slow a sequence that has none itself."""


class SlowdownBudget:
    """Keeps one sequence within T <= (1 + overhead) * T_plain + B, where B is 6 plain steps.

    overhead: share of the plain time that drafting may cost in the long run, such as 0.02.
    spent_s, plain_s: decoding time so far, and what its tokens would have cost plainly.
    """

    def __init__(self, overhead: float) -> None:
        self.overhead = overhead
        self.spent_s = 0.0
        self.plain_s = 0.0

    def allows(self, step_s: float, plain_step_s: float, has_draft: bool) -> bool:
        """Whether a step of step_s seconds stays within the bound even if it brings but one token.

        plain_step_s: what a plain step of the same rows costs.
        has_draft: whether the sequence itself has a draft in that step.
        """
        overhead = self.overhead if has_draft else max(self.overhead, NEIGHBOUR_OVERHEAD)
        plain_s = self.plain_s + plain_step_s
        return self.spent_s + step_s <= (1 + overhead) * plain_s + ALLOWANCE_STEPS * plain_step_s

    def charge(self, step_s: float, plain_step_s: float, num_tokens: int) -> None:
        """A step took step_s and brought num_tokens, each of which a plain step would have brought too."""
        self.spent_s += step_s
        self.plain_s += num_tokens * plain_step_s
