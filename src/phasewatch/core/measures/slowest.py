"""The slowest observations of a histogram: a tail is explained by the tail, not by the mean of all.

What a scrape's part of a bucket adds up to is fitted to the buckets and the sums (percentile_fit); around that mean its
observations are spread evenly, as far as the bucket lets them. One observation between two scrapes is known exactly.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from phasewatch.core.measures.histogram import Floats, mean
from phasewatch.core.measures.percentile_fit import scrape_parts
from phasewatch.core.measures.window_arrays import Rows, alike, tells
from phasewatch.core.model import Window

_SPREAD = 16  # values that stand for a part of more observations


@dataclass(frozen=True, slots=True)
class Slowest:
    """Observations, the slowest first: how many there are of each value (parts of one, where a value stands for many).

    through, seconds: how many these are up to each, and what they add up to.
    """

    values: tuple[float, ...]
    counts: tuple[float, ...]
    through: tuple[float, ...]
    seconds: tuple[float, ...]

    @staticmethod
    def of(observations: Iterable[tuple[float, float]]) -> "Slowest":
        """Of (value, count), in any order."""
        ordered = sorted(observations, reverse=True)
        values, counts = tuple(one[0] for one in ordered), tuple(one[1] for one in ordered)
        return Slowest(values, counts, tuple(accumulate(counts)), tuple(accumulate(map(mul, values, counts))))

    @property
    def count(self) -> float:
        return self.through[-1] if self.through else 0.0

    def mean(self, count: float) -> float:
        """The mean of the `count` slowest; of all, where there are fewer. 0 without any."""
        count = min(count, self.count)
        if count <= 0:
            return 0.0
        at = min(bisect_left(self.through, count), len(self.values) - 1)
        beyond = self.through[at] - count
        return (self.seconds[at] - beyond * self.values[at]) / count

    def value(self, rank: float) -> float:
        """Of the observation of this rank, 0 being the slowest; 0 past the last."""
        at = bisect_left(self.through, rank)
        return self.values[at] if at < len(self.values) else 0.0

    def first(self, count: float) -> "Slowest":
        """The `count` slowest."""
        at = bisect_left(self.through, count)
        if at >= len(self.values):
            return self
        kept = zip(self.values[: at + 1], (*self.counts[:at], self.counts[at] - self.through[at] + count), strict=True)
        return Slowest.of(kept)

    def with_one(self, value: float) -> "Slowest":
        """One more."""
        return Slowest.of(((value, 1.0), *zip(self.values, self.counts, strict=True)))


def slowest(window: Window, names: Iterable[str]) -> dict[str, Slowest]:
    """Of histograms of seconds, fitted together; none of one without observations, or whose sums contradict the
    buckets."""
    rows = {name: known for name in names if (known := _rows(window, name)) is not None}
    parts = scrape_parts(list(rows.values())) if rows else []
    return {name: _spread(one) for name, one in zip(rows, parts, strict=True)}


def _rows(window: Window, name: str) -> Rows | None:
    whole = window.histograms.get(name)
    if whole is None or mean(whole) is None:
        return None
    kept: Rows | None = None if window.rows is None else window.rows(name)
    rows = alike([step.histograms[name] for step in window.steps if name in step.histograms]) if kept is None else kept
    return rows if tells(rows) else None


def _spread(parts: Floats) -> Slowest:
    """parts: as of `scrape_parts`."""
    counts, middles, low, high = parts.T
    values = np.clip(np.rint(counts), 1, _SPREAD).astype(int)
    part = np.repeat(np.arange(len(parts)), values)
    at = np.arange(len(part)) - np.repeat(np.cumsum(values) - values, values)
    reach = np.minimum(middles - low, high - middles)[part]
    spread = middles[part] + reach * (2 * at + 1 - values[part]) / values[part]
    of_each = counts[part] / values[part]
    order = np.lexsort((-of_each, -spread))
    spread, of_each = spread[order], of_each[order]
    through, seconds = np.cumsum(of_each), np.cumsum(spread * of_each)
    return Slowest(*(tuple(one.tolist()) for one in (spread, of_each, through, seconds)))


def waits_for_steps(steps: Slowest, arrivals_per_second: float, seconds: float) -> Slowest:
    """How long those wait who arrive while one of these steps runs, the longest wait first.

    Arrivals know nothing of steps: in one of p seconds as many come as in any p seconds, and what is left of it for
    each is anything from 0 to p alike. Longer steps are met more often: the mean of all arrivals is the sum of p
    squared / (2 x window). steps: no more of them than the window's seconds have room for.
    """
    room, waits = seconds, list[tuple[float, float]]()
    for length, count in zip(steps.values, steps.counts, strict=True):
        if length <= 0 or room <= 0:
            break
        count = min(count, room / length)
        room -= count * length
        met = count * length * arrivals_per_second
        waits.extend((length * (2 * at + 1) / (2 * _SPREAD), met / _SPREAD) for at in range(_SPREAD))
    return Slowest.of(waits)


def at_most(steps: Slowest, longest: float) -> Slowest:
    """What took longer than the longest step was several steps of that length."""
    cut: Sequence[tuple[float, float]] = [
        (min(value, longest), count * max(1.0, value / longest))
        for value, count in zip(steps.values, steps.counts, strict=True)
    ]
    return Slowest.of(cut)
