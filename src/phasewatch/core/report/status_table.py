"""Rows of measure_table's kind for what is no measurement: verdicts, objectives, states, targets, phasewatch itself."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from phasewatch.core.diagnosis.verdicts import REMEDIES, VERDICTS
from phasewatch.core.model import (
    ANOMALIES,
    CONFIDENCES,
    SEVERITIES,
    STATES,
    EngineReport,
    ModelReport,
    ObjectiveResult,
    TargetReport,
)
from phasewatch.core.report.measure_table import Samples, SeriesRow, enum, one
from phasewatch.core.settings import Limit, Limits


@dataclass(frozen=True, slots=True)
class JudgedReport:
    """An engine or a model with its limits. wall_offset: seconds from the fleet's clock to Unix time."""

    report: EngineReport | ModelReport
    limits: Limits
    wall_offset: float


@dataclass(frozen=True, slots=True)
class PolledTarget:
    """A target. at: Unix time of the evaluation."""

    report: TargetReport
    at: float

    @property
    def up(self) -> bool:
        return self.report.state not in ("stale", "down", "starting")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """phasewatch itself. evaluated_at: Unix time; None: nothing was evaluated. windows: seconds by label."""

    version: str
    evaluated_at: float | None
    windows: Mapping[str, float]


# --- verdicts and objectives -------------------------------------------------------------------------------------


def _scores(judged: JudgedReport) -> Samples:
    best: dict[str, float] = {}
    for cause in judged.report.causes:
        best[cause.verdict] = max(cause.score, best.get(cause.verdict, 0.0))
    return [((verdict,), score) for verdict, score in best.items()]


def _since(judged: JudgedReport) -> float | None:
    report = judged.report
    if not isinstance(report, EngineReport) or report.verdict is None or report.since is None:
        return None
    return report.since + judged.wall_offset


def _severities(limit: Limit) -> tuple[tuple[str, float], ...]:
    return ("warning", limit.warning), ("critical", limit.critical)


def _objectives(judged: JudgedReport) -> tuple[ObjectiveResult, ...]:
    """Of what serves now: an engine without traffic keeps no alert alive."""
    report = judged.report
    serving = report.state == "serving" if isinstance(report, EngineReport) else report.engines.get("serving")
    return report.objectives if serving else ()


def _judged(judged: JudgedReport) -> Iterator[tuple[tuple[str], float]]:
    for result in _objectives(judged):
        yield (result.objective,), float(result.judged)


def _missed(judged: JudgedReport) -> Iterator[tuple[tuple[str, str], float]]:
    """0 where the objective is met, nothing where it could not be judged."""
    for result in _objectives(judged):
        if result.judged:
            for severity in SEVERITIES:
                yield (result.objective, severity), float(result.severity in (severity, "critical"))


def _missed_surely(judged: JudgedReport) -> Iterator[tuple[tuple[str, str], float]]:
    """`surely` speaks of the warning limit; the critical one lies below the bucket's low edge as well."""
    results = {result.objective: result for result in _objectives(judged)}
    for (name, severity), missed in _missed(judged):
        result = results[name]
        if severity == "critical" and name != "itl_stall" and result.value is not None:
            missed *= result.value.low >= result.critical_seconds
        yield (name, severity), missed * result.surely


VERDICT_ROWS: tuple[SeriesRow[JudgedReport], ...] = (
    SeriesRow(
        "diagnosis",
        "1 for the verdict that leads, over the first window; all 0 without traffic.",
        enum(VERDICTS, lambda judged: judged.report.verdict),
        ("verdict",),
    ),
    SeriesRow(
        "diagnosis_score",
        "Share of the excess that a cause accounts for, 0 to 1; only causes found.",
        _scores,
        ("verdict",),
        unit="ratio",
    ),
    SeriesRow(
        "diagnosis_confidence",
        "1 for the confidence of the leading verdict.",
        enum(CONFIDENCES, lambda judged: judged.report.confidence),
        ("level",),
    ),
    SeriesRow(
        "objective_judged",
        "1 where an objective is met or missed; 0 where that cannot be said: too few requests, cannot tell, no data.",
        _judged,
        ("objective",),
    ),
    SeriesRow(
        "objective_missed",
        "1 where an objective's limit is missed, over the first window or as far back as it takes to judge;"
        " no series where it cannot be judged.",
        _missed,
        ("objective", "severity"),
    ),
    SeriesRow(
        "objective_missed_surely",
        "1 where an objective's limit is missed, whatever the histogram bucket hides.",
        _missed_surely,
        ("objective", "severity"),
    ),
)


def _counts(kind: str) -> Callable[[JudgedReport], Samples]:
    def samples(judged: JudgedReport) -> Samples:
        assert isinstance(judged.report, EngineReport)
        own = [(key, count) for key, count in judged.report.objective_counts.items() if key[0] == kind]
        return [(key[1:] if key[2] else key[1:2], count) for key, count in sorted(own)]

    return samples


ENGINE_ROWS: tuple[SeriesRow[JudgedReport], ...] = (
    SeriesRow(
        "diagnosis_since_timestamp_seconds",
        "When the leading verdict was first seen.",
        one(_since),
        unit="unix_seconds",
    ),
    SeriesRow(
        "objective_observations_total",
        "Observations judged against an objective, from the histogram that it names.",
        _counts("observations"),
        ("objective",),
        unit="count",
    ),
    SeriesRow(
        "objective_over_total",
        "Observations over an objective's limit, interpolated within the bucket that holds the limit.",
        _counts("over"),
        ("objective", "severity"),
        unit="count",
    ),
    SeriesRow(
        "objective_over_surely_total",
        "Observations in histogram buckets that lie wholly over an objective's limit.",
        _counts("over_surely"),
        ("objective", "severity"),
        unit="count",
    ),
)

# --- states, targets, limits, the service ------------------------------------------------------------------------

STATE_ROWS: tuple[SeriesRow[EngineReport], ...] = (
    SeriesRow("engine_state", "1 for the state of the engine.", enum(STATES, lambda report: report.state), ("state",)),
)
MODEL_STATE_ROWS: tuple[SeriesRow[ModelReport], ...] = (
    SeriesRow(
        "engines",
        "Engines of the model in each state.",
        lambda report: [((state,), report.engines.get(state, 0)) for state in STATES],
        ("state",),
        unit="count",
    ),
)
LIMIT_ROWS: tuple[SeriesRow[Limits], ...] = (
    SeriesRow(
        "objective_seconds",
        "Limit of a model's objective, from the configuration.",
        lambda limits: [
            ((name, severity), seconds) for name, limit in limits.items() for severity, seconds in _severities(limit)
        ],
        ("objective", "severity"),
        unit="seconds",
    ),
)


def _reasons(failures: Mapping[str, int]) -> Samples:
    return [((reason,), count) for reason, count in sorted(failures.items())]


def _anomalies(polled: PolledTarget) -> Samples:
    """Every kind from the start, so that a first increase shows."""
    counts = {one.kind: one.count for one in polled.report.anomalies}
    return [((kind,), counts.get(kind, 0)) for kind in ANOMALIES]


def _last_success(polled: PolledTarget) -> float | None:
    age = polled.report.last_success_age_seconds
    return None if age is None else polled.at - age


TARGET_ROWS: tuple[SeriesRow[PolledTarget], ...] = (
    SeriesRow("target_up", "1 where the last scrape of the target succeeded.", one(lambda polled: polled.up)),
    SeriesRow(
        "target_starting_seconds",
        "How long a target that has never answered, and may still be loading its model, has been scraped.",
        one(lambda polled: polled.report.starting_seconds),
        unit="seconds",
    ),
    SeriesRow(
        "target_scrape_duration_seconds",
        "How long the last successful scrape took.",
        one(lambda polled: polled.report.scrape_seconds if polled.up else None),
        unit="seconds",
    ),
    SeriesRow(
        "target_scrape_timeout_seconds",
        "How long a scrape of the target may take, from the configuration.",
        one(lambda polled: polled.report.scrape_timeout_seconds),
        unit="seconds",
    ),
    SeriesRow(
        "target_last_success_timestamp_seconds",
        "When the target was last scraped with success.",
        one(_last_success),
        unit="unix_seconds",
    ),
    SeriesRow(
        "target_missing_signals",
        "Signals of vLLM that the target does not expose.",
        one(lambda polled: polled.report.missing_signals if polled.up else None),
        unit="count",
    ),
    SeriesRow(
        "target_restarts_total",
        "Engine restarts seen on the target.",
        one(lambda polled: polled.report.restarts),
        unit="count",
    ),
    SeriesRow(
        "internal_errors_total",
        "Evaluations in which a mistake of phasewatch's own cost the report of an engine of the target.",
        one(lambda polled: polled.report.internal_errors),
        unit="count",
    ),
    SeriesRow(
        "target_anomalies_total",
        "What was odd about the target's scrapes, by kind: unreadable lines, impossible values and so on.",
        _anomalies,
        ("kind",),
        unit="count",
    ),
    SeriesRow(
        "target_scrape_failures_total",
        "Failed scrapes of the target by reason.",
        lambda polled: _reasons(polled.report.scrape_failures),
        ("reason",),
        unit="count",
    ),
)
SERVICE_ROWS: tuple[SeriesRow[ServiceStatus], ...] = (
    SeriesRow("build_info", "The version of phasewatch.", lambda service: (((service.version,), 1.0),), ("version",)),
    SeriesRow(
        "last_evaluation_timestamp_seconds",
        "When the fleet was last evaluated.",
        one(lambda service: service.evaluated_at),
        unit="unix_seconds",
    ),
    # Always there, whatever the targets show: dashboards choose a window from it.
    SeriesRow(
        "window_seconds",
        "Length of each window that numbers of engines and models are over, from the configuration.",
        lambda service: [((label,), seconds) for label, seconds in service.windows.items()],
        ("window",),
        unit="seconds",
    ),
    # So that an alert can say what to do first: the text of a page comes from series.
    SeriesRow(
        "remedy_info",
        "What to do first for a verdict, and what it takes (now, restart, capacity); the same for every engine.",
        lambda _: [((verdict, first.change, first.when), 1.0) for verdict, (first, *_others) in REMEDIES.items()],
        ("verdict", "change", "when"),
    ),
)
