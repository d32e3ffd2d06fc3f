"""Objectives -> what users feel: which limits are missed, how surely, how severely. No cause is named here."""

from collections.abc import Mapping
from dataclasses import dataclass

from phasewatch.core.measures.histogram import Above, count_above
from phasewatch.core.measures.numbers import failed_handovers, failures
from phasewatch.core.measures.past import PastView
from phasewatch.core.measures.phases import count_of, pace_without_prefill
from phasewatch.core.model import Estimate, Histogram, Latency, Numbers, Severity, Symptom, Window
from phasewatch.core.settings import FAMILIES, Limit, Limits, Thresholds

_FELT_AS = {
    "expected_wait": "ttft", "gave_up": "ttft", "unanswered": "ttft", "own_past": "itl", "still_running": "e2e"
}  # fmt: skip
HANDOVERS = "kv_handovers_failing"
_ENOUGH_GAPS = 100  # for a mean to be compared: a hundred gaps are a few answers


@dataclass(frozen=True, slots=True)
class JudgedObjective:
    """One objective against one window. most: the value that just meets it, of which ratio is the multiple."""

    objective: str
    limit: Limit
    value: Estimate
    most: float
    missed: bool
    surely_missed: bool
    surely_met: bool
    severity: Severity

    @property
    def ratio(self) -> float:
        """Value / limit (itl_stall: stalled share / 1 %)."""
        return self.value.value / self.most

    @property
    def symptom(self) -> Symptom:
        return Symptom(self.objective, self.limit.warning, self.value, self.surely_missed, self.severity)


def family_of(objective: str) -> str:
    """ttft, itl, tpot or e2e; symptoms that are no objective belong with what their victims feel: no first token."""
    head = objective.partition("_")[0]
    return head if head in FAMILIES else _FELT_AS.get(objective, objective)


def judge(window: Window, numbers: Numbers, limits: Limits, thresholds: Thresholds) -> tuple[JudgedObjective, ...]:
    """Every objective of which the window has observations, in the order of the limits."""
    judged = (
        _stall(window, numbers, limit, thresholds)
        if name == "itl_stall"
        else _latency(name, window, numbers, limit, thresholds)
        for name, limit in limits.items()
    )
    return tuple(one for one in judged if one is not None)


def _latency(
    name: str, window: Window, numbers: Numbers, limit: Limit, thresholds: Thresholds
) -> JudgedObjective | None:
    family, statistic = name.split("_")
    latency: Latency = getattr(numbers, f"{family}_seconds")
    if statistic == "mean":
        return _mean(name, latency, limit, thresholds)
    value: Estimate | None = getattr(latency, statistic)
    histogram = window.histograms.get(family)
    if value is None or histogram is None:
        return None
    return _percentile(name, value, histogram, limit, thresholds)


def _percentile(
    name: str, value: Estimate, histogram: Histogram, limit: Limit, thresholds: Thresholds
) -> JudgedObjective:
    """Missed: value over the limit and at least two observations over it: one slow request is no incident."""
    above = count_above(histogram, limit.warning)
    missed = _exceeds(value, limit.warning) and round(above.interpolated, 6) >= thresholds.min_over
    surely = value.low >= limit.warning and above.sure >= thresholds.min_over
    critical = _exceeds(value, limit.critical) and _over(histogram, limit.critical) >= thresholds.min_over
    return JudgedObjective(
        objective=name,
        limit=limit,
        value=value,
        most=limit.warning,
        missed=missed or surely,
        surely_missed=surely,
        surely_met=(value.high is not None and value.high <= limit.warning) or above.possible < thresholds.min_over,
        severity="critical" if critical else "warning",
    )


def _exceeds(value: Estimate, limit: float) -> bool:
    """Where the bounds decide, the value itself is not asked for: it may not be fitted yet."""
    if value.high is not None and value.high <= limit:
        return False
    return value.low > limit or value.value > limit


def _over(histogram: Histogram, limit: float) -> float:
    above: Above = count_above(histogram, limit)
    return round(above.interpolated, 6)


def _mean(name: str, latency: Latency, limit: Limit, thresholds: Thresholds) -> JudgedObjective | None:
    """A mean is exact: what it says is sure."""
    if latency.mean is None:
        return None
    missed = latency.mean > limit.warning and latency.count >= thresholds.min_over
    return JudgedObjective(
        objective=name,
        limit=limit,
        value=Estimate(latency.mean, latency.mean, latency.mean),
        most=limit.warning,
        missed=missed,
        surely_missed=missed,
        surely_met=not missed,
        severity="critical" if latency.mean > limit.critical else "warning",
    )


def _stall(window: Window, numbers: Numbers, limit: Limit, thresholds: Thresholds) -> JudgedObjective | None:
    """At least two gaps longer than the limit that hold more than 1 % of the streaming time; value: that share."""
    histogram, share = window.histograms.get("itl"), numbers.itl_stalled_ratio
    if histogram is None or share is None:
        return None
    missed = count_above(histogram, limit.warning).sure >= thresholds.min_over and share > thresholds.stalled_share
    critical = missed and count_above(histogram, limit.critical).sure >= thresholds.min_over
    return JudgedObjective(
        objective="itl_stall",
        limit=limit,
        value=Estimate(share, share, share),
        most=thresholds.stalled_share,
        missed=missed,
        surely_missed=missed,
        surely_met=not missed,
        severity="critical" if critical and limit.critical > limit.warning else "warning",
    )


def wait_limit(limits: Limits) -> Limit | None:
    """The TTFT limit that an expected wait is held against: p99's, else the most lenient one there is."""
    ttft = [limit for name, limit in limits.items() if name.startswith("ttft_")]
    return limits.get("ttft_p99") or max(ttft, key=lambda limit: limit.warning, default=None)


def expected_wait_over(numbers: Numbers, limits: Limits) -> bool:
    wait, limit = numbers.queue.expected_wait_seconds, wait_limit(limits)
    return wait is not None and limit is not None and wait > limit.warning


def other_symptoms(
    window: Window, numbers: Numbers, limits: Limits, thresholds: Thresholds, *, wait_over_before: bool
) -> Mapping[Symptom, float]:
    """Symptoms that are no objective, each with value / limit: expected_wait (at two successive pages),
    kv_handovers_failing, requests_failing, gave_up (before the first token)."""
    found: dict[Symptom, float] = {}
    wait, limit = numbers.queue.expected_wait_seconds, wait_limit(limits)
    if wait is not None and limit is not None and wait > limit.warning and wait_over_before:
        high = None if numbers.queue.expected_wait_censored else wait
        severity: Severity = "critical" if wait > limit.critical else "warning"
        found[Symptom("expected_wait", limit.warning, Estimate(wait, wait, high), True, severity)] = (
            wait / limit.warning
        )
    requests = max(window.increases.get("http_finishes", 0.0), window.increases.get("finished", 0.0))
    failed, lost = failures(window) or 0.0, failed_handovers(window)
    handed_over = max(count_of(window, "kv_transfer") + lost, count_of(window, "ttft"))
    gave_up = (numbers.queue.gave_up_before_first_token_ratio or 0.0) * window.increases.get("http_finishes", 0.0)
    for name, count, whole in (
        (HANDOVERS, lost, handed_over),
        ("requests_failing", failed, max(requests, failed)),
        ("gave_up", gave_up, window.increases.get("http_finishes", 0.0)),
    ):
        if count >= thresholds.min_over and count / whole > thresholds.share_of_requests:
            share = min(1.0, count / whole)
            found[Symptom(name, None, Estimate(share, share, share), True, "warning")] = (
                share / thresholds.share_of_requests
            )
    return found


def slower_than_past(
    window: Window, numbers: Numbers, past: PastView, thresholds: Thresholds
) -> Mapping[Symptom, float]:
    """Clearly slower than this engine's own past at the same batch and context, objectives or not.

    Never sure: opinions must agree on it for a while.
    """
    pace, same = pace_without_prefill(window, numbers.itl_seconds.mean, numbers.prefill_time_ratio), past.same_pace
    if pace is None or same is None or numbers.itl_seconds.count < _ENOUGH_GAPS:
        return {}
    limit = max(thresholds.symptom_ratio, past.same_spread) * same
    if pace <= limit:
        return {}
    return {Symptom("own_past", limit, Estimate(pace, pace, pace), False, "warning"): pace / limit}
