"""Where a text can be cut so that two vocabularies agree on it: at characters, words and tokens, in bytes.

An *edge* is an offset at which tokens of both end. A *word edge* is one at which most tokenizers cut whatever
stands before it: before a single space, and where a line begins.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

_WORD_EDGE = re.compile(rb"(?<![ \t\r\n])(?= [^ \t\r\n])|(?<=\n)(?=[^ \t\r\n])")


def token_ends(ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """Where each token ends in the text of all of them.

    pieces: the bytes of every token of the vocabulary.
    """
    return list(accumulate(len(pieces[token]) for token in ids))


def tokens_after(ids: Sequence[int], pieces: Sequence[bytes], num_bytes: int) -> list[int] | None:
    """The tokens behind the first num_bytes of their text; None if no token begins there."""
    if not num_bytes:
        return list(ids)
    ends = token_ends(ids, pieces)
    at = bisect_left(ends, num_bytes)
    return list(ids[at + 1 :]) if at < len(ends) and ends[at] == num_bytes else None


def whole_start(text: bytes) -> bytes:
    """The beginning of a text that is whole characters in UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        return text[: fault.start]
    return text


def begins_character(text: bytes, at: int) -> bool:
    """Whether no character goes on across an offset of a text."""
    return at == len(text) or text[at] & 0xC0 != 0x80


def word_edges(text: bytes) -> list[int]:
    """The word edges within a text, ascending."""
    return [match.start() for match in _WORD_EDGE.finditer(text, 1)]


def edges(text: bytes, ends: Sequence[int], others: Sequence[int], limit: int) -> Iterator[int]:
    """The edges within a text, the best first: word edges before others, and of each kind the last.

    ends, others: where the tokens of either vocabulary end. limit: the last offset wanted.
    """
    shared = {end for end in ends if end <= limit and end < len(text) and begins_character(text, end)}
    shared.intersection_update(others)
    words = shared.intersection(word_edges(text))
    yield from sorted(words, reverse=True)
    yield from sorted(shared - words, reverse=True)
