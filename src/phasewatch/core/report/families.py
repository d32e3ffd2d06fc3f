"""Fleet -> metric families for /metrics, one for each row of measure_table and status_table.

Values are those of one Fleet; only labels, and texts that repeat, are kept between rounds. Absent is not zero: what is
unknown, not a number, or frozen (an engine whose last page failed) has no series. An empty label is left out, which
Prometheus reads as the same.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import inf
from typing import Any, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from phasewatch.core.durations import format_duration
from phasewatch.core.model import EngineReport, Fleet
from phasewatch.core.report.document import encodable, engine_order, missing_everywhere, model_order
from phasewatch.core.report.measure_table import (
    NOW_ROWS,
    WINDOW_ROWS,
    ClosedSet,
    One,
    Samples,
    SeriesRow,
    Windowed,
    with_estimator,
)
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
OwnSample = tuple[tuple[str, ...], float]

PREFIX = "phasewatch_"
MODEL_PREFIX = f"{PREFIX}model_"
_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": ""}
UNITS: tuple[str, ...] = ("seconds", "ratio")

# States whose numbers are of now. All others show their state only: a number would stand still and look true.
_CURRENT = frozenset({"serving", "idle", "warming_up", "asleep"})
_LARGEST = 1e9

_in_go: Callable[[float], str] = floatToGoString
PLAIN = 1e6  # from here on Go writes an exponent where Python does not

ENGINE_TABLES: tuple[SeriesRow[Any], ...] = (*STATE_ROWS, *WINDOW_ROWS, *NOW_ROWS, *VERDICT_ROWS, *ENGINE_ROWS)
MODEL_TABLES: tuple[SeriesRow[Any], ...] = (*MODEL_STATE_ROWS, *WINDOW_ROWS, *NOW_ROWS, *VERDICT_ROWS)
OTHER_TABLES: tuple[SeriesRow[Any], ...] = (*SERVICE_ROWS, *TARGET_ROWS, *LIMIT_ROWS)

# Labels that a target may not bring: Prometheus' own, and ours.
RESERVED_LABELS: frozenset[str] = frozenset(
    {"instance", "job", "quantile", "le", "target", "model_name", "engine", "window"}
).union(*(row.labels for row in (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES)))
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class LabelSet:
    """Labels of one engine, model or target (and window), shared by all its series; they are written out once.

    plain: all that there are where a series has none of its own.
    """

    __slots__ = ("_known", "_templates", "labels", "plain")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._templates: dict[tuple[str, ...], tuple[str, Sequence[int]]] = {}
        # By family: what was written last, and how. Most series with labels of their own are states, or counts of
        # what happens seldom: they say the same again and again.
        self._known: dict[str, tuple[Sequence[OwnSample], str]] = {}
        self.plain = self._template(())[0] % ()

    def lines(self, name: str, names: tuple[str, ...], samples: Sequence[OwnSample]) -> str:
        """The lines of these samples of one family, with all labels in the order of their names."""
        known = self._known.get(name)
        if known is not None and (known[0] is samples or known[0] == samples):
            return known[1]
        template, order = self._template(names)
        text = "\n".join(
            [
                f"{name}{template % tuple([_escaped(values[at]) for at in order])} {number(value)}"
                for values, value in samples
            ]
        )
        self._known[name] = samples, text
        return text

    def _template(self, names: tuple[str, ...]) -> tuple[str, Sequence[int]]:
        """Where to put the values of the labels `names`, and in which order."""
        known = self._templates.get(names)
        if known is None:
            shown = {name: _escaped(value).replace("%", "%%") for name, value in self.labels.items()}
            shown |= dict.fromkeys(names, "%s")
            template = ",".join(f'{name}="{shown[name]}"' for name in sorted(shown))
            known = f"{{{template}}}" if shown else "", sorted(range(len(names)), key=names.__getitem__)
            self._templates[names] = known
        return known


def _label_set(labels: Labels) -> LabelSet:
    return _kept_label_set(tuple(labels.items()))


@lru_cache(16384)
def _kept_label_set(labels: tuple[tuple[str, str], ...]) -> LabelSet:
    """From round to round, and of an engine that is gone until others take its place."""
    return LabelSet(dict(labels))


def number(value: float) -> str:
    """A number as prometheus_client writes it."""
    return repr(value) if value < PLAIN else _in_go(value)


@dataclass(frozen=True, slots=True)
class SeriesFamily:
    """All series of one name: each engine's, model's or target's, under the labels that they share.

    alone: (labels, value) of a family without labels of its own; parts: (labels, samples) of one that has `names`, a
    sample being (values of these labels, value).
    """

    name: str
    kind: str
    unit: str
    help: str
    names: tuple[str, ...]
    alone: Sequence[tuple[LabelSet, float]] = ()
    parts: Sequence[tuple[LabelSet, Sequence[OwnSample]]] = ()

    @property
    def base(self) -> str:
        """The name without the suffix that its kind brings."""
        return self.name.removesuffix(_SUFFIXES[self.kind])

    def samples(self) -> Iterator[tuple[LabelSet, tuple[str, ...], float]]:
        """Shared labels, values of the series' own labels, value."""
        yield from ((labels, (), value) for labels, value in self.alone)
        yield from ((labels, *sample) for labels, samples in self.parts for sample in samples)


def metrics(found: Iterable[SeriesFamily]) -> Iterator[Metric]:
    """The families as prometheus_client's encoders take them."""
    for family in found:
        metric = Metric(family.base, family.help, family.kind, family.unit)
        metric.samples = [
            Sample(family.name, {**shared.labels, **dict(zip(family.names, values, strict=True))}, value)
            for shared, values, value in family.samples()
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
    windows = {window_label(seconds): seconds for seconds in settings.windows}
    service = ServiceStatus(version, None if fleet is None else fleet.at + wall_offset, windows)
    yield from _families(PREFIX, SERVICE_ROWS, [(_label_set({}), service)])
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
        (_label_set(_labels(report.labels, target=report.target)), PolledTarget(report, fleet.at + wall_offset))
        for report in sorted(fleet.targets, key=lambda report: report.target)
    ]
    yield from _families(PREFIX, TARGET_ROWS, targets)


def _limits(fleet: Fleet, objectives: Objectives) -> Iterator[SeriesFamily]:
    names = sorted({report.key.model_name for report in fleet.engines} | {report.model_name for report in fleet.models})
    limits = [(_label_set(_labels({}, model_name=name)), objectives.of(name)) for name in names]
    yield from _families(PREFIX, LIMIT_ROWS, limits)


def _engines(fleet: Fleet, objectives: Objectives, wall_offset: float) -> Iterator[SeriesFamily]:
    brought = {report.target: report.labels for report in fleet.targets}
    engines = [
        (_label_set(_labels(brought.get(report.key.target, {}), **report.key._asdict(), role=report.role)), report)
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
        (_label_set(_labels({}, model_name=report.model_name, role=report.role)), report)
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
            (_label_set({**labels.labels, "window": window_label(seconds)}), windowed)
            for seconds, windowed in of_report
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
        alone: list[tuple[LabelSet, float]] = []
        parts: list[tuple[LabelSet, Sequence[OwnSample]]] = []
        if isinstance(row.samples, One):
            read = row.samples.read
            alone = [
                (labels, float(value))
                for labels, subject in subjects
                if (value := read(subject)) is not None and -inf < value < most
            ]
        else:
            said = [(labels, row.samples(subject)) for labels, subject in subjects]
            parts = [(labels, kept) for labels, samples in said if (kept := _kept(samples, most))]
        if alone or parts:
            kind, unit = _kind_and_unit(row.name)
            yield SeriesFamily(f"{prefix}{row.name}", kind, unit, row.help, row.labels, alone, parts)


def _kept(samples: Samples, most: float) -> Sequence[OwnSample]:
    """What can be shown of them; the same object where they are an enum's."""
    if isinstance(samples, ClosedSet):
        return samples
    return [(values, float(value)) for values, value in samples if value is not None and -inf < value < most]


@cache
def _kind_and_unit(name: str) -> tuple[str, str]:
    kind = next(kind for kind, suffix in _SUFFIXES.items() if name.endswith(suffix))
    return kind, next((unit for unit in UNITS if name.removesuffix(_SUFFIXES[kind]).endswith(f"_{unit}")), "")


@lru_cache(4096)  # label values repeat; those of targets and models may come and go
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
