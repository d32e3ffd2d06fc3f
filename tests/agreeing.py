"""The document against all that says the same in other words: the gauges, the table of `diagnose`, the runbooks.

Names and paths are measure_table's: what is compared are the values that the document and the page make of them.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from phasewatch.core.diagnosis.verdicts import VERDICTS
from phasewatch.core.model import CONFIDENCES, STATES, EngineReport, Fleet
from phasewatch.core.report.measure_table import MEASURES
from phasewatch.outputs import terminal
from support import ROOT

# (name without prefix, labels) -> value, as exported.series and a real Prometheus have them
Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]

CURRENT = {"serving", "idle", "warming_up", "asleep"}
RUNBOOKS = ROOT / "config" / "runbooks" / "verdicts"
# What one engine's or model's series of one name differ in.
_INNER = {"window", "phase", "verdict", "level", "state", "objective", "severity"}

OTHERS = {
    "diagnosis", "diagnosis_score", "diagnosis_confidence",
    "diagnosis_since_timestamp_seconds", "engine_state", "engines",
    "target_up", "target_starting_seconds", "target_scrape_duration_seconds", "target_last_success_timestamp_seconds",
}  # fmt: skip
# evidence of a cause -> where the document has the number of the same name
EVIDENCE = {
    **{f"{of}_mean_seconds": f"{of}_seconds.mean" for of in ("ttft", "itl", "tpot", "e2e")},
    **{f"{phase}_mean_seconds": f"phases.{phase}.mean_seconds" for phase in ("queue", "prefill", "decode")},
    "arrivals_per_second": "queue.arrivals_per_second",
    "admissions_per_second": "queue.admissions_per_second",
    "expected_wait_seconds": "queue.expected_wait_seconds",
    "waiting_last": "queue.waiting",
    "prefill_time_ratio": "prefill_time_ratio",
    "itl_stalled_ratio": "itl_stalled_ratio",
    "acceptance_ratio": "speculation.acceptance_ratio",
    "prompt_tokens_mean": "tokens.prompt_mean",
    "computed_prompt_tokens_mean": "tokens.computed_prompt_mean",
    "computed_prompt_mean": "tokens.computed_prompt_mean",
    "prefix_hit_ratio": "tokens.prefix_hit_ratio",
    "prefill_speed_tokens_per_second": "tokens.prefill_speed",
}
# The document tells results and symptoms instead, and has no lifetime counts.
NOT_IN_THE_DOCUMENT = {
    "objective_judged", "objective_missed", "objective_missed_surely", "objective_observations_total",
    "objective_over_total", "objective_over_surely_total", "target_missing_signals",
    "target_restarts_total", "target_scrape_failures_total",
    "target_anomalies_total",
    "internal_errors_total", "target_scrape_timeout_seconds",
}  # fmt: skip
EXPORTED = [measure for measure in MEASURES if measure.exported != "no"]
IN_THE_DOCUMENT = {*(measure.name for measure in EXPORTED), *OTHERS}


def same_numbers(document: Mapping[str, Any], series: Series, window: str) -> int:
    """Every number of an engine, model or target that is exported: equal to the last digit, and absent where it is
    null. window: the label of the first window. Returns how many were compared."""
    compared = 0
    for row in document["engines"]:
        own = {name: row[name] for name in ("target", "model_name", "engine") if row[name]}
        found = _of(series, own)
        unknown = {name for name, _ in found} - IN_THE_DOCUMENT - NOT_IN_THE_DOCUMENT
        assert not unknown, f"exported, and this test does not know what it is: {unknown}"
        compared += _equal(_engine(row, window), found, window, row["target"])
        _same_objectives(row, found)
    for row in document["models"]:
        prefix, own = "model_", {"model_name": row["model_name"]}
        found = {
            (name.removeprefix(prefix), inner): value
            for (name, inner), value in _of(series, own, role=row["role"]).items()
            if name.startswith(prefix)
        }
        compared += _equal(_model(row, window), found, window, row["model_name"])
        _same_objectives(row, found)
    for row in document["targets"]:
        found = _of(series, {"target": row["target"]}, model_name=None)
        compared += _equal(_target(row, document["at"]), found, window, row["target"])
    return compared


def _of(series: Series, own: Mapping[str, str], **without: str | None) -> Found:
    """The series that carry these labels: by name and the labels of their own. without: labels and their only value."""
    return {
        (name, frozenset((k, v) for k, v in labels if k in _INNER)): value
        for (name, labels), value in series.items()
        if own.items() <= labels and all(dict(labels).get(k) == v for k, v in without.items())
    }


def _equal(wanted: Found, found: Found, window: str, whose: str) -> int:
    shown = {
        (name, inner): value
        for (name, inner), value in found.items()
        if name in IN_THE_DOCUMENT and dict(inner).get("window", window) == window
    }
    differ = {key: (wanted.get(key), shown.get(key)) for key in wanted | shown if wanted.get(key) != shown.get(key)}
    assert not differ, f"{whose}: (document, gauge) differ: {differ}"
    return len(wanted)


class _Wanted(Found):
    def put(self, name: str, value: float | None, **labels: str) -> None:
        """Null and what is no plausible number have no series."""
        if value is not None and (value < 1e9 or name.endswith("_timestamp_seconds")):
            self[name, frozenset(labels.items())] = float(value)


def _dig(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = None if row is None else row[name]
    return row


def _numbers(row: Mapping[str, Any], window: str) -> _Wanted:
    wanted = _Wanted()
    for measure in EXPORTED:
        if measure.exported == "windows":
            wanted.put(measure.name, _dig(row, measure.path), window=window, **measure.labels)
        elif not row.get("gauges_stale"):  # they stand still with the engine
            wanted.put(measure.name, _dig(row, measure.path), **measure.labels)
    for verdict in VERDICTS:
        wanted.put("diagnosis", verdict == row["verdict"], verdict=verdict)
    for level in CONFIDENCES:
        wanted.put("diagnosis_confidence", level == row["confidence"], level=level)
    for cause in sorted(row["causes"], key=lambda cause: cause["score"]):
        wanted.put("diagnosis_score", cause["score"], verdict=cause["verdict"])
    return wanted


def _engine(row: Mapping[str, Any], window: str) -> Found:
    wanted = _Wanted()
    if row["state"] in CURRENT:
        wanted = _numbers(row, window)
        wanted.put("diagnosis_since_timestamp_seconds", row["since"] if row["verdict"] else None)
    for state in STATES:
        wanted.put("engine_state", state == row["state"], state=state)
    return wanted


def _model(row: Mapping[str, Any], window: str) -> Found:
    wanted = _Wanted()
    if any(row["engines"].get(state) for state in CURRENT):
        wanted = _numbers(row, window)
    for state in STATES:
        wanted.put("engines", row["engines"].get(state, 0), state=state)
    return wanted


def _target(row: Mapping[str, Any], at: float) -> Found:
    wanted, up, age = _Wanted(), row["state"] not in ("stale", "down", "starting"), row["last_success_age_seconds"]
    wanted.put("target_up", up)
    wanted.put("target_starting_seconds", row["starting_seconds"])
    wanted.put("target_scrape_duration_seconds", row["scrape_seconds"] if up else None)
    wanted.put("target_last_success_timestamp_seconds", None if age is None else at - age)
    return wanted


def _same_objectives(row: Mapping[str, Any], found: Found) -> None:
    """A result in the document is the gauges'; how severe a missed one is, an engine's symptom says."""
    shown: dict[str, dict[tuple[str, str], float]] = {}
    for (name, inner), value in found.items():
        if name in ("objective_judged", "objective_missed"):
            labels = dict(inner)
            shown.setdefault(name, {})[labels["objective"], labels.get("severity", "")] = value
    if not shown:
        return
    results = {one["objective"]: one["result"] for one in row["objectives"]}
    judged = {name for name, result in results.items() if result in ("met", "missed")}
    assert shown["objective_judged"] == {(name, ""): name in judged for name in results}
    critical = {one["objective"] for one in row["symptoms"] if one["severity"] == "critical"}
    for (name, severity), value in shown.get("objective_missed", {}).items():
        assert name in judged
        if severity == "warning":
            assert value == (results[name] == "missed"), (name, row["objectives"])
        elif "engine" in row:
            assert value == (name in critical and results[name] == "missed")


def same_evidence(document: Mapping[str, Any], before: Mapping[str, Any] | None) -> int:
    """No cause is told twice, and its numbers are those of its engine; the leading one may be as the document before
    this one remembers it. Returns how many numbers were compared."""
    compared = 0
    for row in document["engines"]:
        told = [(cause["verdict"], cause["symptom"]) for cause in row["causes"]]
        assert len(told) == len(set(told)), told
        earlier = [one for one in (before or {"engines": []})["engines"] if _key(one) == _key(row)]
        remembered = [cause["evidence"] for one in earlier for cause in one["causes"][:1]]
        # The numbers are of the first window; what it took a longer one to judge is explained by that.
        wider = {one["objective"] for one in row["objectives"] if one["span_seconds"] > document["window_seconds"]}
        for rank, cause in enumerate(row["causes"]):
            known = {name: value for name, value in cause["evidence"].items() if name in EVIDENCE}
            if cause["symptom"] in wider or (rank == 0 and cause["evidence"] in remembered):
                continue
            assert known == {name: _dig(row, EVIDENCE[name]) for name in known}, (cause["verdict"], cause["symptom"])
            compared += len(known)
    return compared


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["target"], row["model_name"], row["engine"]


# --- the table and the runbooks ---------------------------------------------------------------------------------

_VERDICT = re.compile(r"  ([A-Z_]+)(?:  confidence (\w+))?(?:  for [^,]+, since (.+?))?(?:  easing)?")
_FIRST = re.compile(r"^  do first: +(.+)", re.MULTILINE)
_WHEN = {"now": "now", "restart": "with a restart", "capacity": "more capacity"}


def table(fleet: Fleet) -> str:
    """What `diagnose` prints, on a terminal wide enough for any line."""
    out = io.StringIO()
    Console(file=out, width=1000, highlight=False, markup=False, emoji=False).print(terminal.fleet(fleet))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def same_words(fleet: Fleet, document: Mapping[str, Any]) -> set[str]:
    """Table, document and runbooks name the same verdict, confidence, beginning and first thing to do, engine by
    engine. Returns the verdicts seen."""
    whole = table(fleet)
    seen = set()
    rows = {(row["target"], row["model_name"], row["engine"]): row for row in document["engines"]}
    assert len(rows) == len(fleet.engines)
    for report in fleet.engines:
        row = rows[tuple(report.key)]
        block = table(replace(fleet, engines=(report,), targets=(), models=()))
        _same_block(block, row, report)
        name = row["verdict"] or row["state"]
        line = rf"^{re.escape(terminal.name(report))}  +{name}\b"
        assert len(fleet.engines) == 1 or re.search(line, whole, re.MULTILINE), f"{name}: not in\n{whole}"
        if row["verdict"]:
            seen.add(row["verdict"])
            _same_runbook(row)
    for row in document["models"]:
        if row["verdict"] and sum(row["engines"].values()) > 1:
            seen.add(row["verdict"])
            assert re.search(rf"^{re.escape(row['model_name'])} \(.*\): {row['verdict']}\b", whole, re.MULTILINE)
            _same_runbook(row)
    return seen


def _same_block(block: str, row: Mapping[str, Any], report: EngineReport) -> None:
    said = block.splitlines()[1]
    if row["verdict"] is None:
        assert said == f"  no verdict: {row['state'].replace('_', ' ')}", block
        return
    match = _VERDICT.fullmatch(said)
    assert match, block
    assert match[1] == row["verdict"].upper(), block
    assert match[2] == (None if row["verdict"] == "healthy" else row["confidence"]), block
    assert match[3] == (None if row["since"] is None else terminal.when(report.since)), block
    first = next((cause["remedies"][0] for cause in row["causes"][:1] if cause["remedies"]), None)
    shown = _FIRST.search(block)
    assert (shown is None) == (first is None), block
    assert first is None or shown[1].startswith(f"{first['change']} ({_WHEN[first['when']]}"), block  # type: ignore[index]


def _same_runbook(row: Mapping[str, Any]) -> None:
    text = " ".join((RUNBOOKS / f"{row['verdict']}.md").read_text().split())
    leading = next((cause for cause in row["causes"] if cause["verdict"] == row["verdict"]), None)
    if leading is not None and leading["remedies"] and not leading["easing"]:
        # Not always number 1: of what does not apply to this case, the cause says nothing. Values are of the case.
        flag = leading["remedies"][0]["change"].split()[0]
        assert re.search(rf" \d+\. \*\*{re.escape(flag)}", text), (row["verdict"], leading["remedies"][0])
