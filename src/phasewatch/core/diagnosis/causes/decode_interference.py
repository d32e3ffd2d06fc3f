"""Long prompts share steps with running streams and hold them up."""

from phasewatch.core.diagnosis.causes._remedies import PROMPT_THRESHOLD, SMALLER_BUDGET
from phasewatch.core.diagnosis.causes._row import PACE, PREFILL_TIME_SIGNALS, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.causes._streams import OF_THE_TAIL, gap_limit, stalls
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import percent, seconds


def _decode_interference(case: Case) -> Finding | None:
    view = case.view
    pace, prefill_ratio = view.pace_without_prefill, view.numbers.prefill_time_ratio
    over, by_prefill = view.gaps_over(gap_limit(case)), view.prefill_in_gaps_over(gap_limit(case))
    if prefill_ratio is None:
        return _stalls_by_shape(case) or _among_unfinished_prompts(case)
    if view.running_max <= 1 or view.preemptions or pace is None or not over or by_prefill is None or case.cold:
        return None
    allowed = case.limit * (view.thresholds.half_objective if case.symptom.objective in OF_THE_TAIL else 1.0)
    longest_gap, longest_prefill = view.longest_gap, view.longest_prefill
    if pace > allowed or longest_prefill is None or longest_gap > longest_prefill:
        return _among_unfinished_prompts(case)
    # Where prefill takes all of the time, nothing is left to say how fast tokens would be.
    without = f" Without long prompts, tokens would arrive every {seconds(pace)}." if pace else ""
    return Finding(
        min(1.0, by_prefill / over),
        known(
            prefill_time_ratio=prefill_ratio,
            pace_without_prefill_seconds=pace,
            seconds_in_gaps_over_limit=over,
            longest_gap_at_least_seconds=longest_gap,
            itl_stalled_ratio=view.numbers.itl_stalled_ratio,
            computed_prompt_mean=view.numbers.tokens.computed_prompt_mean,
        ),
        f"Long prompts delay running streams: prefill takes {percent(prefill_ratio)} of engine time and gaps reach"
        f" {seconds(longest_gap)} or more.{without}",
        "the same gaps while no long prompt is computed.",
    )


def _among_unfinished_prompts(case: Case) -> Finding | None:
    """Long prompts in many chunks: booked only when done, they are seen in requests that run and get no token."""
    view = case.view
    over, unloaded = view.gaps_over(gap_limit(case)), case.past.unloaded_pace
    if not over or view.preemptions or (unloaded is not None and unloaded > case.limit):
        return None
    among = view.gaps_among_unfinished_prompts(gap_limit(case))
    if among == 0:
        return None
    return Finding(
        min(1.0, among / over),
        known(
            seconds_in_gaps_over_limit=over,
            of_these_beside_unfinished_prompts=among,
            running_max=view.running_max,
            unloaded_pace_seconds=unloaded,
        ),
        f"Streams wait {seconds(view.longest_gap)} or more for a token while other running requests get none: their"
        " prompts are being computed, and each step carries a chunk of them.",
        "the same gaps while every running request gets tokens.",
        eliminated=True,
    )


def _stalls_by_shape(case: Case) -> Finding | None:
    """Without prefill's share of time: p99 at least ten times p50 is the shape that shared steps leave."""
    view = case.view
    itl = view.numbers.itl_seconds
    if itl.p50 is None or itl.p99 is None or view.running_max <= 1 or view.preemptions or not stalls(case):
        return None
    over, by_prefill = view.gaps_over(gap_limit(case)), view.prefill_in_gaps_over(gap_limit(case))
    if over and by_prefill is not None and by_prefill < view.thresholds.proven_score * over:
        return None
    return Finding(
        1.0,
        known(itl_p50_seconds=itl.p50.value, itl_p99_seconds=itl.p99.value, running_max=view.running_max),
        f"Streams stall: ITL p50 is {seconds(itl.p50.value)}, p99 {seconds(itl.p99.value)}. Long prompts in shared"
        " steps are the usual reason.",
        "prefill's share of engine time (missing here), or preemptions.",
        eliminated=True,
    )


# fmt: off
CAUSE = CauseRow(
    verdict="decode_interference",
    phase="decode",
    look="**ITL**: p99 jumps, p50 does not change, in step with **Prompt length**.",
    rule=_decode_interference,
    families=PACE,
    needs=("itl", "running"),
    uses=PREFILL_TIME_SIGNALS,
    remedies=(
        Advice("route long prompts to a replica of their own", "they no longer share steps with chats", "now",
            "their TTFT depends on that replica", effect="cures"),
        SMALLER_BUDGET,
        PROMPT_THRESHOLD,
        Advice("split prefill and decode (P/D), only with two engines or more", "prompts and streams no longer share"
            " steps", "capacity", "TTFT gains a KV transfer"),
    ),
)
# fmt: on
