"""Fits recover known parameters, and intervals contain them as often as they claim."""

import math

import numpy as np
import pytest

from reprise.bench.statistics import (
    break_even,
    fit_line,
    geometric_mean_of,
    jackknife,
    mean_of,
    student,
)


def test_a_line_without_noise_is_found_exactly():
    x = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert fit_line(x, 0.6 + 2.4 * x) == pytest.approx((0.6, 2.4))


def test_where_acceptance_does_not_vary_there_is_no_slope_and_no_break_even():
    a, b = fit_line(np.array([0.5, 0.5]), np.array([1.0, 1.2]))
    assert (a, b) == pytest.approx((1.1, 0.0))
    assert math.isnan(break_even(a, b))


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042)])
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, abs=2e-3)


def test_the_interval_of_a_mean_is_students():
    values = [1.0, 2.0, 4.0, 5.0]
    error = np.std(values, ddof=1) / 2
    found = mean_of(values)
    assert found.value == 3.0
    assert found.low == pytest.approx(3.0 - student(3) * error)
    assert found.high == pytest.approx(3.0 + student(3) * error)


def test_twice_as_fast_and_half_as_fast_are_as_fast():
    assert geometric_mean_of([2.0, 0.5, 1.0]).value == pytest.approx(1.0)


def test_fewer_than_three_chats_have_no_interval():
    assert mean_of([1.0, 2.0]).low is None


def test_a_figure_that_is_lost_without_one_chat_has_no_interval():
    found = jackknife([0, 1, 2], lambda mask: [1.0 if mask[0] else math.nan])
    assert (found[0].value, found[0].low) == (1.0, None)


@pytest.mark.parametrize("num_chats", [4, 8])
def test_intervals_contain_the_truth_as_often_as_they_claim(num_chats):
    """Chats with different costs and plain speeds, five runs each, repeated 600 times."""
    rng = np.random.default_rng(7)
    length, cost, tries = 4, 1.8, 600
    truth = [1 / cost, length / cost, (cost - 1) / length]
    groups = np.repeat(np.arange(num_chats), 5)
    hits = np.zeros(3)
    for _ in range(tries):
        x = np.clip(np.tile(np.linspace(0, 1, 5), num_chats) + rng.normal(0, 0.05, len(groups)), 0, 1)
        of_chat = rng.normal(0, 0.02, num_chats) + rng.normal(0, 0.03, num_chats)
        y = (1 + length * x) / cost * np.exp(of_chat[groups] + rng.normal(0, 0.03, len(groups)))

        def estimate(mask, x=x, y=y):
            a, b = fit_line(x[mask], y[mask])
            return [a, b, break_even(a, b)]

        found = jackknife(groups, estimate)
        hits += [one.low <= true <= one.high for one, true in zip(found, truth, strict=True)]
    # 95 %, plus or minus three standard errors of 600 draws.
    assert np.all(np.abs(hits / tries - 0.95) < 0.027)
