"""Reports on drafts add up: every token has a source, and every drafted token a position."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.speculative.draft_stats import PLAIN, DraftCounts

STEPS = st.lists(
    st.tuples(st.sampled_from(["suffix", "ngram-mod"]), st.integers(0, 5), st.integers(0, 5)), max_size=12
)


@given(STEPS)
def test_origins_and_positions_agree_with_the_counts(steps: list[tuple[str, int, int]]) -> None:
    counts = DraftCounts()
    for source, num_verified, num_right in steps:
        num_accepted = min(num_verified, num_right)
        counts.num_forwards += 1
        counts.add_tokens(source, num_accepted, num_accepted + 1)
        if num_verified:
            counts.add_draft(source, num_verified, num_accepted)
    report = counts.report(None, "lookup", "")
    by_origin: Counter[str] = Counter()
    for source, length in report.origins:
        by_origin[source] += length
    assert sum(by_origin.values()) == report.num_accepted + report.num_forwards
    assert all(by_origin[source] == accepted for source, _, accepted in report.by_source)
    assert sum(drafted for drafted, _ in report.by_position) == report.num_drafted
    assert sum(accepted for _, accepted in report.by_position) == report.num_accepted


def test_origins_keep_the_order_and_merge_neighbours() -> None:
    counts = DraftCounts()
    for source, num_accepted, num_tokens in [
        ("", 0, 1), ("", 0, 1), ("suffix", 3, 4), ("suffix", 2, 2), ("suffix", 1, 2)
    ]:  # fmt: skip
        counts.add_tokens(source, num_accepted, num_tokens)
    report = counts.report(None, "lookup", "")
    assert report.origins == ((PLAIN, 2), ("suffix", 3), (PLAIN, 1), ("suffix", 3), (PLAIN, 1))


def test_the_prediction_is_reported_separately() -> None:
    counts = DraftCounts()
    counts.add_draft("prediction", 4, 3)
    counts.add_draft("suffix", 2, 2)
    report = counts.report(0.5, "lookup", "a reason")
    assert (report.accepted_prediction, report.rejected_prediction) == (3, 1)
    assert report.by_source == (("prediction", 4, 3), ("suffix", 2, 2))
    assert report.by_position == ((2, 2), (2, 2), (1, 1), (1, 0))
