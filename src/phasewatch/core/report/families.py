"""Fleet -> metric families for /metrics, one for each row of measure_table and status_table.

Built afresh from one Fleet, so nothing outlives the engine it belongs to. Absent is not zero: what is unknown, not a
number, or frozen (an engine whose last page failed) has no series. An empty label is left out, which Prometheus reads
as the same.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from phasewatch.core.durations import format_duration
from phasewatch.core.model import EngineReport, Fleet
from phasewatch.core.report.document import encodable, engine_order, missing_everywhere, model_order
from phasewatch.core.report.measure_table import NOW_ROWS, WINDOW_ROWS, Row, Windowed, with_estimator
from phasewatch.core.report.status_table import (
    ENGINE_ROWS,
    LIMIT_ROWS,
    MODEL_STATE_ROWS,
    SERVICE_ROWS,
    STATE_ROWS,
    TARGET_ROWS,
    VERDICT_ROWS,
    Judged,
    Polled,
    Service,
)
from phasewatch.core.settings import Objectives, Settings

T = TypeVar("T")
Labels = Mapping[str, str]

PREFIX = "phasewatch_"
MODEL_PREFIX = f"{PREFIX}model_"
_KINDS = (("_total", "counter"), ("_info", "info"), ("", "gauge"))
UNITS: tuple[str, ...] = ("seconds", "ratio")

# States whose numbers are of now. All others show their state only: a number would stand still and look true.
_CURRENT = frozenset({"serving", "idle", "warming_up", "asleep"})
# A gauge above this is a creation time read as a value, or a division by almost nothing; only `_timestamp_` may be.
_LARGEST = 1e9

ENGINE_TABLES: tuple[Row[Any], ...] = (*STATE_ROWS, *WINDOW_ROWS, *NOW_ROWS, *VERDICT_ROWS, *ENGINE_ROWS)
MODEL_TABLES: tuple[Row[Any], ...] = (*MODEL_STATE_ROWS, *WINDOW_ROWS, *NOW_ROWS, *VERDICT_ROWS)
OTHER_TABLES: tuple[Row[Any], ...] = (*SERVICE_ROWS, *TARGET_ROWS, *LIMIT_ROWS)

# Labels that a target may not bring: Prometheus' own, and ours.
RESERVED_LABELS: frozenset[str] = frozenset(
    {"instance", "job", "quantile", "le", "target", "model_name", "engine", "window"}
).union(*(row.labels for row in (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES)))
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def families(
    fleet: Fleet | None,
    *,
    settings: Settings,
    version: str,
    wall_offset: float = 0.0,
) -> Iterator[Metric]:
    """Every family that has a series, in the order of the tables.

    fleet: None before the first evaluation. settings: those it was judged by. wall_offset: seconds that turn
    the fleet's clock into Unix time.
    """
    service = Service(version, None if fleet is None else fleet.at + wall_offset)
    yield from _families(PREFIX, SERVICE_ROWS, [({}, service)])
    if fleet is not None:
        yield from _targets(fleet, wall_offset)
        yield from _limits(fleet, settings.objectives)
        of_engines = _engines(fleet, settings.objectives, wall_offset)
        for family in (*of_engines, *_models(fleet, settings.objectives, wall_offset)):
            family.documentation = with_estimator(family.documentation, settings.estimator)
            yield family


def window_label(seconds: float) -> str:
    """Seconds up to two minutes ("60s", "90s"), then as durations are written ("5m", "1h")."""
    return f"{seconds:g}s" if seconds < 120 else format_duration(seconds)


def _targets(fleet: Fleet, wall_offset: float) -> Iterator[Metric]:
    targets = [
        (_labels(report.labels, target=report.target), Polled(report, fleet.at + wall_offset))
        for report in sorted(fleet.targets, key=lambda report: report.target)
    ]
    yield from _families(PREFIX, TARGET_ROWS, targets)


def _limits(fleet: Fleet, objectives: Objectives) -> Iterator[Metric]:
    names = sorted({report.key.model_name for report in fleet.engines} | {report.model_name for report in fleet.models})
    yield from _families(PREFIX, LIMIT_ROWS, [(_labels({}, model_name=name), objectives.of(name)) for name in names])


def _engines(fleet: Fleet, objectives: Objectives, wall_offset: float) -> Iterator[Metric]:
    brought = {report.target: report.labels for report in fleet.targets}
    engines = [
        (_labels(brought.get(report.key.target, {}), **report.key._asdict(), role=report.role), report)
        for report in sorted(fleet.engines, key=engine_order)
    ]
    yield from _families(PREFIX, STATE_ROWS, engines)
    current = [
        (labels, Judged(report, objectives.of(report.key.model_name), wall_offset), report.missing)
        for labels, report in engines
        if report.state in _CURRENT
    ]
    yield from _reports(PREFIX, current, (*VERDICT_ROWS, *ENGINE_ROWS))


def _models(fleet: Fleet, objectives: Objectives, wall_offset: float) -> Iterator[Metric]:
    models = [
        (_labels({}, model_name=report.model_name, role=report.role), report)
        for report in sorted(fleet.models, key=model_order)
    ]
    yield from _families(MODEL_PREFIX, MODEL_STATE_ROWS, models)
    current = [
        (
            labels,
            Judged(report, objectives.of(report.model_name), wall_offset),
            missing_everywhere(report, fleet.engines),
        )
        for labels, report in models
        if any(report.engines.get(state) for state in _CURRENT)
    ]
    yield from _reports(MODEL_PREFIX, current, VERDICT_ROWS)


def _reports(
    prefix: str, reports: Sequence[tuple[Labels, Judged, tuple[str, ...]]], rows: Iterable[Row[Judged]]
) -> Iterator[Metric]:
    """The families of engines or models that are current; each with the signals it lacks."""
    windows: list[tuple[Labels, Windowed]] = []
    now: list[tuple[Labels, Windowed]] = []
    for labels, judged, missing in reports:
        of_report = [(seconds, Windowed(numbers, missing)) for seconds, numbers in judged.report.windows.items()]
        windows += [({**labels, "window": window_label(seconds)}, windowed) for seconds, windowed in of_report]
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


def _families(prefix: str, rows: Iterable[Row[T]], subjects: Sequence[tuple[Labels, T]]) -> Iterator[Metric]:
    for row in rows:
        family = _family(prefix, row)
        for labels, subject in subjects:
            for values, value in row.samples(subject):
                if value is not None and _exportable(row.name, value):
                    own = dict(zip(row.labels, values, strict=True))
                    family.samples.append(Sample(f"{prefix}{row.name}", {**labels, **own}, float(value)))
        if family.samples:
            yield family


def _family(prefix: str, row: Row[T]) -> Metric:
    suffix, kind = next(one for one in _KINDS if row.name.endswith(one[0]))
    name = row.name.removesuffix(suffix)
    unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")
    return Metric(f"{prefix}{name}", row.help, kind, unit)


def _exportable(name: str, value: float) -> bool:
    return math.isfinite(value) and (value < _LARGEST or name.endswith(("_timestamp_seconds", "_total")))
