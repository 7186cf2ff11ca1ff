"""Score how much a prompt repeats itself: the gate's only evidence before a request's first token."""

import random
from array import array
from collections.abc import Generator, Sequence

import numpy as np
import numpy.typing as npt

from reprise.drafters.base import SLICE_TOKENS

_NGRAM_SIZE = 3
RANGE_KEYS = 4096  # average number of keys in a range

# Keys are hashes, so they are spread evenly, whatever the ids. Nobody can make many fall into one range,
# because the multiplier is another one in every process.
_MULTIPLIER = np.uint64(random.getrandbits(64) | 1)

Keys = npt.NDArray[np.uint64]


def repetition_score(prompt: Sequence[int]) -> float:
    """Return the score of a prompt, computed at once. See score_in_slices()."""
    score = score_in_slices(prompt)
    while True:
        try:
            next(score)
        except StopIteration as end:
            return float(end.value)


def score_in_slices(prompt: Sequence[int]) -> Generator[int, None, float]:
    """Return the work of computing the share of the prompt's distinct 3-grams that occur at least twice.

    prompt: (m,) token ids in [0, 2**63).

    Yields the number of tokens of each slice. Returns a score in [0, 1]; 0.0 for fewer than three tokens. The
    score cannot distinguish text that will be copied from text that merely repeats itself, so it only sets
    a prior.
    Source: mlx-serve's gate, which switches drafting off below 0.01.
    """
    num_ngrams = len(prompt) - _NGRAM_SIZE + 1
    if num_ngrams < 1:
        return 0.0
    if num_ngrams <= SLICE_TOKENS:
        counts = np.unique(_keys(prompt), return_counts=True)[1]
        return float(np.count_nonzero(counts > 1) / len(counts))
    # Sort the keys of each slice; then count those of all slices together, one range of keys after another.
    num_ranges = -(-num_ngrams // RANGE_KEYS)
    bounds = np.linspace(0, 2.0**64, num_ranges + 1)[1:-1].astype(np.uint64)
    slices: list[tuple[Keys, list[int]]] = []
    for at in range(0, num_ngrams, SLICE_TOKENS):
        part = prompt[at : at + SLICE_TOKENS + _NGRAM_SIZE - 1]
        keys, counts = np.unique(_keys(part), return_counts=True)
        # Two of a key are enough to know that it is repeated.
        keys = np.repeat(keys, np.minimum(counts, 2))
        slices.append((keys, [0, *np.searchsorted(keys, bounds).tolist(), len(keys)]))
        yield len(part) - _NGRAM_SIZE + 1
    num_distinct = num_repeated = 0
    for one in range(num_ranges):
        parts = [keys[starts[one] : starts[one + 1]] for keys, starts in slices]
        counts = np.unique(np.concatenate(parts), return_counts=True)[1]
        num_distinct += len(counts)
        num_repeated += int(np.count_nonzero(counts > 1))
        yield 0
    return num_repeated / num_distinct


def _keys(tokens: Sequence[int]) -> Keys:
    """Return the hashes of all 3-grams of m tokens, (m - 2,)."""
    # From an array, which is made three times as fast as NumPy's from a tuple.
    ids = np.asarray(array("Q", tokens))
    # Unsigned arrays overflow modulo 2 ** 64.
    keys: Keys = ((ids[:-2] * _MULTIPLIER + ids[1:-1]) * _MULTIPLIER + ids[2:]) * _MULTIPLIER
    return keys
