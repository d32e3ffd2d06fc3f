"""The rounds of `serve`: scrape every target once an interval, judge once an interval, keep the last Fleet.

Slots of a tenth of the interval spread the scrapes; a bounded set of threads waits for servers, so that one that hangs
costs only itself; one lock guards the Watcher. Readers take `round`, which is replaced by one assignment.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.schedulers.background import BackgroundScheduler

from phasewatch import __version__
from phasewatch.core.model import Fleet, TargetReport
from phasewatch.core.pages.exposition import ExpositionError
from phasewatch.core.watch import Watcher
from phasewatch.service.changes import Changes
from phasewatch.service.config_sections import Config, TargetSection
from phasewatch.service.round import Round
from phasewatch.sources.http import REASONS, ScrapeError, Scraper
from phasewatch.sources.target import Target

SLOTS = 10
# Threads that wait for servers. Below this many, every target could hang at once without delaying another.
MOST_SCRAPES = 128
# A wall clock that is off by more has been set; less is drift, and `since` should not tremble with it.
_CLOCK_STEP = 1.0
_STOP_SECONDS = 1.0

log = structlog.get_logger("phasewatch")


@dataclass
class _Polled:
    """A target and how its scrapes went. Guarded by the service's lock."""

    target: Target
    scraper: Scraper
    in_flight: bool = False
    tried: bool = False
    error: str | None = None
    seconds: float | None = None
    succeeded_at: float | None = None
    failures: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))


class Service:
    """Watches the targets of a configuration between start() and stop().

    clock: seconds that never jump; all pages and evaluations are on it. wall: Unix time, only shown.
    """

    def __init__(
        self, config: Config, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.config = config
        self.settings = config.settings()
        self.ready = False
        self._clock, self._wall = clock, wall
        self._wall_offset = wall() - clock()
        self._loaded_at = wall()
        self._polled = [
            _Polled(section.target(), _scraper(section.target(), section, config)) for section in config.targets
        ]
        targets = [polled.target for polled in self._polled]
        self._watcher = Watcher(self.settings, {target.name: target.role for target in targets if target.role})
        self._lock = threading.Lock()
        self._changes = Changes(log)
        self._waiting: queue.SimpleQueue[_Polled | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._scheduler: _Scheduler | None = None
        self.round = self._round(None)

    @property
    def fleet(self) -> Fleet | None:
        """The last evaluation, None before the first."""
        return self.round.fleet

    def start(self) -> None:
        """Begins at once and returns. A second call does nothing."""
        if self._scheduler is not None:
            return
        interval = self.config.scrape.interval
        self._scheduler = _Scheduler(self._clock, self._wall, interval)
        slots = [self._polled[index::SLOTS] for index in range(min(SLOTS, len(self._polled)))]
        for index, polled in enumerate(slots):
            self._scheduler.every(interval, index / SLOTS * interval, self._scrape_all, polled)
        # One slot after the last scrape has begun: by then a server that is well has answered.
        self._scheduler.every(interval, len(slots) / SLOTS * interval, self._evaluate)
        for number in range(min(MOST_SCRAPES, len(self._polled))):
            thread = threading.Thread(target=self._work, name=f"scrape-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._scheduler.start()

    def stop(self) -> None:
        """Ends within seconds, whatever the targets do: scrapes under way are cut off. A second call does nothing."""
        if self._scheduler is None:
            return
        self._scheduler.shutdown(wait=False)
        self._scheduler = None
        for polled in self._polled:
            polled.scraper.close()
        for _ in self._threads:
            self._waiting.put(None)
        # A system's name look-up cannot be cut off; the threads are daemons, so that nobody waits for it.
        end = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _scrape_all(self, slot: Iterable[_Polled]) -> None:
        for polled in slot:
            with self._lock:
                if polled.in_flight:
                    message = f"{polled.target.url}: the scrape before is still running; use a longer interval"
                    self._failed(polled, self._clock(), "busy", message)
                    continue
                polled.in_flight = True
            self._waiting.put(polled)

    def _work(self) -> None:
        while (polled := self._waiting.get()) is not None:
            at = self._clock()
            try:
                self._scrape(polled, at)
            except Exception as error:  # a mistake of ours must not end the thread, nor cost other targets
                log.exception("scrape went wrong", target=polled.target.name)
                with self._lock:
                    self._failed(polled, at, "internal", f"{polled.target.url}: {error!r}; please report this")
            finally:
                with self._lock:
                    polled.in_flight = False

    def _scrape(self, polled: _Polled, at: float) -> None:
        name = polled.target.name
        try:
            answer = polled.scraper.fetch()
            page = polled.scraper.pages.read(answer.text, at=at, content_type=answer.content_type)
        except ScrapeError as error:
            with self._lock:
                self._failed(polled, at, error.reason, error.message)
            return
        except ExpositionError as error:
            with self._lock:
                self._failed(polled, at, "not_metrics", f"{polled.target.url}: {error}")
            return
        with self._lock:
            self._watcher.page(name, page)
            polled.tried, polled.error = True, None
            polled.seconds, polled.succeeded_at = answer.seconds, at

    def _failed(self, polled: _Polled, at: float, reason: str, message: str) -> None:
        polled.tried, polled.error, polled.seconds = True, message, None
        polled.failures[reason] += 1
        self._watcher.failure(polled.target.name, at, reason)

    def _evaluate(self) -> None:
        at = self._clock()
        offset = self._wall() - at
        if abs(offset - self._wall_offset) > _CLOCK_STEP:
            self._wall_offset = offset
        with self._lock:
            fleet = self._watcher.evaluate(at)
            reports = {report.target: report for report in fleet.targets}
            fleet = replace(fleet, targets=tuple(self._report(polled, reports, at) for polled in self._polled))
            everyone_tried = all(polled.tried for polled in self._polled)
        self.round = self._round(fleet)
        self.ready = self.ready or everyone_tried
        self._changes.log(fleet)

    def _report(self, polled: _Polled, reports: dict[str, TargetReport], at: float) -> TargetReport:
        name = polled.target.name
        report = reports.get(name) or TargetReport(name, None, "warming_up", None, None, None)
        return replace(
            report,
            url=polled.target.url,
            labels=polled.target.labels,
            last_error=polled.error or report.last_error,
            last_success_age_seconds=None if polled.succeeded_at is None else at - polled.succeeded_at,
            scrape_seconds=polled.seconds,
            scrape_failures=dict(polled.failures),
        )

    def _round(self, fleet: Fleet | None) -> Round:
        return Round(fleet, self.settings.objectives, __version__, self._wall_offset, self._loaded_at)


def _scraper(target: Target, section: TargetSection, config: Config) -> Scraper:
    return Scraper(
        target,
        connect_timeout=config.scrape.connect_timeout,
        read_timeout=config.scrape.read_timeout,
        total_timeout=config.scrape.total_timeout,
        max_bytes=config.scrape.max_bytes,
        bearer_token_file=section.bearer_token_file,
        ca_file=section.tls.ca_file,
    )


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """APScheduler plans by the wall clock: when that is set back, its jobs would stand still until it caught up."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float], interval: float) -> None:
        super().__init__(
            timezone=UTC,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": max(1, round(interval))},
        )
        self._clock, self._wall = clock, wall
        self._offset = wall() - clock()
        self._first = datetime.fromtimestamp(wall(), UTC)

    def every(self, interval: float, offset: float, job: Callable[..., None], *arguments: object) -> None:
        start = self._first + timedelta(seconds=offset)
        self.add_job(job, "interval", arguments, seconds=interval, start_date=start, next_run_time=start)

    def _process_jobs(self) -> float | None:
        back = self._offset - (self._wall() - self._clock())
        if abs(back) > _CLOCK_STEP:
            self._offset -= back
            for job in self.get_jobs():
                job.modify(next_run_time=job.next_run_time - timedelta(seconds=back))
        waited: float | None = super()._process_jobs()
        return waited
