"""Whether the pages of one engine are of several processes that answer by turns on one address."""

from dataclasses import dataclass
from math import inf

from phasewatch.core.measures.window import BIRTH_TOLERANCE_SECONDS, BIRTHS, CORE_COUNTERS
from phasewatch.core.model import Snapshot

# What comes back has jumped by as much as half of all it counted, and by no mere handful.
_JUMP_SHARE, _LEAST_JUMP = 0.5, 20.0


@dataclass(slots=True)
class Processes:
    """Feed it each page with the one before.

    offset: seconds from the pages' clock to Unix time, at least: no process that was seen had not begun yet. fell_at,
    before_fall: when counts last fell as at a restart, and the last page before; known only where no page tells when
    its process began.
    """

    offset: float = -inf
    fell_at: float | None = None
    before_fall: Snapshot | None = None

    def alternate(self, before: Snapshot, after: Snapshot, window: float, *, anew: bool) -> bool:
        """Whether the two are of processes that both go on; two falls within `window` seconds are no two restarts.

        anew: whether the second looks like one of a process that began anew (window.restarted).
        """
        birth = next((name for name in BIRTHS if name in before.gauges and name in after.gauges), None)
        if birth is None:
            return self._by_counts(before, after, window, anew)
        began, begins = before.gauges[birth], after.gauges[birth]
        if self.offset == -inf:
            self.offset = began - before.at
        if abs(begins - began) <= BIRTH_TOLERANCE_SECONDS:
            return anew
        # One that began before the other, or while that still answered, did not take its place.
        answered = before.at + self.offset
        self.offset = max(self.offset, begins - after.at)
        return begins < max(began, answered - BIRTH_TOLERANCE_SECONDS)

    def _by_counts(self, before: Snapshot, after: Snapshot, window: float, fallen: bool) -> bool:
        recently = self.fell_at is not None and after.at - self.fell_at <= window
        if fallen:
            self.fell_at, self.before_fall = after.at, before
            return recently
        if not recently or self.before_fall is None or not _returned(self.before_fall, before, after):
            return False
        self.fell_at = after.at
        return True


def _returned(old: Snapshot, before: Snapshot, after: Snapshot) -> bool:
    """Whether counts are back where they were before they fell, at one stroke."""
    names = [name for name in CORE_COUNTERS if all(name in one.counters for one in (old, before, after))]
    if not names or any(after.counters[name] < old.counters[name] for name in names):
        return False
    jumps = [(after.counters[name] - before.counters[name], old.counters[name]) for name in names]
    return all(jump >= max(_LEAST_JUMP, _JUMP_SHARE * counted) for jump, counted in jumps)
