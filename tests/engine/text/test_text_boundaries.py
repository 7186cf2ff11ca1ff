"""Texts are cut between characters and tokens, and preferably at word boundaries."""

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from reprise.engine.text.encoding import (
    NO_BOUNDARIES,
    find_complete_end,
    find_shared_boundaries,
    find_word_boundaries,
    make_word_boundary_pattern,
    token_ends,
    tokens_after,
    valid_utf8_prefix,
)

PIECES = [b"", b"a", b" b", b"\n", b"\xc5", b"\xbc", b"\xc5\xbc", b"  ", b"ab c"]
IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


@settings(deadline=None, max_examples=40)
@given(IDS, st.integers(0, 40))
def test_tokens_after_an_offset_are_those_that_begin_there(ids: list[int], num_bytes: int) -> None:
    text = b"".join(PIECES[token] for token in ids)
    assert token_ends(ids, PIECES) == [
        len(b"".join(PIECES[token] for token in ids[:end])) for end in range(1, len(ids) + 1)
    ]
    after = tokens_after(ids, PIECES, num_bytes)
    begins = [at for at in range(len(ids) + 1) if len(b"".join(PIECES[t] for t in ids[:at])) == num_bytes]
    if after is None:
        assert not begins
    else:
        assert b"".join(PIECES[token] for token in after) == text[num_bytes:]


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=8), st.text(max_size=4))
def test_the_valid_prefix_is_the_longest_that_is_text(data: bytes, text: str) -> None:
    def is_text(some: bytes) -> bool:
        return some == some.decode(errors="ignore").encode()

    for given_bytes in (data, text.encode() + data):
        start = valid_utf8_prefix(given_bytes)
        assert given_bytes.startswith(start)
        assert is_text(start)
        longer = [end for end in range(len(start) + 1, len(given_bytes) + 1) if is_text(given_bytes[:end])]
        assert not longer


def test_word_boundaries_are_at_single_spaces_and_line_starts() -> None:
    text = b" if x:\n    y = 1\nz  and \xc5\xbc\n\nw\n"
    assert [text[at : at + 2] for at in find_word_boundaries(text)] == [b" x", b" =", b" 1", b"z ", b" \xc5"]
    assert make_word_boundary_pattern([b"a ", b"\na"]) is NO_BOUNDARIES
    kept = make_word_boundary_pattern([b" a", b"a  ", b"\n", b"\n ", b" ", b"\nb"])
    assert [match.start() for match in kept.finditer(text, 1)] == [3, 12, 14, 23]


@settings(deadline=None, max_examples=40)
@given(st.text("a \n\u017c", max_size=12), st.data())
def test_shared_boundaries_end_tokens_of_both_within_the_text(text: str, data: st.DataObject) -> None:
    written = text.encode()
    ends, others = (sorted(data.draw(st.sets(st.integers(1, max(1, len(written)))))) for _ in range(2))
    limit = data.draw(st.integers(0, len(written)))
    found = list(find_shared_boundaries(written, ends, others, limit))
    assert len(set(found)) == len(found)
    for at in found:
        assert at in set(ends).intersection(others)
        assert 0 < at <= limit
        assert at < len(written)
        assert find_complete_end(written[:at]) == at
    words = [at for at in found if at in find_word_boundaries(written)]
    assert found == sorted(words, reverse=True) + sorted(set(found) - set(words), reverse=True)


def can_be_completed(start: bytes) -> bool:
    """Return whether these bytes are the start of a UTF-8 character that lacks some."""
    # Which second bytes are valid depends on the first byte; these are the extremes.
    extremes = b"\x80\x8f\x90\x9f\xa0\xbf"
    rests = (rest for num in (1, 2, 3) for rest in itertools.product(extremes, repeat=num))
    return any(is_character(start + bytes(rest)) for rest in rests)


def is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["a", "ż", "中", "😀"]).map(str.encode) | st.binary(max_size=4), max_size=4
    )
)
# An incremental decoder would wait within a surrogate, which no later byte makes a character.
@example([b"a\xed\xa0"])
def test_only_an_incomplete_character_is_cut_off(parts: list[bytes]) -> None:
    data = b"".join(parts)
    for end in range(len(data) + 1):
        waiting = [num for num in (1, 2, 3) if num <= end and can_be_completed(data[end - num : end])]
        assert find_complete_end(data[:end]) == end - max(waiting, default=0)
