"""The engine decodes slower than it did itself, at the same batch and context."""

from phasewatch.core.diagnosis.causes._remedies import WITHOUT_GRAMMAR
from phasewatch.core.diagnosis.causes._row import PACE, PREFILL_TIME_SIGNALS, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.causes._streams import OF_THE_TAIL, beyond_load, explains, gap_limit, rest, throughout
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, seconds


def _decode_slow(case: Case) -> Finding | None:
    pace, thresholds = case.view.pace_without_prefill, case.view.thresholds
    if pace is None or not throughout(case):
        return None
    same, times = case.past.same_pace, case.past.times_slower
    clearly = max(thresholds.slower_ratio, case.past.same_spread)
    slower = same is not None and times is not None and times > clearly and pace > same
    # A load that was only met in trouble has no past of its own.
    before = same if slower else case.past.bounds.most if beyond_load(case) else None
    if before is None or not explains(case, before) or _only_in_pauses(case, thresholds.slower_ratio * before):
        return None
    grew = case.past.gradual_seconds if slower else None
    why = (
        "the host or the GPU has become slower."
        if grew is None
        else f"it has grown slower and slower over {seconds(grew)}, so the engine degrades with its uptime. Restart it"
        " and report its version."
    )
    return Finding(
        rest(case),
        known(
            pace_without_prefill_seconds=pace,
            own_past_pace_seconds=before,
            times_slower=pace / before,
            slowing_for_seconds=grew,
            running_mean=case.view.window.gauges["running"].mean,
            context_mean_tokens=case.view.context,
        ),
        f"A token takes {seconds(pace)}, {number(pace / before)} times as long as"
        + (
            f" on this engine before ({seconds(before)}) at the same batch and context: {why}"
            if slower
            else f" batch and context account for, by what this engine took before ({seconds(before)} at most): {why}"
        ),
        "the earlier pace at this batch and context.",
    )


def _only_in_pauses(case: Case, most: float) -> bool:
    """Whether the typical gap is what it was before, and only standstills between make the mean longer."""
    p50 = case.view.numbers.itl_seconds.p50
    if case.symptom.objective not in OF_THE_TAIL:
        return False
    return p50 is not None and p50.value <= most and case.view.pauses(gap_limit(case)) is not None


# fmt: off
CAUSE = CauseRow(
    verdict="decode_slow",
    phase="decode",
    look="Engine: this replica against the median of its peers at the same load; then its host.",
    rule=_decode_slow,
    families=PACE,
    needs=("itl", "running", *PREFILL_TIME_SIGNALS),
    remedies=(
        Advice("look at that host: CPU throttling or neighbours, GPU clocks and temperature, other processes on the"
            " GPU", "the same work took less time before", "now", "TTFT usually improves as well", effect="eases"),
        WITHOUT_GRAMMAR,
        Advice("take it out of rotation while you look, then restart it", "users are served while you look",
            "restart", "its load moves to the others", effect="eases"),
        Advice("report its version, if it slows down again after every restart", "what a process gathers while it runs"
            " (a leak, a growing cache) is a fault of that version", "now", "none"),
    ),
)
# fmt: on
