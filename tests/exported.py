"""What a Fleet of the tests exports, as a collector and as plain series."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fleets import WALL_OFFSET
from phasewatch.core.model import Fleet
from phasewatch.core.report.families import families, metrics
from phasewatch.core.settings import Objectives, Settings

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Exported(Collector):
    """What the web server will wrap: families built anew at each collection."""

    def __init__(self, shown: Fleet | None, objectives: Objectives | None = None) -> None:
        self.shown = shown
        self.objectives = objectives or Objectives()

    def collect(self) -> Iterator[Metric]:
        return metrics(
            families(
                self.shown,
                settings=Settings(objectives=self.objectives),
                version="1.2.3",
                wall_offset=WALL_OFFSET,
            )
        )


def series(shown: Fleet | None, objectives: Objectives | None = None) -> Series:
    """Every series by name (without prefix) and labels; a series that is there twice fails."""
    found: Series = {}
    for family in Exported(shown, objectives).collect():
        for sample in family.samples:
            key = (sample.name.removeprefix("phasewatch_"), frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def values(shown: Fleet | None, name: str, objectives: Objectives | None = None, **labels: str) -> list[float]:
    """The values of the series of that name that carry these labels."""
    return [v for (n, of), v in series(shown, objectives).items() if n == name and labels.items() <= dict(of).items()]


def names(shown: Fleet | None) -> set[str]:
    return {name for name, _ in series(shown)}
