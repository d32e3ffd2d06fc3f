"""One evaluation as it is handed out: each page of it is rendered once, at the first request for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phasewatch.core.model import Fleet
from phasewatch.core.report.document import SCHEMA, document
from phasewatch.core.report.families import SeriesFamily, families, metrics
from phasewatch.core.settings import Settings
from phasewatch.service.metrics_page import metrics_page
from phasewatch.sources.pages import OPENMETRICS

# Content types are few; a client that makes up others gets its page, but no place in memory.
_MOST_PAGES = 8


@dataclass
class Round(Collector):
    """fleet: None before the first evaluation. wall_offset: seconds that turn the fleet's clock into Unix time."""

    fleet: Fleet | None
    settings: Settings
    version: str
    wall_offset: float
    _pages: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The diagnosis document, in Unix time; its lists are empty before the first evaluation."""
        if self.fleet is None:
            return {"schema": SCHEMA, "at": None, "window_seconds": None, "engines": [], "models": [], "targets": []}
        return document(self.fleet, wall_offset=self.wall_offset)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """(page, content type) for an Accept header: text 0.0.4, text 1.0.0 or OpenMetrics."""
        try:
            encode, content_type = exposition.choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is not a number
            encode, content_type = exposition.choose_encoder("")
        page = self._pages.get(content_type)
        if page is None:
            openmetrics = content_type.startswith(OPENMETRICS)
            # Underscores in names as they are; the other escapings, which nobody is known to ask for, change them.
            plain = not content_type.endswith(("escaping=dots", "escaping=values"))
            page = metrics_page(self._families(), openmetrics=openmetrics) if plain else encode(self)
            if len(self._pages) < _MOST_PAGES:
                self._pages[content_type] = page
        return page, content_type

    def collect(self) -> Iterator[Metric]:
        """The families, as prometheus_client's encoders ask for them."""
        return metrics(self._families())

    def _families(self) -> Iterator[SeriesFamily]:
        return families(self.fleet, settings=self.settings, version=self.version, wall_offset=self.wall_offset)
