"""The best paces that an engine has ever shown, by its load: nothing that is slower pushes them out."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, floor, log
from operator import attrgetter

_MINUTE = 60.0
_ENOUGH = 2  # paces of a minute: one alone may be a transition,
_LONG = 20.0  # unless it is the mean of so many seconds
_KEPT_MINUTES = 6  # of each load, besides those that may still be of the present window
_KEPT_PACES = 60  # of a minute

Load = tuple[int, int | None, bool]  # bands of batch and tokens; whether a gap is of a step with drafts


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a token at a load. batch: requests a step serves; tokens: each of them carries (decode), or has in its
    prompt (prefill); covers: the seconds of time that it is the mean of.

    seconds: with prefill's part taken away, which may be too much; remembered: with only that part taken away that the
    gaps themselves bear out.
    """

    at: float
    batch: float
    tokens: float | None
    seconds: float
    remembered: float
    covers: float
    speculating: bool = False  # then a gap is of a step that may yield several tokens
    running: float = 0.0  # at both ends at least
    of_window: bool = False  # the mean of one, which reaches back beyond the interval it ends with


class Kept:
    """Paces of a load by the minute in which they ended: of the best minutes ever, and of the last ones."""

    __slots__ = ("minutes", "recent")

    def __init__(self, recent: int) -> None:
        """recent: how many minutes from the newest on are kept in any case."""
        self.recent = recent
        self.minutes: dict[int, list[Pace]] = {}

    def add(self, pace: Pace) -> None:
        newest = minute_of(pace.at)
        paces = self.minutes.setdefault(newest, [])
        if len(paces) < _KEPT_PACES:
            paces.append(pace)
        if len(self.minutes) > _KEPT_MINUTES + self.recent:
            old = [minute for minute in self.minutes if minute <= newest - self.recent]
            del self.minutes[max(old, key=self._worth)]

    def _worth(self, minute: int) -> tuple[bool, float]:
        """Less is more: what proves nothing goes first, then what is slowest."""
        paces = self.minutes[minute]
        return not _enough(paces), median_pace(paces)

    def until(self, before: float) -> Iterator[tuple[int, Sequence[Pace]]]:
        """Each minute with those of its paces that ended by then."""
        for minute, paces in self.minutes.items():
            if paces[-1].at <= before:
                yield minute, paces
            elif paces[0].at <= before:
                yield minute, [pace for pace in paces if pace.at <= before]


class Best:
    """Bounded memory of paces by load. Loads in neighbouring bands are alike."""

    def __init__(self, ratio: float, seconds: float) -> None:
        """ratio: the width of a band. seconds: how long a pace may be of the present and not yet of the past."""
        self.width = log(ratio)
        self.recent_minutes = floor(seconds / _MINUTE) + 2
        self.loads: dict[Load, Kept] = {}
        # Of the loads that a load is compared with; and of some loads' paces, how many each minute has, when the last
        # of them ended, and their median.
        self._alike: dict[tuple[Load, int], tuple[Load, ...]] = {}
        self._medians: dict[Hashable, dict[int, tuple[int, float, float]]] = {}

    def add(self, pace: Pace) -> None:
        load = self.load(pace)
        if load not in self.loads:
            self.loads[load] = Kept(self.recent_minutes)
            self._alike.clear()
            self._medians.clear()
        self.loads[load].add(pace)

    def load(self, pace: Pace) -> Load:
        return self.band(pace.batch), None if pace.tokens is None else self.band(pace.tokens), pace.speculating

    def band(self, value: float) -> int:
        return floor(log(max(value, 1.0)) / self.width)

    def alike(self, load: Load, *, shorter_by: int = 0) -> tuple[Load, ...]:
        """Those known of the same batch, and of the same number of tokens, or of one that is so many bands smaller."""
        key = load, shorter_by
        if key not in self._alike:
            self._alike[key] = tuple(other for other in self.loads if _comparable(load, other, shorter_by))
        return self._alike[key]

    def minutes(self, load: Load | None, alike: Iterable[Load], before: float) -> Mapping[int, Sequence[Pace]]:
        """The paces of loads alike that ended by then, by the minute. load: those of a smaller batch, or of fewer
        tokens, as long as they can have been at this one: at most in proportion, which for the batch is a band's width,
        and for tokens up to where this load begins."""
        minutes: dict[int, list[Pace]] = {}
        for other in alike:
            bands = 0 if load is None else max(0, load[0] - other[0])
            tokens = 0.0 if load is None or not load[1] or load[1] == other[1] else exp(self.width * load[1])
            for minute, paces in self.loads[other].until(before):
                longer = _scaled(paces, exp(self.width * bands), tokens) if bands or tokens else paces
                minutes.setdefault(minute, []).extend(longer)
        return minutes

    def best_minute(self, of: Hashable, minutes: Mapping[int, Sequence[Pace]]) -> list[Pace]:
        """The paces of the best minute, ascending; empty without enough in any minute. Minutes, by their medians, since
        prompts are booked whole in the interval in which they end: single intervals err either way.

        of: whose they are. Most minutes are as they were when it was last asked.
        """
        known, now = self._medians.get(of, {}), dict[int, tuple[int, float, float]]()
        for minute, paces in minutes.items():
            if not _enough(paces):
                continue
            size, end = len(paces), paces[-1].at
            was = known.get(minute)
            now[minute] = was if was is not None and was[:2] == (size, end) else (size, end, median_pace(paces))
        self._medians[of] = now
        if not now:
            return []
        return sorted(minutes[min(now, key=lambda minute: now[minute][2])], key=attrgetter("remembered"))


def _comparable(load: Load, other: Load, shorter_by: int) -> bool:
    if abs(load[0] - other[0]) > 1 or load[1] is None or other[1] is None or load[2] != other[2]:
        return False
    return other[1] <= load[1] - shorter_by if shorter_by else abs(load[1] - other[1]) <= 1


def _scaled(paces: Iterable[Pace], by: float, tokens: float) -> list[Pace]:
    return [replace(one, remembered=one.remembered * by * max(1.0, tokens / (one.tokens or 1.0))) for one in paces]


def _enough(paces: Sequence[Pace]) -> bool:
    return len(paces) >= _ENOUGH or paces[0].covers >= _LONG


def minute_of(at: float) -> int:
    return int(at // _MINUTE)


def median_pace(paces: Iterable[Pace]) -> float:
    ordered = sorted([pace.remembered for pace in paces])
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def usual(minute: Sequence[Pace]) -> float | None:
    """None of an empty one."""
    return median_pace(minute) if minute else None
