"""The seconds that chunks of prompts take, learned from measured chunks.

A chunk of n tokens after m others takes about f + n * (a + b * (m + n / 2)) seconds: a forward pass has a
fixed part, a part for each token, and a part for each pair of a token and one that it attends to. Estimates
are upper bounds, because a chunk cannot be interrupted once it was dispatched.
"""

import math

CONTEXT_TOKENS = 256
"""Attending to this many tokens is assumed to take no longer than the rest of a forward pass."""

RATE = 0.5
"""How much of the difference between measured and expected seconds one chunk teaches, on a log scale."""

MAX_SURPRISE = math.log(2.0)
"""Maximum difference that a chunk can teach, as the logarithm of measured over expected seconds."""

MAX_CAUTION = math.log(4.0)
"""Maximum factor, as a logarithm, by which chunks that took too long raise the estimate of the next."""

UNKNOWN_S = 1.0
"""Seconds that each token is expected to take before anything is known."""

OVERRUN_SHARE = 0.005
"""Share of chunks that may take longer than estimated."""

MARGIN_STEP = 0.1
MIN_MARGIN, FIRST_MARGIN, MAX_MARGIN = 0.05, 0.2, math.log(3.0)


class PrefillCosts:
    """Estimates the seconds of a chunk such that at most OVERRUN_SHARE of all chunks take longer.

    A chunk with more tokens, or after more tokens, than any measured one is estimated by an upper bound.
    """

    def __init__(self) -> None:
        # f, a and b; empty until the first chunk was measured.
        self._factors: list[float] = []
        # Largest chunk so far, and the most tokens that one attended to.
        self._num_tokens, self._context = 0, 0.0
        # Logarithms. margin: follows the noise. caution: raised by chunks that took too long, soon forgotten.
        self._margin, self._caution = FIRST_MARGIN, 0.0

    def seconds(self, num_tokens: int, num_before: int, token_s: float = 0.0) -> float:
        """Return an upper estimate of the seconds of a chunk; 0 for a chunk without tokens.

        num_before: tokens of the prompt that were computed before it.
        token_s: the most seconds per token, used until a chunk was measured; 0 if not known.
        """
        if not self._factors:
            return (token_s or UNKNOWN_S) * num_tokens
        if not num_tokens:
            return 0.0
        return self._expected(num_tokens, num_before) * math.exp(self._margin + self._caution)

    def observe(self, num_tokens: int, num_before: int, seconds: float | None) -> None:
        """Learn from a chunk. A single outlier (a pause of the machine) is forgotten after a few chunks.

        seconds: None if they are not known.
        """
        if seconds is None:
            return
        context = num_before + num_tokens / 2
        parts = _parts(num_tokens, context)
        if not self._factors:
            each_s = max(seconds, 1e-9) / (2 + context / CONTEXT_TOKENS)
            self._factors = [each_s, each_s / num_tokens, each_s / num_tokens / CONTEXT_TOKENS]
            self._num_tokens, self._context = num_tokens, context
        expected = self._expected(num_tokens, num_before)
        surprise = math.log(max(seconds, 1e-9) / expected)
        overrun = surprise - self._margin - self._caution
        if overrun > 0:
            self._caution = min(MAX_CAUTION, self._caution + overrun)
            self._margin = min(MAX_MARGIN, self._margin + MARGIN_STEP)
        else:
            self._caution /= 2
            # In balance when OVERRUN_SHARE of all chunks take longer than estimated.
            self._margin = max(MIN_MARGIN, self._margin - MARGIN_STEP * OVERRUN_SHARE)
        if num_tokens > self._num_tokens or context > self._context:
            # Only a bound was known.
            learned = min(surprise, MAX_SURPRISE)
        else:
            learned = RATE * max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))
        # Each factor by its share of the seconds, so that all stay positive.
        fitted = sum(factor * part for factor, part in zip(self._factors, parts, strict=True))
        self._factors = [
            factor * math.exp(learned * factor * part / fitted)
            for factor, part in zip(self._factors, parts, strict=True)
        ]
        self._num_tokens = max(self._num_tokens, num_tokens)
        self._context = max(self._context, context)

    def _expected(self, num_tokens: int, num_before: int) -> float:
        num_known = min(num_tokens, self._num_tokens)
        context = num_before + num_tokens / 2
        known_context = min(context, self._context)
        parts = _parts(num_known, known_context)
        fitted = sum(factor * part for factor, part in zip(self._factors, parts, strict=True))
        # Beyond what is known, no part grows faster than the tokens, or than the context.
        growth = (context + CONTEXT_TOKENS) / (known_context + CONTEXT_TOKENS)
        return fitted * growth * num_tokens / num_known


def _parts(num_tokens: int, context: float) -> tuple[float, float, float]:
    return 1.0, float(num_tokens), num_tokens * context
