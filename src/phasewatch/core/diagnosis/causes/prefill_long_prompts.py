"""First tokens are slow because their own prompts take long to compute."""

from phasewatch.core.diagnosis.causes._prefill import lost_on_the_way, prefill_leads, proven_times
from phasewatch.core.diagnosis.causes._remedies import MORE_BATCHED_TOKENS, SAME_PREFIXES, SHORTER_PROMPTS
from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.phases import mean_of


def long_prompts(case: Case) -> Finding | None:
    if case.symptom.objective == "unanswered":
        return _still_computed(case)
    view, parts, share = case.view, case.ttft, prefill_leads(case)
    tokens = view.numbers.tokens
    # Many computed tokens a request: prefill has more tokens to work on than decode.
    if share is None or not view.prompt_heavy or not _long(case):
        return None
    # What a slower machine or a colder cache takes is not the length's.
    slower, missed = (
        proven_times(case, share, case.prefill_times_slower),
        proven_times(case, share, case.misses_times_more),
    )
    # Nor what another engine computed, and lost transfers have computed again.
    lost = share * lost_on_the_way(case)
    again = lost if lost >= view.thresholds.proven_score else 0.0
    return Finding(
        (share - again) / slower / missed,
        known(
            prefill_seconds=parts.by_phase["prefill"],
            prefill_mean_seconds=mean_of(view.window, "prefill"),
            prefill_share_of_ttft=share,
            queue_mean_seconds=mean_of(view.window, "queue"),
            computed_prompt_tokens_mean=tokens.computed_prompt_mean,
            prompt_tokens_mean=tokens.prompt_mean,
            prefix_hit_ratio=tokens.prefix_hit_ratio,
            prefill_speed_tokens_per_second=tokens.prefill_speed,
            prefill_time_ratio=view.numbers.prefill_time_ratio,
        ),
        f"Prefill accounts for {seconds(parts.by_phase['prefill'])} of TTFT ({percent(share)}):"
        f" {number(tokens.computed_prompt_mean)} prompt tokens a request are computed"
        f"{'' if tokens.prefill_speed is None else f' at {number(tokens.prefill_speed)} tokens/s'}.",
        "queue time above prefill time, or few computed tokens a request.",
        at_most="low" if slower > 1 else "high" if case.prefill_times_slower is None else "medium",
    )


def _still_computed(case: Case) -> Finding | None:
    """Nobody waits for room, and the request without a first token runs: what fills the KV cache is its prompt."""
    view, waited = case.view, case.symptom.value
    if view.prefilling is None or view.waiting_now > 0 or waited is None:
        return None
    lasting, filled = view.prefilling
    tokens = None if view.kv_capacity is None else filled * view.kv_capacity
    known_tokens = "" if tokens is None else f", {number(round(tokens))} tokens"
    return Finding(
        min(1.0, lasting / min(waited.value, view.window.seconds)),
        known(
            oldest_unanswered_seconds=waited.value,
            prefilling_seconds=lasting,
            kv_filled_ratio=filled,
            kv_filled_tokens=tokens,
            running=view.numbers.queue.running,
        ),
        f"A request has waited at least {seconds(waited.value)} for its first token. It runs, nobody waits, and its"
        f" prompt is still computed: in the last {seconds(lasting)} it filled {percent(filled)} of the KV"
        f" cache{known_tokens}.",
        "a KV cache that stands still while the request runs, or tokens that nobody reads.",
    )


def _long(case: Case) -> bool:
    """Whether computing them takes more than a few unloaded steps."""
    paces = (case.past.unloaded_pace, case.view.fastest_gaps)
    step = min((one for one in paces if one), default=0.0)
    return case.ttft.by_phase["prefill"] > case.view.thresholds.few_steps * step


CAUSE = CauseRow(
    verdict="prefill_long_prompts",
    phase="prefill",
    look="**Prompt length** up and prefill the largest of the **Phases**; the queue is small.",
    rule=long_prompts,
    families=TTFT,
    needs=("ttft", "prefill", "prompt_tokens"),
    uses=("queue",),
    remedies=(
        SHORTER_PROMPTS,
        SAME_PREFIXES,
        MORE_BATCHED_TOKENS,
        Advice(
            "more compute: a faster GPU, tensor parallel, or prefill replicas of their own",
            "prefill is bound by compute",
            "capacity",
            "decode gains little",
            effect="eases",
        ),
    ),
)
