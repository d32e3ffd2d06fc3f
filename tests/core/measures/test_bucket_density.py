"""The density inside a bucket has the mean it was given, and leans on its neighbours."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.measures.bucket_density import MIDDLES, NODES, height, shares, slope, solve_symmetric


@given(st.floats(0.1, 0.9), st.floats(-3.0, 1.5), st.floats(-3.0, 1.5))
def test_the_shares_add_up_and_keep_the_mean(middle: float, left: float, right: float) -> None:
    found = shares(middle, left, right)
    assert len(found) == NODES
    assert min(found) >= 0
    assert sum(found) == pytest.approx(1)
    assert sum(share * t for share, t in zip(found, MIDDLES, strict=True)) == pytest.approx(middle, abs=0.02)


@given(st.floats(0.0, 1.0), st.floats(-40.0, 8.0), st.floats(-40.0, 8.0))
def test_no_mean_and_no_height_breaks_it(middle: float, left: float, right: float) -> None:
    found = shares(middle, left, right)
    assert min(found) >= 0
    assert sum(found) == pytest.approx(1)


def test_an_even_bucket_between_even_neighbours_is_even() -> None:
    assert shares(0.5, 0.0, 0.0) == pytest.approx([1 / NODES] * NODES, rel=1e-3)


def test_a_bucket_between_empty_neighbours_has_its_observations_in_the_middle() -> None:
    found = shares(0.5, log(0.01), log(0.01))
    assert sum(found[:2]) + sum(found[-2:]) < 0.05


def test_a_full_neighbour_draws_observations_to_its_side() -> None:
    assert shares(0.3, log(4), log(0.1))[0] > 2 * shares(0.3, log(0.2), log(0.1))[0]


@given(st.floats(0.01, 0.99))
def test_an_exponential_density_has_the_mean_it_was_made_for(middle: float) -> None:
    k = slope(middle)
    mean = 0.5 + k / 12 if abs(k) < 1e-2 else exp(k) / (exp(k) - 1) - 1 / k
    assert mean == pytest.approx(middle, abs=1e-4)


@given(st.floats(0.01, 0.99))
def test_the_heights_of_an_exponential_density_differ_by_its_slope(middle: float) -> None:
    assert height(middle, 1) - height(middle, -1) == pytest.approx(slope(middle), abs=1e-4)
    assert height(middle, 1) == pytest.approx(height(1 - middle, -1), abs=1e-6)


def test_a_system_is_solved_with_its_determinant() -> None:
    found, log_determinant = solve_symmetric([[4.0, 2.0], [2.0, 3.0]], [2.0, 5.0])
    assert found == pytest.approx([-0.5, 2.0])
    assert log_determinant == pytest.approx(log(8))
