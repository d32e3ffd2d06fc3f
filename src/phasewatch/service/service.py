"""The rounds of `serve`: scrape every target once an interval, judge once an interval, keep the last Fleet.

The Poller asks the targets; one lock guards the Watcher. Readers take `round`, which is replaced by one assignment.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.schedulers.background import BackgroundScheduler

from phasewatch import __version__
from phasewatch.core.model import Fleet, TargetReport
from phasewatch.core.watch import Watcher
from phasewatch.service.changes import Changes
from phasewatch.service.config_sections import Config, TargetSection
from phasewatch.service.poller import Poller, offsets
from phasewatch.service.round import Round
from phasewatch.sources.http import Scraper, our_fault
from phasewatch.sources.polled import Outcome, Polled
from phasewatch.sources.target import Target

# This part of the interval after the last target was asked, a round is judged: one that is well has answered.
_ANSWER_TIME = 0.1
# A wall clock that is off by more has been set; less is drift, and `since` should not tremble with it.
_CLOCK_STEP = 1.0
# Without a successful evaluation for so many intervals, what is served is no longer of now.
UNREADY_INTERVALS = 3

log = structlog.get_logger("phasewatch")


class Service:
    """Watches the targets of a configuration between start() and stop().

    clock: seconds that never jump; all pages and evaluations are on it. wall: Unix time, only shown.
    """

    def __init__(
        self, config: Config, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.config = config
        self.settings = config.settings()
        self._clock, self._wall = clock, wall
        self._wall_offset = wall() - clock()
        self._polled = [
            Polled(target, _scraper(target, section, config), clock) for target, section in _targets(config)
        ]
        targets = [polled.target for polled in self._polled]
        self._watcher = Watcher(self.settings, {target.name: target.role for target in targets if target.role})
        self._lock = threading.Lock()
        self._changes = Changes(log)
        interval = config.scrape.interval
        self._poller = Poller(
            [polled.scraper for polled in self._polled],
            self._scrape,
            interval,
            spread=interval,
            left_out=self._left_out,
        )
        self._everyone_tried = False
        self._evaluated_at: float | None = None
        self._failing = False  # the evaluation itself
        self._internal_errors: Counter[str] = Counter()  # by target
        self._scheduler: _Scheduler | None = None
        self.round = self._round(None)

    @property
    def fleet(self) -> Fleet | None:
        """The last evaluation, None before the first."""
        return self.round.fleet

    @property
    def unready(self) -> str | None:
        """Why nobody should ask here, in one line; None when ready."""
        if not self._everyone_tried or self._evaluated_at is None:
            return "phasewatch waits for its first round of scrapes."
        age = self._clock() - self._evaluated_at
        if age <= UNREADY_INTERVALS * self.config.scrape.interval:
            return None
        return f"phasewatch has had no successful evaluation for {age:.0f} s, three intervals or more; see its log."

    def start(self) -> None:
        """Begins at once and returns. A second call does nothing."""
        if self._scheduler is not None:
            return
        interval = self.config.scrape.interval
        self._scheduler = _Scheduler(self._clock, self._wall, interval)
        last_asked = max(offsets(len(self._polled), interval), default=0.0)
        self._scheduler.every(interval, last_asked + _ANSWER_TIME * interval, self._evaluate)
        self._poller.start()
        self._scheduler.start()

    def stop(self) -> None:
        """Ends within seconds, whatever the targets do: scrapes under way are cut off. A second call does nothing."""
        if self._scheduler is None:
            return
        self._scheduler.shutdown(wait=False)
        self._scheduler = None
        self._poller.stop()

    def _scrape(self, index: int) -> None:
        polled = self._polled[index]
        try:
            self._take(polled, polled.scrape())
        except Exception as error:  # a mistake of ours must not end the round, nor cost other targets
            log.exception("scrape went wrong", target=polled.target.name)
            fault = our_fault(polled.target, error)
            self._take(polled, polled.failed(fault.reason, fault.message))

    def _left_out(self, index: int, _: int) -> None:
        polled = self._polled[index]
        message = f"{polled.target.url}: the scrape before is still running; use a longer interval"
        self._take(polled, polled.failed("busy", message))

    def _take(self, polled: Polled, outcome: Outcome) -> None:
        with self._lock:
            polled.take(outcome, self._watcher)

    def _evaluate(self) -> None:
        try:
            self._judge()
        except Exception:  # a mistake of ours in all of it: the next round may do better
            if not self._failing:
                log.exception("evaluation failed; please report this")
            self._failing = True
        else:
            if self._failing:
                log.info("evaluation works again")
            self._failing = False

    def _judge(self) -> None:
        at = self._clock()
        offset = self._wall() - at
        if abs(offset - self._wall_offset) > _CLOCK_STEP:
            self._wall_offset = offset
        with self._lock:
            fleet = self._watcher.evaluate(at)
            reports = {report.target: report for report in fleet.targets}
            self._internal_errors.update(engine.key.target for engine in fleet.engines if engine.fault is not None)
            told = tuple(self._told(polled, reports, at) for polled in self._polled)
            fleet = replace(fleet, targets=told)
            self._everyone_tried = self._everyone_tried or all(polled.tried for polled in self._polled)
        self.round = self._round(fleet)
        self._evaluated_at = at
        self._changes.log(fleet)

    def _told(self, polled: Polled, reports: Mapping[str, TargetReport], at: float) -> TargetReport:
        name = polled.target.name
        return replace(polled.told(reports.get(name), at), internal_errors=self._internal_errors[name])

    def _round(self, fleet: Fleet | None) -> Round:
        return Round(fleet, self.settings, __version__, self._wall_offset)


def _targets(config: Config) -> list[tuple[Target, TargetSection]]:
    return [(section.target(), section) for section in config.targets]


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
