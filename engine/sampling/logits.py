"""Process logits: penalties, top_k, top_p and min_p without sorting the vocabulary, log probabilities.

A row keeps the tokens at or above its *lowest* logit, so ties are kept together. Top k gives that logit as
the k-th largest, min p as a distance from the maximum. Top p needs the order of the tokens, but only near the
boundary: half of the candidates at a time are ruled out until few are left to sort.

A row's result is the same alone, in any batch, and at any drafted position: probabilities are summed as
integers, because the order in which a device adds floats depends on the number of rows.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from reprise.engine.interface.request import Sampling

BLOCK_TOKENS = 32
"""Tokens per block. The k largest logits are in the k blocks with the largest maxima."""

_ID_MASK = (1 << 32) - 1


def find_largest(logits: mx.array, count: int) -> mx.array:
    """Find the ids of the `count` largest logits of each row, in no particular order: (rows, count) int32.

    logits: (rows, vocabulary) float32, 1 <= count <= vocabulary.
    Among ties, lower ids count as larger. So the ids do not depend on the other rows, and those of a smaller
    count are among those of a larger one.
    """
    num_rows, vocab_size = logits.shape
    ids = mx.broadcast_to(mx.arange(vocab_size), logits.shape)
    num_blocks = vocab_size // BLOCK_TOKENS
    if 2 * count <= num_blocks:
        in_blocks = num_blocks * BLOCK_TOKENS
        blocks = logits[:, :in_blocks].reshape(num_rows, num_blocks, BLOCK_TOKENS)
        block_ids = mx.broadcast_to(mx.arange(num_blocks), (num_rows, num_blocks))
        chosen = _select(mx.max(blocks, axis=-1), block_ids, count)[:, :, None]
        chosen_logits = mx.take_along_axis(blocks, chosen, axis=1).reshape(num_rows, -1)
        chosen_ids = (chosen * BLOCK_TOKENS + mx.arange(BLOCK_TOKENS)).reshape(num_rows, -1)
        # The last few tokens may not fill a block.
        logits = mx.concatenate([chosen_logits, logits[:, in_blocks:]], axis=-1)
        ids = mx.concatenate([chosen_ids, ids[:, in_blocks:]], axis=-1)
    return _select(logits, ids, count)


def _select(values: mx.array, ids: mx.array, count: int) -> mx.array:
    """Return the ids of the `count` largest values of each row, the lower ids among ties.

    values: (rows, n) float32. ids: (rows, n) int32 >= 0.
    """
    # Adding 0 turns -0 into 0. Read as integers, floats keep their order, except that it is reversed among
    # negative ones.
    bits = (values + 0.0).view(mx.int32)
    order = mx.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(mx.int64)
    keys = (order << 32) | (_ID_MASK - ids.astype(mx.int64))
    return (_ID_MASK - (mx.topk(keys, count, axis=-1) & _ID_MASK)).astype(mx.int32)


MAX_SORTED = 512
"""On processors, at most this many candidates per row are sorted; of more, half are ruled out at a time."""

LOG2_E = math.log2(math.e)

WEIGHT_ONE = 2.0**44
"""The integer weight of a row's likeliest token. A sum over 2**19 tokens still fits into 63 bits."""


def keep_likely(logits: mx.array, settings: Sequence[Sampling]) -> mx.array:
    """Set the logits of each row's unlikely tokens to -inf: keep the top k, of those the top p, then min p.

    logits: (rows, vocabulary) float32, divided by the temperature. settings: (rows,) each row's filters.
    The likeliest token is always kept, and so are tokens that tie with the last one kept.
    """
    highest = mx.max(logits, axis=-1, keepdims=True)
    log_min_p = [math.log(s.min_p) if s.min_p > 0 else -math.inf for s in settings]
    lowest = highest + mx.array(log_min_p)[:, None]
    for (top_k, has_top_p), rows in _group(settings, logits.shape[-1]).items():
        places = mx.array(rows)
        is_all = len(rows) == len(settings)
        candidates = logits if is_all else logits[places]
        if top_k:
            candidates = mx.take_along_axis(candidates, find_largest(candidates, top_k), axis=-1)
        if has_top_p:
            top_p = mx.array([settings[row].top_p for row in rows])[:, None]
            found = _lowest_of_top_p(candidates, top_p)
        else:
            found = mx.min(candidates, axis=-1, keepdims=True)
        lowest = mx.maximum(lowest, found) if is_all else lowest.at[places].maximum(found)
    # Not minimum(): where the bound is NaN because a logit is infinite, the maximum has to stay.
    return mx.where(logits >= mx.where(lowest <= highest, lowest, highest), logits, -mx.inf)


def _group(settings: Sequence[Sampling], vocab_size: int) -> dict[tuple[int, bool], list[int]]:
    """Group rows by top_k (0 for no limit) and by whether they have a top_p; skip rows with neither.

    The shape of a row's computation then depends on its own settings only.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for row, s in enumerate(settings):
        key = (s.top_k if s.top_k < vocab_size else 0, s.top_p < 1)
        if any(key):
            groups.setdefault(key, []).append(row)
    return groups


def _lowest_of_top_p(candidates: mx.array, top_p: mx.array) -> mx.array:
    """Return the lowest logit that top_p keeps, +inf if it keeps none: (rows, 1).

    candidates: (rows, n), in any order. A candidate is kept if those above it have a share below top_p.
    """
    highest = mx.max(candidates, axis=-1, keepdims=True)

    def weigh(logits: mx.array) -> mx.array:
        # Not exp(): on processors MLX's takes more than twice as long.
        return (mx.power(2.0, (logits - highest) * LOG2_E) * WEIGHT_ONE).astype(mx.int64)

    total = mx.sum(weigh(candidates), axis=-1, keepdims=True)
    # Rounding must not lift the limit above the total, or tokens without any weight would be kept.
    limit = mx.minimum((total.astype(mx.float32) * top_p).astype(mx.int64), total)
    above = mx.zeros_like(total)
    while _can_halve(size := candidates.shape[-1]):
        num_upper = size // 2
        num_lower = size - num_upper
        # If the size is odd, the upper half begins with the lower half's likeliest, which does no harm there.
        halves = mx.partition(candidates, num_upper, axis=-1)
        above_lower = above + mx.sum(weigh(halves[:, num_lower:]), axis=-1, keepdims=True)
        is_in_lower = above_lower < limit
        candidates = mx.where(is_in_lower, halves[:, :num_lower], halves[:, num_upper:])
        above = mx.where(is_in_lower, above_lower, above)
    candidates = mx.sort(candidates, axis=-1)
    above = above + mx.cumsum(weigh(candidates), axis=-1, reverse=True, inclusive=False)
    return mx.min(mx.where(above < limit, candidates, mx.inf), axis=-1, keepdims=True)


def _can_halve(size: int) -> bool:
    """Return whether halving this many candidates costs less than sorting them."""
    # On GPUs, MLX's partition is itself a sort.
    return size > MAX_SORTED and mx.default_device() == mx.Device(mx.cpu)


PORTION_BYTES = 64 * 2**20
"""Bytes of one sampling batch, which has at least one draw."""

FLOAT_BYTES = 4

LIKELIHOOD_ARRAYS = 4.0
"""Arrays of (vocabulary,) float32 that the log probabilities of one draw take."""


class Needs(NamedTuple):
    """The kinds of work that a draw needs besides its argmax."""

    penalties: bool
    bias: bool
    mask: bool
    noise: bool
    filters: bool

    @property
    def num_arrays(self) -> float:
        """The maximum number of (vocabulary,) float32 arrays that one draw needs besides the logits."""
        adjusting = 3.6 * self.penalties + 1.0 * self.bias + 2.0 * self.mask
        choosing = 5.75 if self.filters else 1.0 * self.noise
        # 1.5 for the draw's logits, gathered and in float32.
        return 1.5 + max(adjusting, choosing)


ALL_NEEDS = Needs(penalties=True, bias=True, mask=True, noise=True, filters=True)


def draws_per_portion(num_arrays: float, vocab_size: int) -> int:
    """Return how many draws to sample at once if each needs num_arrays (vocabulary,) float32 arrays."""
    return max(1, int(PORTION_BYTES / (num_arrays * FLOAT_BYTES * vocab_size)))


def sampling_bytes(num_draws: int, num_arrays: float, vocab_size: int) -> int:
    """Return the maximum bytes that sampling num_draws draws takes."""
    draw_bytes = math.ceil(num_arrays * FLOAT_BYTES * vocab_size)
    # A portion is never less than a draw.
    return min(num_draws * draw_bytes, max(PORTION_BYTES, draw_bytes))


def pick_logits(logits: mx.array, places: Sequence[int], after: Sequence[mx.array]) -> mx.array:
    """Return one sampling batch's logits: (places, vocabulary), of the type of logits.

    logits: (n, vocabulary). after: the previous batch's arrays, which are computed first. Otherwise MLX might
    compute all batches at once.
    """
    if after:
        logits = mx.depends([logits], list(after))[0]
    first = places[0]
    # A view, where possible.
    if list(places) == list(range(first, first + len(places))):
        return logits[first : first + len(places)]
    return logits[mx.array(list(places))]


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
        """Return a copy of the present counts for another vocabulary of n tokens.

        tokens: (n,) for each id of the other vocabulary, this one's id of the same token.
        are_counted: (n,) bool, False where this vocabulary has no such id: the token counts as unseen.
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


Likelihood = tuple[float, list[tuple[int, float]]]
"""A token's log probability, and (token id, log probability) of the likeliest tokens, the likeliest first."""


LEAST_LOGPROB = -9999.0
"""The log probability of an impossible token, as in OpenAI's API: JSON has no infinity."""


class Likelihoods:
    """The likelihoods of one step's draws, for requests that want them; on the device until fetched."""

    def __init__(
        self,
        logits: mx.array,
        tokens: mx.array,
        wanted: Sequence[int | None],
        places: Sequence[int] | None = None,
    ) -> None:
        """Build the graph; compute nothing yet.

        logits: (n, vocabulary), as the model made them: before penalties, filters and temperature.
        tokens: (draws,) the tokens drawn.
        wanted: (draws,) how many of the likeliest tokens to return for each draw; None for no likelihood.
        places: (draws,) index of each draw's logits; None for the order of the draws.
        """
        self._wanted = wanted
        self._draws = [draw for draw, num in enumerate(wanted) if num is not None]
        vocab_size = logits.shape[-1]
        num_top = min(max(num or 0 for num in wanted), vocab_size)
        size = draws_per_portion(LIKELIHOOD_ARRAYS, vocab_size)
        portions: list[list[mx.array]] = []
        for start in range(0, len(self._draws), size):
            portion = self._draws[start : start + size]
            at = [places[draw] for draw in portion] if places is not None else portion
            picked = pick_logits(logits, at, portions[-1] if portions else [])
            drawn = tokens if len(portion) == len(wanted) else tokens[mx.array(portion)]
            portions.append(_measure(picked.astype(mx.float32), drawn, num_top))
        self.arrays = [mx.concatenate(list(parts)) for parts in zip(*portions, strict=True)]

    def fetch(self) -> list[Likelihood | None]:
        """Wait for the device; return (draws,) likelihoods, None where a draw wants none."""
        logprobs, *top = cast("list[list[Any]]", [array.tolist() for array in self.arrays])
        found: list[Likelihood | None] = [None] * len(self._wanted)
        for at, draw in enumerate(self._draws):
            num = self._wanted[draw] or 0
            pairs = zip(top[0][at], top[1][at], strict=True) if top else ()
            # Among ties the lower id comes first, as in find_largest().
            likeliest = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:num]
            found[draw] = logprobs[at], likeliest
        return found


def measure(
    logits: mx.array,
    tokens: mx.array,
    wanted: Sequence[int | None],
    places: Sequence[int] | None = None,
) -> Likelihoods | None:
    """Prepare the likelihoods of drawn tokens, as Likelihoods() does; None if no draw wants any."""
    return Likelihoods(logits, tokens, wanted, places) if any(num is not None for num in wanted) else None


def _measure(logits: mx.array, tokens: mx.array, num_top: int) -> list[mx.array]:
    """Return the tokens' log probabilities and, if num_top, the ids and log probabilities of the likeliest.

    logits: (n, vocabulary) float32. tokens: (n,).
    """
    log_total = mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs = (mx.take_along_axis(logits, tokens[:, None], axis=-1) - log_total)[:, 0]
    measured = [mx.maximum(logprobs, LEAST_LOGPROB)]
    if num_top:
        ids = find_largest(logits, num_top)
        measured += [ids, mx.maximum(mx.take_along_axis(logits, ids, axis=-1) - log_total, LEAST_LOGPROB)]
    return measured
