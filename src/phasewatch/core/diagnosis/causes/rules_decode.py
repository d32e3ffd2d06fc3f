"""Causes of slow or stalling streams: one function a cause, each from a Case to a Finding or None."""

from phasewatch.core.diagnosis.measures_view import Case, Finding
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.phases import prefill_time_ratio_at_most


def _tail(case: Case) -> bool:
    """Whether the symptom is about the slowest gaps rather than the typical one."""
    return case.symptom.objective in ("itl_p99", "itl_p95", "itl_stall", "itl_p90")


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
    pace, prefill_ratio, over = (
        case.pace_without_prefill,
        case.numbers.prefill_time_ratio,
        case.gaps_over(_gap_limit(case)),
    )
    if prefill_ratio is None:
        return _stalls_by_shape(case) or _among_unfinished_prompts(case)
    if case.running_max <= 1 or case.preemptions or pace is None or not over or case.itl_sum is None or case.cold:
        return None
    allowed = case.limit * (case.thresholds.half_objective if _tail(case) else 1.0)
    longest_gap, longest_prefill = _longest_gap(case), case.longest_prefill
    if pace > allowed or longest_prefill is None or longest_gap > longest_prefill:
        return _among_unfinished_prompts(case)
    tokens = case.numbers.tokens
    return Finding(
        min(1.0, prefill_ratio * case.itl_sum / over),
        {
            "prefill_time_ratio": prefill_ratio,
            "pace_without_prefill_seconds": pace,
            "seconds_in_gaps_over_limit": over,
            "longest_gap_at_least_seconds": longest_gap,
            **({} if case.numbers.itl_stalled_ratio is None else {"itl_stalled_ratio": case.numbers.itl_stalled_ratio}),
            **({} if tokens.computed_prompt_mean is None else {"computed_prompt_mean": tokens.computed_prompt_mean}),
        },
        f"Long prompts hold up running streams: prefill takes {percent(prefill_ratio)} of the engine's time, gaps reach"
        f" {seconds(longest_gap)} or more, and without them a token would come every {seconds(pace)}.",
        "the same gaps while no long prompt is computed.",
    )


def _among_unfinished_prompts(case: Case) -> Finding | None:
    """Long prompts in many chunks: booked only when done, they are seen in requests that run and get no token."""
    over, unloaded = case.gaps_over(_gap_limit(case)), case.past.unloaded_pace
    if not over or case.preemptions or (unloaded is not None and unloaded > case.limit):
        return None
    among = case.gaps_among_unfinished_prompts(_gap_limit(case))
    if among == 0:
        return None
    return Finding(
        min(1.0, among / over),
        {
            "seconds_in_gaps_over_limit": over,
            "of_these_beside_unfinished_prompts": among,
            "running_max": case.running_max,
            **({} if unloaded is None else {"unloaded_pace_seconds": unloaded}),
        },
        f"Streams wait {seconds(_longest_gap(case))} or more for a token while other requests run and get none: their"
        " prompts are being computed, and each step carries a chunk of them.",
        "the same gaps while every running request gets tokens.",
        eliminated=True,
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
    """Whether the slowest gaps are far from the typical one. p99 counts gaps: the few long ones that itl_stall weighs
    by time may all lie above it."""
    itl = case.numbers.itl_seconds
    if itl.p50 is None or itl.p99 is None:
        return False
    slowest = max(itl.p99.value, case.stall_limit if case.symptom.objective == "itl_stall" else 0.0)
    return slowest >= case.thresholds.stall_ratio * itl.p50.value


def _share_above(case: Case, base: float) -> float:
    """Share of the seconds above `base` per token that would go if decode alone took `base`, prefill's share of the
    time staying as it is."""
    mean_itl, part = case.numbers.itl_seconds.mean, case.prefill_part
    if mean_itl is None or part is None or part >= 1 or mean_itl <= base:
        return 0.0
    return min(1.0, max(0.0, (mean_itl - base / (1 - part)) / (mean_itl - base)))


def _explains(case: Case, base: float) -> bool:
    """Whether going back to `base` would take away at least half of the seconds above it."""
    return _share_above(case, base) >= case.thresholds.proven_score


def _rest(case: Case) -> float:
    """What neither prefill nor evictions take, as a share of the seconds above the unloaded pace.

    It goes whole to each row whose conditions hold; the earlier one wins. With the unloaded pace unknown it is the
    share of all streaming time, which those conditions have shown to be too slow by itself.
    """
    unloaded = case.past.unloaded_pace
    if unloaded is None or unloaded > case.limit or case.prefill_part is None:
        return 1.0 - (case.prefill_part or 0.0)
    return _share_above(case, unloaded)


def _throughout(case: Case) -> bool:
    """Whether decode itself can be what is slow: no evictions, and the symptom is not about stalls."""
    return not case.preemptions and case.symptom.objective != "itl_stall"


def decode_speculation(case: Case) -> Finding | None:
    """Drafts are computed and thrown away: steps cost more than the accepted tokens save."""
    drafts, tpot = case.window.increases.get("spec_drafts", 0.0), case.numbers.tpot_seconds.mean
    accepted, plain = case.numbers.speculation.mean_accepted_length, case.past.tpot_without_speculation
    if drafts <= 0 or accepted is None or not _throughout(case):
        return None
    worse = plain is not None and tpot is not None and tpot > plain
    if accepted >= case.thresholds.low_acceptance and not worse:
        return None
    evidence = {
        "mean_accepted_length": accepted,
        "acceptance_ratio": case.numbers.speculation.acceptance_ratio,
        "tpot_mean_seconds": tpot,
        "tpot_without_speculation_seconds": plain,
    }
    return Finding(
        _rest(case),
        {name: value for name, value in evidence.items() if value is not None},
        f"Speculation does not pay: a step yields {number(accepted)} tokens"
        f" ({percent(case.numbers.speculation.acceptance_ratio)} of the drafts accepted)"
        + (f"; without it a token took {seconds(plain)}, now {seconds(tpot)}." if worse else "."),
        "more than 1.5 tokens a step, or one replica without speculation that is no faster.",
    )


def decode_context(case: Case) -> Finding | None:
    """Each token reads a longer context than before, at the same batch."""
    base, short, pace = case.past.shorter_pace, case.past.shorter_context, case.pace_without_prefill
    context = case.context
    if base is None or short is None or pace is None or context is None or not _throughout(case) or base > case.limit:
        return None
    if not _explains(case, base):
        return None
    return Finding(
        _rest(case),
        {
            "context_mean_tokens": context,
            "earlier_context_tokens": short,
            "pace_without_prefill_seconds": pace,
            "earlier_pace_seconds": base,
            "running_mean": case.window.gauges["running"].mean,
        },
        f"Contexts of about {number(context)} tokens make each token {seconds(pace)}; at the same batch with"
        f" {number(short)} it was {seconds(base)}. That is physics, not a fault.",
        "the same pace with short contexts.",
    )


def decode_slow(case: Case) -> Finding | None:
    """The engine decodes slower than it did itself, at the same batch and context."""
    same, pace = case.past.same_pace, case.pace_without_prefill
    if same is None or pace is None or not _throughout(case):
        return None
    if pace <= max(case.thresholds.slower_ratio, case.past.same_spread) * same or not _explains(case, same):
        return None
    return Finding(
        _rest(case),
        {
            "pace_without_prefill_seconds": pace,
            "own_past_pace_seconds": same,
            "times_slower": pace / same,
            "running_mean": case.window.gauges["running"].mean,
            **({} if case.context is None else {"context_mean_tokens": case.context}),
        },
        f"Tokens take {seconds(pace)}, {number(pace / same)} times as long as this engine itself took"
        f" ({seconds(same)}) at the same batch and context: the host or the card has slowed down.",
        "the earlier pace at this batch and context.",
    )


def decode_batch(case: Case) -> Finding | None:
    """Every step is slow because many requests share it."""
    mean_itl, prefill_ratio, unloaded = (
        case.numbers.itl_seconds.mean,
        case.numbers.prefill_time_ratio,
        case.past.unloaded_pace,
    )
    if case.running_max <= 2 or not _throughout(case) or mean_itl is None:
        return None
    pace = case.pace_without_prefill
    if prefill_ratio is None:
        # The shape alone: slow throughout, not in stalls, and not for the prompts that are most of the tokens.
        most = prefill_time_ratio_at_most(case.window)
        prompts = case.prompt_heavy and (most is None or mean_itl * (1 - most) <= case.limit)
        if _stalls(case) or prompts:
            return None
        pace = mean_itl
    elif pace is None or pace <= case.limit:
        return None
    if unloaded is not None and unloaded > case.limit:
        return None
    running = case.window.gauges["running"]
    alone = "" if unloaded is None else f"; with two or fewer running it is {seconds(unloaded)}"
    return Finding(
        _rest(case),
        {
            "itl_mean_seconds": mean_itl,
            "pace_without_prefill_seconds": pace,
            "running_mean": running.mean,
            "running_max": running.max,
            **({} if prefill_ratio is None else {"prefill_time_ratio": prefill_ratio}),
            **({} if unloaded is None else {"unloaded_pace_seconds": unloaded}),
        },
        f"Each step serves {number(running.mean)} requests and takes {seconds(pace)}"
        f"{'' if prefill_ratio is None else f' even without prefill ({percent(prefill_ratio)} of the time)'}{alone}.",
        "the same pace with two or fewer requests running (then it is the engine or the card, not the batch).",
        eliminated=unloaded is None or prefill_ratio is None,
    )


def decode_bandwidth(case: Case) -> Finding | None:
    """Even alone a request does not get its tokens in time: the step itself is over the objective."""
    unloaded, pace = case.past.unloaded_pace, case.pace_without_prefill
    if unloaded is None or pace is None or not _throughout(case) or unloaded <= case.limit:
        return None
    return Finding(
        _rest(case),
        {
            "unloaded_pace_seconds": unloaded,
            "limit_seconds": case.limit,
            "pace_without_prefill_seconds": pace,
            "running_max": case.running_max,
        },
        f"With two or fewer requests running a token already takes {seconds(unloaded)}: the model is too slow for this"
        " objective on this hardware, or its host is short of CPU.",
        "an unloaded step within the objective.",
    )
