"""Requests in flight for longer than an objective allows: what users feel before anything has finished."""

from collections.abc import Mapping

from phasewatch.core.formatting import seconds
from phasewatch.core.measures.ages import Ages
from phasewatch.core.measures.phases import count_of
from phasewatch.core.measures.quantile import PERCENTILES
from phasewatch.core.model import Estimate, Symptom, Window
from phasewatch.core.settings import Limit, Limits, Thresholds

# Of requests that may be over a limit: what a percentile leaves. A mean is no share: half of them, as for p50.
_ALLOWED = {name: 1 - quantile for name, quantile in PERCENTILES} | {"mean": 0.5}
_SAID = {
    "unanswered": "A request has waited at least {} for its first token.",
    "still_running": "A request has run for at least {} and has not finished.",
}


def overdue(ages: Ages, window: Window, limits: Limits, thresholds: Thresholds) -> Mapping[Symptom, float]:
    """`unanswered` and `still_running`, each with value / limit, where more requests are over a limit than its
    percentile allows of those in flight so long and those observed in the window. One alone may be one of a hundred
    that nobody has seen yet: only two are sure."""
    found: dict[Symptom, float] = {}
    for name, family, oldest, over in (
        ("unanswered", "ttft", ages.oldest_unanswered, ages.unanswered_over),
        ("still_running", "e2e", ages.oldest_running, ages.running_over),
    ):
        missed: list[tuple[float, Limit, float]] = []
        for objective, limit in limits.items():
            of, _, statistic = objective.partition("_")
            if of != family or not oldest or oldest <= limit.warning:
                continue
            count = over(limit.warning)
            if count >= 1 and count / (count + count_of(window, family)) > _ALLOWED[statistic]:
                missed.append((oldest / limit.warning, limit, count))
        if missed and oldest:
            ratio, limit, count = max(missed, key=lambda one: one[0])
            surely = count >= thresholds.min_over
            critical = surely and over(limit.critical) >= thresholds.min_over
            value = Estimate(oldest, oldest, None, "above_last_edge")
            found[Symptom(name, limit.warning, value, surely, "critical" if critical else "warning")] = ratio
    return found


def said_of(symptom: Symptom) -> str | None:
    """What it says in a sentence; None for a symptom of another kind."""
    if symptom.objective not in _SAID or symptom.value is None:
        return None
    return _SAID[symptom.objective].format(seconds(symptom.value.value))
