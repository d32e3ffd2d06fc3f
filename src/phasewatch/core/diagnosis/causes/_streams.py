"""What the causes of slow or stalling streams have in common."""

from phasewatch.core.diagnosis.measures_view import Case

OF_THE_TAIL = ("itl_p99", "itl_p95", "itl_p90", "itl_stall")


def gap_limit(case: Case) -> float:
    """Seconds above which a gap counts for this symptom."""
    return case.view.stall_limit if case.symptom.objective == "itl_stall" else case.limit


def stalls(case: Case) -> bool:
    """Whether the slowest gaps are far from the typical one. p99 counts gaps: the few long ones that itl_stall weighs
    by time may all lie above it."""
    itl = case.view.numbers.itl_seconds
    if itl.p50 is None or itl.p99 is None:
        return False
    slowest = max(itl.p99.value, case.view.stall_limit if case.symptom.objective == "itl_stall" else 0.0)
    return slowest >= case.view.thresholds.stall_ratio * itl.p50.value


def throughout(case: Case) -> bool:
    """Whether decode itself can be what is slow: no evictions, and the symptom is not about stalls."""
    return not case.view.preemptions and case.symptom.objective != "itl_stall"


def explains(case: Case, base: float) -> bool:
    """Whether going back to `base` would take away at least half of the seconds above it."""
    return _share_above(case, base) >= case.view.thresholds.proven_score


def rest(case: Case) -> float:
    """What neither prefill nor evictions take, as a share of the seconds above the unloaded pace.

    It goes whole to each row whose conditions hold; the earlier one wins. With the unloaded pace unknown it is the
    share of all streaming time, which those conditions have shown to be too slow by itself.
    """
    unloaded, part = case.past.unloaded_pace, case.view.prefill_part
    if unloaded is None or unloaded > case.limit or part is None:
        return 1.0 - (part or 0.0)
    return _share_above(case, unloaded)


def _share_above(case: Case, base: float) -> float:
    """Share of the seconds above `base` per token that would go if decode alone took `base`, prefill's share of the
    time staying as it is."""
    mean_itl, part = case.view.numbers.itl_seconds.mean, case.view.prefill_part
    if mean_itl is None or part is None or part >= 1 or mean_itl <= base:
        return 0.0
    return min(1.0, max(0.0, (mean_itl - base / (1 - part)) / (mean_itl - base)))


def beyond_load(case: Case) -> bool:
    """Whether a token takes clearly longer than batch and context can account for, by this engine's own past."""
    most, pace = case.past.bounds.most, case.view.pace_without_prefill
    return most is not None and pace is not None and pace > case.view.thresholds.symptom_ratio * most
