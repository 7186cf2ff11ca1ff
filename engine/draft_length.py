"""How many tokens the draft model is to draft: what they cost, and what comes of them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftWork:
    """What the draft model did for one wide step. All counts but one are of its own tokens.

    num_fed: most tokens that one row was fed before the first drafted one.
    num_drafted: tokens drafted for every row, one forward each; 0 if no row was ready.
    left: (rows,) committed tokens that each row still lacks.
    carried: (rows,) for each row that wanted a draft and was ready: how many tokens were drafted for it, and
        how many of the target's tokens they came to, before those beyond what was wanted are cut off.
    """

    num_fed: int
    num_drafted: int
    left: Sequence[int]
    carried: Sequence[tuple[int, int] | None]
