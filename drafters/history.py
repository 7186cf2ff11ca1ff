"""What finished requests asked and said, to be looked up by later ones. Bounded by tokens.

One ring of tokens for all tenants: the least recently finished go first, as the newest overwrite them.
A tenant finds only what it brought itself.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from drafters.occurrences import LONGEST, Hashes, Ids, Match, Occurrences, Tail

DEFAULT_TOKENS = 1 << 18
"""Tokens that are kept; each takes 68 bytes."""

_EDGE = 0xFFFFFFFF  # between two texts; no token id
_SHORTEST = 4  # matched tokens; a pair seen in some other request says little
_NUM_LATEST = 8  # whole texts with which a new one is compared, lest what they share is kept twice


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that was added. oldest: first position that must be kept for all of it to be known."""

    tenant: str
    tokens: Ids
    oldest: int


class History:
    """Texts of finished requests.

    num_tokens: how many to keep, rounded up to a power of two. Raises ValueError below 1.
    """

    def __init__(self, num_tokens: int = DEFAULT_TOKENS) -> None:
        if num_tokens < 1:
            raise ValueError(f"a history of {num_tokens} tokens holds nothing; pass None for no history")
        self.room = max(64, 1 << (num_tokens - 1).bit_length())
        self._begin(0)

    def reset(self) -> None:
        """Forget everything."""
        # Positions go on, so that a place that a sequence still holds is seen to be gone.
        self._begin(self._index.end)

    def _begin(self, position: int) -> None:
        self._index = Occurrences(self.room, position, is_endless=True)
        self._starts: list[int] = []
        self._tenants: list[str] = []
        self._latest: deque[_Text] = deque(maxlen=_NUM_LATEST)

    @property
    def num_texts(self) -> int:
        """Texts of which something is still kept."""
        return len(self._starts)

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept."""
        return self._index.end - self._index.start

    def add(self, tenant: str, tokens: Ids) -> None:
        """Keep a finished text, or its end if it is too long; what the last ones share with it only once."""
        shared, oldest = self._shared(tenant, tokens)
        index, salt = self._index, hash(tenant)
        start = max(0, shared - LONGEST, len(tokens) - self.room + 1)
        position = index.end
        self._starts.append(position)
        self._tenants.append(tenant)
        tail = Tail()
        for at in range(start, len(tokens)):
            hashes = tail.append(tokens[at])
            index.append(tokens[at], _salted(hashes, salt))
        index.append(_EDGE, None)
        self._latest.append(_Text(tenant, tokens, min(oldest, position) if shared else position))
        gone = bisect_right(self._starts, index.start) - 1
        if gone > 0:
            del self._starts[:gone], self._tenants[:gone]

    def find(self, tenant: str, hashes: Hashes, text: Ids) -> Match | None:
        """The longest occurrence of a text's end in what this tenant has finished. See Occurrences.find."""
        if not self._starts:
            return None
        index = self._index

        def is_theirs(place: int) -> bool:
            owner = self._tenants[bisect_right(self._starts, place - 1) - 1]
            return owner == tenant and index.token(place) != _EDGE

        return index.find(_salted(hashes, hash(tenant)), text, is_theirs, shortest=_SHORTEST)

    def follows(self, place: int, token: int) -> bool:
        """Whether this token stands at a place that is still kept."""
        index = self._index
        return index.start <= place < index.end and index.token(place) == token

    def read(self, place: int, limit: int) -> list[int]:
        """At most limit tokens from a place on, up to the end of its text; none if it is gone."""
        index = self._index
        if not index.start <= place < index.end:
            return []
        tokens = index.slice(place, min(place + limit, index.end)).tolist()
        return tokens[: tokens.index(_EDGE)] if _EDGE in tokens else tokens

    def _shared(self, tenant: str, tokens: Ids) -> tuple[int, int]:
        """How many first tokens are known from a last text, and the oldest position that holds them."""
        best, oldest = 0, 0
        for text in self._latest:
            if text.tenant == tenant and text.oldest >= self._index.start:
                shared = _common_start(text.tokens, tokens)
                if shared > max(best, LONGEST):
                    best, oldest = shared, text.oldest
        return best, oldest


def _common_start(a: Ids, b: Ids) -> int:
    """How many first tokens two texts share."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _salted(hashes: Hashes, salt: int) -> Hashes:
    # Tenants share the tables but not their slots, so that one's texts do not hide another's.
    two, four, eight, sixteen = hashes
    return two ^ salt, four ^ salt, eight ^ salt, sixteen ^ salt
