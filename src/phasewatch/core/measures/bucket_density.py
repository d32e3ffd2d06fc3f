"""The density inside a bucket, as shares of NODES equal parts of [0, 1], from its mean and its heights at the edges.

Everything here is of many buckets at once: arrays whose first axis is the buckets.
"""

import numpy as np

from phasewatch.core.measures.histogram import Floats

NODES = 16
MIDDLES: Floats = (np.arange(NODES) + 0.5) / NODES
# Terms of the log density: a slope, and two that are zero at both edges (a hump, and a hump to one side).
_TERMS: Floats = np.stack(
    (MIDDLES, 4 * MIDDLES * (1 - MIDDLES), 10 * MIDDLES * (1 - MIDDLES) * (1 - 2 * MIDDLES)), axis=1
)


def shares(middle: Floats, left: Floats, right: Floats) -> Floats:
    """What of a density on [0, 1] lies in each of NODES equal parts: mean `middle`, log heights left and right.

    The density is the exponential of a cubic, found by Newton's method, damped. The mean outweighs the heights where
    not all can be had.
    """
    terms = np.zeros((len(middle), 3))
    terms[:, 0] = slope(middle)
    found = np.zeros((len(middle), NODES))
    moving = np.arange(len(middle))
    for _ in range(25):
        shape, step = _newton(terms[moving], middle[moving], left[moving], right[moving])
        found[moving] = shape
        longest = np.abs(step).max(axis=1, initial=1e-300)
        terms[moving] += step * np.minimum(1.0, 4 / longest)[:, None]
        moving = moving[longest >= 1e-3]
        if not len(moving):
            break
    return found


def _newton(terms: Floats, middle: Floats, left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """(the shares of these terms, the step to better ones)."""
    logs = terms @ _TERMS.T
    top = logs.max(axis=1)
    shape = np.exp(logs - top[:, None])
    whole = shape.sum(axis=1)
    shape /= whole[:, None]
    norm = top + np.log(whole / NODES)
    means = shape @ _TERMS
    rows = np.empty((len(terms), 3, 3))  # how the mean and the two heights change with each term
    rows[:, 0] = (shape * (MIDDLES - means[:, :1])) @ _TERMS
    rows[:, 1] = -means
    rows[:, 2] = -means
    rows[:, 2, 0] += 1
    weighted = rows.transpose(0, 2, 1) * np.array((1e4, 1.0, 1.0))
    misses = np.stack((middle - means[:, 0], left + norm, right - terms[:, 0] + norm), axis=1)
    matrix = weighted @ rows + 1e-3 * np.eye(3)
    return shape, np.linalg.solve(matrix, weighted @ misses[:, :, None])[:, :, 0]


def height(k: Floats, side: int) -> Floats:
    """Log density at 0 (side -1) or 1 (+1) of the density exp(k t) on [0, 1]."""
    k = k * side
    size = np.maximum(np.abs(k), 1e-6)
    return np.where(np.abs(k) < 1e-6, 0.0, np.log(size / -np.expm1(-size)) + np.minimum(k, 0.0))


def middle(k: Floats) -> Floats:
    """The mean of the density exp(k t) on [0, 1]: what `slope` is the inverse of."""
    size = np.maximum(np.abs(k), 1e-3)
    decay = np.exp(-size)
    below = np.where(np.abs(k) < 1e-3, 0.5 - np.abs(k) / 12, 1 / size - decay / (1 - decay))
    return np.where(k > 0, 1 - below, below)


def slope(middle: Floats) -> Floats:
    """k of the density exp(k t) on [0, 1] whose mean is `middle`; by Newton's method."""
    middle = np.clip(middle, 1e-3, 1 - 1e-3)
    below = np.minimum(middle, 1 - middle)
    nearly_even = 12 * (0.5 - below)
    k = np.where(below > 0.2, nearly_even, 1 / below)
    moving = np.flatnonzero(k >= 1e-3)
    for _ in range(20):
        now = k[moving]
        decay = np.exp(-now)
        ratio = decay / (1 - decay)
        step = (1 / now - ratio - below[moving]) / (1 / now**2 - ratio / (1 - decay))
        k[moving] += step
        moving = moving[(np.abs(step) >= 1e-9) & (k[moving] >= 1e-3)]
        if not len(moving):
            break
    k = np.where(k < 1e-3, nearly_even, k)
    return np.where(middle > 0.5, k, -k)
