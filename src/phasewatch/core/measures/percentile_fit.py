"""Percentiles that use the sums: what each scrape's exact sum says about where in its bucket an observation lies.

Buckets say how many observations lie between two edges, the sum of each scrape what they add up to. Three steps:

1. One mean per bucket over the window (`_means`). The model: an observation is its bucket's mean, plus a part that
   all observations of that bucket and scrape share (a slow step is slow for every stream), plus a part of its own.
   Nothing says which part is larger, so they are taken as equal; how large both are against the bucket's width is
   what makes the sums seen most likely. Each scrape's sum then moves its own part (`_moved`).
2. The shape inside the bucket (bucket_density): a density with its mean that meets the neighbours at the edges.
3. The percentile of the scrapes' parts added up (`_percentiles`), each with that shape around its own mean.

One observation alone in a scrape is known exactly. No constant here comes from a recording: before any sum is seen a
bucket's density runs from its neighbours' to its neighbours' (the few of a tail lie towards the many), and widths are
those of a uniform distribution.

Windows are fitted many at a time, in arrays of (window, scrape, bucket): a call costs a millisecond, whatever it
fits, and each window some ten microseconds more.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phasewatch.core.measures.bucket_density import MIDDLES, NODES, height, middle, shares, slope
from phasewatch.core.measures.histogram import Floats
from phasewatch.core.measures.window_arrays import Rows, Windows, batches, stacked, tells

Indices = NDArray[np.intp]

# Variance within a bucket against that of a uniform one, tried from wide to narrow; twice as many change nothing.
_SPREADS: Floats = np.array((0.5, 0.2, 0.08, 0.03, 0.012, 0.005))
# A percentile is told to this part of its bucket; where Newton's method has not found it, halving does.
_GRID = 2**16
_NEWTON_STEPS = 5
# A scrape's part of a bucket that is drawn together to this part of its width is a point.
_POINT = 1e-3

Values = tuple[float | None, ...]


class _Parts(NamedTuple):
    """Of some buckets, each scrape's observations in time order, flat: whose they are, how many, their mean, its
    variance given the scrape's sum, and which share (0 to 1) of one observation's variance that sum leaves open."""

    owner: Indices
    size: Floats
    mean: Floats
    variance: Floats
    open: Floats


def percentiles(windows: Sequence[Rows | None], qs: Sequence[float]) -> list[Values]:
    """The percentiles `qs` of each window, between the edges of their buckets.

    A window is its increases between scrapes, in time order. A scrape without a sum, with one that its buckets
    contradict, or with observations above the last edge (of unknown size) only counts. None where no sum can be used,
    and above the last finite edge.
    """
    found: list[Values] = [(None,) * len(qs)] * len(windows)
    prepared = [(index, one) for index, one in enumerate(windows) if one is not None and tells(one)]
    prepared.sort(key=lambda one: (len(one[1].rows), one[1].bounds))
    for batch in batches(prepared):
        for (index, _), values in zip(batch, _fit([one for _, one in batch], qs), strict=True):
            found[index] = values
    return found


def scrape_parts(windows: Sequence[Rows]) -> list[Floats]:
    """Of each window each scrape's part of each bucket, a row each: how many observations, their mean, the bucket's
    edges. windows: such as `tells` takes. What lies above the last finite edge is at that edge at least: the mean is
    that edge."""
    arrays = stacked(windows)
    moved = _moved(arrays, _means(arrays)[0])
    found: list[Floats] = []
    for at, window in enumerate(windows):
        scrape, bucket = np.nonzero(arrays.counts[at])
        parts = np.stack(
            (
                arrays.counts[at, scrape, bucket],
                moved[at, scrape, bucket],
                arrays.low[at, bucket],
                arrays.high[at, bucket],
            ),
            axis=1,
        )
        if beyond := float(arrays.overflow[at]):
            last = window.bounds[-2]
            parts = np.append(parts, [[beyond, last, last, last]], axis=0)
        found.append(parts)
    return found


def _fit(windows: Sequence[Rows], qs: Sequence[float]) -> Iterator[Values]:
    arrays = stacked(windows)
    sizes = arrays.counts.sum(axis=1)
    middles, spreads = _means(arrays)
    moved = _moved(arrays, middles)
    means = (arrays.counts * moved).sum(axis=1) / np.maximum(sizes, 1.0)
    # Where each percentile lies: its bucket's place, and its rank there.
    rising = np.cumsum(sizes, axis=1)
    every = rising[:, -1] + arrays.overflow
    wanted = np.array(qs) * every[:, None]
    place = (rising[:, None, :] < wanted[:, :, None]).sum(axis=2)
    told = (place < rising.shape[1]) & np.any(np.isfinite(arrays.totals), axis=1, keepdims=True)
    window, which = np.nonzero(told)
    bucket = place[window, which]
    below = rising[window, bucket] - sizes[window, bucket]
    rank = np.clip(np.ceil(wanted[window, which]) - 0.5, below, rising[window, bucket]) - below
    # The r-th of n lies as often above (r - 1/3) / (n + 1/3) of where they come from as below: the largest of two
    # at 0.71, not 0.75.
    rank = sizes[window, bucket] * (rank + 1 / 6) / (sizes[window, bucket] + 1 / 3)
    # Percentiles often share a bucket.
    chosen, owner = np.unique(window * rising.shape[1] + bucket, return_inverse=True)
    found = np.full(told.shape, np.nan)
    if len(chosen):
        at = np.divmod(chosen, rising.shape[1])
        shape = _shapes(arrays, sizes, means, at)
        parts = _parts(arrays, moved, spreads, at)
        found[told] = _percentiles(parts, means[at], shape, arrays.low[at], arrays.width[at], owner, rank)
    for values in found.tolist():
        yield tuple(None if value != value else value for value in values)


def _means(windows: Windows) -> tuple[Floats, Floats]:
    """The mean of each bucket, within its limits, and of each window the spread that makes the sums most likely.

    A Gaussian model in units of `widths`: location variance 1 - spread, and spread / 2 each for the shared part and
    for an observation's own, so that n observations of a scrape add up with variance spread x (n + n^2) / 2.
    """
    counts, low, high = windows.counts, windows.low, windows.high
    widths = windows.width / np.sqrt(12)
    prior = _expected(windows)
    usable = np.isfinite(windows.totals)
    noise = ((counts + counts * counts) / 2) @ (widths * widths)[:, :, None]
    scale = np.where(usable, 1 / np.where(usable, noise[:, :, 0], 1.0), 0.0)
    rest = np.where(usable, windows.totals - (counts @ prior[:, :, None])[:, :, 0], 0.0)
    weights = counts * widths[:, None, :]
    scaled = (weights * scale[:, :, None]).transpose(0, 2, 1)
    matrix = scaled @ weights
    right = (scaled @ rest[:, :, None])[:, :, 0]
    spreads = _likeliest(matrix, right, (rest * rest * scale).sum(axis=1), usable.sum(axis=1))
    size = np.arange(widths.shape[1])
    precision = matrix / spreads[:, None, None]
    precision[:, size, size] += (1 / (1 - spreads))[:, None]
    wanted = right / spreads[:, None]
    found = prior + widths * np.linalg.solve(precision, wanted[:, :, None])[:, :, 0]
    # A mean beyond its bucket is fixed at the edge, the furthest first, and the others are found anew.
    free = np.ones(found.shape, dtype=bool)
    fixed = np.zeros(found.shape)
    beyond = np.where(free, np.maximum(low - found, found - high) / widths, 0.0)
    moving = np.flatnonzero((beyond > 0).any(axis=1))
    while len(moving):
        worst = beyond[moving].argmax(axis=1)
        at = moving, worst
        fixed[at] = (np.where(found[at] < low[at], low[at], high[at]) - prior[at]) / widths[at]
        free[at] = False
        among = free[moving]
        known = np.where(
            among, wanted[moving] - (precision[moving] @ fixed[moving][:, :, None])[:, :, 0], fixed[moving]
        )
        reduced = np.where(among[:, :, None] & among[:, None, :], precision[moving], np.eye(len(size)))
        found[moving] = prior[moving] + widths[moving] * np.linalg.solve(reduced, known[:, :, None])[:, :, 0]
        beyond[moving] = np.where(
            among, np.maximum(low[moving] - found[moving], found[moving] - high[moving]) / widths[moving], 0.0
        )
        moving = moving[(beyond[moving] > 0).any(axis=1)]
    return np.clip(found, low, high), spreads


def _expected(windows: Windows) -> Floats:
    """The mean of each bucket before any sum is seen: of the exponential that meets its neighbours at the edges."""
    sizes = windows.counts.sum(axis=1)
    window, bucket = np.nonzero(sizes)
    at = window, bucket
    even = np.zeros(sizes.shape)
    below, above = (_height(windows, sizes, even, at, side) for side in (-1, 1))
    means = windows.low + windows.width / 2
    means[at] = windows.low[at] + windows.width[at] * middle(above - below)
    return means


def _likeliest(matrix: Floats, right: Floats, misfit: Floats, used: Indices) -> Floats:
    """Of each window the spread under which its sums are most likely.

    Cholesky's factor of the precision, with the right side and the misfit as one more row, holds all that is asked:
    the log of the determinant, and in its last corner the misfit that the means leave.
    """
    size = right.shape[1]
    system = np.empty((len(right), len(_SPREADS), size + 1, size + 1))
    by_spread = _SPREADS[:, None, None]
    system[:, :, :size, :size] = matrix[:, None] / by_spread + np.eye(size) / (1 - by_spread)
    system[:, :, size, :size] = right[:, None] / _SPREADS[:, None]
    system[:, :, :size, size] = system[:, :, size, :size]
    system[:, :, size, size] = misfit[:, None] / _SPREADS + 1  # 1: more than rounding
    factors = np.linalg.cholesky(system)
    corners = np.diagonal(factors, axis1=2, axis2=3)
    determinant = 2 * np.log(corners[:, :, :size]).sum(axis=2)
    unlikely = used[:, None] * np.log(_SPREADS) + size * np.log1p(-_SPREADS) + determinant + corners[:, :, size] ** 2
    # Rounded, so that where the sums cannot tell the widest is taken.
    likeliest: Floats = _SPREADS[np.round(unlikely, 6).argmin(axis=1)]
    return likeliest


def _moved(windows: Windows, middles: Floats) -> Floats:
    """The mean of each scrape's part of each bucket: what its sum leaves over is shared out by variance, within the
    limits."""
    counts, high = windows.counts, windows.high
    means = np.broadcast_to(middles[:, None, :], counts.shape).copy()
    usable = np.isfinite(windows.totals)
    rest = np.where(usable, windows.totals - (counts @ middles[:, :, None])[:, :, 0], 0.0)
    window, scrape = np.nonzero(rest)
    left, n, low, high = rest[window, scrape], counts[window, scrape], windows.low[window], high[window]
    free = n > 0
    parts = (n + n * n) * windows.width[window] ** 2
    per_one = parts / np.where(free, n, 1.0)
    mean = middles[window]
    while len(window):
        whole = (parts * free).sum(axis=1)
        target = np.where(free, mean + (left / whole)[:, None] * per_one, mean)
        stopped = free & ((target < low) | (target > high))
        full = np.any(stopped, axis=1, keepdims=True)
        target = np.where(full & ~stopped, mean, np.clip(target, low, high))
        means[window, scrape] = target
        left = left - (n * (target - mean)).sum(axis=1)
        free = free & ~stopped
        on = full[:, 0] & (left != 0) & free.any(axis=1)
        window, scrape, left, n, low, high = window[on], scrape[on], left[on], n[on], low[on], high[on]
        free, parts, per_one, mean = free[on], parts[on], per_one[on], target[on]
    return means


def _parts(windows: Windows, moved: Floats, spreads: Floats, at: tuple[Indices, Indices]) -> _Parts:
    """The scrapes' parts of the buckets `at` (windows, places)."""
    window, bucket = at
    owner, scrape = np.nonzero(windows.counts[window, :, bucket])
    window, bucket = window[owner], bucket[owner]
    size = windows.counts[window, scrape, bucket]
    square = windows.width**2 / 12
    own = square[window, bucket]
    counts = windows.counts
    # Variances of one bucket's part of the sum, without the common factor spread / 2.
    whole = ((counts + counts * counts) @ square[:, :, None])[window, scrape, 0]
    usable = np.isfinite(windows.totals)[window, scrape]
    part = (size + size * size) * own
    variance = spreads[window] / 2 * own
    return _Parts(
        owner,
        size,
        moved[window, scrape, bucket],
        np.where(usable, variance * (1 + 1 / size) * np.maximum(0.0, 1 - part / whole), variance),
        np.where(usable, np.maximum(0.0, 1 - (1 + size) ** 2 * own / 2 / whole), 1.0),
    )


def _shapes(windows: Windows, sizes: Floats, means: Floats, at: tuple[Indices, Indices]) -> Floats:
    places = (means - windows.low) / windows.width
    slopes = slope(places.ravel()).reshape(places.shape)
    below, above = (_height(windows, sizes, slopes, at, side) for side in (-1, 1))
    return shares(places[at], below, above)


def _height(windows: Windows, sizes: Floats, slopes: Floats, at: tuple[Indices, Indices], side: int) -> Floats:
    """Log density at the lower (side -1) or upper (+1) edge of buckets, in units of each bucket's own average.

    Between two buckets with observations: halfway between what the two say alone, as exponentials with their means.
    Next to an empty bucket: no more than half an observation would have filled it to.
    """
    window, bucket = at
    width = windows.width[at]
    own = height(slopes[at], side)
    average = np.log(sizes[at] / width)
    gap = (windows.gap_below if side < 0 else windows.gap_above)[at]
    empty = np.log(0.5 / np.fmin(width, np.where(gap > 0, gap, np.inf))) - average
    beside = window, np.clip(bucket + side, 0, sizes.shape[1] - 1)
    full = np.isnan(gap)
    density = np.where(full, sizes[beside] / windows.width[beside], 1.0)
    between = (own + height(slopes[beside], -side) + np.log(density) - average) / 2
    alone_above = np.isinf(gap) & (windows.overflow[window] > 0)
    return np.select([full, gap == 0, alone_above], [between, empty, own], np.fmin(own, empty))


def _percentiles(
    parts: _Parts, middle: Floats, shape: Floats, low: Floats, width: Floats, owner: Indices, rank: Floats
) -> Floats:
    """The values with `rank` observations below them: each part is the shape, moved to its mean and drawn together.

    How far: the variance left to the parts is what the shape has beyond the scatter of their means, but for n
    observations at most n times that scatter, for chance alone makes the means of n scatter by the nth part.
    owner: the bucket of each rank.
    """
    buckets = len(middle)

    def added(values: Floats) -> Floats:
        total: Floats = np.bincount(parts.owner, values, buckets).astype(np.float64, copy=False)
        return total

    centre = shape @ MIDDLES
    variance = width * width * (shape * (MIDDLES - centre[:, None]) ** 2).sum(axis=1)
    count = added(parts.size)
    scattered = added(parts.size * (parts.mean - middle[parts.owner]) ** 2) / count
    left_open = added(parts.size * parts.open) / count
    within = np.maximum(0.0, variance - scattered) / np.where(left_open > 0, left_open, np.inf)
    neighbours = parts.owner[1:] == parts.owner[:-1]
    differences = (np.diff(parts.mean) ** 2 + parts.variance[1:] + parts.variance[:-1]) / 2
    steps = np.bincount(parts.owner[1:], neighbours, buckets)
    apart = np.bincount(parts.owner[1:], neighbours * differences, buckets) / np.where(steps > 0, steps, 1.0)
    apart[steps == 0] = np.inf
    drawn = np.sqrt(
        np.minimum(
            1.0, parts.open * np.minimum(within[parts.owner], parts.size * apart[parts.owner]) / variance[parts.owner]
        )
    )
    # A part's node at grid point k is first + each x k. A point jumps past all nodes at its mean.
    at = (parts.mean - low[parts.owner]) / width[parts.owner]
    point = drawn < _POINT
    each = NODES / np.where(point, 1e-15, drawn) / _GRID
    first = np.where(point, NODES, NODES * centre[parts.owner]) - each * at * _GRID
    # Observations below node t, between two nodes: constant + share x t.
    share = np.pad(shape, ((0, 0), (0, 1)))
    constant = np.cumsum(share, axis=1) - share - share * np.arange(NODES + 1)
    # The parts once more for each rank.
    starts = np.searchsorted(parts.owner, np.arange(buckets + 1))
    lengths = np.diff(starts)[owner]
    task = np.repeat(np.arange(len(owner)), lengths)
    cell = np.arange(len(task)) - np.repeat(np.cumsum(lengths) - lengths - starts[owner], lengths)
    first, each, size, table = first[cell], each[cell], parts.size[cell], parts.owner[cell] * (NODES + 1)
    share, constant = share.ravel(), constant.ravel()
    least, most = np.zeros(len(owner)), np.full(len(owner), float(_GRID))
    # The whole bucket's own percentile is near.
    fraction = np.minimum(rank / count[owner], 1.0)
    tabled = np.cumsum(shape, axis=1)[owner]
    node = np.minimum((tabled < fraction[:, None]).sum(axis=1), NODES - 1)
    held = shape[owner, node]  # 0 in a part too thin for a float
    beyond = (tabled[np.arange(len(owner)), node] - fraction) / np.where(held > 0, held, np.inf)
    tried = (node + 1 - beyond) / NODES * _GRID
    tried = np.clip(np.ceil(tried), 1, _GRID - 1)
    active = np.arange(len(owner))
    step = 0
    while True:
        place = first + each * tried[task]
        np.clip(place, 0.0, NODES, out=place)
        entry = place.astype(np.intp)
        entry += table
        density = size * share[entry]
        through = np.bincount(task, size * constant[entry] + density * place, len(active))
        target = rank[active]
        enough = through >= target
        bottom, top = np.where(enough, least[active], tried), np.where(enough, tried, most[active])
        least[active], most[active] = bottom, top
        step += 1
        if step <= _NEWTON_STEPS:
            growth = np.bincount(task, density * each, len(active))
            # Where next to nothing lies in a part, the root is far beyond it: too far for a float is far enough.
            with np.errstate(over="ignore"):
                root = np.ceil(tried + (target - through) / np.where(growth > 0, growth, np.inf))
            tried = np.clip(root - enough, bottom + 1, top - 1)
        else:
            tried = np.floor((bottom + top) / 2)
        on = top - bottom > 1
        if not on.all():
            if not on.any():
                break
            kept = on[task]
            first, each, size, table = first[kept], each[kept], size[kept], table[kept]
            task = (np.cumsum(on) - 1)[task[kept]]
            active, tried = active[on], tried[on]
    return low[owner] + (most - 0.5) / _GRID * width[owner]
