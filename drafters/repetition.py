"""Score how much a prompt repeats itself: the gate's only evidence before a request's first token."""

from collections.abc import Sequence

import numpy as np

_ID_BITS = 21  # three ids fit into a 64-bit key


def repetition_score(prompt: Sequence[int]) -> float:
    """Return the share of the prompt's distinct 3-grams that occur at least twice.

    prompt: (m,) token ids in [0, 2**63).

    Returns a score in [0, 1]; 0.0 for fewer than three tokens. The score cannot distinguish text that will be
    copied from text that merely repeats itself, so it only sets a prior.
    Source: mlx-serve's gate, which switches drafting off below 0.01.
    """
    tokens = np.asarray(prompt, np.int64)
    if len(tokens) < 3:
        return 0.0
    if tokens.max() >> _ID_BITS:
        # Ids that are too large are replaced by their ranks, of which there are no more than tokens.
        tokens = np.unique(tokens, return_inverse=True)[1]
    keys = (tokens[:-2] << 2 * _ID_BITS) | (tokens[1:-1] << _ID_BITS) | tokens[2:]
    counts = np.unique(keys, return_counts=True)[1]
    return float(np.count_nonzero(counts > 1) / len(counts))
