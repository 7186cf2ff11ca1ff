"""Find the places where a text can be cut: between characters, words and tokens, as offsets in bytes.

A *shared boundary* is an offset at which tokens of two vocabularies end. A *word boundary* is an offset at
which most tokenizers end a token whatever the text before it: in front of a single space, and at the start of
a line after a single line break. (How a longer run of whitespace is cut depends on the text after it.)
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

_BEFORE_SPACE = rb"(?<![ \t\r\n])(?= [^ \t\r\n])"
_AT_LINE = rb"(?<=[^\s\x80-\xff]\n)(?=[^ \t\r\n])"
_WORD_BOUNDARY = re.compile(_BEFORE_SPACE + rb"|" + _AT_LINE)
NO_BOUNDARIES = re.compile(rb"(?!)")
"""Never matches."""

_CROSSES_SPACE = re.compile(rb"[^ \t\r\n] (?![ \t\r\n])")
_CROSSES_LINE = re.compile(rb"\n[^ \t\r\n]")


def token_ends(ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """Return the offset at which each token ends in the text of all of them.

    pieces: the bytes of every token of the vocabulary.
    """
    return list(accumulate(len(pieces[token]) for token in ids))


def tokens_after(ids: Sequence[int], pieces: Sequence[bytes], num_bytes: int) -> list[int] | None:
    """Return the tokens after the first num_bytes of their text; None if no token begins there."""
    if not num_bytes:
        return list(ids)
    ends = token_ends(ids, pieces)
    at = bisect_left(ends, num_bytes)
    return list(ids[at + 1 :]) if at < len(ends) and ends[at] == num_bytes else None


def valid_utf8_prefix(text: bytes) -> bytes:
    """Return the longest prefix that is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        return text[: fault.start]
    return text


def find_complete_end(data: bytes) -> int:
    """Return the length of data without an incomplete UTF-8 character at its end.

    Invalid bytes that no later byte can complete are kept.
    """
    for back in range(1, min(3, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            try:
                data[-back:].decode()
            except UnicodeDecodeError as fault:
                return len(data) - back if fault.reason == "unexpected end of data" else len(data)
            break
    return len(data)


def is_character_boundary(text: bytes, at: int) -> bool:
    """Return whether no UTF-8 character spans the offset."""
    return at == len(text) or text[at] & 0xC0 != 0x80


def find_word_boundaries(text: bytes) -> list[int]:
    """Return the word boundaries within a text, ascending."""
    return [match.start() for match in _WORD_BOUNDARY.finditer(text, 1)]


def make_word_boundary_pattern(pieces: Sequence[bytes]) -> re.Pattern[bytes]:
    """Make a pattern that finds the word boundaries which no token of a vocabulary crosses.

    Splitting a text there does not change its tokens, since no merge and no score crosses such a boundary.
    """
    kept = [_BEFORE_SPACE] * (not any(map(_CROSSES_SPACE.search, pieces)))
    kept += [_AT_LINE] * (not any(map(_CROSSES_LINE.search, pieces)))
    return re.compile(rb"|".join(kept)) if kept else NO_BOUNDARIES


def find_shared_boundaries(
    text: bytes, ends: Sequence[int], others: Sequence[int], limit: int
) -> Iterator[int]:
    """Yield the shared boundaries within a text, best first: word boundaries, then others, each from the end.

    ends, others: where the tokens of either vocabulary end. limit: the largest offset wanted.
    """
    shared = {end for end in ends if end <= limit and end < len(text) and is_character_boundary(text, end)}
    shared.intersection_update(others)
    words = shared.intersection(find_word_boundaries(text))
    yield from sorted(words, reverse=True)
    yield from sorted(shared - words, reverse=True)
