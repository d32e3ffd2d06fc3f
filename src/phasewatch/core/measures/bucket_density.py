"""The density inside a bucket, as shares of NODES equal parts of [0, 1], from its mean and its heights at the edges."""

from collections.abc import Sequence
from math import exp, log, sqrt

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
