"""Causes of slow first tokens and long answers: one function a cause, each from a Case to a Finding or None.

A rule states its conditions and its share of the excess; whether that proves it is decided in diagnose.py.
"""

from phasewatch.core.diagnosis.measures_view import Case, Finding, prefix_caching_off
from phasewatch.core.diagnosis.remedies import HAND_OVER
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.measures.phases import mean_of, prefill_time_ratio_at_most


def _queue_evidence(case: Case) -> dict[str, float | str]:
    queue, kv = case.numbers.queue, case.numbers.kv_cache
    waiting = case.window.gauges[waiting_for_capacity(case.window)]
    known = {
        "waiting_last": waiting.last,
        "waiting_mean": waiting.mean,
        "waiting_scrapes": float(len(case.queue_pages)),
        "scrapes": float(len(case.pages)),
        "running_max": case.running_max,
        "queue_mean_seconds": mean_of(case.window, "queue"),
        "prefill_mean_seconds": case.ttft_parts.get("prefill"),
        "expected_wait_seconds": queue.expected_wait_seconds,
        "arrivals_per_second": queue.arrivals_per_second,
        "admissions_per_second": queue.admissions_per_second,
        "kv_usage_max": case.window.gauges["kv_usage"].max if "kv_usage" in case.window.gauges else kv.usage_ratio,
        "preemptions": case.window.increases.get("preemptions"),
        "prefill_time_ratio": case.numbers.prefill_time_ratio,
    }
    return {name: value for name, value in known.items() if value is not None}


def _queue_score(case: Case) -> float | None:
    """The queue's share of the first token's way; an expected wait is queue but for the prefill that follows it."""
    if case.symptom.objective == "expected_wait":
        wait = case.numbers.queue.expected_wait_seconds
        return None if not wait else wait / (wait + case.ttft_parts.get("prefill", 0.0))
    return case.ttft_share("queue")


def _queue(case: Case, summary: str, mind: str, *, eliminated: bool = False, low: bool = False) -> Finding | None:
    score = _queue_score(case)
    if score is None:
        return None
    return Finding(
        score,
        _queue_evidence(case),
        summary,
        mind,
        easing=case.waiting_now == 0 and not case.no_room_to_land,
        eliminated=eliminated,
        at_most="low" if low else "high",
    )


def _standing(case: Case) -> str:
    wait, queue = case.numbers.queue.expected_wait_seconds, case.numbers.queue
    bound = "at least " if queue.expected_wait_censored else ""
    if case.waiting_now == 0:
        return "the queue has drained; those who stood in it still count in this window"
    return f"{number(case.waiting_now)} requests wait, a new one {bound}{seconds(wait)} for its turn"


def queue_kv_cache(case: Case) -> Finding | None:
    """Requests wait because the KV cache has no room for the next prompt."""
    landing = case.no_room_to_land
    if not landing and not (case.queued and case.kv_limited):
        return None
    usage, deferred = case.window.gauges["kv_usage"], case.window.gauges.get("waiting_deferred")
    standing = (
        f"{number(deferred.mean)} requests find no room for their KV blocks from elsewhere"
        if landing and deferred and not case.queued
        else _standing(case)
    )
    return _queue(
        case,
        f"The KV cache is full ({percent(usage.max)} at most, {number(case.preemptions)} preemptions): {standing}.",
        "Free KV blocks for a mean prompt while requests still wait: then another limit holds them.",
        low=not case.kv_capacity_known,
    )


def _room(case: Case) -> bool:
    return case.queued and case.kv_limited is False


def queue_batch_limit(case: Case) -> Finding | None:
    """Requests wait with room in the KV cache while as many run as ever: the batch is full (max_num_seqs)."""
    prefill_ratio, ceiling = case.numbers.prefill_time_ratio, case.at_ceiling
    limits = case.thresholds
    if not _room(case) or ceiling is None or ceiling < limits.at_ceiling:
        return None
    # Prompts shorter than the batch hide in its steps; all prefill times one after the other still bound their share.
    most = prefill_time_ratio_at_most(case.window) if prefill_ratio is None else prefill_ratio
    if prefill_ratio is not None and prefill_ratio >= limits.prefill_bound_ratio:
        return None
    return _queue(
        case,
        f"{number(case.running_max)} requests run at a time and no more, with the KV cache at"
        f" {percent(case.window.gauges['kv_usage'].max)} at most: {_standing(case)}.",
        "running above this ceiling, or prefill taking half of the engine's time.",
        low=most is None or most >= limits.prefill_bound_ratio,
    )


def queue_prefill_backlog(case: Case) -> Finding | None:
    """Requests wait with room in the KV cache while the engine is busy computing prompts."""
    prefill_ratio = case.numbers.prefill_time_ratio
    if prefill_ratio is None:
        return _prompts_by_elimination(case)
    if not _room(case) or prefill_ratio < case.thresholds.prefill_bound_ratio or case.cold:
        return None
    computed = case.numbers.tokens.computed_prompt_per_second
    return _queue(
        case,
        f"Prompts arrive faster than prefill works them off ({number(computed)} prompt tokens/s take"
        f" {percent(prefill_ratio)} of the engine's time): {_standing(case)}.",
        "prefill_time_ratio well below 0.5 while requests still wait, or no room in the KV cache.",
    )


def _prompts_by_elimination(case: Case) -> Finding | None:
    """Prefill's share of the time is unknown (nobody has finished yet, say): what holds requests back while there is
    room in the pool and fewer run than the batch takes, is the token budget, and prompts are most of the tokens."""
    ceiling = case.at_ceiling
    if (
        not _room(case)
        or ceiling is None
        or ceiling >= case.thresholds.at_ceiling
        or not case.prompt_heavy
        or case.cold
    ):
        return None
    computed, generated = case.numbers.tokens.computed_prompt_per_second, case.numbers.tokens.generation_per_second
    return _queue(
        case,
        f"Prompts take the engine's steps ({number(computed)} prompt tokens/s computed, {number(generated)} generated),"
        f" with room in the KV cache and in the batch: {_standing(case)}.",
        "prefill's share of the engine's time (unknown here) below one half.",
        eliminated=True,
    )


def prefill_long_prompts(case: Case) -> Finding | None:
    """First tokens are slow because their own prompts take long to compute."""
    share, tokens = case.ttft_share("prefill"), case.numbers.tokens
    parts = case.ttft_parts
    # Of those who gave up or still wait, the first tokens of the others say nothing.
    if share is None or parts["prefill"] < max(parts.values()) or not case.symptom.objective.startswith("ttft"):
        return None
    if case.cold:
        return None
    # Many computed tokens a request: prefill has more tokens to work on than decode.
    if not case.prompt_heavy:
        return None
    # Alone on the engine, the same tokens took less time before: length is not why.
    before = case.past.seconds_per_prompt_token if case.running_max <= 1 else None
    slowed = before and tokens.prefill_speed and case.thresholds.symptom_ratio * before * tokens.prefill_speed < 1
    evidence = {
        "prefill_mean_seconds": parts["prefill"],
        "prefill_share_of_ttft": share,
        "queue_mean_seconds": mean_of(case.window, "queue"),
        "computed_prompt_tokens_mean": tokens.computed_prompt_mean,
        "prompt_tokens_mean": tokens.prompt_mean,
        "prefix_hit_ratio": tokens.prefix_hit_ratio,
        "prefill_speed_tokens_per_second": tokens.prefill_speed,
        "prefill_time_ratio": case.numbers.prefill_time_ratio,
    }
    return Finding(
        share,
        {name: value for name, value in evidence.items() if value is not None},
        f"Prefill takes {seconds(parts['prefill'])} of a first token's way ({percent(share)}):"
        f" {number(tokens.computed_prompt_mean)} prompt tokens a request are computed"
        f"{'' if tokens.prefill_speed is None else f' at {number(tokens.prefill_speed)} tokens/s'}."
        + (
            f" Alone, this engine has done {number(1 / before)} tokens/s before: not the length but something else is"
            " slow (clocks and power states after pauses, a busy host)."
            if slowed and before
            else ""
        ),
        "queue time above prefill time, or few computed tokens a request.",
        at_most="low" if slowed else "high",
    )


def prefill_cache_off(case: Case) -> Finding | None:
    """The same, with prefix caching switched off: nothing that prompts share is reused."""
    found = prefill_long_prompts(case)
    if found is None or not prefix_caching_off(case.window):
        return None
    return Finding(
        found.score,
        found.evidence,
        f"{found.summary} Prefix caching is off: what prompts share at their head is computed again every time.",
        "prompts that share no head (then caching cannot help and prefill_long_prompts is the cause).",
    )


def frontend(case: Case) -> Finding | None:
    """Time outside the engine: TTFT - queue - prefill, or e2e - TTFT - decode, is most of what is slow."""
    late = case.symptom.objective.startswith("e2e")
    if not late and not case.symptom.objective.startswith("ttft"):
        return None
    outside = case.output_lag if late else case.frontend
    whole = mean_of(case.window, "e2e" if late else "ttft")
    step = case.numbers.itl_seconds.mean
    if outside is None or not whole or step is None or outside <= step or case.stepless_with_work:
        return None
    # A standing queue's victims have not finished: their wait would look like front end.
    if not late and case.queued and (case.numbers.queue.expected_wait_seconds or 0.0) >= outside:
        return None
    busy = case.window.increases.get("cpu_seconds")
    core = None if busy is None else busy / case.window.seconds
    evidence = {
        "outside_engine_seconds": outside,
        "ttft_mean_seconds": mean_of(case.window, "ttft"),
        "e2e_mean_seconds": mean_of(case.window, "e2e"),
        "queue_mean_seconds": mean_of(case.window, "queue"),
        "prefill_mean_seconds": mean_of(case.window, "prefill"),
        "cpu_cores": core,
        "itl_mean_seconds": step,
    }
    where = "after the first token" if late else "before the first token"
    return Finding(
        outside / whole,
        {name: value for name, value in evidence.items() if value is not None},
        f"{seconds(outside)} of {seconds(whole)} {where} pass outside the engine (API server: tokenising, HTTP,"
        " streaming); queue and prefill do not explain them.",
        "client-side times that agree with queue + prefill, or an engine that stood still in this window.",
        at_most="high" if core is not None and core >= case.thresholds.busy_core else "medium",
    )


def output_length(case: Case) -> Finding | None:
    """Answers are long in tokens while every token comes in time."""
    output, itl, e2e = (
        case.numbers.tokens.output_mean, case.numbers.itl_seconds.mean, case.numbers.e2e_seconds.mean
    )  # fmt: skip
    if case.missed("ttft", "itl", "itl_stall", "tpot") or output is None or itl is None or not e2e or output <= 1:
        return None
    pace = case.numbers.tpot_seconds.mean or itl
    return Finding(
        min(1.0, (output - 1) * pace / e2e),
        {
            "output_tokens_mean": output,
            "itl_mean_seconds": itl,
            "e2e_mean_seconds": e2e,
            **({} if case.numbers.ttft_seconds.mean is None else {"ttft_mean_seconds": case.numbers.ttft_seconds.mean}),
        },
        f"Answers are {number(output)} tokens long: at {seconds(pace)} a token that alone is"
        f" {seconds((output - 1) * pace)}; first tokens and pace are fine.",
        "shorter answers that are still slow, or TTFT or ITL over their objectives.",
    )


def requests_failing(case: Case) -> Finding | None:
    """Answers end in errors or are refused."""
    increases = case.window.increases
    evidence = {name: increases[name] for name in ("http_5xx", "finished_error", "rejections") if name in increases}
    share = case.symptom.value.value if case.symptom.value else 0.0
    refused = increases.get("rejections", 0.0)
    return Finding(
        1.0,
        evidence,
        f"{percent(share)} of the requests fail"
        f"{f', {number(refused)} of them refused at the queue limit' if refused else ''}.",
        "failures that stop while the same requests go on.",
    )


def kv_transfer(case: Case) -> Finding | None:
    """Requests wait for KV blocks computed elsewhere (P/D): deferred, not for want of room."""
    deferred, admissions = case.window.gauges.get("waiting_deferred"), case.numbers.queue.admissions_per_second
    transfer = mean_of(case.window, "kv_transfer")
    if deferred is None or not admissions or not case.from_elsewhere:
        return None
    held = [page.get("waiting_deferred", 0.0) > 0 for page in case.pages]
    ttft = mean_of(case.window, "ttft")
    if sum(held) / len(held) <= case.thresholds.most_scrapes or not ttft or case.queued:
        return None
    wait = deferred.mean / admissions  # Little's law: what a request spends there on average
    evidence = {
        "deferred_mean": deferred.mean,
        "deferred_wait_seconds": wait,
        "ttft_mean_seconds": ttft,
        "transfer_mean_seconds": transfer,
    }
    slow_link = transfer is not None and transfer >= case.thresholds.proven_score * wait
    return Finding(
        min(1.0, wait / ttft),
        {name: value for name, value in evidence.items() if value is not None},
        f"{number(deferred.mean)} requests wait for KV blocks from elsewhere, about {seconds(wait)} each"
        + (
            ""
            if transfer is None
            else f"; one transfer takes {seconds(transfer)}: "
            + ("the link is the larger part." if slow_link else "the hand-over around it, not the link, is slow.")
        ),
        "transfers that are quick while requests wait for capacity.",
        remedies=None if transfer is None or slow_link else HAND_OVER,
    )


def cold_start(case: Case) -> Finding | None:
    """The slow first tokens are those of the first minute after the engine's first request."""
    if not case.slow_in_first_minute or case.symptom.objective == "expected_wait":
        return None
    other = max((case.ttft_share(phase) or 0.0 for phase in ("queue", "prefill")), default=0.0)
    if not case.cold and other >= case.thresholds.proven_score:
        return None
    answering = [step.histograms["ttft"] for step in case.window.steps if "ttft" in step.histograms]
    fast = sum(first.count - count_above(first, case.limit).possible for first in answering)
    return Finding(
        1.0,
        {"first_tokens_within_limit": fast, "ttft_mean_seconds": case.numbers.ttft_seconds.mean or 0.0},
        "Only first tokens of the engine's first minute of work were slow: kernels, caches and pools warm up then.",
        "slow first tokens after that minute.",
        easing=bool(answering) and count_above(answering[-1], case.limit).possible == 0,
        eliminated=fast < case.thresholds.few_finishes,
        at_most="medium",
    )
