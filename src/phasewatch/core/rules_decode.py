"""Causes of slow or stalling streams: one function a cause, each from a Case to a Finding or None."""

from phasewatch.core.case import Case, Finding
from phasewatch.core.words import number, percent, seconds


def _tail(case: Case) -> bool:
    """Whether the symptom is about the slowest gaps rather than the typical one."""
    return case.symptom.objective in ("itl_p99", "itl_stall", "itl_p90")


def _gap_limit(case: Case) -> float:
    return case.stall_limit if case.symptom.objective == "itl_stall" else case.limit


def decode_preemption(case: Case) -> Finding | None:
    """Running requests were evicted for lack of KV blocks and computed again: their streams stop meanwhile."""
    over = case.gaps_over(_gap_limit(case))
    if not case.preemptions or not over:
        return None
    stopped = case.preempted_gaps()
    usage = case.window.gauges.get("kv_usage")
    return Finding(
        min(1.0, stopped / over),
        {
            "preemptions": case.preemptions,
            "seconds_in_preempted_gaps": stopped,
            "seconds_in_gaps_over_limit": over,
            **({} if usage is None else {"kv_usage_max": usage.max}),
            **({} if case.numbers.itl_stalled_ratio is None else {"itl_stalled_ratio": case.numbers.itl_stalled_ratio}),
        },
        f"{number(case.preemptions)} times a running request was evicted from a full KV cache and computed again;"
        f" {seconds(stopped)} of streaming stood still around that.",
        "stalls that go on in intervals without preemptions.",
        easing=not any(step.increases.get("preemptions", 0.0) > 0 for step in case.window.steps[-3:]),
    )


def decode_interference(case: Case) -> Finding | None:
    """Long prompts share steps with running streams and hold them up."""
    pace, rho, over = case.pace_without_prefill, case.numbers.rho, case.gaps_over(_gap_limit(case))
    if rho is None:
        return _stalls_by_shape(case)
    if case.running_max <= 1 or case.preemptions or pace is None or not over or case.itl_sum is None:
        return None
    allowed = case.limit * (case.thresholds.half_objective if _tail(case) else 1.0)
    longest_gap, longest_prefill = _longest_gap(case), case.longest_prefill
    if pace > allowed or longest_prefill is None or longest_gap > longest_prefill:
        return None
    tokens = case.numbers.tokens
    return Finding(
        min(1.0, rho * case.itl_sum / over),
        {
            "rho": rho,
            "pace_without_prefill_seconds": pace,
            "seconds_in_gaps_over_limit": over,
            "longest_gap_at_least_seconds": longest_gap,
            **({} if case.numbers.itl_stalled_ratio is None else {"itl_stalled_ratio": case.numbers.itl_stalled_ratio}),
            **({} if tokens.computed_prompt_mean is None else {"computed_prompt_mean": tokens.computed_prompt_mean}),
        },
        f"Long prompts hold up running streams: prefill takes {percent(rho)} of the engine's time, gaps reach"
        f" {seconds(longest_gap)} or more, and without them a token would come every {seconds(pace)}.",
        "the same gaps while no long prompt is computed.",
    )


def _longest_gap(case: Case) -> float:
    """Low edge of the slowest gap's bucket: at least that long."""
    if case.itl is None:
        return 0.0
    held = [at for at, count in enumerate(case.itl.counts) if count < case.itl.count]
    return case.itl.bounds[held[-1]] if held else 0.0


def _stalls_by_shape(case: Case) -> Finding | None:
    """Without prefill's share of time: p99 at least ten times p50 is the shape that shared steps leave."""
    itl = case.numbers.itl_seconds
    if itl.p50 is None or itl.p99 is None or case.running_max <= 1 or case.preemptions or not _stalls(case):
        return None
    return Finding(
        1.0,
        {"itl_p50_seconds": itl.p50.value, "itl_p99_seconds": itl.p99.value, "running_max": case.running_max},
        f"Streams stall: half of the tokens come within {seconds(itl.p50.value)}, one in a hundred takes"
        f" {seconds(itl.p99.value)}; long prompts in shared steps are the usual reason.",
        "prefill's share of the engine's time (missing here), or preemptions.",
        eliminated=True,
    )


def _stalls(case: Case) -> bool:
    itl = case.numbers.itl_seconds
    return itl.p50 is not None and itl.p99 is not None and itl.p99.value >= case.thresholds.stall_ratio * itl.p50.value


def decode_batch(case: Case) -> Finding | None:
    """Every step is slow because many requests share it."""
    mean_itl, rho = case.numbers.itl_seconds.mean, case.numbers.rho
    if case.running_max <= 2 or case.preemptions or case.symptom.objective == "itl_stall":
        return None
    pace = case.pace_without_prefill
    if rho is None:
        # The shape alone: slow throughout, not in stalls.
        if _stalls(case) or case.numbers.itl_seconds.p50 is None:
            return None
        pace = mean_itl if mean_itl is not None else case.numbers.itl_seconds.p50.value
    if pace is None or (rho is not None and pace <= case.limit) or not mean_itl:
        return None
    running = case.window.gauges["running"]
    return Finding(
        # The pace without prefill misses the objective by itself: all of the time that is not prefill's is decode's.
        1.0 - (rho or 0.0),
        {
            "itl_mean_seconds": mean_itl,
            "pace_without_prefill_seconds": pace,
            "running_mean": running.mean,
            "running_max": running.max,
            **({} if rho is None else {"rho": rho}),
        },
        f"Each step serves {number(running.mean)} requests and takes {seconds(pace)}"
        f"{'' if rho is None else f' even without prefill ({percent(rho)} of the time)'}: decode is slow throughout.",
        "the same pace with two or fewer requests running (then it is the engine or the card, not the batch).",
        eliminated=True,
    )
