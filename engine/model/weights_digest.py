"""Which weights a model has: equal models have one fingerprint, others another."""

import hashlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

BLOCK_WORDS = 16 * 2**20


def weights_fingerprint(model: Any) -> str:
    """A digest of names, shapes, types and numbers of all parameters; reads each once, on the device."""
    digest = hashlib.sha256()
    for name, array in sorted(dict(tree_flatten(model.parameters())).items()):
        digest.update(f"{name} {array.shape} {array.dtype} ".encode())
        for total in _sums(array):
            digest.update(total.to_bytes(4, "little"))
    return digest.hexdigest()[:32]


def _sums(array: mx.array) -> list[int]:
    """Of each block of the array's bytes, a sum in which every word has an odd weight of its own."""
    data = mx.contiguous(array).reshape(-1).view(mx.uint8)
    data = mx.pad(data, (0, -data.size % 4)).view(mx.uint32)
    sums = []
    for start in range(0, data.size, BLOCK_WORDS):
        block = data[start : start + BLOCK_WORDS]
        # Multiplying by an odd number loses nothing, so no single word can change unseen.
        sums.append((block * (2 * mx.arange(block.size, dtype=mx.uint32) + 1)).sum())
    mx.eval(sums)
    return [one.item() for one in sums]  # type: ignore[misc]
