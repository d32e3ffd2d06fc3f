"""Fleet -> metric families for /metrics, one for each row of measure_table and status_table.

Built afresh from one Fleet, so nothing outlives the engine it belongs to. Absent is not zero: what is unknown, not a
number, or frozen (an engine whose last page failed) has no series. An empty label is left out, which Prometheus reads
as the same.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Any, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from phasewatch.core.durations import format_duration
from phasewatch.core.model import EngineReport, Fleet
from phasewatch.core.report.document import encodable, engine_order, missing_everywhere, model_order
from phasewatch.core.report.measure_table import NOW_ROWS, WINDOW_ROWS, One, SeriesRow, Windowed, with_estimator
from phasewatch.core.report.status_table import (
    ENGINE_ROWS,
    LIMIT_ROWS,
    MODEL_STATE_ROWS,
    SERVICE_ROWS,
    STATE_ROWS,
    TARGET_ROWS,
    VERDICT_ROWS,
    JudgedReport,
    PolledTarget,
    ServiceStatus,
)
from phasewatch.core.settings import Objectives, Settings

T = TypeVar("T")
Labels = Mapping[str, str]

PREFIX = "phasewatch_"
MODEL_PREFIX = f"{PREFIX}model_"
_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": ""}
UNITS: tuple[str, ...] = ("seconds", "ratio")

# States whose numbers are of now. All others show their state only: a number would stand still and look true.
_CURRENT = frozenset({"serving", "idle", "warming_up", "asleep"})
_LARGEST = 1e9

ENGINE_TABLES: tuple[SeriesRow[Any], ...] = (*STATE_ROWS, *WINDOW_ROWS, *NOW_ROWS, *VERDICT_ROWS, *ENGINE_ROWS)
MODEL_TABLES: tuple[SeriesRow[Any], ...] = (*MODEL_STATE_ROWS, *WINDOW_ROWS, *NOW_ROWS, *VERDICT_ROWS)
OTHER_TABLES: tuple[SeriesRow[Any], ...] = (*SERVICE_ROWS, *TARGET_ROWS, *LIMIT_ROWS)

# Labels that a target may not bring: Prometheus' own, and ours.
RESERVED_LABELS: frozenset[str] = frozenset(
    {"instance", "job", "quantile", "le", "target", "model_name", "engine", "window"}
).union(*(row.labels for row in (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES)))
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(slots=True)
class LabelSet:
    """Labels of one engine, model or target (and window), shared by all its series; they are written out once."""

    labels: Labels
    plain: str = field(init=False)  # all that there are where a series has none of its own
    _written: dict[tuple[str, ...], Callable[[tuple[str, ...]], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = self._writer(())(())

    def text(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        """All labels in the order of their names, as a page shows them; names, values: those of one series alone."""
        write = self._written.get(names)
        if write is None:
            write = self._written[names] = self._writer(names)
        return write(values)

    def _writer(self, names: tuple[str, ...]) -> Callable[[tuple[str, ...]], str]:
        shown = {name: _escaped(value).replace("%", "%%") for name, value in self.labels.items()}
        shown |= dict.fromkeys(names, "%s")
        template = ",".join(f'{name}="{shown[name]}"' for name in sorted(shown))
        template = f"{{{template}}}" if shown else ""
        if not names:
            whole = template % ()
            return lambda _: whole
        order = sorted(range(len(names)), key=names.__getitem__)
        return lambda values: template % tuple([_escaped(values[at]) for at in order])


@dataclass(frozen=True, slots=True)
class SeriesFamily:
    """All series of one name. samples: shared labels, values of the series' own labels `names`, value."""

    name: str
    kind: str
    unit: str
    help: str
    names: tuple[str, ...]
    samples: Sequence[tuple[LabelSet, tuple[str, ...], float]]

    @property
    def base(self) -> str:
        """The name without the suffix that its kind brings."""
        return self.name.removesuffix(_SUFFIXES[self.kind])


def metrics(found: Iterable[SeriesFamily]) -> Iterator[Metric]:
    """The families as prometheus_client's encoders take them."""
    for family in found:
        metric = Metric(family.base, family.help, family.kind, family.unit)
        metric.samples = [
            Sample(family.name, {**shared.labels, **dict(zip(family.names, values, strict=True))}, value)
            for shared, values, value in family.samples
        ]
        yield metric


def families(
    fleet: Fleet | None,
    *,
    settings: Settings,
    version: str,
    wall_offset: float = 0.0,
) -> Iterator[SeriesFamily]:
    """Every family that has a series, in the order of the tables.

    fleet: None before the first evaluation. settings: those it was judged by. wall_offset: seconds that turn
    the fleet's clock into Unix time.
    """
    service = ServiceStatus(version, None if fleet is None else fleet.at + wall_offset)
    yield from _families(PREFIX, SERVICE_ROWS, [(LabelSet({}), service)])
    if fleet is not None:
        yield from _targets(fleet, wall_offset)
        yield from _limits(fleet, settings.objectives)
        of_engines = _engines(fleet, settings.objectives, wall_offset)
        for family in (*of_engines, *_models(fleet, settings.objectives, wall_offset)):
            yield replace(family, help=with_estimator(family.help, settings.estimator))


def window_label(seconds: float) -> str:
    """Seconds up to two minutes ("60s", "90s"), then as durations are written ("5m", "1h")."""
    return f"{seconds:g}s" if seconds < 120 else format_duration(seconds)


def _targets(fleet: Fleet, wall_offset: float) -> Iterator[SeriesFamily]:
    targets = [
        (LabelSet(_labels(report.labels, target=report.target)), PolledTarget(report, fleet.at + wall_offset))
        for report in sorted(fleet.targets, key=lambda report: report.target)
    ]
    yield from _families(PREFIX, TARGET_ROWS, targets)


def _limits(fleet: Fleet, objectives: Objectives) -> Iterator[SeriesFamily]:
    names = sorted({report.key.model_name for report in fleet.engines} | {report.model_name for report in fleet.models})
    limits = [(LabelSet(_labels({}, model_name=name)), objectives.of(name)) for name in names]
    yield from _families(PREFIX, LIMIT_ROWS, limits)


def _engines(fleet: Fleet, objectives: Objectives, wall_offset: float) -> Iterator[SeriesFamily]:
    brought = {report.target: report.labels for report in fleet.targets}
    engines = [
        (LabelSet(_labels(brought.get(report.key.target, {}), **report.key._asdict(), role=report.role)), report)
        for report in sorted(fleet.engines, key=engine_order)
    ]
    yield from _families(PREFIX, STATE_ROWS, engines)
    current = [
        (labels, JudgedReport(report, objectives.of(report.key.model_name), wall_offset), report.missing)
        for labels, report in engines
        if report.state in _CURRENT
    ]
    yield from _reports(PREFIX, current, (*VERDICT_ROWS, *ENGINE_ROWS))


def _models(fleet: Fleet, objectives: Objectives, wall_offset: float) -> Iterator[SeriesFamily]:
    models = [
        (LabelSet(_labels({}, model_name=report.model_name, role=report.role)), report)
        for report in sorted(fleet.models, key=model_order)
    ]
    yield from _families(MODEL_PREFIX, MODEL_STATE_ROWS, models)
    current = [
        (
            labels,
            JudgedReport(report, objectives.of(report.model_name), wall_offset),
            missing_everywhere(report, fleet.engines),
        )
        for labels, report in models
        if any(report.engines.get(state) for state in _CURRENT)
    ]
    yield from _reports(MODEL_PREFIX, current, VERDICT_ROWS)


def _reports(
    prefix: str,
    reports: Sequence[tuple[LabelSet, JudgedReport, tuple[str, ...]]],
    rows: Iterable[SeriesRow[JudgedReport]],
) -> Iterator[SeriesFamily]:
    """The families of engines or models that are current; each with the signals it lacks."""
    windows: list[tuple[LabelSet, Windowed]] = []
    now: list[tuple[LabelSet, Windowed]] = []
    for labels, judged, missing in reports:
        of_report = [(seconds, Windowed(numbers, missing)) for seconds, numbers in judged.report.windows.items()]
        windows += [
            (LabelSet({**labels.labels, "window": window_label(seconds)}), windowed) for seconds, windowed in of_report
        ]
        # A scheduler that trusts frozen gauges would never send work again.
        if not (isinstance(judged.report, EngineReport) and judged.report.gauges_stale):
            now += [(labels, windowed) for _, windowed in of_report[:1]]
    yield from _families(prefix, WINDOW_ROWS, windows)
    yield from _families(prefix, NOW_ROWS, now)
    yield from _families(prefix, rows, [(labels, judged) for labels, judged, _ in reports])


def _labels(brought: Labels, **own: str | None) -> dict[str, str]:
    """Our labels over the ones a target brings."""
    kept = {k: v for k, v in brought.items() if k not in RESERVED_LABELS and _LABEL_NAME.fullmatch(k)}
    return {k: encodable(v) for k, v in (kept | own).items() if v}


def _families(
    prefix: str, rows: Iterable[SeriesRow[T]], subjects: Sequence[tuple[LabelSet, T]]
) -> Iterator[SeriesFamily]:
    for row in rows:
        # A gauge above this is a creation time read as a value, or a division by almost nothing.
        most = inf if row.name.endswith(("_timestamp_seconds", "_total")) else _LARGEST
        if isinstance(row.samples, One):
            read = row.samples.read
            samples: list[tuple[LabelSet, tuple[str, ...], float]] = [
                (labels, (), float(value))
                for labels, subject in subjects
                if (value := read(subject)) is not None and -inf < value < most
            ]
        else:
            samples = [
                (labels, values, float(value))
                for labels, subject in subjects
                for values, value in row.samples(subject)
                if value is not None and -inf < value < most
            ]
        if samples:
            kind = next(kind for kind, suffix in _SUFFIXES.items() if row.name.endswith(suffix))
            unit = next((unit for unit in UNITS if row.name.removesuffix(_SUFFIXES[kind]).endswith(f"_{unit}")), "")
            yield SeriesFamily(f"{prefix}{row.name}", kind, unit, row.help, row.labels, samples)


@lru_cache(4096)  # label values repeat; those of targets and models may come and go
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
