"""A target as its scrapes go: each brings a page or a reason, and a report tells how the last ones went."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from phasewatch.core.model import Anomaly, Page, TargetReport
from phasewatch.core.pages.exposition import ExpositionError, PageReader
from phasewatch.core.watch import Watcher
from phasewatch.sources.http import REASONS, ScrapeError, Scraper
from phasewatch.sources.target import Target

# Of the largest page that is read: time to raise the limit, or to ask what makes the page grow.
_NEAR = 0.8


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scrape: a page, or why there is none. at: when it began. error: one line that says more than the reason."""

    at: float
    seconds: float
    page: Page | None
    reason: str = ""
    error: str = ""


class Polled:
    """One target, its Scraper and what became of its scrapes. Only `scrape` may run beside the other methods."""

    def __init__(self, target: Target, scraper: Scraper, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds of the pages."""
        self.target, self.scraper = target, scraper
        self.tried = False
        self.error: str | None = None
        self.seconds: float | None = None
        self.succeeded_at: float | None = None
        # At zero from the start, so that a first increase shows.
        self.failures: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._clock = clock
        self._reader = PageReader()

    def scrape(self) -> Outcome:
        """A page, parsed; never raises for what the server may do."""
        at = self._clock()
        try:
            answer = self.scraper.fetch()
            page = self._reader.read(answer.text, at=at, content_type=answer.content_type)
            if answer.size > _NEAR * self.scraper.max_bytes:
                text = f"the response has {answer.size:,} of at most {self.scraper.max_bytes:,} bytes"
                page = replace(page, anomalies=(*page.anomalies, Anomaly("page_size", 1, text)))
            return Outcome(at, answer.seconds, page)
        except ScrapeError as error:
            return self.failed(error.reason, error.message, at)
        except ExpositionError as error:
            return self.failed("not_metrics", f"{self.target.url}: {error}", at)

    def failed(self, reason: str, error: str, at: float | None = None) -> Outcome:
        """The outcome of a scrape that began at `at`, by default now."""
        now = self._clock()
        return Outcome(now if at is None else at, 0.0 if at is None else now - at, None, reason, error)

    def take(self, outcome: Outcome, watcher: Watcher) -> None:
        """Remembers how the scrape went, and hands the watcher what it brought."""
        self.tried = True
        if outcome.page is None:
            self.error, self.seconds = outcome.error, None
            self.failures[outcome.reason] += 1
            watcher.failure(self.target.name, outcome.at, outcome.reason)
        else:
            self.error, self.seconds, self.succeeded_at = None, outcome.seconds, outcome.at
            watcher.page(self.target.name, outcome.page)

    def told(self, report: TargetReport | None, at: float) -> TargetReport:
        """The report with what only the scrapes know; of a target that was never heard of, without one."""
        report = report or TargetReport(self.target.name, None, "warming_up", None, None, None)
        return replace(
            report,
            url=self.target.url,
            labels=self.target.labels,
            last_error=self.error or report.last_error,
            last_success_age_seconds=None if self.succeeded_at is None else at - self.succeeded_at,
            scrape_seconds=self.seconds,
            scrape_timeout_seconds=self.scraper.total_timeout,
            scrape_failures=dict(self.failures),
        )
