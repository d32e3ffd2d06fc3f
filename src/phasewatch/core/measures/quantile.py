"""Percentiles of a window's histogram, each with the bounds between which the true value lies."""

from collections.abc import Sequence
from dataclasses import replace

from phasewatch.core.measures import percentile_fit as sums
from phasewatch.core.measures.histogram import bucket_of, edges, mean, merge, monotonic
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


def estimate_with_sums(steps: Sequence[Histogram], q: float) -> Estimate | None:
    """The q-th percentile of a window by the sums between its scrapes; None without observations.

    steps: what the histogram grew by between scrapes, in time order. Bounds and censoring are `estimate`'s; so is the
    value where no sum can be used or the percentile lies above the last finite edge.
    """
    merged = merge(steps)
    return None if merged is None else _by_sums(estimate(merged, q), sums.fit(steps), q)


def latency(h: Histogram, steps: Sequence[Histogram] = ()) -> Latency:
    """Count, mean and percentiles of a window; everything but the count is None where nothing was observed.

    steps: the parts of h between scrapes, in time order, for values by the sums; without them PromQL's.
    """
    fitted = sums.fit(steps)
    values = {name: _by_sums(estimate(h, q), fitted, q) for name, q in PERCENTILES}
    return Latency(round(h.count), mean(h), **values)


def _by_sums(plain: Estimate | None, fitted: sums.Fitted | None, q: float) -> Estimate | None:
    value = None if fitted is None else sums.value(fitted, q)
    if plain is None or value is None or plain.high is None:
        return plain
    return replace(plain, value=min(max(value, plain.low), plain.high))
