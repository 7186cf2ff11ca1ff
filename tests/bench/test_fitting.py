"""Fits recover known parameters."""

import math

import numpy as np
import pytest

from reprise.bench.statistics import break_even, fit_line


def test_a_line_without_noise_is_found_exactly():
    x = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert fit_line(x, 0.6 + 2.4 * x) == pytest.approx((0.6, 2.4))


def test_where_acceptance_does_not_vary_there_is_no_slope_and_no_break_even():
    a, b = fit_line(np.array([0.5, 0.5]), np.array([1.0, 1.2]))
    assert (a, b) == pytest.approx((1.1, 0.0))
    assert math.isnan(break_even(a, b))
