"""Polls targets into a recording."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phasewatch.service.poller import Poller, burst
from phasewatch.sources.http import Scrape, ScrapeError, Scraper, our_fault
from phasewatch.sources.recording import RecordingError, RecordingWriter
from phasewatch.sources.target import Target


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of one target: rounds skipped are those in which it was due and could not be asked."""

    pages: int = 0
    failures: int = 0
    skipped: int = 0
    last_error: str | None = None


# How often it is looked whether to stop.
_LOOK_SECONDS = 0.1
OnProgress = Callable[[str, Counts], None]
MakeScraper = Callable[[Target], Scraper]


def record(
    targets: Sequence[Target],
    out: str | Path,
    interval: float,
    duration: float | None = None,
    on_progress: OnProgress | None = None,
    *,
    stop: threading.Event | None = None,
    make_scraper: MakeScraper = Scraper,
) -> dict[str, Counts]:
    """Scrapes every target each `interval` seconds, at once first, for `duration` seconds (None: until `stop`).

    Files are named after the Unix time at which the scrape began; time runs on the monotonic clock from there, so a
    clock that is set does not shuffle pages. Targets are spread over a tenth of the interval, at most 1 s. A target
    that fails or is slow costs only itself. `on_progress(target's name, counts)` comes after each scrape, from one
    thread at a time. `stop` ends the recording at once, a scrape under way is dropped. Raises RecordingError for an
    output folder that cannot be used, two targets of one name, or a write that fails; and what on_progress raises.
    """
    if not targets:
        raise RecordingError("no target to record; name at least one URL")
    for name, times in Counter(target.name for target in targets).items():
        if times > 1:
            raise RecordingError(f"target {name!r} is given {times} times; leave out all but one, or name them apart")
    writer = RecordingWriter(out, time.time())
    stop = stop or threading.Event()
    scrapers = [make_scraper(target) for target in targets]
    rounds = None if duration is None else int(duration / interval + 1e-9) + 1
    unix_offset = time.time() - time.monotonic()
    counts = [Counts() for _ in targets]
    lock = threading.Lock()
    ending = False

    def ask(index: int) -> None:
        name, began = targets[index].name, time.monotonic()
        try:
            scrape = _fetched(targets[index], scrapers[index])
        except ScrapeError as error:
            if ending:
                return
            writer.failure(name, unix_offset + began, f"{error.reason}: {error.message}", time.monotonic() - began)
            with lock:
                counts[index] = replace(counts[index], failures=counts[index].failures + 1, last_error=error.message)
        else:
            writer.page(name, unix_offset + began, scrape)
            with lock:
                counts[index] = replace(counts[index], pages=counts[index].pages + 1)
        report(index)

    def skip(index: int, missed: int) -> None:
        with lock:
            counts[index] = replace(counts[index], skipped=counts[index].skipped + missed)
        report(index)

    def report(index: int) -> None:
        if on_progress:
            with lock:
                on_progress(targets[index].name, counts[index])

    poller = Poller(scrapers, ask, interval, spread=burst(interval), left_out=skip, rounds=rounds)
    poller.start()
    try:
        while not stop.is_set() and not poller.wait(_LOOK_SECONDS):
            pass
    finally:
        ending = True
        poller.stop()
    return {target.name: count for target, count in zip(targets, counts, strict=True)}


def _fetched(target: Target, scraper: Scraper) -> Scrape:
    """The page. Raises ScrapeError, also for a mistake of ours: that must not end what others record."""
    try:
        return scraper.fetch()
    except ScrapeError:
        raise
    except Exception as error:
        raise our_fault(target, error) from error
