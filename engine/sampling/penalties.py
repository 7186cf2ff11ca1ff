"""The three penalties on tokens that have occurred, from counts that are kept on the device."""

from collections.abc import Sequence
from copy import copy

import mlx.core as mx
import numpy as np

from reprise.engine.interface.request import Sampling


def count_tokens(tokens: Sequence[int], vocab_size: int) -> mx.array:
    """Count how often each token occurs: (vocabulary,) int32."""
    # In numpy: MLX takes several times as long to read a long prompt's ids.
    ids = np.fromiter(tokens, np.int64, len(tokens))
    return mx.array(np.bincount(ids, minlength=vocab_size).astype(np.int32))


class Penalties:
    """One row's token counts, kept on the device because the host may not have read the newest token yet.

    counts: (vocabulary,) int32, how often each token occurs in the answer.
    divisors: (vocabulary,) float32, the repetition penalty where a token occurs in the prompt or the answer,
        else 1; None without one.
    num_counted: tokens of the answer that are in counts.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int], vocab_size: int
    ) -> None:
        self.sampling = sampling
        self.counts = count_tokens(answer, vocab_size)
        self.divisors: mx.array | None = None
        if sampling.repetition_penalty != 1.0:
            seen = (self.counts > 0) | (count_tokens(prompt, vocab_size) > 0)
            self.divisors = mx.where(seen, sampling.repetition_penalty, 1.0)
        self.num_counted = len(answer)

    def observe(self, tokens: mx.array) -> None:
        """Add tokens of the answer to the counts. tokens: (n,) int, n >= 1."""
        self.counts, self.divisors = self._with(tokens)
        self.num_counted += tokens.size

    def _with(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """Return counts and divisors with more tokens of the answer."""
        divisors = self.divisors
        if divisors is not None:
            penalty = mx.array(self.sampling.repetition_penalty)
            divisors = mx.put_along_axis(divisors, tokens, penalty, axis=-1)
        return self.counts.at[tokens].add(1), divisors

    def remapped(self, tokens: mx.array, are_counted: mx.array) -> "Penalties":
        """Return a copy of the counts as they are now, for the ids of another vocabulary of n tokens.

        tokens: (n,) for each id of the other vocabulary, the id in this one that stands for the same token.
        are_counted: (n,) bool, False where this vocabulary has no such id: that token counts as never seen.
        """
        other = copy(self)
        other.counts = mx.where(are_counted, self.counts[tokens], 0)
        if self.divisors is not None:
            other.divisors = mx.where(are_counted, self.divisors[tokens], 1.0)
        return other

    def apply(self, logits: mx.array, drafted: Sequence[int] = ()) -> mx.array:
        """Apply the three penalties to (vocabulary,) logits, counting drafted tokens as if committed."""
        s, counts, divisors = self.sampling, self.counts, self.divisors
        if drafted:
            counts, divisors = self._with(mx.array(list(drafted), mx.int32))
        if divisors is not None:
            # With a penalty above 1, the smaller is the quotient of a positive logit and the product of any
            # other. Not where(): on processors MLX's takes five times as long as arithmetic.
            choose = mx.minimum if s.repetition_penalty > 1 else mx.maximum
            logits = choose(logits / divisors, logits * divisors)
        if s.frequency_penalty:
            logits = logits - s.frequency_penalty * counts.astype(mx.float32)
        if s.presence_penalty:
            logits = logits - s.presence_penalty * mx.minimum(counts, 1).astype(mx.float32)
        return logits
