"""A recording -> what phasewatch would have said while it was lived."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from phasewatch.core.model import Fleet, TargetReport
from phasewatch.core.pages.exposition import ExpositionError, PageReader
from phasewatch.core.settings import Settings
from phasewatch.core.watch import Watcher
from phasewatch.sources.http import REASONS
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
        raise RecordingError(
            f"{recording.path} mixes two clocks, seconds {start:g} and {end:g}{where}; keep them in separate recordings"
        )
    return start, end


def replay(
    recording: Recording, settings: Settings, step: float, until: float | None = None, *, last: bool = False
) -> Iterator[Fleet]:
    """One Fleet at first + step, first + 2 step, ... each from pages with time <= at, on the recording's own clock.

    The last one comes at the first of these moments at or after `until` (default: the last page), so that no page goes
    unjudged; with `last` at `until` itself. Nothing where `until` comes before the first step, unless with `last`.
    """
    first, end = span(recording)
    until = end if until is None else min(until, end)
    if until < first + step and not last:
        return
    moments = (first + n * step for n in count(1))
    watcher = Watcher(settings)
    polled: dict[str, _Replayed] = defaultdict(_Replayed)
    entries = timeline(recording)
    entry = next(entries, None)
    done = False
    while not done:
        at = next(moments)
        if at >= until:
            at, done = until if last else at, True
        while entry is not None and entry[0] <= at:
            _take(watcher, polled[entry[1]], *entry)
            entry = next(entries, None)
        fleet = watcher.evaluate(at)
        yield replace(fleet, targets=tuple(polled[report.target].told(report) for report in fleet.targets))


@dataclass(slots=True)
class _Replayed:
    """What only the scrapes of a target know."""

    pages: PageReader = field(default_factory=PageReader)
    error: str | None = None
    seconds: float | None = None
    failures: Counter[str] = field(default_factory=Counter)

    def told(self, report: TargetReport) -> TargetReport:
        return replace(
            report,
            last_error=self.error or report.last_error,
            scrape_seconds=self.seconds,
            scrape_failures=dict(self.failures),
        )


def _take(watcher: Watcher, polled: _Replayed, seconds: float, target: str, entry: Entry) -> None:
    error = entry.reason
    if error is None:
        try:
            page = polled.pages.read(entry.read(), at=seconds, content_type=entry.content_type)
            watcher.page(target, page)
            polled.error, polled.seconds = None, entry.duration
            return
        except ExpositionError as problem:
            error = f"not_metrics: {entry.path}: {problem}"
    reason, _, message = error.partition(": ")
    watcher.failure(target, seconds, reason)
    polled.error = message or reason
    # Our own recorder writes one of REASONS; words of others must not become label values without end.
    polled.failures[reason if reason in REASONS else "other"] += 1
