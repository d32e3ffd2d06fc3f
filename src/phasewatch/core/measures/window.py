"""Snapshots -> what changed in a window: steps between pages, restarts, windows, merging engines. No judgement here."""

from collections.abc import Iterable, Mapping, Sequence
from operator import gt, sub

from phasewatch.core.measures.histogram import increase, merge
from phasewatch.core.model import GaugeWindow, Histogram, Snapshot, Step, Window
from phasewatch.core.pages.catalog import BY_NAME

# Drops of these mean that the process began anew, whatever the histograms (still empty, perhaps) say.
_CORE_COUNTERS = ("prompt_tokens", "generation_tokens", "finished")
# Unix times at which the process or its metrics began; they jitter in the last digits, a restart takes seconds.
_BIRTHS = ("start_time", "created")
_BIRTH_TOLERANCE_SECONDS = 1.0


def restarted(before: Snapshot, after: Snapshot) -> bool:
    """Whether the engine began anew between two pages. Decided once per engine, never per series or bucket."""
    if any(
        after.gauges[birth] > before.gauges[birth] + _BIRTH_TOLERANCE_SECONDS
        for birth in _BIRTHS
        if birth in before.gauges and birth in after.gauges
    ):
        return True
    if any(_fell(before.histograms[name], now) for name, now in after.histograms.items() if name in before.histograms):
        return True
    return any(
        after.counters[name] < before.counters[name]
        for name in _CORE_COUNTERS
        if name in before.counters and name in after.counters
    )


def _fell(before: Histogram, after: Histogram) -> bool:
    """Whether any bucket has fewer observations: a new process may already be past the old count, but hardly in every
    bucket."""
    if before.bounds != after.bounds:
        return after.count < before.count
    grown = tuple(map(sub, after.counts, before.counts))
    return any(map(gt, (0.0, *grown), grown))


def step(before: Snapshot, after: Snapshot) -> Step:
    """What changed between two good pages of one engine. After a restart all that is there is new; the first sight
    of a counter is a baseline; a single counter that drops without a restart is left out."""
    anew = restarted(before, after)
    increases: dict[str, float] = {}
    for name, value in after.counters.items():
        if anew:
            increases[name] = value
        elif name in before.counters and value >= before.counters[name]:
            increases[name] = value - before.counters[name]
    histograms: dict[str, Histogram] = {}
    for name, histogram in after.histograms.items():
        if anew:
            histograms[name] = histogram
        elif name in before.histograms:
            grown = increase(before.histograms[name], histogram)
            if grown is not None:
                histograms[name] = grown
    # The old process's gauges say nothing of the new one.
    earlier = after.gauges if anew else before.gauges
    return Step(before.at, after.at, earlier, after.gauges, increases, histograms, anew)


def window(steps: Sequence[Step]) -> Window | None:
    """Add steps (in time order, of one engine) up; None without any."""
    if not steps:
        return None
    return Window(
        seconds=sum(one.seconds for one in steps),
        steps=tuple(steps),
        gauges=_gauges(steps),
        increases=_added(one.increases for one in steps),
        histograms=_merged(one.histograms for one in steps),
        restarts=sum(one.restarted for one in steps),
    )


def since(steps: Iterable[Step], start: float) -> tuple[Step, ...]:
    """The steps between pages at or after `start`."""
    return tuple(one for one in steps if one.start >= start)


def fleet_window(windows: Sequence[Window]) -> Window | None:
    """Engines of one model as one: buckets and counters added, gauges added or their maximum (catalog: fleet).

    The max of an added gauge is the sum of the engines' own, reached by each but perhaps not at once.
    """
    if not windows:
        return None
    names = {name for one in windows for name in one.gauges}
    gauges: dict[str, GaugeWindow] = {}
    for name in names:
        parts = [one.gauges[name] for one in windows if name in one.gauges]
        join = max if BY_NAME[name].fleet == "max" else sum
        gauges[name] = GaugeWindow(*(join(getattr(part, kind) for part in parts) for kind in ("last", "mean", "max")))
    return Window(
        seconds=max(one.seconds for one in windows),
        steps=tuple(sorted((part for one in windows for part in one.steps), key=lambda part: part.end)),
        gauges=gauges,
        increases=_added(one.increases for one in windows),
        histograms=_merged(one.histograms for one in windows),
        restarts=sum(one.restarts for one in windows),
    )


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    added: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            added[name] = added.get(name, 0.0) + value
    return added


def _merged(parts: Iterable[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    by_name: dict[str, list[Histogram]] = {}
    for part in parts:
        for name, histogram in part.items():
            by_name.setdefault(name, []).append(histogram)
    merged = ((name, merge(histograms)) for name, histograms in by_name.items())
    return {name: histogram for name, histogram in merged if histogram is not None}


def _gauges(steps: Sequence[Step]) -> dict[str, GaugeWindow]:
    gauges: dict[str, GaugeWindow] = {}
    for name, last in steps[-1].after.items():
        both = [one for one in steps if name in one.before and name in one.after]
        seconds = sum(one.seconds for one in both)
        values = [last, *(one.before[name] for one in both), *(one.after[name] for one in both)]
        area = sum((one.before[name] + one.after[name]) / 2 * one.seconds for one in both)
        gauges[name] = GaugeWindow(last, area / seconds if seconds > 0 else last, max(values))
    return gauges


def scrapes(window: Window) -> tuple[Mapping[str, float], ...]:
    """The gauges of each page of one engine's window, in time order."""
    return (window.steps[0].before, *(one.after for one in window.steps))
