"""Compute a fingerprint of a model's weights: the same for equal weights, different for others."""

import hashlib
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

BLOCK_WORDS = 16 * 2**20
"""32-bit words that one sum covers."""


def weights_fingerprint(model: Any, others: Sequence[mx.array] = ()) -> str:
    """Return a digest of the names, shapes, dtypes and numbers of all parameters: 32 hexadecimal digits.

    Reads every parameter once, on the device. others: further arrays to cover, which the model does not have.
    """
    digest = hashlib.sha256()
    numbered = {str(number): array for number, array in enumerate(others)}
    for name, array in sorted((dict(tree_flatten(model.parameters())) | numbered).items()):
        digest.update(f"{name} {array.shape} {array.dtype} ".encode())
        for total in _sums(array):
            digest.update(total.to_bytes(4, "little"))
    return digest.hexdigest()[:32]


def _sums(array: mx.array) -> list[int]:
    """Return a sum of the words of each block of an array, in which every word has its own odd weight.

    The sums are modulo 2**32.
    """
    data = mx.contiguous(array).reshape(-1).view(mx.uint8)
    data = mx.pad(data, (0, -data.size % 4)).view(mx.uint32)
    sums = []
    for start in range(0, data.size, BLOCK_WORDS):
        block = data[start : start + BLOCK_WORDS]
        # Multiplying by an odd number is invertible, so a change of any single word changes the sum.
        sums.append((block * (2 * mx.arange(block.size, dtype=mx.uint32) + 1)).sum())
    mx.eval(sums)
    return [one.item() for one in sums]  # type: ignore[misc]
