"""The percentile fit of one window in plain loops: what the fit in arrays is held against."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, exp, inf, log, log1p, sqrt
from typing import NamedTuple

from phasewatch.core.measures.histogram import ROUNDING, bucket_of, edges, in_buckets, merge, monotonic, on_edges
from phasewatch.core.model import Histogram

NODES = 16
MIDDLES = tuple((node + 0.5) / NODES for node in range(NODES))
# Terms of the log density: a slope, and two that are zero at both edges (a hump, and a hump to one side).
_TERMS = tuple((t, 4 * t * (1 - t), 10 * t * (1 - t) * (1 - 2 * t)) for t in MIDDLES)


def shares(middle: float, left: float, right: float) -> tuple[float, ...]:
    """What of a density on [0, 1] lies in each of NODES equal parts: mean `middle`, log heights left and right.

    The density is the exponential of a cubic, found by Newton's method, damped. The mean outweighs the heights where
    not all can be had.
    """
    terms = [slope(middle), 0.0, 0.0]
    found: list[float] = []
    for _ in range(25):
        logs = [terms[0] * a + terms[1] * b + terms[2] * c for a, b, c in _TERMS]
        top = max(logs)
        found = [exp(x - top) for x in logs]
        whole = sum(found)
        found = [x / whole for x in found]
        norm = top + log(whole / NODES)
        means = [sum(p * term[k] for p, term in zip(found, _TERMS, strict=True)) for k in range(3)]
        along = [
            sum(p * (t - means[0]) * term[k] for p, t, term in zip(found, MIDDLES, _TERMS, strict=True))
            for k in range(3)
        ]
        wanted = (
            (1e4, along, middle - means[0]),
            (1.0, [-means[0], -means[1], -means[2]], left + norm),
            (1.0, [1 - means[0], -means[1], -means[2]], right - terms[0] + norm),
        )
        matrix = [
            [sum(w * row[i] * row[j] for w, row, _ in wanted) + (1e-3 if i == j else 0.0) for j in range(3)]
            for i in range(3)
        ]
        step, _ = solve_symmetric(matrix, [sum(w * row[i] * miss for w, row, miss in wanted) for i in range(3)])
        longest = max(map(abs, step))
        damping = min(1.0, 4 / longest) if longest else 1.0
        terms = [x + damping * dx for x, dx in zip(terms, step, strict=True)]
        if longest < 1e-3:
            break
    return tuple(found)


def height(middle: float, side: int) -> float:
    """Log density at 0 (side -1) or 1 (+1) of the exponential density on [0, 1] with this mean."""
    k = slope(middle) * side
    if abs(k) < 1e-6:
        return 0.0
    return log(k / (1 - exp(-k))) if k > 0 else log(k / (exp(k) - 1)) + k


def slope(middle: float) -> float:
    """k of the density exp(k t) on [0, 1] whose mean is `middle`; by Newton's method."""
    middle = min(max(middle, 1e-3), 1 - 1e-3)
    if middle > 0.5:
        return -slope(1 - middle)
    k = 12 * (0.5 - middle) if middle > 0.2 else 1 / middle
    for _ in range(20):
        if k < 1e-3:
            return -12 * (0.5 - middle)
        decay = exp(-k)
        step = (1 / k - decay / (1 - decay) - middle) / (1 / k**2 - decay / (1 - decay) ** 2)
        k += step
        if abs(step) < 1e-9:
            break
    return -k


def mean(k: float) -> float:
    """The mean of the density exp(k t) on [0, 1]."""
    if abs(k) < 1e-3:
        return 0.5 + k / 12
    return 1 / (1 - exp(-k)) - 1 / k if k > 0 else 1 - mean(-k)


def solve_symmetric(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> tuple[list[float], float]:
    """Solve a symmetric positive definite system by Cholesky's method; with the log of its determinant."""
    size = len(right)
    lower: list[list[float]] = []
    for i in range(size):
        line: list[float] = []
        for j in range(i):
            other = lower[j]
            line.append((matrix[i][j] - sum(x * y for x, y in zip(line, other, strict=False))) / other[j])
        line.append(sqrt(matrix[i][i] - sum(x * x for x in line)))
        lower.append(line)
    found = list(right)
    for i in range(size):
        found[i] = (found[i] - sum(lower[i][j] * found[j] for j in range(i))) / lower[i][i]
    for i in reversed(range(size)):
        found[i] = (found[i] - sum(lower[j][i] * found[j] for j in range(i + 1, size))) / lower[i][i]
    return found, 2 * sum(log(lower[i][i]) for i in range(size))


# Variance within a bucket against that of a uniform one, tried from wide to narrow; twice as many change nothing.
_SPREADS = (0.5, 0.2, 0.08, 0.03, 0.012, 0.005)
_HALVINGS = 16
# The work grows with the scrapes; of a long window or a large fleet, neighbours in time are taken together.
_MOST_STEPS = 60


class _Cell(NamedTuple):
    """The observations of one scrape in one bucket: how many, their mean, its variance given the scrape's sum, and
    which share (0 to 1) of one observation's variance that sum leaves open."""

    size: float
    mean: float
    variance: float
    open: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """A window fitted once; percentiles are read from it. cells: by bucket, in the order of the scrapes."""

    merged: Histogram
    counts: tuple[float, ...]
    cells: dict[int, list[_Cell]]
    means: dict[int, float]
    shapes: dict[int, tuple[float, ...]] = field(default_factory=dict)


def fit(steps: Sequence[Histogram]) -> Fitted | None:
    """Fit the increases between scrapes, in time order; None where no sum can be used.

    A scrape without a sum, with one that its buckets contradict, or with observations above the last edge (of
    unknown size) only counts.
    """
    steps = [step for step in steps if step.count > 0]
    together = ceil(len(steps) / _MOST_STEPS)
    if together > 1:
        groups = (merge(steps[at : at + together]) for at in range(0, len(steps), together))
        steps = [group for group in groups if group is not None]
    merged = merge(steps)
    if merged is None or len(merged.bounds) < 2 or merged.bounds[0] <= 0:
        return None
    counts = in_buckets(merged)
    used = [at for at, count in enumerate(counts) if count > 0 and at < len(counts) - 1]
    limits = [edges(merged, at) for at in used]
    rows: list[tuple[float, ...]] = []
    totals: list[float | None] = []
    for step in steps:
        alone = in_buckets(step if step.bounds == merged.bounds else on_edges(step, merged.bounds))
        rows.append(tuple(alone[at] for at in used))
        totals.append(None if alone[-1] else _usable(step.total, rows[-1], limits))
    if not used or all(total is None for total in totals):
        return None
    widths = [(high - low) / sqrt(12) for low, high in limits]
    even = Fitted(merged, counts, {}, {at: (low + high) / 2 for at, (low, high) in zip(used, limits, strict=True)})
    prior = [
        low + (high - low) * mean(_height(even, at, 1) - _height(even, at, -1))
        for at, (low, high) in zip(used, limits, strict=True)
    ]
    middles, spread = _means(rows, totals, limits, widths, prior)
    cells: dict[int, list[_Cell]] = {at: [] for at in used}
    for row, total in zip(rows, totals, strict=True):
        for at, cell in zip(used, _cells(row, total, limits, widths, middles, spread), strict=True):
            if cell.size > 0:
                cells[at].append(cell)
    means = {at: sum(c.size * c.mean for c in cells[at]) / sum(c.size for c in cells[at]) for at in used}
    return Fitted(merged, counts, cells, means)


def _usable(total: float | None, row: tuple[float, ...], limits: Sequence[tuple[float, float]]) -> float | None:
    """The sum, free of rounding; None where observations in these buckets cannot add up to it."""
    if total is None:
        return None
    least = sum(n * low for n, (low, _) in zip(row, limits, strict=True))
    most = sum(n * high for n, (_, high) in zip(row, limits, strict=True))
    nearest = min(max(total, least), most)
    return nearest if abs(nearest - total) <= ROUNDING * most else None


def value(fitted: Fitted, q: float) -> float | None:
    """The q-th percentile, between the edges of its bucket; None above the last finite edge."""
    at = bucket_of(monotonic(fitted.merged), q)
    if at is None or at == len(fitted.counts) - 1:
        return None
    if at not in fitted.shapes:
        low, high = edges(fitted.merged, at)
        middle = (fitted.means[at] - low) / (high - low)
        fitted.shapes[at] = shares(middle, _height(fitted, at, -1), _height(fitted, at, 1))
    rising = monotonic(fitted.merged)
    below = rising[at - 1] if at else 0.0
    rank = min(max(ceil(q * rising[-1]) - 0.5, below), rising[at]) - below
    rank = fitted.counts[at] * (rank + 1 / 6) / (fitted.counts[at] + 1 / 3)  # the median of what lies there
    return _percentile(fitted.cells[at], fitted.means[at], fitted.shapes[at], edges(fitted.merged, at), rank)


def _means(
    rows: Sequence[tuple[float, ...]],
    totals: Sequence[float | None],
    limits: Sequence[tuple[float, float]],
    widths: Sequence[float],
    prior: Sequence[float],
) -> tuple[list[float], float]:
    """The mean of each bucket, within its limits, and the spread that makes the sums most likely.

    prior: the means before any sum is seen, of the exponential that meets the neighbours at the edges.

    A Gaussian model in units of `widths`: location variance 1 - spread, and spread / 2 each for the shared part and
    for an observation's own, so that n observations of a scrape add up with variance spread x (n + n^2) / 2.
    """
    size = len(limits)
    matrix = [[0.0] * size for _ in limits]
    right = [0.0] * size
    used, misfit = 0, 0.0
    for row, total in zip(rows, totals, strict=True):
        if total is None:
            continue
        noise = sum((n + n * n) / 2 * width * width for n, width in zip(row, widths, strict=True))
        rest = total - sum(n * middle for n, middle in zip(row, prior, strict=True))
        weights = [n * width for n, width in zip(row, widths, strict=True)]
        used, misfit = used + 1, misfit + rest * rest / noise
        for i, weight in enumerate(weights):
            if weight:
                scaled = weight / noise
                right[i] += scaled * rest
                line = matrix[i]
                for j, other in enumerate(weights):
                    line[j] += scaled * other

    def solve(spread: float, fixed: dict[int, float]) -> tuple[list[float], float]:
        free = [i for i in range(size) if i not in fixed]
        wanted = [(right[i] - sum(matrix[i][j] * x for j, x in fixed.items())) / spread for i in free]
        precision = [[matrix[i][j] / spread + (1 / (1 - spread) if i == j else 0.0) for j in free] for i in free]
        found, log_determinant = solve_symmetric(precision, wanted)
        gained = sum(x * y for x, y in zip(found, wanted, strict=True))
        unlikely = used * log(spread) + size * log1p(-spread) + log_determinant + misfit / spread - gained
        moved = dict(zip(free, found, strict=True)) | fixed
        return [moved[i] for i in range(size)], unlikely

    # Rounded, so that where the sums cannot tell the widest is taken.
    spread = min(_SPREADS, key=lambda tried: round(solve(tried, {})[1], 6))
    fixed: dict[int, float] = {}
    while True:
        moved, _ = solve(spread, fixed)
        found = [middle + x * width for middle, x, width in zip(prior, moved, widths, strict=True)]
        beyond = [
            (max(low - x, x - high) / width, i)
            for i, ((low, high), x, width) in enumerate(zip(limits, found, widths, strict=True))
            if i not in fixed and not low <= x <= high
        ]
        if not beyond:
            return [min(max(x, low), high) for x, (low, high) in zip(found, limits, strict=True)], spread
        _, worst = max(beyond)
        low, high = limits[worst]
        fixed[worst] = ((low if found[worst] < low else high) - prior[worst]) / widths[worst]


def _cells(
    row: tuple[float, ...],
    total: float | None,
    limits: Sequence[tuple[float, float]],
    widths: Sequence[float],
    middles: Sequence[float],
    spread: float,
) -> list[_Cell]:
    """One scrape's part of each bucket: what its sum leaves over is shared out by variance, within the limits."""
    # Variances of one bucket's part of the sum, without the common factor spread / 2.
    parts = [(n + n * n) * width * width for n, width in zip(row, widths, strict=True)]
    free = {i for i, n in enumerate(row) if n > 0}
    means = list(middles)
    if total is None:
        return [_Cell(n, m, spread / 2 * w * w, 1.0) for n, m, w in zip(row, means, widths, strict=True)]
    rest = total - sum(n * m for n, m in zip(row, means, strict=True))
    while free and rest:
        whole = sum(parts[i] for i in free)
        moved = {i: means[i] + rest * parts[i] / whole / row[i] for i in free}
        stopped = {i for i in free if not limits[i][0] <= moved[i] <= limits[i][1]}
        for i in stopped or free:
            low, high = limits[i]
            target = min(max(moved[i], low), high)
            rest -= row[i] * (target - means[i])
            means[i] = target
        free = free - stopped if stopped else set()
    whole = sum(parts)
    return [
        _Cell(
            n,
            m,
            spread / 2 * w * w * (1 + 1 / n) * max(0.0, 1 - part / whole),
            max(0.0, 1 - (1 + n) ** 2 * w * w / 2 / whole),
        )
        if n > 0
        else _Cell(0.0, m, 0.0, 0.0)
        for n, m, w, part in zip(row, means, widths, parts, strict=True)
    ]


def _height(fitted: Fitted, at: int, side: int) -> float:
    """Log density at the lower (side -1) or upper (+1) edge of bucket `at`, in units of the bucket's own average.

    Between two buckets with observations: halfway between what the two say alone, as exponentials with their means.
    Next to an empty bucket: no more than half an observation would have filled it to.
    """
    low, high = edges(fitted.merged, at)
    own = height((fitted.means[at] - low) / (high - low), side)
    average = log(fitted.counts[at] / (high - low))
    beside = at + side
    if beside < 0:
        return log(0.5 / (high - low)) - average
    if beside not in fitted.means:
        if fitted.counts[beside] > 0:
            return own
        other_low, other_high = edges(fitted.merged, beside)
        return min(own, log(0.5 / min(high - low, other_high - other_low)) - average)
    other_low, other_high = edges(fitted.merged, beside)
    width = other_high - other_low
    other = height((fitted.means[beside] - other_low) / width, -side) + log(fitted.counts[beside] / width)
    return (own + other - average) / 2


def _percentile(
    cells: Sequence[_Cell], middle: float, shape: tuple[float, ...], limits: tuple[float, float], rank: float
) -> float:
    """The value with `rank` observations below it: each cell is the shape, moved to its mean and drawn together.

    How far: the variance left to the cells is what the shape has beyond the scatter of their means, but for n
    observations at most n times that scatter, for chance alone makes the means of n scatter by the nth part.
    """
    low, high = limits
    width = high - low
    below = [0.0]
    for share in shape:
        below.append(below[-1] + share)
    centre = sum(share * t for share, t in zip(shape, MIDDLES, strict=True))
    variance = width * width * sum(share * (t - centre) ** 2 for share, t in zip(shape, MIDDLES, strict=True))
    centre = low + width * centre
    count = sum(cell.size for cell in cells)
    scattered = sum(cell.size * (cell.mean - middle) ** 2 for cell in cells) / count
    left_open = sum(cell.size * cell.open for cell in cells) / count
    within = max(0.0, variance - scattered) / left_open if left_open > 0 else 0.0
    apart = inf
    if len(cells) > 1:
        apart = sum(((b.mean - a.mean) ** 2 + a.variance + b.variance) / 2 for a, b in pairwise(cells))
        apart /= len(cells) - 1
    drawn = [sqrt(min(1.0, cell.open * min(within, cell.size * apart) / variance)) for cell in cells]

    def through(x: float) -> float:
        total = 0.0
        for cell, scale in zip(cells, drawn, strict=True):
            if scale < 1e-3:
                total += cell.size if cell.mean <= x else 0.0
                continue
            node = (centre + (x - cell.mean) / scale - low) / width * NODES
            if node >= NODES:
                total += cell.size
            elif node > 0:
                whole = int(node)
                total += cell.size * (below[whole] + shape[whole] * (node - whole))
        return total

    least, most = limits
    for _ in range(_HALVINGS):
        x = (least + most) / 2
        if through(x) < rank:
            least = x
        else:
            most = x
    return (least + most) / 2
