"""Snapshots -> what changed in a window: steps between pages, restarts, windows, merging engines. No judgement here."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from operator import gt, is_not, sub
from typing import Generic, TypeVar, overload

from phasewatch.core.measures.histogram import increase, merge
from phasewatch.core.measures.window_arrays import Rows, together
from phasewatch.core.model import GaugeWindow, Histogram, Snapshot, Step, Window
from phasewatch.core.pages.catalog import BY_NAME

# Drops of these mean that the process began anew, whatever the histograms (still empty, perhaps) say.
CORE_COUNTERS = ("prompt_tokens", "generation_tokens", "finished")
# Unix times at which the process or its metrics began; they jitter in the last digits, a restart takes seconds.
BIRTHS = ("start_time", "created")
BIRTH_TOLERANCE_SECONDS = 1.0


_V = TypeVar("_V")
_T = TypeVar("_T")


class _WhenRead(Mapping[str, _V], Generic[_V]):
    """A mapping whose values are computed when they are first read: of some fifty signals a dozen are."""

    __slots__ = ("_compute", "_known", "_names")

    def __init__(self, names: Iterable[str], compute: Callable[[str], _V]) -> None:
        self._names = dict.fromkeys(names)
        self._compute = compute
        self._known: dict[str, _V] = {}

    def __getitem__(self, name: str) -> _V:
        known = self._known
        if name not in known:
            if name not in self._names:
                raise KeyError(name)
            known[name] = self._compute(name)
        return known[name]

    @overload
    def get(self, name: str, /) -> _V | None: ...
    @overload
    def get(self, name: str, /, default: _V | _T) -> _V | _T: ...
    def get(self, name: str, /, default: _V | _T | None = None) -> _V | _T | None:
        if name in self._known:
            return self._known[name]
        return self[name] if name in self._names else default

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Gauge(GaugeWindow):
    """A gauge of one engine's window; what goes through all its steps is computed when it is first read."""

    __slots__ = ("known", "name", "steps")
    known: tuple[float, float] | None
    name: str
    steps: Sequence[Step]

    def __init__(self, last: float, name: str, steps: Sequence[Step]) -> None:
        keep = object.__setattr__  # as a frozen dataclass does
        keep(self, "last", last)
        keep(self, "name", name)
        keep(self, "steps", steps)
        keep(self, "known", None)

    @property
    def mean(self) -> float:
        return (self.known or self._compute())[0]

    @property
    def max(self) -> float:
        return (self.known or self._compute())[1]

    def _compute(self) -> tuple[float, float]:
        name, most, seconds, area = self.name, self.last, 0.0, 0.0
        for one in self.steps:
            before, after = one.before.get(name), one.after.get(name)
            if before is not None and after is not None:
                most = max(most, before, after)
                seconds += one.end - one.start
                area += (before + after) / 2 * (one.end - one.start)
        known = area / seconds if seconds > 0 else self.last, most
        object.__setattr__(self, "known", known)
        return known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GaugeWindow) and (self.last, self.mean, self.max) == (
            other.last,
            other.mean,
            other.max,
        )

    def __hash__(self) -> int:
        return hash(_parts(self))


class _Added(GaugeWindow):
    """Gauges of several engines' windows added, each figure when it is first read."""

    __slots__ = ("parts",)
    parts: Sequence[GaugeWindow]

    def __init__(self, parts: Sequence[GaugeWindow]) -> None:
        object.__setattr__(self, "parts", parts)  # as a frozen dataclass does

    @property
    def last(self) -> float:
        return sum([part.last for part in self.parts])

    @property
    def mean(self) -> float:
        return sum([part.mean for part in self.parts])

    @property
    def max(self) -> float:
        return sum([part.max for part in self.parts])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GaugeWindow) and _parts(self) == _parts(other)

    def __hash__(self) -> int:
        return hash(_parts(self))


def _parts(one: GaugeWindow) -> tuple[float, float, float]:
    return one.last, one.mean, one.max


def restarted(before: Snapshot, after: Snapshot) -> bool:
    """Whether the engine began anew between two pages. Decided once per engine, never per series or bucket."""
    return _born_later(before, after) or _any_fell(before, after)


def _born_later(before: Snapshot, after: Snapshot) -> bool:
    return any(
        after.gauges[birth] > before.gauges[birth] + BIRTH_TOLERANCE_SECONDS
        for birth in BIRTHS
        if birth in before.gauges and birth in after.gauges
    )


def _any_fell(before: Snapshot, after: Snapshot) -> bool:
    if any(_fell(before.histograms[name], now) for name, now in after.histograms.items() if name in before.histograms):
        return True
    return _core_counter_fell(before, after)


def _core_counter_fell(before: Snapshot, after: Snapshot) -> bool:
    return any(
        after.counters[name] < before.counters[name]
        for name in CORE_COUNTERS
        if name in before.counters and name in after.counters
    )


def _fell(before: Histogram, after: Histogram) -> bool:
    """Whether any bucket has fewer observations: a new process may already be past the old count, but hardly in every
    bucket."""
    if before.bounds != after.bounds:
        return after.count < before.count
    if before.counts == after.counts:
        return False
    grown = list(map(sub, after.counts, before.counts))
    return grown[0] < 0 or grown != sorted(grown)


def step(before: Snapshot, after: Snapshot) -> Step:
    """What changed between two good pages of one engine. After a restart all that is there is new; the first sight
    of a counter is a baseline; a single counter that drops without a restart is left out."""
    grown, on = _grown(before, after)
    anew = grown is None or _born_later(before, after) or _core_counter_fell(before, after)
    increases: dict[str, float] = {}
    if anew:
        increases |= after.counters
    else:
        earlier = before.counters
        for name, value in after.counters.items():
            if name in earlier and value >= earlier[name]:
                increases[name] = value - earlier[name]
    on = on and not anew and len(increases) == len(before.counters) == len(after.counters)
    return Step(
        before.at,
        after.at,
        after.gauges if anew else before.gauges,  # the old process's gauges say nothing of the new one
        after.gauges,
        increases,
        after.histograms if anew or grown is None else grown,
        anew,
        (before, after) if on else None,
    )


def _grown(before: Snapshot, after: Snapshot) -> tuple[dict[str, Histogram] | None, bool]:
    """By how much each histogram grew, None where one fell (see `_fell`); whether both pages have the same ones, on the
    same edges."""
    grown: dict[str, Histogram] = {}
    earlier = before.histograms
    on = len(earlier) == len(after.histograms)
    for name, now in after.histograms.items():
        was = earlier.get(name)
        if was is None:
            on = False
        elif was.bounds is now.bounds or was.bounds == now.bounds:
            counts = tuple(map(sub, now.counts, was.counts))
            if was.counts is not now.counts and (counts[0] < 0 or any(map(gt, counts, counts[1:]))):
                return None, False
            total = None if was.total is None or now.total is None else now.total - was.total
            grown[name] = Histogram(now.bounds, counts, total)
        elif now.count < was.count:
            return None, False
        else:
            on = False
            together = increase(was, now)
            if together is not None:
                grown[name] = together
    return grown, on


def _increase(before: Snapshot, after: Snapshot, name: str) -> Histogram:
    was, now = before.histograms[name], after.histograms[name]
    total = None if was.total is None or now.total is None else now.total - was.total
    return Histogram(now.bounds, tuple(map(sub, now.counts, was.counts)), total)


def join(earlier: Step, later: Step) -> Step:
    """Two intervals of one engine, one right after the other, as one."""
    if earlier.pages is not None and later.pages is not None and earlier.pages[1] is later.pages[0]:
        return step(earlier.pages[0], later.pages[1])
    return Step(
        earlier.start,
        later.end,
        earlier.before,
        later.after,
        _added((earlier.increases, later.increases)),
        _merged((earlier.histograms, later.histograms)),
        earlier.restarted or later.restarted,
    )


def window(steps: Sequence[Step], rows: Callable[[str], Rows | None] | None = None) -> Window | None:
    """Add steps (in time order, of one engine) up; None without any. rows: see Window.

    Where everything went on from page to page, what a window grew by is its last page less its first.
    """
    if not steps:
        return None
    steps = tuple(steps)
    ends = _ends(steps)
    histograms: Mapping[str, Histogram]
    if ends is None:
        increases = _added(one.increases for one in steps)
        histograms = _merged([one.histograms for one in steps])
    else:
        first, last = ends
        increases = {name: value - first.counters[name] for name, value in last.counters.items()}
        histograms = _WhenRead(last.histograms, partial(_increase, first, last))
    last_gauges = steps[-1].after
    return Window(
        seconds=sum([one.end - one.start for one in steps]),
        steps=steps,
        gauges=_WhenRead(last_gauges, lambda name: _Gauge(last_gauges[name], name, steps)),
        increases=increases,
        histograms=histograms,
        restarts=sum([one.restarted for one in steps]),
        rows=rows,
    )


def _ends(steps: Sequence[Step]) -> tuple[Snapshot, Snapshot] | None:
    """The first and the last page, where everything went on between them; else None."""
    pages = [one.pages for one in steps if one.pages is not None]
    if len(pages) < len(steps):
        return None
    befores, afters = zip(*pages, strict=True)
    return None if any(map(is_not, afters, befores[1:])) else (befores[0], afters[-1])


def since(steps: Iterable[Step], start: float) -> tuple[Step, ...]:
    """The steps between pages at or after `start`."""
    return tuple(one for one in steps if one.start >= start)


def fleet_window(windows: Sequence[Window]) -> Window | None:
    """Engines of one model as one: buckets, counters and requests (running, waiting) added. Other gauges are of one
    engine and left out: measure_table says how the numbers made of them join.

    The max of an added gauge is the sum of the engines' own, reached by each but perhaps not at once.
    """
    if not windows:
        return None
    names = dict.fromkeys(name for one in windows for name in one.gauges if BY_NAME[name].unit == "requests")

    def rows(name: str) -> Rows | None:
        parts = [None if one.rows is None else one.rows(name) for one in windows if name in one.histograms]
        known = [part for part in parts if part is not None]
        return together(known) if known and len(known) == len(parts) else None

    return Window(
        seconds=max(one.seconds for one in windows),
        steps=_InTime(windows),
        gauges=_WhenRead(names, lambda name: _Added([one.gauges[name] for one in windows if name in one.gauges])),
        increases=_added(one.increases for one in windows),
        histograms=_merged([one.histograms for one in windows]),
        restarts=sum(one.restarts for one in windows),
        rows=rows,
    )


class _InTime(Sequence[Step]):
    """The steps of several engines in the order of time, sorted when they are first read: few ask for them."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows

    @cached_property
    def _sorted(self) -> tuple[Step, ...]:
        return tuple(sorted((part for one in self._windows for part in one.steps), key=lambda part: part.end))

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | Sequence[Step]:
        return self._sorted[at]

    def __len__(self) -> int:
        return sum(len(one.steps) for one in self._windows)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._sorted)


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    added: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            added[name] = added.get(name, 0.0) + value
    return added


def _merged(parts: Sequence[Mapping[str, Histogram]]) -> Mapping[str, Histogram]:
    def merged(name: str) -> Histogram:
        together = merge([part[name] for part in parts if name in part])
        assert together is not None  # a name is there because some part has it
        return together

    return _WhenRead(chain.from_iterable(parts), merged)


def scrapes(window: Window) -> tuple[Mapping[str, float], ...]:
    """The gauges of each page of one engine's window, in time order."""
    return (window.steps[0].before, *(one.after for one in window.steps))
