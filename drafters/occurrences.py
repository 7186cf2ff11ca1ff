"""Find earlier occurrences of the end of a text, newest first, by hash chains of its 2-, 4-, 8- and 16-grams.

The structure follows zlib's hash chains. Each n has a table of heads (hash of an n-gram -> where it last
ended) and one of links (position -> where the same n-gram ended before that). N-grams whose hashes share a
slot are distinguished by comparing tokens. The cost of adding a token or finding a match does not depend on
the length of the text: one microsecond, and about 40 bytes per token (70 with 64-bit positions).
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

NGRAM_SIZES = (2, 4, 8, 16)
"""The n of the n-grams. A match of a length in between is found by the next shorter n."""

MAX_MATCH_TOKENS = 32
"""Matches are measured up to this length, in tokens. Longer ones are no more reliable."""

_CANDIDATES = range(4)  # maximum number of candidates examined per n, newest first
_MIN_CAPACITY = 4096

Ids: TypeAlias = "array[int]"
"""Token ids, four bytes each."""

Hashes = tuple[int, int, int, int]
"""One value per n: hashes of the last 2, 4, 8 and 16 tokens of a text, or the positions found for them."""


@dataclass(slots=True)
class Match:
    """An earlier occurrence of the end of a text.

    position: position of the token that followed it.
    length: number of matching tokens, 2 <= length <= MAX_MATCH_TOKENS.
    num_agreeing: candidates of that length that were followed by the same token, >= 1.
    num_disagreeing: candidates of that length that were followed by another token.
    """

    position: int
    length: int
    num_agreeing: int
    num_disagreeing: int


class TailHashes:
    """Rolling hashes of the last 2, 4, 8 and 16 tokens of a text; equal ends have equal hashes."""

    __slots__ = ("_eights", "_fours", "_last", "_pairs", "_step", "hashes")

    def __init__(self, salt: int = 0) -> None:
        """Start with an empty text. salt: texts with different salts get different hashes."""
        self._last = salt
        self._step = 0
        self._pairs = [salt] * 2
        self._fours = [salt] * 4
        self._eights = [salt] * 8
        self.hashes: Hashes = (salt, salt, salt, salt)

    def append(self, token: int) -> Hashes:
        """Append a token and return the hashes of the last 2, 4, 8 and 16 tokens."""
        step = self._step
        self._step = step + 1
        two = hash((self._last, token))
        self._last = token
        pairs, fours, eights = self._pairs, self._fours, self._eights
        # Each n is hashed from two halves: one that ends here and one that ended n / 2 tokens earlier.
        four = hash((pairs[step & 1], two))
        pairs[step & 1] = two
        eight = hash((fours[step & 3], four))
        fours[step & 3] = four
        self.hashes = hashes = (two, four, eight, hash((eights[step & 7], eight)))
        eights[step & 7] = eight
        return hashes


class Occurrences:
    """A ring of the last tokens of a growing text, with an index of where each of their n-grams ended.

    capacity: number of tokens kept, a power of two; when it is full, new tokens overwrite the oldest.
    first: position of the first token; positions count up from there. end: position after the last token.
    has_64_bit_positions: allows positions beyond 2^31. Without it the index takes half the memory, so that
        more of it stays in the processor's caches.
    """

    def __init__(self, capacity: int, first: int = 0, has_64_bit_positions: bool = False) -> None:
        empty = array("q" if has_64_bit_positions else "i", [-1])
        self.capacity = capacity
        self._mask = capacity - 1
        self._heads = tuple(empty * capacity for _ in NGRAM_SIZES)
        self._links = tuple(empty * capacity for _ in NGRAM_SIZES)
        self._tokens = array("I", [0]) * capacity
        self._first = first
        self.end = first

    @property
    def start(self) -> int:
        """Position of the oldest token that is still kept."""
        return max(self._first, self.end - self.capacity)

    def token(self, position: int) -> int:
        """Return the token at a position that is still kept."""
        return self._tokens[position & self._mask]

    def append(self, token: int, hashes: Hashes | None) -> None:
        """Append a token.

        hashes: of the n-grams that end with it, or None if no match may end there.
        """
        mask = self._mask
        self._tokens[self.end & mask] = token
        self.end = end = self.end + 1
        at = end & mask
        twos, fours, eights, sixteens = self._links
        if hashes is None:
            twos[at] = fours[at] = eights[at] = sixteens[at] = -1
            return
        # Unrolled for speed: this runs for every token of every prompt.
        two, four, eight, sixteen = hashes
        heads_two, heads_four, heads_eight, heads_sixteen = self._heads
        slot = two & mask
        twos[at] = heads_two[slot]
        heads_two[slot] = end
        slot = four & mask
        fours[at] = heads_four[slot]
        heads_four[slot] = end
        slot = eight & mask
        eights[at] = heads_eight[slot]
        heads_eight[slot] = end
        slot = sixteen & mask
        sixteens[at] = heads_sixteen[slot]
        heads_sixteen[slot] = end

    def slice(self, start: int, stop: int) -> Ids:
        """Return the tokens from start up to stop, all of which must still be kept."""
        first, last = start & self._mask, stop & self._mask
        if first <= last and stop - start < self.capacity:
            return self._tokens[first:last]
        return self._tokens[first:] + self._tokens[:last]

    def find_earlier(self, text: Ids) -> Match | None:
        """Return the longest earlier occurrence of the end of this text.

        text: at least its last MAX_MATCH_TOKENS tokens.
        """
        at = self.end & self._mask
        twos, fours, eights, sixteens = self._links
        return self._longest((twos[at], fours[at], eights[at], sixteens[at]), text)

    def find(
        self,
        hashes: Hashes,
        text: Ids,
        is_usable: Callable[[int], bool] | None = None,
        min_ngram_size: int = 2,
    ) -> Match | None:
        """Return the longest occurrence of the end of another text.

        hashes: of that end. text: at least its last MAX_MATCH_TOKENS tokens.
        is_usable: returns whether the match at a position may be used; called for few positions.
        min_ngram_size: the smallest n to look up.
        """
        mask = self._mask
        two, four, eight, sixteen = hashes
        twos, fours, eights, sixteens = self._heads
        firsts = (twos[two & mask], fours[four & mask], eights[eight & mask], sixteens[sixteen & mask])
        return self._longest(firsts, text, is_usable, min_ngram_size)

    def _longest(
        self,
        firsts: Hashes,
        text: Ids,
        is_usable: Callable[[int], bool] | None = None,
        min_ngram_size: int = 2,
    ) -> Match | None:
        two, four, eight, sixteen = firsts
        end, known = self.end, len(text)
        start = end - self.capacity if end - self.capacity > self._first else self._first
        if two - 2 < start or known < min_ngram_size:
            return None
        # If an n-gram does not occur, no longer one occurs.
        level = 0 if four - 4 < start else 1 if eight - 8 < start else 2 if sixteen - 16 < start else 3
        tokens, mask, newest = self._tokens, self._mask, text[-1]
        max_length = known if known < MAX_MATCH_TOKENS else MAX_MATCH_TOKENS
        longest, positions = 0, []
        while level >= 0 and (size := NGRAM_SIZES[level]) >= min_ngram_size:
            links, position, oldest = self._links[level], firsts[level], start + size
            farthest = text[-size] if known >= size else None
            for _ in _CANDIDATES:
                if (
                    tokens[(position - 1) & mask] == newest
                    and tokens[(position - size) & mask] == farthest
                    and position < end
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
        return None

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


class GrowingText:
    """The tokens of one sequence, prompt and answer, with an index to find its end earlier in the same text.

    tokens: (n,) all tokens; grows in place.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("I", tokens)
        self._build_index(tokens)

    def append(self, token: int) -> None:
        """Append a token."""
        index = self.index
        if index.end >= index.capacity:
            self._build_index(self.tokens)
            index = self.index
        self.tokens.append(token)
        index.append(token, self.tail.append(token))

    def find_earlier(self) -> Match | None:
        """Return the longest earlier occurrence of the end of the text."""
        return self.index.find_earlier(self.tokens)

    def _build_index(self, tokens: Sequence[int]) -> None:
        # Leaves room to grow by at least a quarter, so that rebuilding stays cheap per token.
        capacity = 1 << (len(tokens) + len(tokens) // 4).bit_length()
        self.tail, self.index = TailHashes(), Occurrences(max(_MIN_CAPACITY, capacity))
        for token in tokens:
            self.index.append(token, self.tail.append(token))
