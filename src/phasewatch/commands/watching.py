"""Watching servers for a while: one thread a target scrapes, the caller's thread keeps the state and judges."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from phasewatch.core.model import Fleet, Page, TargetReport
from phasewatch.core.pages.exposition import ExpositionError
from phasewatch.core.settings import Settings
from phasewatch.core.watch import Watcher
from phasewatch.sources.http import ScrapeError, Scraper
from phasewatch.sources.target import Target

# Unix time that never jumps: the machine's clock once, from then on the monotonic one.
_WALL_MINUS_MONOTONIC = time.time() - time.monotonic()


def clock() -> float:
    return time.monotonic() + _WALL_MINUS_MONOTONIC


@dataclass(frozen=True, slots=True)
class _Seen:
    """One scrape: a page, or why there is none."""

    target: str
    at: float
    seconds: float
    page: Page | None
    reason: str = ""
    error: str = ""


class Watching:
    """Scrapes every target each `interval` seconds from its making until `close`."""

    def __init__(self, targets: Sequence[Target], settings: Settings, interval: float) -> None:
        self.targets = targets
        self._watcher = Watcher(settings)
        self._seen: queue.SimpleQueue[_Seen] = queue.SimpleQueue()
        self._last: dict[str, _Seen] = {}
        self._succeeded: dict[str, float] = {}
        self._stop = threading.Event()
        self._scrapers = [Scraper(target) for target in targets]
        self._threads = [
            threading.Thread(target=self._scrape, args=(scraper, interval), daemon=True) for scraper in self._scrapers
        ]
        for thread in self._threads:
            thread.start()

    def until(self, end: float) -> None:
        """Takes in what the threads bring until `end`, in seconds of `clock`."""
        while (left := end - clock()) > 0:
            try:
                self._take(self._seen.get(timeout=left))
            except queue.Empty:
                return

    def first_answers(self) -> None:
        """Waits until every target has answered once, well or not."""
        while len(self._last) < len(self.targets):
            self._take(self._seen.get())

    @property
    def errors(self) -> dict[str, str]:
        """Targets whose last scrape failed, and why."""
        return {target: seen.error for target, seen in self._last.items() if seen.page is None}

    @property
    def ever_read(self) -> frozenset[str]:
        return frozenset(self._succeeded)

    def fleet(self) -> Fleet:
        """The state now; what only the scrapes know is filled in."""
        now = clock()
        fleet = self._watcher.evaluate(now)
        reports = {report.target: report for report in fleet.targets}
        known = [target for target in self.targets if target.name in reports]
        return replace(fleet, targets=tuple(self._report(target, reports[target.name], now) for target in known))

    def close(self) -> None:
        self._stop.set()
        for scraper in self._scrapers:
            scraper.close()

    def _report(self, target: Target, report: TargetReport, now: float) -> TargetReport:
        seen = self._last[target.name]
        succeeded = self._succeeded.get(target.name)
        return replace(
            report,
            url=target.url,
            last_error=seen.error or report.last_error,
            last_success_age_seconds=None if succeeded is None else now - succeeded,
            scrape_seconds=seen.seconds,
        )

    def _take(self, seen: _Seen) -> None:
        self._last[seen.target] = seen
        if seen.page is None:
            self._watcher.failure(seen.target, seen.at, seen.reason)
        else:
            self._succeeded[seen.target] = seen.at
            self._watcher.page(seen.target, seen.page)

    def _scrape(self, scraper: Scraper, interval: float) -> None:
        due = clock()
        while not self._stop.is_set():
            self._seen.put(scrape(scraper))
            # A scrape that took longer than the interval skips its turns instead of running late for ever.
            due += interval * max(1, -(-(clock() - due) // interval))
            self._stop.wait(max(0.0, due - clock()))


def scrape(scraper: Scraper, now: Callable[[], float] = clock) -> _Seen:
    """One page of the scraper's target, parsed; never raises for what the server may do."""
    name, at = scraper.target.name, now()
    try:
        answer = scraper.fetch()
        page = scraper.pages.read(answer.text, at=at, content_type=answer.content_type)
        return _Seen(name, at, answer.seconds, page)
    except ScrapeError as error:
        return _Seen(name, at, now() - at, None, error.reason, str(error))
    except ExpositionError as error:
        return _Seen(name, at, now() - at, None, "not_metrics", f"{scraper.target.url}: {error}")
