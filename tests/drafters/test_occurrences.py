from array import array

from hypothesis import given
from hypothesis import strategies as st

from drafters.occurrences import MAX_MATCH_TOKENS, NGRAM_SIZES, GrowingText, Occurrences, TailHashes

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=120)


def longest_by_brute_force(text: list[int], end: list[int], may_touch_end: bool) -> int:
    best = 0
    for place in range(1, len(text) + may_touch_end):
        length = 0
        while length < min(place, len(end)) and text[place - 1 - length] == end[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@given(TOKENS)
def test_a_match_is_real_and_no_shorter_than_the_longest_n_gram_that_occurs(tokens: list[int]) -> None:
    match = GrowingText(tokens).find_earlier()
    longest = longest_by_brute_force(tokens, tokens, may_touch_end=False)
    if match is None:
        assert longest < NGRAM_SIZES[0]
        return
    assert 0 < match.position < len(tokens)
    assert tokens[match.position - match.length : match.position] == tokens[-match.length :]
    assert match.length <= longest
    assert match.length >= max(n for n in NGRAM_SIZES if n <= longest)


@given(TOKENS)
def test_text_added_token_by_token_finds_what_text_added_at_once_finds(tokens: list[int]) -> None:
    grown = GrowingText(tokens[:1])
    for token in tokens[1:]:
        grown.append(token)
    assert grown.find_earlier() == GrowingText(tokens).find_earlier()
    assert grown.tokens.tolist() == tokens


@given(TOKENS, TOKENS, st.sampled_from([16, 64, 1024]))
def test_a_ring_finds_only_what_it_still_holds(text: list[int], end: list[int], capacity: int) -> None:
    ring, tail = Occurrences(capacity), TailHashes()
    for token in text:
        ring.append(token, tail.append(token))
    assert ring.start == max(0, len(text) - capacity)
    tail_of_end = TailHashes()
    for token in end:
        tail_of_end.append(token)
    match = ring.find(tail_of_end.hashes, array("I", end[-MAX_MATCH_TOKENS:]))
    if match is not None:
        assert ring.start + match.length <= match.position < len(text)
        assert text[match.position - match.length : match.position] == end[-match.length :]


@given(TOKENS, st.integers(0, 100), st.integers(1, 16))
def test_a_slice_may_cross_the_end_of_the_ring(text: list[int], start: int, size: int) -> None:
    ring, tail = Occurrences(32), TailHashes()
    for token in text:
        ring.append(token, tail.append(token))
    if ring.start <= start and start + size <= ring.end:
        assert ring.slice(start, start + size).tolist() == text[start : start + size]


def test_growing_beyond_the_initial_capacity_loses_nothing() -> None:
    tokens = [at * 7919 % 5003 for at in range(5003)]
    text = GrowingText(tokens[:100])
    for token in tokens[100:] + tokens[40:60]:
        text.append(token)
    match = text.find_earlier()
    assert match is not None
    assert (match.position, match.length) == (60, 20)


def test_the_most_frequent_next_token_wins() -> None:
    match = GrowingText([1, 2, 9, 1, 2, 9, 1, 2, 5, 1, 2]).find_earlier()
    assert match is not None
    assert (match.position, match.num_agreeing, match.num_disagreeing) == (5, 2, 1)


def test_of_equally_frequent_next_tokens_the_newest_wins() -> None:
    match = GrowingText([1, 2, 9, 4, 1, 2, 5, 1, 2]).find_earlier()
    assert match is not None
    assert (match.position, match.num_agreeing, match.num_disagreeing) == (6, 1, 1)
