"""Fits, buckets, predictions and choices over trials with known parameters."""

import pytest

from reprise.bench.economics import figures


def test_planted_lines_and_break_evens_are_found_again(planted):
    fits, slope = figures.fit(planted.frame(*planted.controlled(r=0.2, beta=0.02)))
    assert [fit["num_draft_tokens"] for fit in fits] == [1, 2, 4, 8]
    for fit in fits:
        length = fit["num_draft_tokens"]
        cost = planted.step_cost(length, 0.2, 0.02)
        assert fit["a"] == pytest.approx(1 / cost, rel=1e-3)
        assert fit["b"] == pytest.approx(length / cost, rel=1e-3)
        assert fit["break_even"] == pytest.approx(0.2 + 0.02 * length, abs=1e-3)
        assert fit["step_cost"] == pytest.approx(cost, rel=1e-3)
        assert fit["n"] == 20
    assert slope["r"] == pytest.approx(0.2, abs=1e-3)
    assert slope["beta"] == pytest.approx(0.02, abs=1e-4)


def test_trials_are_sorted_into_buckets_and_those_without_drafts_left_out(planted):
    trials = [planted.trial(0, 4, share, 1.5) for share in (0.0, 0.1, 0.2, 1.0)]
    trials.append(planted.trial(0, 4, 0.5, 1.5, kind="auto", gated=True))
    found = figures.buckets(planted.frame(*trials))
    assert [(row["label"], row["n"]) for row in found] == [
        ("0 to 20 %", 2),
        ("20 to 40 %", 1),
        ("80 to 100 %", 1),
    ]
    assert found[-1]["speedup"] == pytest.approx(5 / 1.5)


def test_drafts_are_predicted_from_their_widths_and_the_costs_of_steps(planted):
    curve = {0: 0.01} | {k: 0.01 * planted.step_cost(k, 0.2, 0.02) for k in (1, 2, 4, 8)}
    real = planted.trial(0, 8, 0.6, planted.step_cost(8, 0.2, 0.02), kind="suffix")
    found = figures.predictions(planted.frame(*planted.controlled(r=0.2, beta=0.02), real), curve)
    assert len(found) == len(planted.controlled()) + 1
    for row in found.to_dicts():
        assert row["predicted"] == pytest.approx(row["measured"], rel=1e-3)
    errors = figures.errors(found)
    assert [(row["draft_type"], row["n"]) for row in errors] == [
        ("controlled", len(found) - 1),
        ("suffix", 1),
    ]
    assert all(row["median_error"] < 1e-3 for row in errors)
    assert figures.errors(found.clear()) == []


def test_what_is_best_by_chance_brings_less_to_other_chats(planted):
    """Each of three types is fast on one chat only: a choice based on the others gains nothing."""
    trials = [
        planted.trial(chat, 4, 1.0, 1.0 if chat == at else 6.0, kind=kind)
        for at, kind in enumerate(["suffix", "ngram-mod", "ngram-simple"])
        for chat in range(3)
    ]
    trials += [planted.trial(chat, 31, 0.0, 1.0, kind="auto", gated=True) for chat in range(3)]
    frame = planted.frame(*trials)
    assert max(choice["speedup"] for choice in figures.choices(frame)) > 1.4
    (found,) = figures.held_out(frame).values()
    assert found["speedup"] < 1.0


def test_a_draft_model_has_its_own_time_in_its_steps(planted):
    trials = [planted.trial(chat, 4, 0.5, 2.0, kind="draft-model") for chat in range(3)]
    (found,) = figures.model_needs(planted.frame(*trials))
    assert (found["num_draft_tokens"], found["break_even"]) == (4, pytest.approx(0.25))


def test_energy_is_counted_by_token_or_not_measured(planted):
    trials = [planted.trial(0, 1, 1.0, 1.2, kind="suffix", joules=100.0)]
    found = figures.energy(planted.frame(*trials), "package-0", None)
    assert found["rows"][0]["energy_j_per_token"] == 1.0
    assert found["rows"][0]["plain_j_per_token"] == 2.0
    assert found["rows"][0]["ratio"] == 0.5
    assert figures.energy(planted.frame(*trials), None, "no counters") == {
        "measured": "not measured",
        "reason": "no counters",
        "rows": [],
    }


def test_the_section_has_all_that_a_page_draws(planted):
    trials = planted.controlled()
    trials += [planted.trial(chat, 4, 0.9, 1.5, kind="suffix") for chat in range(4)]
    trials += [planted.trial(chat, 31, 0.9, 5.0, kind="auto", gated=True) for chat in range(4)]
    found = figures.section(trials, {0: 0.01, 8: 0.03}, None, "no counters")
    assert found["plain_tps"] == pytest.approx(100.0)
    assert {"num_draft_tokens", "a", "b", "break_even", "low", "high", "n"} <= found["fits"][0].keys()
    assert {"r", "beta", "low", "high"} <= found["beta"].keys()
    assert all(row["parity"] == "PASS" for row in found["points"])
    assert len(found["points"]) == len(trials)
    assert found["energy"] == {"measured": "not measured", "reason": "no counters", "rows": []}
