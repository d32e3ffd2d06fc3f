"""Arithmetic on cumulative histograms: increases, merging by edge, counts over a limit, means that can be true."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf
from operator import gt, mul, sub
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phasewatch.core.model import Histogram

# A sum is the difference of two large floats: this much of it may be rounding.
ROUNDING = 1e-6

Floats = NDArray[np.float64]


class Above(NamedTuple):
    """Observations over a limit. sure <= interpolated <= possible."""

    sure: float
    possible: float
    interpolated: float


def increase(before: Histogram, after: Histogram) -> Histogram | None:
    """What `after` has that `before` had not.

    None where any bucket fell (a restart, for the caller to decide) or the two share no finite edge. The sum may
    fall without a restart: vLLM can add negative times.
    """
    if before.bounds != after.bounds:
        bounds = _common_edges((before, after))
        if len(bounds) < 2:
            return None
        before, after = on_edges(before, bounds), on_edges(after, bounds)
    if any(map(gt, before.counts, after.counts)):
        return None
    return Histogram(
        bounds=after.bounds,
        counts=tuple(map(sub, after.counts, before.counts)),
        total=None if before.total is None or after.total is None else after.total - before.total,
    )


def merge(histograms: Iterable[Histogram]) -> Histogram | None:
    """All observations together, by `le` and never by position; None for none.

    An edge is kept where every histogram knows its count there (see `_knows`). total is None where any lacks it.
    """
    parts = tuple(histograms)
    if not parts:
        return None
    bounds = parts[0].bounds
    if any(part.bounds != bounds for part in parts):
        bounds = _common_edges(parts)
        parts = tuple(on_edges(part, bounds) for part in parts)
    totals = [part.total for part in parts if part.total is not None]
    return Histogram(
        bounds=bounds,
        counts=tuple(map(sum, zip(*(part.counts for part in parts), strict=True))),
        total=sum(totals) if len(totals) == len(parts) else None,
    )


def count_above(h: Histogram, limit: float) -> Above:
    """Observations over `limit`: sure where the whole bucket lies above it, possible where a part of it may.

    interpolated splits the bucket around the limit evenly, as a percentile's interpolation does; past the last
    finite edge nothing can be split, and none is counted.
    """
    at = min(bisect_left(h.bounds, limit), len(h.bounds) - 1)
    low, high = edges(h, at)
    counts = monotonic(h)
    below, through = (counts[at - 1] if at else 0.0), counts[at]
    possible = counts[-1] - (below if limit < high else through)
    sure = counts[-1] - (below if limit <= low else through)
    if limit <= low or limit >= high or high == inf or low == -inf:
        return Above(sure, possible, sure)
    return Above(sure, possible, sure + (through - below) * (high - limit) / (high - low))


def mean(h: Histogram) -> float | None:
    """The exact mean; None without observations or sum, or where no observations in these buckets can add up to it."""
    if h.exact_mean is None:
        object.__setattr__(h, "exact_mean", (_mean(h),))
    known: tuple[float | None] = h.exact_mean
    return known[0]


def _mean(h: Histogram) -> float | None:
    if h.count <= 0 or h.total is None:
        return None
    lowest, highest = sum_limits(h)
    if not lowest - ROUNDING * abs(lowest) <= h.total <= highest + ROUNDING * abs(highest):
        return None
    return h.total / h.count


def bucket_means(h: Histogram) -> list[tuple[float, float]]:
    """(mean, observations) of each bucket that has any, from the fastest on, of a histogram whose `mean` is known.

    Each mean lies at the same part of its bucket, so that they add up to the sum; what lies above the last finite edge
    takes what the middles of the others leave.
    """
    filled = [(count, *edges(h, at)) for at, count in enumerate(in_buckets(h)) if count]
    finite = [(count, low, high) for count, low, high in filled if high < inf and low > -inf]
    total = h.total or 0.0
    if len(finite) < len(filled):
        means = [((low + high) / 2, count) for count, low, high in finite]
        count, low, _ = filled[-1]
        return [*means, (max(low, (total - sum(one * n for one, n in means)) / count), count)]
    least = sum(count * low for count, low, _ in finite)
    width = sum(count * (high - low) for count, low, high in finite)
    part = min(1.0, max(0.0, (total - least) / width)) if width > 0 else 0.0
    return [(low + part * (high - low), count) for count, low, high in finite]


def sum_limits(h: Histogram) -> tuple[float, float]:
    """The least and the most that observations in these buckets can add up to; the most may be inf."""
    counts, bounds = in_buckets(h), h.bounds
    lowest, highest = sum(map(mul, counts[1:], bounds)), sum(map(mul, counts[:-1], bounds))
    if counts[0] and bounds[0] <= 0:
        lowest = -inf
    return lowest, inf if counts[-1] else highest


def bucket_sum(h: Histogram, at: int) -> tuple[float, float]:
    """The least and the most that the observations of one bucket add up to: what the sum leaves over of the others,
    within what the bucket's own edges allow."""
    counts, around = in_buckets(h), [edges(h, one) for one in range(len(h.bounds))]
    # Nothing in an open bucket is nothing, not 0 x inf.
    sums = [
        (count * low, count * high) if count else (0.0, 0.0) for count, (low, high) in zip(counts, around, strict=True)
    ]
    least, most = sums.pop(at)
    if h.total is None or mean(h) is None:
        return least, most
    return max(least, h.total - sum(high for _, high in sums)), min(most, h.total - sum(low for low, _ in sums))


def in_buckets(h: Histogram) -> tuple[float, ...]:
    """Observations in each bucket alone. Counts that fall from one edge to the next are held level, as PromQL does."""
    rising = monotonic(h)
    return (rising[0], *map(sub, rising[1:], rising))


def alone(h: Histogram) -> Floats:
    """The sum (nan where there is none), the observations above the last finite edge, then those of each bucket."""
    # Observations are whole; what a broken page makes of less than half of one would overflow what divides by it.
    counts = np.rint(np.maximum.accumulate(h.counts))
    row = np.empty(len(h.counts) + 1)
    row[0] = np.nan if h.total is None else h.total
    row[2:] = counts[:-1]
    row[3:] -= counts[:-2]
    row[1] = counts[-1] - counts[-2] if len(counts) > 1 else counts[-1]
    return row


def monotonic(h: Histogram) -> tuple[float, ...]:
    """The cumulative counts, never falling: a page written while it was read can show a bucket late."""
    rising = sorted(h.counts)
    return h.counts if rising == list(h.counts) else tuple(accumulate(h.counts, max))


def edges(h: Histogram, at: int) -> tuple[float, float]:
    """(low, high] of bucket `at`; the first begins at 0, the last ends at inf."""
    high = h.bounds[at]
    return (h.bounds[at - 1] if at else 0.0 if high >= 0 else -inf), high


def slowest_bucket(h: Histogram) -> int | None:
    """The highest bucket that holds an observation; None without any."""
    return max((at for at, count in enumerate(in_buckets(h)) if count), default=None)


def slowest_edges(h: Histogram) -> tuple[float, float] | None:
    """The edges between which the slowest observation lies; None without any."""
    at = slowest_bucket(h)
    return None if at is None else edges(h, at)


def bucket_of(counts: Sequence[float], q: float) -> int | None:
    """The bucket that holds rank ceil(q x count), 0 < q <= 1; None without observations. counts: as of `monotonic`.

    Counts are whole, so the first bucket with at least q x count also has at least ceil(q x count): PromQL's bucket
    and ours are the same one. The product is PromQL's own float product, rounding included.
    """
    if not 0 < q <= 1:
        raise ValueError(f"a percentile's q lies in (0, 1], not {q}")
    return bisect_left(counts, q * counts[-1]) if counts[-1] > 0 else None


def _common_edges(parts: tuple[Histogram, ...]) -> tuple[float, ...]:
    candidates = sorted({edge for part in parts for edge in part.bounds})
    return tuple(edge for edge in candidates if all(_knows(part, edge) for part in parts))


def _knows(h: Histogram, edge: float) -> bool:
    """Has the edge, or has nothing in the bucket around it: then the count at the edge is that of the next one below.

    So a histogram whose observations all lie at or below one of its finite edges knows every higher edge.
    """
    at = bisect_left(h.bounds, edge)
    return h.bounds[at] == edge or h.counts[at] == (h.counts[at - 1] if at else 0.0)


def on_edges(h: Histogram, bounds: tuple[float, ...]) -> Histogram:
    """The same histogram on `bounds`, each of which it has or has nothing around."""
    return Histogram(bounds, tuple(h.counts[bisect_left(h.bounds, edge)] for edge in bounds), h.total)
