"""The best prefix cache hit ratios an engine has shown: worse ones never push them out."""

_KEPT = 8
_ENOUGH = 2  # one alone may be a transition
_APART_SECONDS = 60.0  # windows that overlap are one


class HitRatios:
    def __init__(self) -> None:
        self._best: list[tuple[float, float]] = []  # ratio, when its window ended; the best first
        self._taken_at: float | None = None

    def remember(self, at: float, ratio: float | None) -> None:
        """Of a window with prompts enough to tell, that ended at `at`."""
        if ratio is None or (self._taken_at is not None and at - self._taken_at < _APART_SECONDS):
            return
        self._taken_at = at
        self._best = sorted([*self._best, (ratio, at)], reverse=True)[:_KEPT]

    def best(self, before: float) -> float | None:
        """What at least two windows reached that ended by then."""
        known = [ratio for ratio, at in self._best if at <= before]
        return known[_ENOUGH - 1] if len(known) >= _ENOUGH else None
