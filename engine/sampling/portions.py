"""Cut a step's draws into portions, so that sampling takes bounded memory.

A draw is one token to sample. With a vocabulary of 152,000 tokens, one (vocabulary,) array of float32 takes
0.6 MB, and top p holds several of them per draw: gigabytes for the draws of a large verification step. So
draws are sampled portion by portion, each in about PORTION_BYTES. A draw's token does not depend on the
others in its portion. `reprise bench sampling --memory` measures what is counted here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from reprise.engine.interface.request import Sampling
from reprise.engine.sampling.filters import is_filtered

PORTION_BYTES = 64 * 2**20
"""As many draws are sampled at once as fit into this, but at least one."""

FLOAT_BYTES = 4

LIKELIHOOD_ARRAYS = 4.0
"""Arrays of (vocabulary,) float32 that the log probabilities of one draw take."""


class Needs(NamedTuple):
    """Which kinds of work a draw needs besides its argmax."""

    penalties: bool
    bias: bool
    mask: bool
    noise: bool
    filters: bool

    @property
    def num_arrays(self) -> float:
        """Arrays of (vocabulary,) float32 that one draw takes at most, the logits themselves not counted."""
        adjusting = 3.6 * self.penalties + 1.0 * self.bias + 2.0 * self.mask
        choosing = 5.75 if self.filters else 1.0 * self.noise
        # 1.5 for the draw's logits, gathered and in float32.
        return 1.5 + max(adjusting, choosing)


ALL_NEEDS = Needs(penalties=True, bias=True, mask=True, noise=True, filters=True)


def needs_penalties(sampling: Sampling) -> bool:
    """Return whether any penalty has an effect."""
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


def find_needs(sampling: Sampling, vocab_size: int, has_grammar: bool) -> Needs:
    """Return which kinds of work the draws of a request need."""
    return Needs(
        penalties=needs_penalties(sampling),
        bias=sampling.has_bias,
        mask=has_grammar,
        noise=sampling.temperature > 0,
        filters=is_filtered(sampling, vocab_size),
    )


def draws_per_portion(num_arrays: float, vocab_size: int) -> int:
    """Return how many draws are sampled at once if each takes num_arrays arrays of (vocabulary,) float32."""
    return max(1, int(PORTION_BYTES / (num_arrays * FLOAT_BYTES * vocab_size)))


def sampling_bytes(num_draws: int, num_arrays: float, vocab_size: int) -> int:
    """Return the maximum bytes that sampling num_draws draws takes."""
    num_at_once = min(num_draws, draws_per_portion(num_arrays, vocab_size))
    return int(num_at_once * num_arrays * FLOAT_BYTES * vocab_size)


def pick_logits(logits: mx.array, places: Sequence[int], after: Sequence[mx.array]) -> mx.array:
    """Return the logits at these places, for one portion: (places, vocabulary), of the type of logits.

    logits: (n, vocabulary). after: arrays of the previous portion, which are computed first. Otherwise MLX
        might compute all portions side by side.
    """
    if after:
        logits = mx.depends([logits], list(after))[0]
    first = places[0]
    # A view, where possible.
    if list(places) == list(range(first, first + len(places))):
        return logits[first : first + len(places)]
    return logits[mx.array(list(places))]
