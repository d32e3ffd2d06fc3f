"""Percentiles of a window's histogram, each with the bounds between which the true value lies."""

from phasewatch.core.histogram import bucket_of, edges, mean, monotonic
from phasewatch.core.model import Estimate, Histogram, Latency

PERCENTILES: tuple[tuple[str, float], ...] = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def estimate(h: Histogram, q: float) -> Estimate | None:
    """The q-th percentile by PromQL's histogram_quantile, to the last digit; None without observations.

    value spreads a bucket's observations evenly from its low edge (0 for the first) to its high one. low and high
    are that bucket's edges: the observation of rank ceil(q x count) lies in (low, high]. Past the last finite edge
    value is that edge, a lower bound, and high is None. A histogram of nothing but +Inf says nothing: None.
    """
    at = bucket_of(h, q)
    if at is None or len(h.bounds) < 2:
        return None
    low, high = edges(h, at)
    if at == len(h.bounds) - 1:
        return Estimate(low, low, None, "above_last_edge")
    if at == 0 and high <= 0:
        return Estimate(high, low, high, "below_first_edge")
    counts = monotonic(h)
    below = counts[at - 1] if at else 0.0
    # The order of the operations is PromQL's: another one differs in the last digit.
    value = low + (high - low) * ((q * counts[-1] - below) / (counts[at] - below))
    return Estimate(value, low, high, None if at else "below_first_edge")


def latency(h: Histogram) -> Latency:
    """Count, mean and percentiles of a window; everything but the count is None where nothing was observed."""
    return Latency(round(h.count), mean(h), **{name: estimate(h, q) for name, q in PERCENTILES})
