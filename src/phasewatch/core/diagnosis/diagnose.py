"""Symptoms -> causes, ranked, and the one that leads."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from phasewatch.core.diagnosis.causes import CAUSES
from phasewatch.core.diagnosis.causes._row import PACE, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case, Sight, WindowView
from phasewatch.core.diagnosis.objectives import family_of
from phasewatch.core.diagnosis.overdue import said_of
from phasewatch.core.diagnosis.verdicts import DEMAND, EXPECTED, UNKNOWN
from phasewatch.core.model import Cause, Confidence, Symptom, Window
from phasewatch.core.settings import Thresholds


def has(window: Window, signal: str) -> bool:
    """Whether any page of the window had the signal."""
    return signal in window.gauges or signal in window.histograms or signal in window.increases


def missing_signals(window: Window, names: Iterable[str] = EXPECTED) -> tuple[str, ...]:
    return tuple(name for name in names if not has(window, name))


def diagnose(
    symptoms: Mapping[Symptom, float], now: Sight, seen: Mapping[Symptom, Sight] = MappingProxyType({})
) -> tuple[Cause, ...]:
    """The leading cause first, then the others by score.

    symptoms: each with value / limit. At least one; none means healthy and is the caller's to say. seen: where those
    were that it took a longer window to judge.
    """
    early_missed = any(family_of(one.objective) in ("ttft", *PACE) for one in symptoms)
    found: dict[Symptom, list[Cause]] = {}
    for symptom in symptoms:
        # e2e is long for the reason that first tokens or the pace are slow, where they are.
        if family_of(symptom.objective) == "e2e" and early_missed:
            continue
        case = Case(symptom, tuple(symptoms), *seen.get(symptom, now))
        found[symptom] = [cause for cause in (_cause(row, case) for row in CAUSES) if cause is not None]
    leading = _leading(found, symptoms, now.view)
    if leading is None:
        worst = max(found, key=lambda one: symptoms[one])
        leading = _unknown(worst, seen.get(worst, now).view.window, found)
    present = [cause for one, causes in found.items() if seen.get(one, now) is now for cause in causes]
    if leading not in present:  # what is so now speaks for what it took a longer window to see
        leading = next((one for one in present if _about(one) == _about(leading)), leading)
    others = [cause for causes in found.values() for cause in causes if cause is not leading]
    return leading, *sorted(others, key=lambda cause: -cause.score)


def _about(cause: Cause) -> tuple[str, str]:
    return cause.verdict, family_of(cause.symptom)


def _leading(
    found: Mapping[Symptom, Sequence[Cause]], ratios: Mapping[Symptom, float], view: WindowView
) -> Cause | None:
    """A proven queue leads: demand is above capacity. Where prefill saturates the engine, the TTFT symptom's cause
    does. Else the cause of the symptom furthest over its limit."""
    prefill_ratio, thresholds = view.numbers.prefill_time_ratio, view.thresholds
    best = {symptom: _best(causes, thresholds) for symptom, causes in found.items()}
    ranked = sorted(best, key=lambda one: -ratios[one])
    proven = [(symptom, cause) for symptom in ranked if (cause := best[symptom]) is not None]
    queues = [cause for _, cause in proven if cause.verdict in DEMAND]
    if queues:
        return queues[0]
    if prefill_ratio is not None and prefill_ratio >= thresholds.saturated_prefill_ratio:
        for symptom, cause in proven:
            if family_of(symptom.objective) == "ttft":
                return cause
    return proven[0][1] if proven else None


def _best(causes: Sequence[Cause], thresholds: Thresholds) -> Cause | None:
    """The proven cause with the highest score; within 0.1 the earlier row wins (causes are in row order)."""
    proven = [cause for cause in causes if cause.score >= thresholds.proven_score]
    if not proven:
        return None
    highest = max(cause.score for cause in proven)
    return next(cause for cause in proven if cause.score >= highest - thresholds.tie_score)


_NOTHING = 0.005  # of the excess: shown as 0 %


def _cause(row: CauseRow, case: Case) -> Cause | None:
    window = case.view.window
    if row.rule is None or family_of(case.symptom.objective) not in row.families:
        return None
    if missing_signals(window, (*row.needs, *row.feature)) or (finding := row.rule(case)) is None:
        return None
    if finding.score < _NOTHING:  # what explains nothing is no cause, however near it comes
        return None
    missing = missing_signals(window, row.uses)
    confidence = _confidence(finding, case, missing)
    return row.cause(case.symptom.objective, finding, confidence, case=case, missing=missing)


def _confidence(finding: Finding, case: Case, missing: Sequence[str]) -> Confidence:
    """high: symptom sure, every signal there, score >= 0.8, enough finishes. low: by elimination, capacity unknown,
    few finishes, or most of them gave up. Else medium."""
    view, thresholds = case.view, case.view.thresholds
    gave_up = view.numbers.queue.gave_up_ratio or 0.0
    finishes = max(view.finishes, view.window.increases.get("finished", 0.0))
    if finding.eliminated or finding.at_most == "low" or finishes < thresholds.few_finishes or gave_up > 0.5:
        return "low"
    few, weak = finishes < thresholds.enough_finishes, finding.score < thresholds.sure_score
    if few or weak or missing or finding.at_most == "medium" or not case.symptom.surely:
        return "medium"
    return "high"


def _unknown(symptom: Symptom, window: Window, found: Mapping[Symptom, Sequence[Cause]]) -> Cause:
    """A symptom without a proven cause: says which signals would decide, and what came nearest."""
    family = family_of(symptom.objective)
    near = max(found[symptom], key=lambda cause: cause.score, default=None)
    # A row that abstained would speak with what it needs; what the nearest one uses would make it surer.
    rows = [row for row in CAUSES if family in row.families and not missing_signals(window, row.feature)]
    used = [name for row in rows if near is not None and row.verdict == near.verdict for name in row.uses]
    missing = missing_signals(window, dict.fromkeys([*(name for row in rows for name in row.needs), *used]))
    nearest = "" if near is None else f" Nearest: {near.verdict} explains {near.score * 100:.0f} % of the excess."
    lacking = f" These signals are missing and would help: {', '.join(missing)}." if missing else ""
    told = said_of(symptom) or ""
    return Cause(
        verdict=UNKNOWN.verdict,
        symptom=symptom.objective,
        score=0.0,
        confidence="low",
        evidence=_measured(symptom),
        summary=f"{told} Cause unknown.{nearest}{lacking}".lstrip(),
        remedies=(),
        refuted_by="",
        missing=missing,
    )


def _measured(symptom: Symptom) -> dict[str, float | str]:
    """What was measured, under its own name, and the limit where it is of the same unit."""
    value = None if symptom.value is None else symptom.value.value
    if symptom.objective == "itl_stall":
        return known(itl_stalled_ratio=value, stall_limit_seconds=symptom.limit_seconds)
    unit = "ratio" if symptom.limit_seconds is None else "seconds"
    return known(**{f"{symptom.objective}_{unit}": value}, limit_seconds=symptom.limit_seconds)
