"""Watching servers for a while: the Poller's threads scrape, the caller's thread keeps the state and judges."""

import queue
import time
from collections.abc import Sequence
from dataclasses import replace

from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.core.watch import Watcher
from phasewatch.service.poller import Poller, burst
from phasewatch.sources.http import Scraper, our_fault
from phasewatch.sources.polled import Outcome, Polled
from phasewatch.sources.target import Target

# Unix time that never jumps: the machine's clock once, from then on the monotonic one.
_WALL_MINUS_MONOTONIC = time.time() - time.monotonic()
# A wait for an answer looks this often whether a thread has ended by a mistake of ours.
_LOOK_SECONDS = 1.0


def clock() -> float:
    return time.monotonic() + _WALL_MINUS_MONOTONIC


class Watching:
    """Scrapes every target each `interval` seconds from its making until `close`."""

    def __init__(self, targets: Sequence[Target], settings: Settings, interval: float) -> None:
        self._watcher = Watcher(settings)
        self._polled = [Polled(target, Scraper(target), clock) for target in targets]
        self._outcomes: queue.SimpleQueue[tuple[Polled, Outcome]] = queue.SimpleQueue()
        scrapers = [polled.scraper for polled in self._polled]
        self._poller = Poller(scrapers, self._scrape, interval, spread=burst(interval))
        self._poller.start()

    def until(self, end: float) -> None:
        """Takes in what the threads bring until `end`, in seconds of `clock`."""
        while (left := end - clock()) > 0:
            self._take(left)

    def first_answers(self) -> None:
        """Waits until every target has answered once, well or not."""
        while not all(polled.tried for polled in self._polled):
            self._take(_LOOK_SECONDS)

    @property
    def errors(self) -> dict[str, str]:
        """Targets whose last scrape failed, and why."""
        return {polled.target.name: polled.error for polled in self._polled if polled.error is not None}

    @property
    def ever_read(self) -> frozenset[str]:
        return frozenset(polled.target.name for polled in self._polled if polled.succeeded_at is not None)

    def fleet(self) -> Fleet:
        """The state now; what only the scrapes know is filled in."""
        now = clock()
        fleet = self._watcher.evaluate(now)
        reports = {report.target: report for report in fleet.targets}
        known = [polled for polled in self._polled if polled.target.name in reports]
        return replace(fleet, targets=tuple(polled.told(reports[polled.target.name], now) for polled in known))

    def close(self) -> None:
        self._poller.stop()

    def _take(self, seconds: float) -> None:
        """The next outcome, where one comes within so many seconds. Raises what went wrong in a thread."""
        self._poller.wait(0)
        try:
            polled, outcome = self._outcomes.get(timeout=min(seconds, _LOOK_SECONDS))
        except queue.Empty:
            return
        polled.take(outcome, self._watcher)

    def _scrape(self, index: int) -> None:
        polled = self._polled[index]
        try:
            outcome = polled.scrape()
        except Exception as error:  # costs this scrape, not the other targets'
            fault = our_fault(polled.target, error)
            outcome = polled.failed(fault.reason, fault.message)
        self._outcomes.put((polled, outcome))
