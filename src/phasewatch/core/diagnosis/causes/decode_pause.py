"""The engine's process or its host stands still for a moment, again and again: all streams wait meanwhile."""

from math import inf

from phasewatch.core.diagnosis.causes._row import PACE, PREFILL_TIME_SIGNALS, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.causes._streams import OF_THE_TAIL, gap_limit
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, percent, seconds


def _decode_pause(case: Case) -> Finding | None:
    view, limit = case.view, gap_limit(case)
    p50, over = view.numbers.itl_seconds.p50, view.gaps_over(limit)
    if case.symptom.objective not in OF_THE_TAIL or not over or p50 is None or view.preemptions or case.cold:
        return None
    if p50.value > view.thresholds.half_objective * limit:
        return None
    pauses, by_prefill = view.pauses(limit), view.prefill_in_gaps_over(limit)
    if pauses is None or by_prefill is None:
        return None
    grew_from = case.past.shortest_stall(limit)
    grown = grew_from is not None and pauses.low >= view.thresholds.alike_ratio**3 * grew_from
    growth = f" They grow with its uptime: at first they took about {seconds(grew_from)}." if grown else ""
    share = view.prefill_part
    prefill = "" if share is None else f" ({percent(share)} of streaming time)"
    per_minute = pauses.count / view.window.seconds * 60
    # What prompts can have made, they may have made.
    able = view.gaps_of_long_prompts(limit)
    explained = max(by_prefill, view.gaps_among_unfinished_prompts(limit), 0.0 if able == inf else able) / over
    if 1 - explained < view.thresholds.proven_score:  # then they do explain it
        return None
    return Finding(
        1.0 - explained,
        known(
            itl_p50_seconds=p50.value,
            pause_at_least_seconds=pauses.low,
            pause_at_most_seconds=pauses.high,
            pauses_per_minute=per_minute,
            seconds_in_gaps_over_limit=over,
            of_these_by_prefill_at_most=by_prefill,
            pause_at_first_seconds=grew_from if grown else None,
        ),
        f"All streams stop for {seconds(pauses.low)} or more about {number(per_minute)} times a minute, while a"
        f" token usually takes {seconds(p50.value)}. Prefill{prefill}, preemptions and the batch do not explain it: the"
        f" engine's process or its host pauses.{growth}",
        "a long prompt, or many at once, computed in each of these moments.",
        eliminated=not pauses.without_prompts,
        at_most="medium",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="decode_pause",
    phase="decode",
    look="**ITL**: p99 far above a p50 that does not change, with no long prompt (**Prompt length**) at these moments.",
    rule=_decode_pause,
    families=PACE,
    needs=("itl", "running"),
    uses=PREFILL_TIME_SIGNALS,
    remedies=(
        Advice("look at the host for pauses of that length: CPU throttling (the container's cpu.stat, nr_throttled),"
            " swapping, slow logging or a busy disk", "the engine core has nothing to do with them", "now",
            "TTFT improves as well"),
        Advice("restart the engine as a test, where the pauses have grown with its uptime",
            "garbage collection takes longer the more objects a process has gathered", "restart",
            "its load moves to the others meanwhile"),
        Advice("freeze Python's heap after the start (gc.freeze) or raise its collection thresholds",
            "full collections then have little to walk through", "restart", "memory grows a little"),
        Advice("give the container whole CPU cores, and no CPU limit below what it uses", "a limit stops every thread"
            " until the next period", "restart", "TTFT improves as well"),
    ),
)
# fmt: on
