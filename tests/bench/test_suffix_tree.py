"""The suffix tree's path is the one with the highest sum of probabilities, by a direct count."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from reprise.bench.replay.suffix_tree import MIN_PROBABILITY, SuffixTree, Texts
from reprise.drafters.base import NO_DRAFT, DraftQuery, SequenceStart


def score_of(text: list[int], context: list[int], path: list[int]) -> float:
    """Return the sum of the probabilities of a path behind a match, from a count of all n-grams."""
    score, probability = 0.0, 1.0
    for at, token in enumerate(path):
        before = [*context, *path[:at]]
        ends = [end for end in range(len(before), len(text) + 1) if text[end - len(before) : end] == before]
        probability *= sum(text[end : end + 1] == [token] for end in ends) / len(ends)
        score += probability
    return score


def best_score(text: list[int]) -> float:
    best = 0.0
    for length in range(1, len(text)):
        context, path = text[-length:], list[int]()
        while len(path) < min(length, 8):
            before = [*context, *path]
            ends = [end for end in range(len(before), len(text)) if text[end - len(before) : end] == before]
            if not ends:
                break
            # Of equally frequent ones the smallest, as numpy sorts them.
            counts = Counter(text[end] for end in ends)
            token = min(counts, key=lambda token: (-counts[token], token))
            path.append(token)
            if score_of(text, context, path) - score_of(text, context, path[:-1]) < MIN_PROBABILITY:
                path.pop()
                break
        best = max(best, score_of(text, context, path))
    return best


@given(st.lists(st.integers(0, 2), min_size=2, max_size=24))
def test_the_score_is_that_of_a_direct_count(text: list[int]) -> None:
    texts = Texts(text[:2])
    for token in text[2:]:
        texts.append(token)
    path, score = texts.speculate(text, 8)
    assert abs(score - best_score(text)) < 1e-9
    assert len(path) <= 8


def test_earlier_answers_are_drafted_until_they_are_forgotten() -> None:
    tree = SuffixTree()
    tree.open(SequenceStart(1, [1, 2]))
    tree.observe(1, [5, 6, 7, 8])
    tree.close(1)
    tree.open(SequenceStart(2, [9, 5, 6]))
    assert tree.propose(DraftQuery(2, 31)).tokens == [7, 8]
    tree.reset()
    assert tree.propose(DraftQuery(2, 31)) == NO_DRAFT
