"""The step-time curve of an engine: what a step takes by how many requests it serves. A jump in it is a finding of its
own: a smooth curve (a fixed part, and one a request) gives more tokens a second the more requests share a step."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2
from statistics import median

from phasewatch.core.measures.best import Best, Pace

_SIZES = 16  # of batches, from one to twice as many: 4 % apart, and up to 16 each number its own
_BEST = 3  # paces of a size: the worst of them is what it took at its best, and no accident
_ENOUGH = 2
_FARTHEST = 4.0  # times the last good batch: further apart, much else may have changed


@dataclass(frozen=True, slots=True)
class Cliff:
    """Between two batch sizes a step jumps while tokens a second of the whole engine fall. Seconds are of a step."""

    good_batch: float
    good_seconds: float
    batch: float
    seconds: float


@dataclass(slots=True)
class _Point:
    batch: float
    best: list[float] = field(default_factory=list)  # ascending
    last: deque[float] = field(default_factory=lambda: deque(maxlen=_BEST))

    @property
    def tokens_per_second(self) -> float:
        return self.batch / self.best[-1]


class StepCurve:
    """Bounded by how many batch sizes and bands of context there are."""

    def __init__(self, best: Best) -> None:
        """best: gives the bands of context."""
        self._best = best
        self._points: dict[tuple[int, int, bool], _Point] = {}

    def add(self, pace: Pace) -> None:
        if pace.tokens is None or pace.remembered <= 0:
            return
        key = _size(_served(pace)), self._best.band(pace.tokens), pace.speculating
        point = self._points.setdefault(key, _Point(_served(pace)))
        point.best = sorted([*point.best, pace.remembered])[:_BEST]
        point.last.append(pace.seconds)

    def cliff(self, paces: Sequence[Pace], clear: float, width: float) -> Cliff | None:
        """paces: of the window. clear: how many times fewer tokens a second are no accident. width: ratio of two
        neighbouring bands of context, by which tokens a second may differ for that reason alone."""
        now = paces[-1] if paces else None
        if now is None or now.tokens is None:
            return None
        band = self._best.band(now.tokens)
        known = {
            size: (point.tokens_per_second / width ** abs(context - band), point)
            for (size, context, speculating), point in self._points.items()
            if abs(context - band) <= 1 and speculating == now.speculating and len(point.best) >= _ENOUGH
        }
        most = max((rate for rate, _ in known.values()), default=0.0)
        # What was once good at this batch, or at a larger one, is no cliff: the engine has become slower.
        good = max((size for size, (rate, _) in known.items() if rate * clear > most), default=None)
        if good is None:
            return None
        point = known[good][1]
        beyond = [pace for pace in paces if _size(_served(pace)) > good]
        if len(beyond) < _ENOUGH or median(point.last) > clear * point.best[-1]:
            return None
        found = Cliff(
            point.batch, point.best[-1], median(_served(one) for one in beyond), median(one.seconds for one in beyond)
        )
        falls = found.batch / found.seconds * clear <= found.good_batch / found.good_seconds
        return found if falls and found.batch <= _FARTHEST * found.good_batch else None


def _served(pace: Pace) -> float:
    """Steps that only compute a prompt serve no stream: where more ran at both ends, so many are served by others."""
    return max(pace.batch, pace.running)


def _size(batch: float) -> int:
    return round(_SIZES * log2(max(batch, 1.0)))
