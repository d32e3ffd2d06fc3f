"""Percentiles of a window's histogram, each with the bounds between which the true value lies."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from phasewatch.core.measures import percentile_fit as sums
from phasewatch.core.measures.histogram import bucket_of, edges, mean, monotonic
from phasewatch.core.measures.window_arrays import Rows, alike
from phasewatch.core.model import Estimate, Histogram, Latency

Parts = Rows | Sequence[Histogram]  # of a window, between scrapes

PERCENTILES: tuple[tuple[str, float], ...] = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
_QS = tuple(q for _, q in PERCENTILES)


def estimate(h: Histogram, q: float, parts: Parts | None = None) -> Estimate | None:
    """The q-th percentile by PromQL's histogram_quantile, to the last digit; None without observations.

    value spreads a bucket's observations evenly from its low edge (0 for the first) to its high one. low and high
    are that bucket's edges: the observation of rank ceil(q x count) lies in (low, high]. Past the last finite edge
    value is that edge, a lower bound, and high is None. A histogram of nothing but +Inf says nothing: None.

    parts: of h between scrapes, in time order: then the value is by their sums, where these can be used.
    """
    return _estimates(h, parts, (q,))[0]


class _Plain(NamedTuple):
    """What an Estimate is made of, in the order of its fields."""

    value: float
    low: float
    high: float | None
    censored: Literal["below_first_edge", "above_last_edge"] | None


def _interpolated(h: Histogram, counts: Sequence[float], q: float) -> _Plain | None:
    """counts: h's, never falling."""
    at = bucket_of(counts, q)
    if at is None or len(h.bounds) < 2:
        return None
    low, high = edges(h, at)
    if at == len(h.bounds) - 1:
        return _Plain(low, low, None, "above_last_edge")
    if at == 0 and high <= 0:
        return _Plain(high, low, high, "below_first_edge")
    below = counts[at - 1] if at else 0.0
    # The order of the operations is PromQL's: another one differs in the last digit.
    value = low + (high - low) * ((q * counts[-1] - below) / (counts[at] - below))
    return _Plain(value, low, high, None if at else "below_first_edge")


class _Fit:
    """The percentiles of one window by its sums. together: what is fitted when one of them is read."""

    __slots__ = ("parts", "qs", "together", "values")

    def __init__(self, parts: Parts, qs: tuple[float, ...]) -> None:
        self.parts = parts
        self.qs = qs
        self.values: sums.Values | None = None
        self.together: Sequence[_Fit] = (self,)

    def value(self, which: int) -> float | None:
        if self.values is None:
            waiting = [one for one in self.together if one.values is None and one.qs == self.qs]
            try:
                fitted = sums.percentiles([_rows(one.parts) for one in waiting], self.qs)
            except Exception:  # one of them costs the others nothing: it fails when it is read alone
                if len(waiting) < 2:
                    raise
                for one in waiting:
                    one.together = (one,)
                return self.value(which)
            for one, values in zip(waiting, fitted, strict=True):
                one.values, one.together, one.parts = values, (), ()
        return None if self.values is None else self.values[which]


def _rows(parts: Parts) -> Rows | None:
    return parts if isinstance(parts, Rows) else alike(parts)


class _BySums(Estimate):
    """An estimate whose value is fitted when it is first read: most are judged by their bounds, or by nobody."""

    __slots__ = ("fit", "interpolated", "which")
    fit: _Fit
    interpolated: float
    which: int

    def __init__(self, plain: _Plain, fit: _Fit, which: int) -> None:
        keep = object.__setattr__  # as a frozen dataclass does
        value, low, high, censored = plain
        keep(self, "low", low)
        keep(self, "high", high)
        keep(self, "censored", censored)
        keep(self, "interpolated", value)
        keep(self, "fit", fit)
        keep(self, "which", which)

    @property
    def value(self) -> float:
        known = self.fit.value(self.which)
        return self.interpolated if known is None or self.high is None else min(max(known, self.low), self.high)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Estimate) and _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash(_fields(self))


def _fields(one: Estimate) -> tuple[float, float, float | None, str | None]:
    return one.value, one.low, one.high, one.censored


def fit_together(latencies: Iterable[Latency]) -> None:
    """When a percentile of any of these is read, all of them are fitted: many at once cost little more than one."""
    fits = [one.p50.fit for one in latencies if isinstance(one.p50, _BySums) and one.p50.fit.values is None]
    for fit in fits:
        fit.together = fits


def settle(latencies: Iterable[Latency]) -> None:
    """Fits what is not fitted yet, so that no reader of these can fail."""
    for one in latencies:
        if isinstance(one.p50, _BySums):
            one.p50.fit.value(0)


def latency(h: Histogram, parts: Parts | None = None) -> Latency:
    """Count, mean and percentiles of a window; everything but the count is None where nothing was observed.

    parts: of h between scrapes, in time order, for values by the sums; without them PromQL's.
    """
    found = _estimates(h, parts, _QS)
    return Latency(round(h.count), mean(h), **{name: one for (name, _), one in zip(PERCENTILES, found, strict=True)})


def _estimates(h: Histogram, parts: Parts | None, qs: tuple[float, ...]) -> list[Estimate | None]:
    counts = monotonic(h)
    plain = [_interpolated(h, counts, q) for q in qs]
    fit = None if parts is None else _Fit(parts, qs)
    return [
        None if one is None else Estimate(*one) if fit is None or one.high is None else _BySums(one, fit, which)
        for which, one in enumerate(plain)
    ]
