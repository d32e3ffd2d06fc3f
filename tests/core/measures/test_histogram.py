"""Histograms add, subtract and compare by edge, and never invent an observation."""

from collections.abc import Sequence
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.measures.histogram import (
    bucket_of,
    count_above,
    edges,
    in_buckets,
    increase,
    mean,
    merge,
    slowest_edges,
)
from phasewatch.core.measures.quantile import estimate
from phasewatch.core.model import Histogram

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, inf)
PHASE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 7680.0, inf)


def observed(bounds: Sequence[float], values: Sequence[float]) -> Histogram:
    """The histogram a server would have after these observations."""
    counts = tuple(float(sum(value <= edge for value in values)) for edge in bounds)
    return Histogram(tuple(bounds), counts, float(sum(values)))


lists = st.lists(st.floats(0.0001, 100.0), max_size=60)
edge_sets = st.sets(st.sampled_from(TTFT[:-1]), min_size=1).map(lambda chosen: (*sorted(chosen), inf))


def test_b15_an_increase_is_none_when_the_count_fell_with_a_restart() -> None:
    before = Histogram((0.5, inf), (4900.0, 5000.0), 1500.0)
    after = Histogram((0.5, inf), (12.0, 12.0), 3.0)
    assert increase(before, after) is None


def test_an_increase_is_none_when_only_one_bucket_fell_because_a_restart_hid_behind_a_higher_count() -> None:
    before = Histogram((0.5, 1.0, inf), (90.0, 95.0, 100.0), 40.0)
    after = Histogram((0.5, 1.0, inf), (80.0, 110.0, 120.0), 60.0)
    assert increase(before, after) is None


def test_b13_an_increase_between_equal_pages_counts_nothing_and_has_no_mean() -> None:
    page = observed(TTFT, [0.03] * 500)
    still = increase(page, page)
    assert still is not None
    assert (still.count, still.total, mean(still), estimate(still, 0.99)) == (0, 0, None, None)


def test_a_sum_that_fell_is_no_restart() -> None:
    grown = increase(Histogram((0.3, inf), (5.0, 5.0), 3.0), Histogram((0.3, inf), (6.0, 6.0), 1.0))
    assert grown == Histogram((0.3, inf), (1.0, 1.0), -2.0)
    assert mean(grown) is None


def test_an_increase_without_a_sum_on_either_page_has_no_sum() -> None:
    grown = increase(Histogram((1.0, inf), (1.0, 1.0), None), Histogram((1.0, inf), (3.0, 3.0), 2.0))
    assert grown == Histogram((1.0, inf), (2.0, 2.0), None)


def test_an_increase_between_edges_that_differ_is_taken_on_those_both_know() -> None:
    before = observed((0.1, 0.5, inf), [0.05, 0.3])
    after = observed((0.1, 0.25, 0.5, inf), [0.05, 0.3, 0.2])
    assert increase(before, after) == Histogram((0.1, 0.5, inf), (0.0, 1.0, 1.0), pytest.approx(0.2))


def test_an_increase_is_none_when_no_finite_edge_can_be_compared() -> None:
    assert increase(observed((1.0, inf), [0.5, 5.0]), observed((2.0, inf), [0.5, 5.0, 6.0])) is None


@given(lists, lists)
def test_an_increase_is_what_was_observed_in_between(old: list[float], new: list[float]) -> None:
    grown, wanted = increase(observed(TTFT, old), observed(TTFT, old + new)), observed(TTFT, new)
    assert grown is not None
    assert grown.counts == wanted.counts
    assert grown.total == pytest.approx(wanted.total)


def test_b11_a_replica_whose_observations_end_below_keeps_its_count_at_the_others_higher_edges() -> None:
    short = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, inf)
    long = (*short[:-1], 10000.0, 20000.0, inf)
    merged = merge([observed(short, [1500.0] * 100), observed(long, [15000.0] * 100)])
    assert merged is not None
    assert merged.bounds == long
    assert merged.count == 200
    middle, tail = estimate(merged, 0.5), estimate(merged, 0.9)
    assert middle is not None
    assert tail is not None
    assert (middle.low, middle.high) == (1000, 2000)
    assert (tail.low, tail.high) == (10000, 20000)


def test_an_edge_inside_a_bucket_with_observations_is_dropped_because_nobody_knows_the_count_there() -> None:
    merged = merge([observed((1.0, 4.0, inf), [2.0, 3.0]), observed((1.0, 2.0, 4.0, inf), [1.5, 3.0])])
    assert merged == Histogram((1.0, 4.0, inf), (0.0, 4.0, 4.0), 9.5)


def test_observations_above_the_last_edge_take_the_others_higher_edges_away() -> None:
    merged = merge([observed((1.0, inf), [30.0]), observed((1.0, 10.0, inf), [5.0])])
    assert merged == Histogram(
        (1.0, inf),
        (
            0.0,
            2.0,
        ),
        35.0,
    )


def test_p8_edges_merge_as_numbers_whatever_the_pages_wrote() -> None:
    as_integer = Histogram(tuple(map(float, ("1", "2", "+Inf"))), (1.0, 3.0, 3.0), 4.0)
    as_decimal = Histogram(tuple(map(float, ("1.0", "2.0", "+Inf"))), (2.0, 2.0, 2.0), 1.0)
    assert merge([as_integer, as_decimal]) == Histogram((1.0, 2.0, inf), (3.0, 5.0, 5.0), 5.0)


def test_merging_nothing_gives_nothing_and_one_without_a_sum_takes_the_sum_away() -> None:
    assert merge([]) is None
    merged = merge([Histogram((1.0, inf), (1.0, 1.0), 0.5), Histogram((1.0, inf), (1.0, 1.0), None)])
    assert merged is not None
    assert merged.total is None


@given(lists, edge_sets, lists, edge_sets)
def test_a_merged_histogram_is_the_one_of_all_observations_on_its_own_edges(
    some: list[float], some_edges: tuple[float, ...], others: list[float], other_edges: tuple[float, ...]
) -> None:
    merged = merge([observed(some_edges, some), observed(other_edges, others)])
    assert merged is not None
    assert set(some_edges) & set(other_edges) <= set(merged.bounds) <= set(some_edges) | set(other_edges)
    assert merged.counts == observed(merged.bounds, some + others).counts


def test_a_limit_on_an_edge_is_counted_exactly() -> None:
    assert count_above(observed((1.0, 2.0, inf), [0.5, 1.5, 1.5, 3.0]), 1.0) == (3, 3, 3)


def test_a_limit_inside_a_bucket_says_what_is_sure_and_what_is_possible() -> None:
    assert count_above(observed((1.0, 2.0, inf), [0.5, 1.5, 1.5, 3.0]), 1.25) == (1, 3, 2.5)


def test_a_limit_past_the_last_edge_may_be_missed_by_all_that_lie_there_and_surely_by_none() -> None:
    assert count_above(observed((1.0, inf), [0.5, 30.0]), 20.0) == (0, 1, 0)


def test_a_limit_of_zero_is_passed_by_all() -> None:
    assert count_above(observed((1.0, inf), [0.5, 30.0]), 0.0) == (2, 2, 2)


@given(lists, st.floats(0.0, 200.0))
def test_what_really_lies_over_a_limit_is_between_sure_and_possible(values: list[float], limit: float) -> None:
    above = count_above(observed(TTFT, values), limit)
    assert above.sure <= sum(value > limit for value in values) <= above.possible
    assert above.sure <= above.interpolated <= above.possible


def test_b09_a_mean_below_the_first_edge_is_exact() -> None:
    assert mean(Histogram(PHASE, (200.0,) * len(PHASE), 0.2)) == pytest.approx(0.001)
    assert mean(Histogram(PHASE, (200.0,) * len(PHASE), 5.4)) == pytest.approx(0.027)


@pytest.mark.parametrize("total", [None, -0.1, 400.0, nan, inf])
def test_a_mean_that_its_own_buckets_contradict_is_unknown(total: float | None) -> None:
    assert mean(Histogram(PHASE, (0.0, 4.0, *(4.0 for _ in PHASE[2:])), total)) is None


def test_an_uptime_sized_queue_time_is_rejected_by_its_edges_and_a_long_one_past_the_last_edge_is_not() -> None:
    ten_in_first = (10.0,) * len(PHASE)
    assert mean(Histogram(PHASE, ten_in_first, 86_400.0)) is None
    assert mean(Histogram(PHASE, (*(0.0 for _ in PHASE[1:]), 2.0), 20_000.0)) == 10_000


def test_a_mean_on_its_edge_is_accepted_in_spite_of_rounding() -> None:
    assert mean(Histogram((0.1, inf), (3.0, 3.0), 0.1 + 0.1 + 0.1)) == pytest.approx(0.1)


@given(st.lists(st.floats(0.0001, 100.0), min_size=1, max_size=60))
def test_the_mean_of_real_observations_is_never_rejected(values: list[float]) -> None:
    assert mean(observed(TTFT, values)) == pytest.approx(sum(values) / len(values))


def test_counts_that_fall_from_edge_to_edge_are_held_level() -> None:
    assert in_buckets(Histogram((1.0, 2.0, 3.0, inf), (5.0, 3.0, 6.0, 6.0), None)) == (5, 0, 1, 0)


def test_the_first_bucket_begins_at_zero_and_the_last_has_no_end() -> None:
    h = observed((1.0, 2.0, inf), [])
    assert [edges(h, at) for at in range(3)] == [(0, 1), (1, 2), (2, inf)]
    assert edges(Histogram((-1.0, inf), (0.0, 0.0), None), 0) == (-inf, -1)


@pytest.mark.parametrize("q", [0, -0.5, 1.01, nan])
def test_a_percentile_outside_zero_to_one_is_an_error(q: float) -> None:
    with pytest.raises(ValueError, match=r"lies in \(0, 1\]"):
        bucket_of((1.0, 1.0), q)


@pytest.mark.parametrize(
    ("counts", "found"),
    [((0.0, 2.0, 2.0), (0.1, 1.0)), ((3.0, 3.0, 3.0), (0.0, 0.1)), ((0.0, 0.0, 1.0), (1.0, inf)), ((0.0,) * 3, None)],
)
def test_the_slowest_observation_lies_between_the_edges_of_the_last_bucket_that_holds_any(
    counts: tuple[float, ...], found: tuple[float, float] | None
) -> None:
    assert slowest_edges(Histogram((0.1, 1.0, inf), counts, None)) == found
