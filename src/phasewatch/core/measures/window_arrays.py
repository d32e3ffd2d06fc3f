"""Windows of one histogram each as arrays: padded to the same size, so that many can be computed with at once."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from phasewatch.core.measures.histogram import ROUNDING, Floats, alone, merge, on_edges
from phasewatch.core.model import Histogram, Step

# The work grows with the scrapes; of a long window or a large fleet, neighbours in time are taken together.
_MOST_STEPS = 60
_MOST_CELLS = 400_000  # of one pass: some tens of megabytes
_ENOUGH_TOGETHER = 32  # windows, of which a pass takes longer than it takes to begin one
_ROOM = 32  # rows that are kept free


class Rows(NamedTuple):
    """What a histogram grew by in a window's steps, those with observations only, in time order: one row a step, as
    histogram.alone has it. ends: of the steps, in seconds (empty where nobody asks)."""

    bounds: tuple[float, ...]
    rows: Floats
    ends: Sequence[float] = ()


class Recent:
    """One histogram of one engine, step by step, kept so that a window is a slice of it.

    It grows at its end and is copied when full, so slices handed out stay what they are.
    """

    def __init__(self) -> None:
        self._since = -inf  # steps that began before had other edges
        self._upto = -inf
        self._begin(())

    def _begin(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._rows: Floats = np.empty((_ROOM, len(bounds) + 1))
        self._starts: list[float] = []
        self._ends: list[float] = []

    def take(self, steps: Sequence[Step], name: str) -> None:
        """All that came since it was last called, from the steps that the longest window has."""
        new = list(takewhile(lambda step: step.end > self._upto, reversed(steps)))
        for step in reversed(new):
            grown = step.histograms.get(name)
            if grown is not None and grown.bounds != self._bounds:
                if self._bounds:
                    self._since = step.start
                self._begin(grown.bounds)
            if grown is not None and grown.count > 0:
                self._add(step, alone(grown), steps[0].start)
            self._upto = step.end

    def _add(self, step: Step, row: Floats, oldest: float) -> None:
        if len(self._ends) == len(self._rows):
            gone = bisect_left(self._starts, oldest)
            del self._starts[:gone], self._ends[:gone]
            kept = self._rows[gone:]
            self._rows = np.empty((len(kept) + max(_ROOM, len(kept)), len(row)))
            self._rows[: len(kept)] = kept
        self._rows[len(self._ends)] = row
        self._starts.append(step.start)
        self._ends.append(step.end)

    def window(self, start: float) -> Rows | None:
        """Of the steps that began at `start` or later; None where not all of them had these edges."""
        if start < self._since:
            return None
        first = bisect_left(self._starts, start)
        return Rows(self._bounds, self._rows[first : len(self._ends)], self._ends[first:])


def together(parts: Sequence[Rows]) -> Rows | None:
    """Of several engines, in time order; None where their edges differ."""
    bounds = parts[0].bounds
    if any(part.bounds != bounds for part in parts):
        return None
    ends = np.concatenate([part.ends for part in parts])
    order = np.argsort(ends, kind="stable")
    return Rows(bounds, np.concatenate([part.rows for part in parts])[order])


class Windows(NamedTuple):
    """Windows to fit together, padded: axis 0 the windows, then scrapes, then buckets with observations in them.

    counts: observations (0 where padded); totals: nan where no sum can be used; overflow: observations above the last
    finite edge, by window; gap_below, gap_above: width of the bucket beside: 0 at the histogram's end, inf above the
    last finite edge, nan where it has observations.
    """

    counts: Floats
    totals: Floats
    overflow: Floats
    low: Floats
    width: Floats
    gap_below: Floats
    gap_above: Floats

    @property
    def high(self) -> Floats:
        return self.low + self.width


def alike(steps: Sequence[Histogram]) -> Rows | None:
    """The steps that have observations, on the same edges; None without any."""
    steps = [step for step in steps if step.counts[-1] > 0]
    if not steps:
        return None
    bounds = steps[0].bounds
    if any(step.bounds is not bounds and step.bounds != bounds for step in steps):
        merged = merge(steps)
        bounds = merged.bounds if merged else ()
        steps = [step if step.bounds == bounds else on_edges(step, bounds) for step in steps]
    return Rows(bounds, np.array([alone(step) for step in steps]))


def tells(one: Rows | None) -> bool:
    """Whether a percentile can be read from it."""
    return one is not None and len(one.rows) > 0 and len(one.bounds) > 1 and one.bounds[0] > 0


def batches(windows: Sequence[tuple[int, Rows]]) -> Iterator[Sequence[tuple[int, Rows]]]:
    """Windows in the order of their length: as many together as stay within `_MOST_CELLS`, and do not grow by padding
    to more than twice their size where they are enough for a pass of their own."""
    first = 0
    for at, (_, one) in enumerate(windows):
        steps, together = min(len(one.rows), _MOST_STEPS), at - first
        full = (together + 1) * steps * len(one.bounds) > _MOST_CELLS
        if together and (full or (together >= _ENOUGH_TOGETHER and steps > 2 * len(windows[first][1].rows))):
            yield windows[first:at]
            first = at
    if windows:
        yield windows[first:]


def stacked(windows: Sequence[Rows]) -> Windows:
    buckets = max(len(one.bounds) for one in windows) - 1
    sizes = [len(one.rows) for one in windows]
    flat = np.zeros((sum(sizes), 2 + buckets))
    edges = np.ones((len(windows), 1 + buckets))
    at = window = 0
    for bounds, same in groupby(windows, key=lambda one: one.bounds):
        alike = list(same)
        rows = np.concatenate([one.rows for one in alike])
        flat[at : at + len(rows), : len(bounds) + 1] = rows
        edges[window : window + len(alike), : len(bounds)] = (0.0, *bounds[:-1])
        at, window = at + len(rows), window + len(alike)
    groups = [ceil(size / _MOST_STEPS) for size in sizes]
    if max(groups) > 1:
        starts: list[int] = []
        first = 0
        for size, grouped in zip(sizes, groups, strict=True):
            starts += range(first, first + size, grouped)
            first += size
        flat = np.add.reduceat(flat, starts, axis=0)
    lengths = np.array([ceil(size / grouped) for size, grouped in zip(sizes, groups, strict=True)])
    filled = np.arange(lengths.max()) < lengths[:, None]
    stacked = np.zeros((*filled.shape, flat.shape[1]))
    stacked[filled] = flat
    overflow = stacked[:, :, 1]
    totals = np.where(filled & (overflow == 0), stacked[:, :, 0], np.nan)
    # Only buckets with observations, moved to the front.
    observed = stacked[:, :, 2:].sum(axis=1) > 0
    kept = np.argsort(~observed, axis=1, kind="stable")[:, : max(1, observed.sum(axis=1).max())]
    real = np.take_along_axis(observed, kept, axis=1)
    counts = np.take_along_axis(stacked[:, :, 2:], kept[:, None, :], axis=2)
    widths = np.diff(edges, axis=1)
    finite = np.array([len(one.bounds) - 1 for one in windows])[:, None]
    widths[np.arange(buckets) >= finite] = np.inf
    beside = np.pad(np.where(observed, np.nan, widths), ((0, 0), (1, 1)), constant_values=((0, 0), (0.0, np.inf)))
    windows_ = np.arange(len(windows))[:, None]
    low = np.where(real, edges[windows_, kept], 0.0)
    width = np.where(real, widths[windows_, kept], 1.0)
    least, most = counts @ low[:, :, None], counts @ (low + width)[:, :, None]
    nearest = np.clip(totals, least[:, :, 0], most[:, :, 0])
    totals = np.where(np.abs(nearest - totals) <= ROUNDING * most[:, :, 0], nearest, np.nan)
    totals[~counts.any(axis=2)] = np.nan
    return Windows(counts, totals, overflow.sum(axis=1), low, width, beside[windows_, kept], beside[windows_, kept + 2])
