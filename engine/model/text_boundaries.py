"""Where a text can be cut so that two vocabularies agree on it: at characters, words and tokens, in bytes.

An *edge* is an offset at which tokens of both end. A *word edge* is one at which most tokenizers cut whatever
stands before it: before a single space, and where a line begins behind a single line break. (Longer runs of
white space are cut by what follows them.)
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

_BEFORE_SPACE = rb"(?<![ \t\r\n])(?= [^ \t\r\n])"
_AT_LINE = rb"(?<=[^\s\x80-\xff]\n)(?=[^ \t\r\n])"
_WORD_EDGE = re.compile(_BEFORE_SPACE + rb"|" + _AT_LINE)
NO_BOUNDARIES = re.compile(rb"(?!)")
"""Finds nothing."""

_CROSSES_SPACE = re.compile(rb"[^ \t\r\n] (?![ \t\r\n])")
_CROSSES_LINE = re.compile(rb"\n[^ \t\r\n]")


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


def valid_utf8_prefix(text: bytes) -> bytes:
    """The beginning of a text that is whole characters in UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        return text[: fault.start]
    return text


def is_character_boundary(text: bytes, at: int) -> bool:
    """Whether no character goes on across an offset of a text."""
    return at == len(text) or text[at] & 0xC0 != 0x80


def find_word_boundaries(text: bytes) -> list[int]:
    """The word edges within a text, ascending."""
    return [match.start() for match in _WORD_EDGE.finditer(text, 1)]


def make_word_boundary_pattern(pieces: Sequence[bytes]) -> re.Pattern[bytes]:
    """Finds the word edges that no token of a vocabulary goes across.

    The tokens of a text are then those of its words, one after another: merges and scores end at these edges.
    """
    kept = [_BEFORE_SPACE] * (not any(map(_CROSSES_SPACE.search, pieces)))
    kept += [_AT_LINE] * (not any(map(_CROSSES_LINE.search, pieces)))
    return re.compile(rb"|".join(kept)) if kept else NO_BOUNDARIES


def find_shared_boundaries(text: bytes, ends: Sequence[int], others: Sequence[int], limit: int) -> Iterator[int]:
    """The edges within a text, the best first: word edges before others, and of each kind the last.

    ends, others: where the tokens of either vocabulary end. limit: the last offset wanted.
    """
    shared = {end for end in ends if end <= limit and end < len(text) and is_character_boundary(text, end)}
    shared.intersection_update(others)
    words = shared.intersection(find_word_boundaries(text))
    yield from sorted(words, reverse=True)
    yield from sorted(shared - words, reverse=True)
