"""Where the end of a text has occurred before: chains of n-grams, n = 2, 4, 8, 16, newest first.

After zlib's hash chains. For each n one table of heads (hash of an n-gram -> where it last ended) and one
of links (a place -> where the same n-gram ended before that). Places whose hashes merely share a slot are
told apart by comparing tokens. So a token costs the same to add, and a match the same to find, however
long the text: one microsecond, and about 40 bytes for each token, 70 where positions are endless.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LENGTHS = (2, 4, 8, 16)
"""The n of the n-grams. A match of a length in between is found by the next shorter n."""

LONGEST = 32
"""Matches are measured up to here, tokens. Longer is not surer."""

_HOPS = range(4)  # candidates looked at for one n; the newest come first
_SMALLEST_ROOM = 4096

Ids: TypeAlias = "array[int]"
"""Token ids, four bytes each."""

Hashes = tuple[int, int, int, int]
"""Hashes of the last 2, 4, 8 and 16 tokens of a text; or what stands in the tables for each."""


@dataclass(slots=True)
class Match:
    """The end of a text occurred before.

    place: position of the token that followed it there.
    length: matched tokens, 2 <= length <= LONGEST.
    support: candidates of that length whose next token is this one, >= 1.
    against: candidates of that length with another next token.
    """

    place: int
    length: int
    support: int
    against: int


class Tail:
    """The running hashes of a text's last tokens. Exact for equal ends: same last n tokens, same hash."""

    __slots__ = ("_eights", "_fours", "_last", "_pairs", "_step", "hashes")

    def __init__(self, salt: int = 0) -> None:
        """salt: texts with other salts get other hashes."""
        self._last = salt
        self._step = 0
        self._pairs = [salt] * 2
        self._fours = [salt] * 4
        self._eights = [salt] * 8
        self.hashes: Hashes = (salt, salt, salt, salt)

    def append(self, token: int) -> Hashes:
        """Take one more token; returns the hashes of the ends of the text so far."""
        step = self._step
        self._step = step + 1
        two = hash((self._last, token))
        self._last = token
        pairs, fours, eights = self._pairs, self._fours, self._eights
        # Each length is made of two halves: the one that ends here, and the one half a length before.
        four = hash((pairs[step & 1], two))
        pairs[step & 1] = two
        eight = hash((fours[step & 3], four))
        fours[step & 3] = four
        self.hashes = hashes = (two, four, eight, hash((eights[step & 7], eight)))
        eights[step & 7] = eight
        return hashes


class Occurrences:
    """The last tokens of a text that grows at its end, and where each n-gram in them last ended.

    room: tokens kept, a power of two; beyond it the newest overwrite the oldest. first: position of the
    first token; they count on from there. end: position after the last one.
    is_endless: positions may pass 2^31; else they take half the memory, so that more of it is near at hand.
    """

    def __init__(self, room: int, first: int = 0, is_endless: bool = False) -> None:
        empty = array("q" if is_endless else "i", [-1])
        self.room = room
        self._mask = room - 1
        self._heads = tuple(empty * room for _ in LENGTHS)
        self._links = tuple(empty * room for _ in LENGTHS)
        self._tokens = array("I", [0]) * room
        self._first = first
        self.end = first

    @property
    def start(self) -> int:
        """Position of the oldest token that is still kept."""
        return max(self._first, self.end - self.room)

    def token(self, place: int) -> int:
        """The token at a position that is kept."""
        return self._tokens[place & self._mask]

    def append(self, token: int, hashes: Hashes | None) -> None:
        """Add a token; hashes: of the ends that it makes, or None to keep those from being found."""
        mask = self._mask
        self._tokens[self.end & mask] = token
        self.end = end = self.end + 1
        at = end & mask
        twos, fours, eights, sixteens = self._links
        if hashes is None:
            twos[at] = fours[at] = eights[at] = sixteens[at] = -1
            return
        # Written out: this runs for every token of every prompt.
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
        """Tokens from start to stop, positions that are both kept."""
        first, last = start & self._mask, stop & self._mask
        if first <= last and stop - start < self.room:
            return self._tokens[first:last]
        return self._tokens[first:] + self._tokens[:last]

    def earlier(self, text: Ids) -> Match | None:
        """The longest earlier occurrence of this text's own end. text: at least its last LONGEST tokens."""
        at = self.end & self._mask
        twos, fours, eights, sixteens = self._links
        return self._longest((twos[at], fours[at], eights[at], sixteens[at]), text)

    def find(
        self, hashes: Hashes, text: Ids, may_use: Callable[[int], bool] | None = None, shortest: int = 2
    ) -> Match | None:
        """The longest occurrence of another text's end.

        hashes: of that end. text: at least its last LONGEST tokens. may_use: whether a match at a place may
        be used; asked of few. shortest: n of the shortest n-grams that count.
        """
        mask = self._mask
        two, four, eight, sixteen = hashes
        twos, fours, eights, sixteens = self._heads
        firsts = (twos[two & mask], fours[four & mask], eights[eight & mask], sixteens[sixteen & mask])
        return self._longest(firsts, text, may_use, shortest)

    def _longest(
        self, firsts: Hashes, text: Ids, may_use: Callable[[int], bool] | None = None, shortest: int = 2
    ) -> Match | None:
        two, four, eight, sixteen = firsts
        end, known = self.end, len(text)
        start = end - self.room if end - self.room > self._first else self._first
        if two - 2 < start or known < shortest:
            return None
        # Where no shorter n-gram is, no longer one is.
        level = 0 if four - 4 < start else 1 if eight - 8 < start else 2 if sixteen - 16 < start else 3
        tokens, mask, newest = self._tokens, self._mask, text[-1]
        most = known if known < LONGEST else LONGEST
        longest, places = 0, []
        while level >= 0 and (size := LENGTHS[level]) >= shortest:
            links, place, oldest = self._links[level], firsts[level], start + size
            farthest = text[-size] if known >= size else None
            for _ in _HOPS:
                if (
                    tokens[(place - 1) & mask] == newest
                    and tokens[(place - size) & mask] == farthest
                    and place < end
                    # Of two tokens both are compared already.
                    and (size == 2 or self.slice(place - size, place) == text[-size:])
                    and (may_use is None or may_use(place))
                ):
                    length = size
                    while (
                        length < most
                        and place - length > start
                        and tokens[(place - length - 1) & mask] == text[~length]
                    ):
                        length += 1
                    if length > longest:
                        longest, places = length, [place]
                    elif length == longest:
                        places.append(place)
                place = links[place & mask]
                if place < oldest:
                    break
            if places:
                return self._judge(longest, places)
            level -= 1
        return None

    def _judge(self, length: int, places: list[int]) -> Match:
        """Of matches of one length, newest first: the one whose next token most agree on, then the newest."""
        if len(places) == 1:
            return Match(places[0], length, 1, 0)
        tokens, mask = self._tokens, self._mask
        followers = [tokens[place & mask] for place in places]
        follower = max(followers, key=followers.count)
        support = followers.count(follower)
        return Match(places[followers.index(follower)], length, support, len(places) - support)


class GrowingText:
    """A text that is looked up in itself: what one sequence was asked and has said.

    tokens: (n,) all of it; grows in place.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("I", tokens)
        self._start(tokens)

    def append(self, token: int) -> None:
        """Add a token at the end."""
        index = self.index
        if index.end >= index.room:
            self._start(self.tokens)
            index = self.index
        self.tokens.append(token)
        index.append(token, self.tail.append(token))

    def earlier(self) -> Match | None:
        """The longest earlier occurrence of the text's end."""
        return self.index.earlier(self.tokens)

    def _start(self, tokens: Sequence[int]) -> None:
        # Room for at least a quarter more, so that to start again stays cheap per token.
        room = 1 << (len(tokens) + len(tokens) // 4).bit_length()
        self.tail, self.index = Tail(), Occurrences(max(_SMALLEST_ROOM, room))
        for token in tokens:
            self.index.append(token, self.tail.append(token))
