"""Percentiles by the sums: exact where the sums say everything, inside the bucket always, closer on real shapes."""

import random
from collections.abc import Iterator, Sequence
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plain_fit
from phasewatch.core.measures import percentile_fit as sums
from phasewatch.core.measures.histogram import merge
from phasewatch.core.measures.quantile import PERCENTILES, estimate, fit_together, latency
from phasewatch.core.measures.window_arrays import alike
from phasewatch.core.model import Estimate, Histogram

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, inf)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, inf)
QS = (0.01, 0.5, 0.9, 0.99, 1.0)


def observed(values: Sequence[float], bounds: Sequence[float] = TTFT) -> Histogram:
    """What a histogram grew by with these observations."""
    counts = tuple(float(sum(value <= edge for value in values)) for edge in bounds)
    return Histogram(tuple(bounds), counts, float(sum(values)))


def estimate_with_sums(steps: Sequence[Histogram], q: float) -> Estimate | None:
    merged = merge(steps)
    return None if merged is None else estimate(merged, q, steps)


def by_sums(steps: Sequence[Histogram], q: float) -> float:
    found = estimate_with_sums(steps, q)
    assert found is not None
    assert found.low <= found.value <= (inf if found.high is None else found.high)
    return found.value


def by_interpolation(steps: Sequence[Histogram], q: float) -> float:
    merged = merge(steps)
    assert merged is not None
    found = estimate(merged, q)
    assert found is not None
    return found.value


def true_percentile(values: Sequence[float], q: float) -> float:
    return sorted(values)[ceil(q * len(values)) - 1]


scrapes = st.lists(st.lists(st.floats(0.0001, 60.0), max_size=30), min_size=1, max_size=12)


@given(scrapes, st.sampled_from(QS))
def test_the_value_never_leaves_the_bucket_that_holds_the_percentile(values: list[list[float]], q: float) -> None:
    steps = [observed(part) for part in values]
    found = estimate_with_sums(steps, q)
    everything = [value for part in values for value in part]
    if not everything:
        assert found is None
        return
    assert found is not None
    high = inf if found.high is None else found.high
    assert found.low <= found.value <= high
    assert found.low <= true_percentile(everything, q) <= high


@given(scrapes, st.sampled_from(QS), st.floats(-1e6, 1e6))
def test_sums_that_make_no_sense_never_move_the_value_out_of_its_bucket(
    values: list[list[float]], q: float, wrong: float
) -> None:
    steps = [observed(part) for part in values]
    steps[0] = Histogram(steps[0].bounds, steps[0].counts, wrong)
    merged = merge(steps)
    assert merged is not None
    plain, found = estimate(merged, q), estimate_with_sums(steps, q)
    assert (plain is None) == (found is None)
    if plain is not None and found is not None:
        assert (found.low, found.high, found.censored) == (plain.low, plain.high, plain.censored)
        assert found.low <= found.value <= (inf if found.high is None else found.high)


@given(st.lists(st.floats(0.0001, 39.0), min_size=1, max_size=40), st.sampled_from(QS))
def test_one_observation_between_two_scrapes_is_known_exactly(values: list[float], q: float) -> None:
    width = estimate_with_sums([observed([value]) for value in values], q)
    assert width is not None
    assert width.high is not None
    # The value is found by halving the bucket.
    assert width.value == pytest.approx(true_percentile(values, q), abs=(width.high - width.low) / 10_000)


@given(st.floats(0.002, 39.0), st.lists(st.integers(1, 50), min_size=2, max_size=10), st.sampled_from(QS))
def test_equal_observations_are_found_exactly(value: float, sizes: list[int], q: float) -> None:
    steps = [observed([value] * size) for size in sizes]
    found = estimate_with_sums(steps, q)
    assert found is not None
    assert found.high is not None
    assert found.value == pytest.approx(value, rel=1e-5, abs=(found.high - found.low) / 1000)


def test_a_millisecond_of_queueing_is_read_from_the_sum_below_the_first_edge() -> None:
    phase = (0.3, 0.5, 0.8, 1.0, inf)
    steps = [observed([0.001] * 50, phase) for _ in range(4)]
    found = estimate_with_sums(steps, 0.99)
    assert found is not None
    assert (found.low, found.high, found.censored) == (0, 0.3, "below_first_edge")
    assert found.value == pytest.approx(0.001, rel=0.05)


def test_few_in_a_wide_bucket_beside_many_lie_towards_the_many_where_no_sum_tells() -> None:
    tail = observed([*[0.2] * 200, *[0.24] * 200, 0.26])
    unknown = Histogram(tail.bounds, tail.counts, None)
    others = [observed([0.15 + 0.001 * at] * 3) for at in range(9)]
    assert by_sums([unknown, *others], 1.0) < 0.32
    alone = Histogram(tail.bounds, observed([0.3]).counts, None)
    assert by_sums([alone, observed([0.002])], 1.0) > 0.34


def test_without_a_sum_the_value_is_interpolated() -> None:
    steps = [Histogram(part.bounds, part.counts, None) for part in (observed([0.3, 0.3]), observed([0.4, 0.9]))]
    assert [by_sums(steps, q) for q in QS] == [by_interpolation(steps, q) for q in QS]


def test_with_no_sum_that_its_buckets_allow_the_value_is_interpolated() -> None:
    steps = [Histogram(observed([0.3]).bounds, observed([0.3]).counts, 86_400.0) for _ in range(3)]
    assert [by_sums(steps, q) for q in QS] == [by_interpolation(steps, q) for q in QS]


def test_one_scrape_with_an_uptime_sized_sum_leaves_the_others_their_say() -> None:
    good = [observed([0.26]) for _ in range(9)]
    bad = Histogram(observed([0.26]).bounds, observed([0.26]).counts, 86_400.0)
    assert by_sums([*good, bad], 0.5) == pytest.approx(0.26, rel=0.01)


def test_above_the_last_edge_the_value_is_the_edge_and_the_others_keep_theirs() -> None:
    steps = [observed([0.3]), observed([0.3, 55.0]), observed([0.3])]
    top = estimate_with_sums(steps, 1.0)
    assert top is not None
    assert (top.value, top.low, top.high, top.censored) == (40, 40, None, "above_last_edge")
    assert by_sums(steps, 0.5) == pytest.approx(0.3, rel=1e-3)


def test_scrapes_without_observations_change_nothing() -> None:
    busy = [observed([0.3, 0.4]), observed([0.7])]
    idle = observed([])
    assert [by_sums([idle, busy[0], idle, idle, busy[1]], q) for q in QS] == [by_sums(busy, q) for q in QS]


def test_a_long_window_keeps_its_bounds_and_stays_close() -> None:
    rng = random.Random(3)
    values = [[rng.gauss(0.041, 0.003) for _ in range(20)] for _ in range(1000)]
    found = estimate_with_sums([observed(part, ITL) for part in values], 0.5)
    assert found is not None
    assert (found.low, found.high) == (0.025, 0.05)
    assert found.value == pytest.approx(true_percentile([value for part in values for value in part], 0.5), rel=0.02)


def test_nothing_observed_gives_nothing() -> None:
    assert estimate_with_sums([], 0.5) is None
    assert estimate_with_sums([observed([]), observed([])], 0.5) is None


@given(scrapes, st.sampled_from(QS), st.sampled_from([0.001, 60.0, 1000.0]))
def test_the_unit_does_not_matter(values: list[list[float]], q: float, factor: float) -> None:
    steps = [observed(part) for part in values]
    scaled = [
        Histogram(tuple(edge * factor for edge in step.bounds), step.counts, (step.total or 0.0) * factor)
        for step in steps
    ]
    found, other = estimate_with_sums(steps, q), estimate_with_sums(scaled, q)
    assert (found is None) == (other is None)
    if found is not None and other is not None and found.high is not None:
        assert other.value / factor == pytest.approx(found.value, rel=1e-2, abs=(found.high - found.low) / 100)


def test_engines_with_other_edges_are_fitted_on_the_edges_all_know() -> None:
    short, long = (1.0, 10.0, 100.0, inf), (1.0, 10.0, 50.0, 100.0, 1000.0, inf)
    steps = [observed([20.0], short), observed([70.0], long), observed([500.0], long), observed([30.0], short)]
    found = estimate_with_sums(steps, 0.5)
    assert found is not None
    assert (found.low, found.high) == (10, 100)
    assert found.value == pytest.approx(30, rel=1e-2)


def test_a_window_of_steps_gives_the_latency_of_its_percentiles() -> None:
    steps = [observed([0.26]), observed([0.3]), observed([0.6])]
    merged = merge(steps)
    assert merged is not None
    found, plain = latency(merged, steps), latency(merged)
    assert (found.count, found.mean) == (plain.count, plain.mean)
    for name, q in PERCENTILES:
        assert getattr(found, name) == estimate_with_sums(steps, q)
        assert getattr(plain, name) == estimate(merged, q)


def traffic(kind: str, rng: random.Random) -> Iterator[list[float]]:
    """Thirty scrapes of made-up latencies, none of them like a recording: what a server could show."""
    for at in range(30):
        match kind:
            case "steady tokens":
                slow = rng.gauss(0.041, 0.001)
                yield [max(0.011, rng.gauss(slow, 0.003)) for _ in range(rng.randint(80, 120))]
            case "tokens with stalls":
                stall = [rng.uniform(0.8, 1.2)] * 4 if at % 4 == 0 else []
                yield [max(0.011, rng.gauss(0.03, 0.004)) for _ in range(150)] + stall
            case "a growing queue":
                yield [0.4 + 0.5 * at + rng.uniform(0, 0.5) for _ in range(rng.randint(1, 4))]
            case "first tokens":
                yield [rng.lognormvariate(-1.3, 0.4) for _ in range(rng.randint(0, 4))]


@pytest.mark.parametrize("kind", ["steady tokens", "tokens with stalls", "a growing queue", "first tokens"])
def test_the_sums_bring_the_value_closer_than_interpolation_does(kind: str) -> None:
    rng = random.Random(7)
    bounds = ITL if "tokens with" in kind or "steady" in kind else TTFT
    ours, plain = 0.0, 0.0
    for _ in range(20):
        values = list(traffic(kind, rng))
        steps = [observed(part, bounds) for part in values]
        everything = [value for part in values for value in part]
        for _, q in PERCENTILES:
            true = true_percentile(everything, q)
            ours += abs(by_sums(steps, q) - true) / true
            plain += abs(by_interpolation(steps, q) - true) / true
    assert ours < 0.6 * plain


def by_plain_loops(steps: Sequence[Histogram]) -> list[float | None]:
    fitted = plain_fit.fit(steps)
    return [None if fitted is None else plain_fit.value(fitted, q) for q in QS]


def assert_as_by_plain_loops(windows: Sequence[Sequence[Histogram]]) -> None:
    for steps, found in zip(windows, sums.percentiles([alike(one) for one in windows], QS), strict=True):
        wanted = by_plain_loops(steps)
        assert [value is None for value in found] == [value is None for value in wanted]
        assert [value for value in found if value] == pytest.approx([value for value in wanted if value], rel=1e-9)


@pytest.mark.parametrize("kind", ["steady tokens", "tokens with stalls", "a growing queue", "first tokens"])
def test_windows_fitted_at_once_have_the_values_of_plain_loops(kind: str) -> None:
    rng = random.Random(11)
    windows = []
    for at in range(40):
        values = [part for _ in range(1 + at % 3) for part in traffic(kind, rng)][: 1 + 2 * at]
        windows.append([observed(part, ITL if at % 2 else TTFT) for part in values])
    assert_as_by_plain_loops(windows)


@given(st.lists(scrapes, min_size=1, max_size=5), st.lists(st.booleans(), min_size=60, max_size=60))
def test_windows_of_any_kind_have_the_values_of_plain_loops(
    many: list[list[list[float]]], without_sum: list[bool]
) -> None:
    windows = [[observed(part) for part in values] for values in many]
    for steps, missing in zip(windows, without_sum, strict=False):
        if missing:
            steps[0] = Histogram(steps[0].bounds, steps[0].counts, None)
    for steps, found in zip(windows, sums.percentiles([alike(one) for one in windows], QS), strict=True):
        merged = merge(steps)
        assert merged is not None
        for q, value, wanted in zip(QS, found, by_plain_loops(steps), strict=True):
            assert (value is None) == (wanted is None)
            plain = estimate(merged, q)
            if value is None or wanted is None or plain is None or plain.high is None:
                continue
            # An observation known exactly may lie on the line between two parts of the grid.
            assert value == pytest.approx(wanted, rel=1e-9, abs=1.01 * (plain.high - plain.low) / 2**16)


def test_reading_one_percentile_fits_all_that_were_put_together() -> None:
    windows = [[observed([0.26, 0.3 + 0.01 * at]), observed([0.6])] for at in range(3)]
    alone = [latency(merged, steps) for steps in windows if (merged := merge(steps))]
    together = [latency(merged, steps) for steps in windows if (merged := merge(steps))]
    fit_together(together)
    assert together == alone
    assert len({one.p50 for one in together}) == 3
