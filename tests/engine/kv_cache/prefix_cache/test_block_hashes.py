"""The shared prefix found by block hashes is the one that comparing token by token finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.engine.kv_cache.prefix_cache import trie
from reprise.engine.kv_cache.prefix_cache.trie import BLOCK_TOKENS, BlockHashes, count_shared

TEXTS = st.lists(st.integers(1, 2), max_size=24)


def count_by_brute_force(tokens: list[int], others: list[int]) -> int:
    count = 0
    while count < min(len(tokens), len(others)) and tokens[count] == others[count]:
        count += 1
    return count


@given(prefix=TEXTS, ends=st.tuples(TEXTS, TEXTS), added=st.lists(TEXTS, max_size=3), block=st.integers(1, 5))
def test_the_count_is_exact_for_texts_that_grow(
    prefix: list[int], ends: tuple[list[int], list[int]], added: list[list[int]], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trie, "BLOCK_TOKENS", block)
        one, other = prefix + ends[0], prefix + ends[1]
        hashes, other_hashes = BlockHashes(), BlockHashes()
        for more in [[], *added]:
            one += more
            expected = count_by_brute_force(one, other)
            assert count_shared(one, hashes, other, other_hashes) == expected
            assert count_shared(other, other_hashes, one, hashes) == expected


def test_a_block_later_in_the_text_does_not_hide_an_earlier_difference() -> None:
    same = [7] * BLOCK_TOKENS
    one, other = [1, *same[1:], *same, *same], [2, *same[1:], *same, *same]
    assert count_shared(one, BlockHashes(), other, BlockHashes()) == 0


def test_ids_above_32_bits_are_told_apart() -> None:
    one, other = [2**40] * BLOCK_TOKENS, [2**41] * BLOCK_TOKENS
    assert count_shared(one, BlockHashes(), other, BlockHashes()) == 0


def test_each_token_is_read_once_to_be_hashed_and_a_block_of_them_to_be_compared() -> None:
    class Counted(list[int]):
        num_read = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            found = super().__getitem__(at)
            self.num_read += len(found) if isinstance(at, slice) else 1
            return found

    one, other = Counted([3] * 20_000), [3] * 19_999 + [4]
    hashes, other_hashes = BlockHashes(), BlockHashes()
    for _ in range(50):
        assert count_shared(one, hashes, other, other_hashes) == 19_999
    assert one.num_read <= 20_000 + 50 * BLOCK_TOKENS
