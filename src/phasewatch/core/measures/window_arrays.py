"""Windows of one histogram each as arrays: padded to the same size, so that many can be computed with at once."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from math import ceil
from typing import NamedTuple

import numpy as np

from phasewatch.core.measures.histogram import ROUNDING, Floats, alone, merge, on_edges
from phasewatch.core.model import Histogram

# The work grows with the scrapes; of a long window or a large fleet, neighbours in time are taken together.
_MOST_STEPS = 60
_MOST_CELLS = 400_000  # of one pass: some tens of megabytes


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


def alike(steps: Sequence[Histogram]) -> Sequence[Histogram]:
    """The steps that have observations, on the same edges; none where these tell nothing."""
    steps = [step for step in steps if step.counts[-1] > 0]
    if not steps:
        return ()
    bounds = steps[0].bounds
    if any(step.bounds is not bounds and step.bounds != bounds for step in steps):
        merged = merge(steps)
        bounds = merged.bounds if merged else ()
        steps = [step if step.bounds == bounds else on_edges(step, bounds) for step in steps]
    return steps if len(bounds) > 1 and bounds[0] > 0 else ()


def batches(windows: Sequence[tuple[int, Sequence[Histogram]]]) -> Iterator[Sequence[tuple[int, Sequence[Histogram]]]]:
    """Windows in the order of their length: as many together as stay within `_MOST_CELLS`."""
    first = 0
    for at, (_, steps) in enumerate(windows):
        cells = min(len(steps), _MOST_STEPS) * len(steps[0].bounds)
        if at > first and (at - first + 1) * cells > _MOST_CELLS:
            yield windows[first:at]
            first = at
    if windows:
        yield windows[first:]


def stacked(windows: Sequence[Sequence[Histogram]]) -> Windows:
    buckets = max(len(steps[0].bounds) for steps in windows) - 1
    flat = np.zeros((sum(map(len, windows)), 2 + buckets))
    edges = np.ones((len(windows), 1 + buckets))
    at = window = 0
    for bounds, same in groupby(windows, key=lambda steps: steps[0].bounds):
        alike = list(same)
        rows = np.concatenate([alone(step) for step in chain.from_iterable(alike)]).reshape(-1, len(bounds) + 1)
        flat[at : at + len(rows), : len(bounds) + 1] = rows
        edges[window : window + len(alike), : len(bounds)] = (0.0, *bounds[:-1])
        at, window = at + len(rows), window + len(alike)
    groups = [ceil(len(steps) / _MOST_STEPS) for steps in windows]
    if max(groups) > 1:
        starts: list[int] = []
        first = 0
        for steps, together in zip(windows, groups, strict=True):
            starts += range(first, first + len(steps), together)
            first += len(steps)
        flat = np.add.reduceat(flat, starts, axis=0)
    lengths = np.array([ceil(len(steps) / together) for steps, together in zip(windows, groups, strict=True)])
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
    finite = np.array([len(steps[0].bounds) - 1 for steps in windows])[:, None]
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
