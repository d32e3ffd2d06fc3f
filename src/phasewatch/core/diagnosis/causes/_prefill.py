"""What the causes of a slow prefill have in common: its part of TTFT, and how much of the excess a part explains."""

from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.numbers import failed_transfers


def prefill_leads(case: Case) -> float | None:
    """Prefill's share of TTFT, where it is the largest part; None where it is not, or the symptom is another."""
    share = case.ttft.share("prefill")
    # Of those who gave up or still wait, the first tokens of the others say nothing.
    if share is None or not case.ttft.largest("prefill") or not case.symptom.objective.startswith("ttft"):
        return None
    return None if case.cold else share


def of_excess(case: Case, share: float) -> float:
    """How much of what lies above the limit goes away with this share of TTFT, 0 to 1."""
    value = case.symptom.value
    excess = 1.0 if value is None or value.value <= case.limit else 1 - case.limit / value.value
    return min(1.0, share / excess)


def proven_times(case: Case, share: float, times: float | None) -> float:
    """times, where what it adds to prefill is a proven cause of its own; else 1: then no half of prefill's part is
    proven, and together they are."""
    if times is None or of_excess(case, share * (1 - 1 / times)) < case.view.thresholds.proven_score:
        return 1.0
    return times


def lost_on_the_way(case: Case) -> float:
    """Of the first tokens over the limit, the share that lost transfers made late: no more than were lost."""
    first, lost = case.view.window.histograms.get("ttft"), failed_transfers(case.view.window)
    over = 0.0 if first is None else count_above(first, case.limit).interpolated
    return min(1.0, lost / over) if case.view.from_elsewhere and over > 0 else 0.0
