"""Hash tokens by blocks, to count the leading tokens that two sequences share without comparing all."""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence

BLOCK_TOKENS = 64
"""Tokens of a block. At most one block of two sequences is compared token by token."""


class BlockHashes:
    """The chained hashes of one growing list of tokens: hash i covers all tokens up to the end of block i.

    Blocks are hashed when they are needed. The hash is cryptographic: clients choose the tokens, and if they
    could choose two texts with the same hash, a prompt would get the wrong keys and values.
    """

    def __init__(self) -> None:
        self.chain: list[bytes] = []
        self._hash = hashlib.sha256()

    def extend(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Hash whole blocks until num_blocks are hashed, or no whole one is left.

        tokens: the whole list. It may only have grown since the last call.
        """
        start = len(self.chain) * BLOCK_TOKENS
        end = min(num_blocks, len(tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
        if start >= end:
            return
        added = memoryview(array("q", tokens[start:end]))
        for at in range(0, end - start, BLOCK_TOKENS):
            self._hash.update(added[at : at + BLOCK_TOKENS])
            self.chain.append(self._hash.digest())


def count_shared(
    tokens: Sequence[int], hashes: BlockHashes, others: Sequence[int], other_hashes: BlockHashes
) -> int:
    """Count the leading tokens that two sequences share.

    hashes, other_hashes: those of tokens and of others; they are extended as far as needed.
    Costs a binary search over the blocks and the comparison of one block.
    """
    chain, other_chain = hashes.chain, other_hashes.chain
    num_wanted = max(1, min(len(chain), len(other_chain)))
    while True:
        hashes.extend(tokens, num_wanted)
        other_hashes.extend(others, num_wanted)
        num_blocks = min(len(chain), len(other_chain))
        if num_blocks < num_wanted or chain[num_blocks - 1] != other_chain[num_blocks - 1]:
            break
        # Prompts that have little in common are not hashed to their ends.
        num_wanted = 2 * num_blocks
    # A hash covers all tokens before it too, so the equal ones stand before the different ones.
    num_equal = bisect_left(range(num_blocks), True, key=lambda i: chain[i] != other_chain[i])
    start, end = num_equal * BLOCK_TOKENS, (num_equal + 1) * BLOCK_TOKENS
    for one, other in zip(tokens[start:end], others[start:end], strict=False):
        if one != other:
            return start
        start += 1
    return start
