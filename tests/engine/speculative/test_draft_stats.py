"""Reports on drafts add up: every token has a source, and every drafted token a position."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.engine.speculative.costs.cost_table import StepPrice
from reprise.engine.speculative.draft_stats import (
    DEAR,
    LEFT_OUT,
    PLAIN,
    SPENT,
    UNLIKELY,
    UNMATCHED,
    WORDS,
    DraftCounts,
)

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


@pytest.mark.parametrize("reason", WORDS)
def test_every_reason_has_words(reason: str) -> None:
    counts = DraftCounts(num_forwards=3)
    for _ in range(3):
        counts.add_undrafted(reason)
    report = counts.report(None, "lookup", "")
    assert report.undrafted == ((reason, 3),)
    assert report.why_undrafted == WORDS[reason]


def test_why_is_the_most_frequent_reason_if_most_steps_had_no_draft() -> None:
    counts = DraftCounts(num_forwards=8)
    assert counts.why_undrafted() == ""
    for reason in (UNMATCHED, SPENT, UNMATCHED):
        counts.add_undrafted(reason)
    assert counts.why_undrafted() == ""
    counts.add_undrafted(UNMATCHED)
    assert counts.why_undrafted() == "nothing matched"


def test_a_dear_step_is_told_by_its_price_the_widest_one() -> None:
    counts = DraftCounts(num_forwards=3)
    for width, ratio in ((8, 7.0), (8, 7.6), (2, 1.9)):
        counts.add_undrafted(DEAR, StepPrice(1, width, ratio, is_seen=True))
    assert counts.why_undrafted() == "a step of 8 tokens costs 7.6 plain ones here (seen in real steps)"


@pytest.mark.parametrize(
    ("reason", "accepted", "words"),
    [
        (UNLIKELY, 1, "drafts are seldom accepted (1 of 8 tokens)"),
        (UNLIKELY, 7, "drafts were unlikely to be right"),
        (SPENT, 1, "drafts used up the time that they may cost (1 of 8 tokens accepted)"),
    ],
)
def test_the_drafts_that_there_were_are_told(reason: str, accepted: int, words: str) -> None:
    counts = DraftCounts(num_forwards=2)
    counts.add_draft("suffix", 8, accepted)
    counts.add_undrafted(reason)
    assert counts.why_undrafted() == words


def test_a_draft_model_that_is_left_out_is_told_if_nothing_else_drafts() -> None:
    counts = DraftCounts(num_forwards=2, is_model_left_out=True)
    assert counts.why_undrafted() == LEFT_OUT
    counts.add_undrafted(UNMATCHED)
    assert counts.why_undrafted() == "nothing matched"
