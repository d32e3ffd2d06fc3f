"""A recording -> the series that phasewatch would have exported, as OpenMetrics text with a timestamp on each sample.

For `promtool tsdb create-blocks-from openmetrics`, so that dashboards and rules can be tried on a recorded incident. A
backfilled series has no stale marker: where it ends, Prometheus shows its last value for the lookback of 5 minutes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from phasewatch import __version__
from phasewatch.core.model import Fleet
from phasewatch.core.report.families import families, metrics
from phasewatch.core.settings import Settings


@dataclass
class Backfill(Collector):
    """Families of many pages, each once; a series' samples together and in the order of time, as the format asks."""

    _families: dict[str, Metric] = field(default_factory=dict)
    _series: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[Sample]]] = field(default_factory=dict)

    def add(self, page: Iterable[Metric], unix: float) -> None:
        """One page as scraped at that Unix time; pages come in the order of time."""
        for family in page:
            self._families.setdefault(family.name, family)
            series = self._series.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                series.setdefault(key, []).append(sample._replace(timestamp=unix))

    def collect(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            whole = Metric(name, family.documentation, family.type, family.unit)
            whole.samples = [sample for samples in self._series[name].values() for sample in samples]
            yield whole

    def text(self) -> str:
        page: bytes = generate_latest(self)  # type: ignore[no-untyped-call]
        return page.decode()


def print_series(fleets: Iterable[Fleet], out: TextIO, settings: Settings, wall_offset: float) -> None:
    """The text for fleets judged by these settings. wall_offset: seconds that turn their clock into Unix time."""
    written = Backfill()
    for fleet in fleets:
        page = families(fleet, settings=settings, version=__version__, wall_offset=wall_offset)
        written.add(metrics(page), fleet.at + wall_offset)
    print(written.text(), end="", file=out, flush=True)
