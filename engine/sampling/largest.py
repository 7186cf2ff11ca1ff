"""Find the largest logits of each row on the device, without sorting the vocabulary."""

import mlx.core as mx

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
