"""Polls targets into a recording."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from phasewatch.sources.http import ScrapeError, Scraper
from phasewatch.sources.recording import RecordingError, RecordingWriter
from phasewatch.sources.target import Target


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of one target: rounds skipped are those that came due while a scrape still ran."""

    pages: int = 0
    failures: int = 0
    skipped: int = 0
    last_error: str | None = None


LONGEST_SPREAD = 1.0  # seconds between the first and the last target of a round
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
    writer = RecordingWriter(out)
    stop, ended = stop or threading.Event(), threading.Event()
    scrapers = [make_scraper(target) for target in targets]
    rounds = None if duration is None else int(duration / interval + 1e-9) + 1
    started, unix_offset = time.monotonic(), time.time() - time.monotonic()
    reporting = threading.Lock()

    def report(name: str, counts: Counts) -> None:
        if on_progress:
            with reporting:
                on_progress(name, counts)

    def poll(index: int) -> Counts:
        start = started + index / len(targets) * min(interval / 10, LONGEST_SPREAD)
        try:
            return _poll(scrapers[index], writer, unix_offset, start, interval, rounds, ended, report)
        except BaseException:
            ended.set()
            raise

    with ThreadPoolExecutor(max_workers=len(targets), thread_name_prefix="record") as pool:
        futures = [pool.submit(poll, index) for index in range(len(targets))]
        try:
            while not stop.is_set() and wait(futures, timeout=0.1).not_done:
                pass
        finally:
            # Also on Ctrl-C in the caller's thread: without it the pool would wait for threads nobody stops.
            ended.set()
            for scraper in scrapers:
                scraper.close()
    return {target.name: future.result() for target, future in zip(targets, futures, strict=True)}


def next_round(start: float, interval: float, after: int, now: float) -> int:
    """The first round after `after` that is still to come at `now`: late rounds are skipped, never stacked.

    `start` is when round 0 is due.
    """
    return max(after + 1, math.ceil((now - start) / interval))


def _poll(
    scraper: Scraper,
    writer: RecordingWriter,
    unix_offset: float,
    start: float,
    interval: float,
    rounds: int | None,
    ended: threading.Event,
    report: OnProgress,
) -> Counts:
    counts, number, name = Counts(), 0, scraper.target.name
    while (rounds is None or number < rounds) and not ended.wait(
        max(0.0, start + number * interval - time.monotonic())
    ):
        began = time.monotonic()
        unix = unix_offset + began
        try:
            scrape = scraper.fetch()
        except ScrapeError as error:
            if ended.is_set():
                break
            writer.failure(name, unix, f"{error.reason}: {error.message}", time.monotonic() - began)
            counts = replace(counts, failures=counts.failures + 1, last_error=error.message)
        else:
            writer.page(name, unix, scrape)
            counts = replace(counts, pages=counts.pages + 1)
        following = next_round(start, interval, number, time.monotonic())
        missed = min(following, rounds or following) - number - 1
        counts, number = replace(counts, skipped=counts.skipped + max(0, missed)), following
        report(name, counts)
    return counts
