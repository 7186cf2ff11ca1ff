"""The seeds of a request's choices: the request's own, or one that is drawn."""

import secrets

_UINT64 = 2**64


def request_seed(given: int | None) -> int:
    """Return the seed that a request gives, or one drawn from [0, 2**63) if it gives none."""
    return secrets.randbits(63) if given is None else given


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of n choices, in [0, 2**64).

    The first choice has the request's seed; the others have hashes of it.

    Source: the finalizer of SplitMix64 (Steele et al. 2014).
    """
    if choice == 0:
        return seed % _UINT64
    mixed = (seed + choice * 0x9E3779B97F4A7C15) % _UINT64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % _UINT64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % _UINT64
    return mixed ^ (mixed >> 31)
