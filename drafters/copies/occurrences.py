"""Find earlier occurrences of the end of a text, newest first, by hash chains of its n-grams.

The structure follows zlib's hash chains. Each n, 1 to 16, has a table of heads (hash of an n-gram -> where it
last ended) and one of links (position -> where the same n-gram ended before that). N-grams whose hashes share
a slot are distinguished by comparing tokens. The cost of adding a token or finding a match does not depend on
the length of the text. Many tokens are added at once with arrays, ten times faster than one by one.

The hash of the n tokens up to t[i] is the sum of t[i - k] * MULTIPLIER ** (k + 1) mod 2 ** 64, so that of
2 n tokens follows from two hashes of n tokens. The highest bits are the best mixed, so they choose the slot.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from reprise.drafters.base import Slices

NGRAM_SIZES = (1, 2, 4, 8, 16)
"""The n of the n-grams. A match of a length in between is found by the next shorter n."""

MAX_MATCH_TOKENS = 32
"""Matches are measured up to this length, in tokens. Longer ones are no more reliable."""

LONGEST = NGRAM_SIZES[-1]
"""Hashes depend on this many tokens."""

_CANDIDATES = range(4)  # maximum number of candidates examined per n, newest first

_MULTIPLIER = 6364136223846793005
_MASK = (1 << 64) - 1
_TO_2, _TO_4, _TO_8 = (pow(_MULTIPLIER, n, 1 << 64) for n in (2, 4, 8))
_PAGE_POSITIONS = 512  # no more than in a page of memory
_TOUCHED = 1 << 15
_SLOT_SHIFT = 32  # a slot is taken from the upper half of a hash, so a ring has at most 2 ** 32 tokens

Ids: TypeAlias = "array[int]"
"""Token ids, four bytes each."""

Positions: TypeAlias = npt.NDArray[np.signedinteger]

Hashes = tuple[int, int, int, int, int]
"""One value per n: hashes of the last 1, 2, 4, 8 and 16 tokens of a text, or the positions found for them."""


@dataclass(slots=True)
class Match:
    """An earlier occurrence of the end of a text.

    position: position of the token that followed the occurrence.
    length: number of matching tokens, 1 <= length <= MAX_MATCH_TOKENS.
    num_agreeing: candidates of that length that were followed by the same token, >= 1.
    num_disagreeing: candidates of that length that were followed by another token.
    """

    position: int
    length: int
    num_agreeing: int
    num_disagreeing: int


class TailHashes:
    """Rolling hashes of the last 1, 2, 4, 8 and 16 tokens of a text; equal ends have equal hashes.

    tokens: the end of the text so far; tokens before the last 16 do not matter.
    """

    __slots__ = ("_eights", "_fours", "_last", "_pairs", "_step", "hashes")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._last = 0
        self._step = 0
        self._pairs = [0] * 2
        self._fours = [0] * 4
        self._eights = [0] * 8
        self.hashes: Hashes = (0, 0, 0, 0, 0)
        for token in tokens[-LONGEST:]:
            self.append(token)

    def copy(self) -> "TailHashes":
        """Return hashes of the same text, to which other tokens may be appended."""
        copy = TailHashes()
        copy._last, copy._step, copy.hashes = self._last, self._step, self.hashes
        copy._pairs, copy._fours, copy._eights = self._pairs[:], self._fours[:], self._eights[:]
        return copy

    def append(self, token: int) -> Hashes:
        """Append a token and return the hashes of the last 1, 2, 4, 8 and 16 tokens."""
        step = self._step
        self._step = step + 1
        two = (self._last + token) * _MULTIPLIER & _MASK
        self._last = one = token * _MULTIPLIER & _MASK
        pairs, fours, eights = self._pairs, self._fours, self._eights
        # Each n is hashed from two halves: one that ends here and one that ended n / 2 tokens earlier.
        at = step & 1
        four = pairs[at] + two & _MASK
        pairs[at] = two * _TO_2 & _MASK
        at = step & 3
        eight = fours[at] + four & _MASK
        fours[at] = four * _TO_4 & _MASK
        at = step & 7
        self.hashes = hashes = (one, two, four, eight, eights[at] + eight & _MASK)
        eights[at] = eight * _TO_8 & _MASK
        return hashes


def hash_all(tokens: Ids, before: Ids) -> npt.NDArray[np.uint64]:
    """Return (5, m) hashes of the n-grams that end with each of m tokens.

    before: the tokens before them; fewer than 15 if the text begins there.
    """
    wide = np.zeros(LONGEST - 1 + len(tokens), np.uint64)
    wide[LONGEST - 1 :] = tokens
    if before := before[1 - LONGEST :]:
        wide[LONGEST - 1 - len(before) : LONGEST - 1] = before
    # Unsigned arrays overflow modulo 2 ** 64, as the hash does.
    one = wide * np.uint64(_MULTIPLIER)
    two = (one[:-1] + wide[1:]) * np.uint64(_MULTIPLIER)
    four = two[:-2] * np.uint64(_TO_2) + two[2:]
    eight = four[:-4] * np.uint64(_TO_4) + four[4:]
    sixteen = eight[:-8] * np.uint64(_TO_8) + eight[8:]
    return np.stack([hashes[-len(tokens) :] for hashes in (one, two, four, eight, sixteen)])


class Occurrences:
    """An index of where the n-grams of a growing text ended.

    tokens: the text's tokens, which the caller keeps: the token at position p is tokens[p & (capacity - 1)].
    capacity: number of positions kept, a power of two; after that, new positions overwrite the oldest.
    first: position of the first token; positions count up from there. end: position after the last token.
    has_64_bit_positions: allows positions beyond 2^31. Without it the index takes half the memory, so that
        more of it stays in the processor's caches.
    """

    def __init__(
        self, tokens: Ids, capacity: int, first: int = 0, has_64_bit_positions: bool = False
    ) -> None:
        self.capacity = capacity
        self._tokens = tokens
        self._mask = capacity - 1
        self._first = first
        self.end = first
        # Zeros, which stand for no position, are not touched by the allocation, so it takes no time.
        shape, dtype = (len(NGRAM_SIZES), capacity), np.int64 if has_64_bit_positions else np.int32
        self._all_heads, self._all_links = np.zeros(shape, dtype), np.zeros(shape, dtype)
        # Single items of a memoryview are read and written three times as fast as those of an array.
        self._heads = tuple(row.data for row in self._all_heads)
        self._links = tuple(row.data for row in self._all_links)

    def touch(self) -> Slices:
        """Return the work of writing to every page of heads and links.

        Otherwise the first tokens would make the system provide much of that memory at once. For a small
        index there is nothing to do.
        """
        for positions in (self._all_heads.reshape(-1), self._all_links.reshape(-1)):
            if len(positions) > _TOUCHED:
                for start in range(0, len(positions), _TOUCHED):
                    positions[start : start + _TOUCHED : _PAGE_POSITIONS] += 0
                    yield 0

    def forget(self) -> None:
        """Empty the index. Positions keep counting up, so that no old one is mistaken for a new one."""
        self._first = self.end

    @property
    def start(self) -> int:
        """Position of the oldest token that is still kept."""
        return max(self._first, self.end - self.capacity)

    def token(self, position: int) -> int:
        """Return the token at a position that is still kept."""
        return self._tokens[position & self._mask]

    def append(self, hashes: Hashes | None) -> None:
        """Add the position after the next token.

        hashes: of the n-grams that end with that token; None if no match may end there.
        """
        mask = self._mask
        self.end = end = self.end + 1
        at = end & mask
        ones, twos, fours, eights, sixteens = self._links
        if hashes is None:
            ones[at] = twos[at] = fours[at] = eights[at] = sixteens[at] = 0
            return
        # Unrolled for speed: this runs for every token of every answer.
        one, two, four, eight, sixteen = hashes
        heads_one, heads_two, heads_four, heads_eight, heads_sixteen = self._heads
        slot = one >> _SLOT_SHIFT & mask
        ones[at] = heads_one[slot]
        heads_one[slot] = end
        slot = two >> _SLOT_SHIFT & mask
        twos[at] = heads_two[slot]
        heads_two[slot] = end
        slot = four >> _SLOT_SHIFT & mask
        fours[at] = heads_four[slot]
        heads_four[slot] = end
        slot = eight >> _SLOT_SHIFT & mask
        eights[at] = heads_eight[slot]
        heads_eight[slot] = end
        slot = sixteen >> _SLOT_SHIFT & mask
        sixteens[at] = heads_sixteen[slot]
        heads_sixteen[slot] = end

    def extend(self, tokens: Ids, before: Ids, salt: int = 0) -> None:
        """Add the positions after several tokens, with the same result as append() for each of them.

        tokens: the next tokens, at most `capacity`. before: at least the 15 tokens before these, or all that
        there are. salt: number that is combined with every hash.
        """
        num_tokens, num_sizes = len(tokens), len(NGRAM_SIZES)
        if not num_tokens:
            return
        hashes = hash_all(tokens, before) ^ np.uint64(salt)
        # Index into the flat tables: slots of different n must differ.
        tables = np.arange(num_sizes, dtype=np.int64)[:, None] * self.capacity
        slots = (hashes >> np.uint64(_SLOT_SHIFT)).astype(np.int64) & self._mask
        # Sorting by slot, then position, makes neighbors of the positions that share a slot.
        shift = num_tokens.bit_length()
        keys = ((slots + tables) << shift | np.arange(num_tokens)).ravel()
        keys.sort()
        slots, positions = keys >> shift, (keys & (1 << shift) - 1) + (self.end + 1)
        is_first = np.ones(len(keys), bool)
        np.not_equal(slots[1:], slots[:-1], out=is_first[1:])
        heads, links = self._all_heads.reshape(-1), self._all_links.reshape(-1)
        previous = np.empty_like(positions)
        previous[1:] = positions[:-1]
        previous[is_first] = heads[slots[is_first]]
        links[(slots & -self.capacity) + (positions & self._mask)] = previous
        is_last = np.append(is_first[1:], True)
        heads[slots[is_last]] = positions[is_last]
        self.end += num_tokens

    def slice(self, start: int, stop: int) -> Ids:
        """Return the tokens from start up to stop, all of which must still be kept."""
        first, last = start & self._mask, stop & self._mask
        if first <= last and stop - start < self.capacity:
            return self._tokens[first:last]
        return self._tokens[first:] + self._tokens[:last]

    def find_earlier(self, text: Ids) -> Match | None:
        """Find where this text's end occurred earlier in it; return the longest match.

        text: at least its last MAX_MATCH_TOKENS tokens.
        """
        at = self.end & self._mask
        ones, twos, fours, eights, sixteens = self._links
        return self._longest((ones[at], twos[at], fours[at], eights[at], sixteens[at]), text)

    def find(
        self,
        hashes: Hashes,
        text: Ids,
        is_usable: Callable[[int], bool] | None = None,
        min_ngram_size: int = 1,
    ) -> Match | None:
        """Find where another text's end occurs in this one; return the longest match.

        hashes: of that end. text: at least the other text's last MAX_MATCH_TOKENS tokens.
        is_usable: returns whether the match at a position may be used; called for few positions.
        min_ngram_size: the smallest n to look up.
        """
        mask = self._mask
        one, two, four, eight, sixteen = hashes
        ones, twos, fours, eights, sixteens = self._heads
        firsts = (
            ones[one >> _SLOT_SHIFT & mask],
            twos[two >> _SLOT_SHIFT & mask],
            fours[four >> _SLOT_SHIFT & mask],
            eights[eight >> _SLOT_SHIFT & mask],
            sixteens[sixteen >> _SLOT_SHIFT & mask],
        )
        return self._longest(firsts, text, is_usable, min_ngram_size)

    def _longest(
        self,
        firsts: Hashes,
        text: Ids,
        is_usable: Callable[[int], bool] | None = None,
        min_ngram_size: int = 1,
    ) -> Match | None:
        one, two, four, eight, sixteen = firsts
        end, known = self.end, len(text)
        start = end - self.capacity if end - self.capacity > self._first else self._first
        if one - 1 < start or known < min_ngram_size:
            return None
        if two - 2 < start:
            return self._find_token(one, text[-1], start) if min_ngram_size == 1 else None
        # If an n-gram does not occur, no longer one occurs.
        level = 1 if four - 4 < start else 2 if eight - 8 < start else 3 if sixteen - 16 < start else 4
        tokens, mask, newest = self._tokens, self._mask, text[-1]
        max_length = known if known < MAX_MATCH_TOKENS else MAX_MATCH_TOKENS
        longest, positions = 0, []
        while level > 0 and (size := NGRAM_SIZES[level]) >= min_ngram_size:
            links, position, oldest = self._links[level], firsts[level], start + size
            farthest = text[-size] if known >= size else None
            for _ in _CANDIDATES:
                if (
                    position < end
                    and tokens[(position - 1) & mask] == newest
                    and tokens[(position - size) & mask] == farthest
                    # For n = 2 both tokens are compared already.
                    and (size == 2 or self.slice(position - size, position) == text[-size:])
                    and (is_usable is None or is_usable(position))
                ):
                    length = size
                    while (
                        length < max_length
                        and position - length > start
                        and tokens[(position - length - 1) & mask] == text[~length]
                    ):
                        length += 1
                    if length > longest:
                        longest, positions = length, [position]
                    elif length == longest:
                        positions.append(position)
                position = links[position & mask]
                if position < oldest:
                    break
            if positions:
                return self._choose(longest, positions)
            level -= 1
        return self._find_token(one, newest, start) if min_ngram_size == 1 else None

    def _find_token(self, position: int, token: int, start: int) -> Match | None:
        """Return the match of a single token. position: where a token of its slot last ended."""
        tokens, mask, links, end = self._tokens, self._mask, self._links[0], self.end
        positions: list[int] = []
        for _ in _CANDIDATES:
            if tokens[(position - 1) & mask] == token and position < end:
                positions.append(position)
            position = links[position & mask]
            if position <= start:
                break
        return self._choose(1, positions) if positions else None

    def _choose(self, length: int, positions: list[int]) -> Match:
        """Choose one of several matches of the same length, given newest first.

        The most frequent next token wins; among its positions, the newest.
        """
        if len(positions) == 1:
            return Match(positions[0], length, 1, 0)
        tokens, mask = self._tokens, self._mask
        followers = [tokens[position & mask] for position in positions]
        follower = max(followers, key=followers.count)
        num_agreeing = followers.count(follower)
        return Match(
            positions[followers.index(follower)], length, num_agreeing, len(positions) - num_agreeing
        )
