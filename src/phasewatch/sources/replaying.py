"""A recording -> what phasewatch would have said while it was lived."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from phasewatch.core.exposition import ExpositionError, parse
from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.core.watch import Watcher
from phasewatch.sources.recording import Entry, Recording, RecordingError, timeline

# Ten years: no recording is that long, but Unix time is that far from any other clock.
_LONGEST = 3.2e8


def span(recording: Recording) -> tuple[float, float]:
    """Seconds of the first and the last entry, on the recording's own clock.

    Raises RecordingError where it has two clocks: Unix time and seconds from some start.
    """
    first = min(recording.targets, key=lambda target: target.entries[0].seconds)
    last = max(recording.targets, key=lambda target: target.entries[-1].seconds)
    start, end = first.entries[0].seconds, last.entries[-1].seconds
    if end - start > _LONGEST:
        where = "" if first is last else f" ({first.name} and {last.name})"
        raise RecordingError(f"{recording.path} has seconds {start:g} and {end:g}{where}: two clocks; keep them apart")
    return start, end


def replay(
    recording: Recording, settings: Settings, step: float, until: float | None = None, *, last: bool = False
) -> Iterator[Fleet]:
    """One Fleet at first + step, first + 2 step, ... up to `until` (default: the end), each from pages with time <= at.

    last: also one at `until` itself, where that is no whole step. Fleet.at is on the recording's own clock.
    """
    first, end = span(recording)
    until = end if until is None else min(until, end)
    moments = (first + n * step for n in count(1))
    watcher = Watcher(settings)
    errors: dict[str, str] = {}
    entries = timeline(recording)
    entry = next(entries, None)
    done = False
    while not done:
        at = next(moments)
        if at >= until:
            if at > until and not last:
                return
            at, done = until, True
        while entry is not None and entry[0] <= at:
            _take(watcher, errors, *entry)
            entry = next(entries, None)
        fleet = watcher.evaluate(at)
        targets = (replace(t, last_error=errors.get(t.target, t.last_error)) for t in fleet.targets)
        yield replace(fleet, targets=tuple(targets))


def _take(watcher: Watcher, errors: dict[str, str], seconds: float, target: str, entry: Entry) -> None:
    """reason: the closed set of scrape.REASONS where our own recorder wrote the failure, else as it was written."""
    error = entry.reason
    if error is None:
        try:
            watcher.page(target, parse(entry.read(), at=seconds, content_type=entry.content_type))
            errors.pop(target, None)
            return
        except ExpositionError as problem:
            error = f"not_metrics: {entry.path}: {problem}"
    reason, _, message = error.partition(": ")
    watcher.failure(target, seconds, reason)
    errors[target] = message or reason
