"""Fleet -> the diagnosis document `phasewatch/v1`: plain dicts, lists, strings and numbers, ready for JSON.

Every key is always there; what is unknown is None, and so is a number that JSON cannot carry (NaN, infinity). Numbers
keep their full precision, so that the document and the exported gauges agree to the last digit. Rows are sorted by
target, model and engine ("10" after "2").
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from phasewatch.core.model import (
    Cause,
    EngineReport,
    Fleet,
    ModelReport,
    Numbers,
    ObjectiveResult,
    TargetReport,
)
from phasewatch.core.report.measure_table import observed
from phasewatch.core.settings import FAMILIES

SCHEMA = "phasewatch/v1"

_NOTHING = Numbers(0.0)


def document(fleet: Fleet, *, wall_offset: float = 0.0) -> dict[str, Any]:
    """The document. wall_offset: seconds that turn the fleet's clock into Unix time (0 shows its own clock)."""
    return {
        "schema": SCHEMA,
        "at": _plain(fleet.at + wall_offset),
        "window_seconds": _plain(fleet.window_seconds),
        "engines": [_engine(report, wall_offset) for report in sorted(fleet.engines, key=engine_order)],
        "models": [_model(report, fleet.engines) for report in sorted(fleet.models, key=model_order)],
        "targets": [_target(report) for report in sorted(fleet.targets, key=lambda report: report.target)],
    }


def engine_order(report: EngineReport) -> tuple[str, str, int, str]:
    target, model_name, engine = report.key
    # Shorter numbers are smaller; int() refuses a label of thousands of digits.
    return target, model_name, len(engine) if engine.isdecimal() else 0, engine


def model_order(report: ModelReport) -> tuple[str, str]:
    return report.model_name, report.role or ""


def missing_everywhere(model: ModelReport, engines: Iterable[EngineReport]) -> tuple[str, ...]:
    """Signals that none of the model's engines has; the model's own rows are unknown where they need them."""
    of_model = [r for r in engines if (r.key.model_name, r.role) == (model.model_name, model.role)]
    return tuple(name for name in (of_model[0].missing if of_model else ()) if all(name in r.missing for r in of_model))


def encodable(text: str) -> str:
    """Text that UTF-8 cannot carry (half a surrogate pair) would cost the whole answer: "?" in its place."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _numbers(numbers: Numbers | None, missing: Iterable[str]) -> dict[str, Any]:
    """The blocks of Numbers; a count of null says that the page has no such histogram."""
    shown: dict[str, Any] = _plain(numbers or _NOTHING)
    del shown["window_seconds"]  # of the whole document
    for signal in FAMILIES:
        latency = shown[f"{signal}_seconds"]
        latency["count"] = None if numbers is None else observed(latency["count"], signal, missing)
    return shown


def _cause(cause: Cause) -> dict[str, Any]:
    """What a cause lacks is part of the engine's `missing`."""
    return {key: value for key, value in _plain(cause).items() if key != "missing"}


def _objective(one: ObjectiveResult) -> dict[str, Any]:
    """Its severity is its symptom's, where it is missed; a lower bound of the slowest is told in the summary."""
    return {key: value for key, value in _plain(one).items() if key not in ("severity", "slowest")}


def _engine(report: EngineReport, wall_offset: float) -> dict[str, Any]:
    return {
        **_plain(report.key._asdict()),
        "role": report.role,
        "state": report.state,
        "gauges_stale": report.gauges_stale,
        "verdict": report.verdict,
        "confidence": report.confidence,
        "score": _plain(report.score),
        "summary": _plain(report.summary),
        "since": None if report.since is None else _plain(report.since + wall_offset),
        "previous_verdict": report.previous_verdict,
        "causes": [_cause(cause) for cause in report.causes],
        "objectives": [_objective(one) for one in report.objectives],
        "symptoms": _plain(report.symptoms),
        "events": [_plain(one) | {"at": _plain(one.at + wall_offset)} for one in report.events],
        "advisories": _plain(report.advisories),
        "missing": list(dict.fromkeys((*report.missing, *(name for cause in report.causes for name in cause.missing)))),
        **_numbers(report.numbers, report.missing),
        "restarts": report.restarts,
    }


def _model(report: ModelReport, engines: Iterable[EngineReport]) -> dict[str, Any]:
    shown = _numbers(report.numbers, missing_everywhere(report, engines))
    return {
        "model_name": _plain(report.model_name),
        "role": report.role,
        "engines": _plain(report.engines),
        "verdict": report.verdict,
        "confidence": report.confidence,
        "causes": [_cause(cause) for cause in report.causes],
        "objectives": [_objective(one) for one in report.objectives],
        "symptoms": _plain(report.symptoms),
        **shown,
        "kv_cache": {
            **shown["kv_cache"],
            "usage_max": _plain(report.kv_usage_max),
            "usage_mean": _plain(report.kv_usage_mean),
            "worst_engine": _plain(report.worst_engine),
        },
        "outliers": _plain(report.outliers),
    }


def _target(report: TargetReport) -> dict[str, Any]:
    keys = (
        "target", "url", "state", "starting_seconds", "last_error", "last_success_age_seconds", "scrape_seconds"
    )  # fmt: skip
    anomalies = [{"kind": one.kind, "count": one.count, "last": _plain(one.last)} for one in report.anomalies]
    return {key: _plain(getattr(report, key)) for key in keys} | {"anomalies": anomalies}
