"""The density inside a bucket has the mean it was given, and leans on its neighbours."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.measures import bucket_density as shape
from phasewatch.core.measures.bucket_density import MIDDLES, NODES


def shares(middle: float, left: float, right: float) -> list[float]:
    found: list[float] = shape.shares(np.array([middle]), np.array([left]), np.array([right]))[0].tolist()
    return found


def slope(middle: float) -> float:
    return float(shape.slope(np.array([middle]))[0])


def height(middle: float, side: int) -> float:
    return float(shape.height(shape.slope(np.array([middle])), side)[0])


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


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(-40.0, 8.0), st.floats(-40.0, 8.0)), min_size=2, max_size=20))
def test_many_buckets_at_once_are_each_as_if_alone(buckets: list[tuple[float, float, float]]) -> None:
    together = shape.shares(*np.array(buckets).T)
    for one, bucket in zip(together.tolist(), buckets, strict=True):
        assert one == pytest.approx(shares(*bucket), rel=1e-9, abs=1e-12)


@given(st.floats(0.01, 0.99))
def test_the_mean_of_an_exponential_density_leads_back_from_its_slope(middle: float) -> None:
    assert shape.middle(np.array([slope(middle)]))[0] == pytest.approx(middle, abs=1e-6)
