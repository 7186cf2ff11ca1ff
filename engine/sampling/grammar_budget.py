"""Limit the time that one answer may spend in its grammar."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from reprise.engine.interface.errors import GrammarCostError
from reprise.engine.interface.spans import spend

MAX_TOKEN_S, MAX_TOKEN_STEPS = 0.25, 1.0
"""Maximum seconds that the grammar may take for one token of an answer, or plain steps if that is longer."""

MAX_MEAN_S, MAX_MEAN_STEPS = 0.02, 0.2
"""The same for a token on average over the last WINDOW_TOKENS tokens, and for the masks of one draft, whose
rest is then dropped."""

WINDOW_TOKENS = 32

MAX_DRAFTING_MEAN_S, MAX_DRAFTING_MEAN_STEPS = 0.0025, 0.05
"""The same: above this average an answer gets no drafts. Each drafted position costs about as much as a
token, and the longer a step takes, the more is gained."""


class Stopwatch(AbstractContextManager[None]):
    """Measure the time spent in grammars. It cannot be nested, and is used by one thread only.

    now: a clock in seconds. It counts the thread's own CPU time, so that a busy machine is not charged to a
        grammar.
    last_s: seconds of the last measurement. Every measurement is counted in the span "grammars".
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self._now = now
        self._started_at = 0.0
        self.last_s = 0.0

    def __enter__(self) -> None:
        self._started_at = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.last_s = self._now() - self._started_at
        spend("grammars", self.last_s)


class GrammarBudget:
    """The time that one answer's tokens took in its grammar, and its limits.

    Only tokens of the answer are charged, as if there were no drafts: no draft may make an answer fail.

    plain_s: seconds of a plain step; 0 if not known.
    walk_s: maximum seconds to compute the masks of one draft.
    """

    def __init__(self, plain_s: float = 0.0) -> None:
        self.walk_s = self._mean_s = max(MAX_MEAN_S, MAX_MEAN_STEPS * plain_s)
        self._token_s = max(MAX_TOKEN_S, MAX_TOKEN_STEPS * plain_s)
        self._drafting_mean_s = max(MAX_DRAFTING_MEAN_S, MAX_DRAFTING_MEAN_STEPS * plain_s)
        self._tokens_s: deque[float] = deque(maxlen=WINDOW_TOKENS)

    @property
    def has_time_for_drafts(self) -> bool:
        """Whether the grammar is fast enough to check drafts as well."""
        return sum(self._tokens_s) <= self._drafting_mean_s * WINDOW_TOKENS

    def charge(self, taken_s: float, num_tokens: int) -> None:
        """Charge taken_s to num_tokens tokens that were committed together, in equal parts."""
        if num_tokens:
            self._tokens_s.extend([taken_s / num_tokens] * num_tokens)

    def check(self) -> None:
        """Raise GrammarCostError if the tokens so far took too long."""
        longest_s, spent_s = max(self._tokens_s, default=0.0), sum(self._tokens_s)
        if longest_s > self._token_s:
            raise GrammarCostError(
                f"took {1000 * longest_s:.0f} ms to choose the tokens allowed at one position; at most "
                f"{1000 * self._token_s:.0f} ms are allowed"
            )
        if spent_s > self._mean_s * WINDOW_TOKENS:
            raise GrammarCostError(
                f"took {1000 * spent_s:.0f} ms for the last {len(self._tokens_s)} tokens; at most "
                f"{1000 * self._mean_s * WINDOW_TOKENS:.0f} ms for {WINDOW_TOKENS} tokens are allowed"
            )
