"""A text that is looked up in itself, and what it said where it was as it is now."""

from array import array
from collections.abc import Sequence

from drafters.context_trie import ContextTrie
from drafters.occurrences import LONGEST, Hashes, Ids, Match, Tail

_SHORTEST = 2  # matched tokens that say anything
_NUM_VOICES = 4  # matches that are asked what came next, the newest first
_HASHED = 16  # tokens of the longest n-gram that is hashed


class GrowingText:
    """What one sequence was asked and has said.

    tokens: (n,) all of it; grows in place.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: Ids = array("I", tokens)
        self._trie = ContextTrie(LONGEST)
        self._trie.extend(tokens)
        self._tail, self._num_hashed = Tail(), 0

    def append(self, token: int) -> None:
        """Add a token at the end."""
        self.tokens.append(token)
        self._trie.extend((token,))

    def recent(self) -> Ids:
        """The last tokens, at most LONGEST."""
        return self.tokens[-LONGEST:]

    def hashes(self) -> Hashes:
        """Of the text's end, to find it in another text."""
        # Only these count, so a text that was not asked for long need not be hashed from where it was.
        start = max(self._num_hashed, len(self.tokens) - _HASHED)
        if start > self._num_hashed:
            self._tail = Tail()
        for token in self.tokens[start:]:
            self._tail.append(token)
        self._num_hashed = len(self.tokens)
        return self._tail.hashes

    def earlier(self) -> Match | None:
        """The longest earlier occurrence of the text's end.

        If several are as long, the one whose next token most of the newest agree on; of these the newest.
        """
        trie = self._trie
        length, newest = trie.length, trie.place
        if length < _SHORTEST:
            return None
        text, places, lengths = trie.text, trie.places, trie.lengths
        found, followers, place = [newest], [text[newest]], newest
        # What stands before a match stood there before, if it matched as far then.
        while lengths[place] >= length and len(found) < _NUM_VOICES:
            place = places[place]
            found.append(place)
            followers.append(text[place])
        best, support = newest, followers.count(followers[0])
        if 2 * support < len(found):
            votes = [followers.count(follower) for follower in followers]
            support = max(votes)
            best = found[votes.index(support)]
        return Match(best - LONGEST, length, support, len(found) - support)
