"""Percentiles: PromQL's value to the last digit, and bounds that the true value never leaves."""

import random
import subprocess
from collections.abc import Sequence
from math import ceil, inf
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.measures.histogram import increase, mean, merge
from phasewatch.core.measures.quantile import estimate, latency
from phasewatch.core.model import Estimate, Histogram

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, inf)
PHASE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 7680.0, inf)
QS = (0.01, 0.07, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def observed(bounds: Sequence[float], values: Sequence[float]) -> Histogram:
    """The histogram a server would have after these observations."""
    counts = tuple(float(sum(value <= edge for value in values)) for edge in bounds)
    return Histogram(tuple(bounds), counts, float(sum(values)))


def true_percentile(values: list[float], q: float) -> float:
    return sorted(values)[ceil(q * len(values)) - 1]


def random_histogram(rng: random.Random) -> Histogram:
    """Any edges (now and then one at or below zero), any counts: sparse, full, empty, huge, all above the last edge."""
    lowest = rng.choice((0.0, 0.0, 0.0, -3.0))
    bounds = (*sorted({lowest + rng.expovariate(0.3) for _ in range(rng.randint(1, 24))}), inf)
    largest = rng.choice((1, 3, 100, 10**9))
    counts, running = [], 0
    for _ in bounds:
        running += rng.choice((0, rng.randint(0, largest)))
        counts.append(float(running))
    return Histogram(bounds, tuple(counts), None)


def test_interpolation_is_promqls_to_the_last_digit(promtool: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    histograms = [random_histogram(rng) for _ in range(300)]
    # promtool compares with ==, so a value that differs in the last digit fails.
    rules = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f'h_bucket{{id="{at}",le="{"+Inf" if edge == inf else repr(edge)}"}}',
                        "values": str(count),
                    }
                    for at, h in enumerate(histograms)
                    for edge, count in zip(h.bounds, h.counts, strict=True)
                ],
                "promql_expr_test": [
                    {
                        # NaN, PromQL's answer to an empty histogram, is not >= anything.
                        "expr": f"histogram_quantile({q}, h_bucket) >= -1e9",
                        "eval_time": "0m",
                        "exp_samples": [
                            {"labels": f'{{id="{at}"}}', "value": value.value}
                            for at, h in enumerate(histograms)
                            if (value := estimate(h, q)) is not None
                        ],
                    }
                    for q in QS
                ],
            }
        ],
    }
    assert all(len(expected["exp_samples"]) > 200 for expected in rules["tests"][0]["promql_expr_test"])
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(rules))
    ran = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]


@given(st.lists(st.floats(0.0001, 100.0), min_size=1, max_size=300), st.sampled_from(QS))
def test_the_true_percentile_lies_between_low_and_high(values: list[float], q: float) -> None:
    found = estimate(observed(TTFT, values), q)
    assert found is not None
    assert found.low <= true_percentile(values, q) <= (inf if found.high is None else found.high)
    assert found.low <= found.value <= (inf if found.high is None else found.high)


@given(st.lists(st.sampled_from(TTFT[:-1]), min_size=1, max_size=300), st.sampled_from(QS))
def test_observations_on_an_edge_belong_to_the_bucket_below_it(values: list[float], q: float) -> None:
    found = estimate(observed(TTFT, values), q)
    assert found is not None
    assert found.low < true_percentile(values, q) == found.high


def test_b09_a_percentile_in_the_first_bucket_says_so_and_leaves_the_mean_exact() -> None:
    h = Histogram(PHASE, (200.0,) * len(PHASE), 0.2)
    assert estimate(h, 0.5) == Estimate(pytest.approx(0.15), 0.0, 0.3, "below_first_edge")
    assert latency(h).mean == pytest.approx(0.001)


def test_p2_a_millisecond_of_queueing_is_no_measured_p99_of_300_milliseconds() -> None:
    h = Histogram(PHASE, (1000.0,) * len(PHASE), 1.0)
    found = latency(h)
    assert found.mean == pytest.approx(0.001)
    assert found.p99 is not None
    assert (found.p99.low, found.p99.high, found.p99.censored) == (0, 0.3, "below_first_edge")


def test_p3_a_percentile_above_the_last_edge_is_a_lower_bound_without_an_upper_one() -> None:
    h = Histogram(PHASE, (*(0.0 for _ in PHASE[1:]), 7.0), None)
    assert estimate(h, 0.5) == Estimate(7680, 7680, None, "above_last_edge")


def test_b13_no_traffic_gives_no_percentile_and_a_count_of_zero() -> None:
    page = observed(TTFT, [0.03] * 500)
    still = increase(page, page)
    assert still is not None
    found = latency(still)
    assert (found.count, found.mean, found.p50, found.p90, found.p99) == (0, None, None, None, None)


def test_b17_percentiles_of_a_fleet_come_from_added_buckets_not_from_averaged_percentiles() -> None:
    fast, slow = observed(TTFT, [0.07] * 990), observed(TTFT, [6.0] * 10)
    merged = merge([fast, slow])
    assert merged is not None
    p99, p999 = estimate(merged, 0.99), estimate(merged, 0.999)
    assert p99 == Estimate(0.08, 0.06, 0.08)
    assert p999 is not None
    assert (p999.value, p999.low, p999.high) == (pytest.approx(7.25), 5, 7.5)
    assert latency(slow).count == 10


def test_b11_merged_replicas_with_other_edges_keep_their_percentiles_apart() -> None:
    short = (1.0, 1000.0, 2000.0, 5000.0, inf)
    merged = merge([observed(short, [1500.0] * 100), observed((*short[:-1], 10000.0, 20000.0, inf), [15000.0] * 100)])
    assert merged is not None
    p50, p90 = estimate(merged, 0.5), estimate(merged, 0.9)
    assert p50 is not None
    assert p90 is not None
    assert p50.high == 2000
    assert (p90.low, p90.high) == (10000, 20000)


def test_p8_a_percentile_does_not_depend_on_how_an_edge_was_written() -> None:
    h = merge(
        [Histogram((float("1"), 2.0, inf), (1.0, 2.0, 2.0), 2.5), Histogram((1.0, 2.0, inf), (1.0, 2.0, 2.0), 2.5)]
    )
    assert h is not None
    assert estimate(h, 0.5) == Estimate(1.0, 0.0, 1.0, "below_first_edge")


def test_a_histogram_with_nothing_but_infinity_has_a_count_and_a_mean_and_no_percentile() -> None:
    h = Histogram((inf,), (4.0,), 2.0)
    assert (estimate(h, 0.5), mean(h), latency(h).count) == (None, 0.5, 4)
