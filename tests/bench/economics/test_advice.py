"""The advice follows from the figures, and says so where they are inconclusive."""

import pytest

from reprise.bench.economics.figures import section

LENGTHS = (1, 4, 16)


@pytest.fixture
def advice(planted):
    """Return a function: {(workload, type, length, gated): [(acceptance, step cost), ...]} -> advice."""

    def make(table):
        trials = planted.controlled(lengths=LENGTHS)
        for (workload, kind, length, gated), chats in table.items():
            for chat, (share, cost) in enumerate(chats):
                trials.append(planted.trial(chat, length, share, cost, kind, workload, gated))
        return section(trials, {0: 0.01}, None, "no counters")["advice"]

    return make


def test_auto_is_advised_where_nothing_fixed_is_faster(advice):
    advised = advice(
        {
            ("edits", "suffix", 16, False): [(0.9, 4.0), (0.92, 4.0), (0.91, 4.1)],
            ("edits", "auto", 31, True): [(0.9, 6.0), (0.92, 6.1), (0.91, 6.0)],
        }
    )
    assert advised[0].startswith("Use --draft-type auto")
    assert advised[1].startswith("edits: suffix with drafts of 16 is the best fixed choice, 3.")


def test_what_is_faster_than_auto_is_named_with_its_flags(advice):
    advised = advice(
        {
            ("edits", "suffix", 16, False): [(0.9, 4.0), (0.92, 4.0), (0.91, 4.1)],
            ("edits", "auto", 31, True): [(0.9, 15.0), (0.92, 15.0), (0.91, 15.1)],
            ("free", "suffix", 16, False): [(0.01, 4.0), (0.02, 4.0), (0.01, 4.1)],
            ("free", "auto", 31, True): [(0.0, 1.0), (0.0, 1.01), (0.0, 1.0)],
        }
    )
    assert "--draft-type suffix --num-draft-tokens 16" in advised[0]
    assert advised[1] == "For other or mixed chats, use --draft-type auto."


def test_what_may_be_faster_than_auto_by_chance_is_not_advised(advice):
    advised = advice(
        {
            ("edits", "suffix", 16, False): [(0.9, 4.0), (0.92, 5.0), (0.91, 4.5)],
            ("edits", "auto", 31, True): [(0.9, 4.1), (0.92, 14.0), (0.91, 9.0)],
        }
    )
    assert advised[0].startswith("Use --draft-type auto")


def test_where_nothing_pays_it_says_so(advice):
    advised = advice(
        {
            ("free", "suffix", 4, False): [(0.1, 2.0), (0.11, 2.0), (0.1, 2.1)],
            ("free", "auto", 31, True): [(0.0, 1.1), (0.0, 1.12), (0.0, 1.11)],
        }
    )
    assert advised[0].startswith("Drafting pays on none of these workloads")
    assert "auto is slower, by up to 10%" in advised[0]


def test_runs_that_vary_too_much_give_no_advice(advice):
    advised = advice({("edits", "suffix", 4, False): [(0.9, 1.0), (0.9, 5.0), (0.9, 9.0)]})
    assert advised[0].startswith("These runs vary too much to say whether drafting pays on edits")


def test_the_slope_of_break_evens_comes_with_its_interval(advice):
    assert (
        "changes the acceptance needed to break even by +2.0 percentage points (2.0 to 2.0)" in advice({})[-1]
    )
