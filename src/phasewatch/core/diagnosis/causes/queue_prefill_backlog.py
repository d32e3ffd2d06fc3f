"""Requests wait with room in the KV cache while the engine is busy computing prompts."""

from phasewatch.core.diagnosis.causes._queue import has_room, queue_finding
from phasewatch.core.diagnosis.causes._remedies import (
    ENABLE_CACHING,
    MORE_BATCHED_TOKENS,
    REPLICA,
    SAME_PREFIXES,
    SHED,
    SHORTER_PROMPTS,
)
from phasewatch.core.diagnosis.causes._row import PREFILL_TIME_SIGNALS, QUEUE_SIGNALS, TTFT, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, percent


def _queue_prefill_backlog(case: Case) -> Finding | None:
    view = case.view
    prefill_ratio = view.numbers.prefill_time_ratio
    if prefill_ratio is None:
        return _by_elimination(case)
    if not has_room(view) or prefill_ratio < view.thresholds.prefill_bound_ratio or case.cold:
        return None
    computed = view.numbers.tokens.computed_prompt_per_second
    return queue_finding(
        case,
        f"Prefill cannot keep up with prompts: {number(computed)} prompt tokens/s take {percent(prefill_ratio)} of"
        " engine time",
        "prefill taking well below half of engine time while requests still wait, or no room in the KV cache.",
    )


def _by_elimination(case: Case) -> Finding | None:
    """Prefill's share of the time is unknown (nobody has finished yet, say): what holds requests back while there is
    room in the pool and fewer run than the batch takes, is the token budget, and prompts are most of the tokens."""
    view = case.view
    ceiling = view.at_ceiling
    if not has_room(view) or ceiling is None or ceiling >= view.thresholds.at_ceiling:
        return None
    if not view.prompt_heavy or case.cold:
        return None
    computed, generated = view.numbers.tokens.computed_prompt_per_second, view.numbers.tokens.generation_per_second
    return queue_finding(
        case,
        f"Prompts take most of the engine's tokens ({number(computed)} prompt tokens/s computed, {number(generated)}"
        " generated), with room in the KV cache and in the batch",
        "prefill taking less than half of engine time (its share is unknown here).",
        eliminated=True,
    )


CAUSE = CauseRow(
    verdict="queue_prefill_backlog",
    phase="queue",
    look="**Prefill's share of engine time** near 100 %, waiting grows; **Prompt length**.",
    rule=_queue_prefill_backlog,
    families=TTFT,
    needs=(*QUEUE_SIGNALS, "prefill"),
    uses=("queue", *PREFILL_TIME_SIGNALS),
    demand=True,
    watch="waiting, and prefill's share of engine time",
    remedies=(SHED, SHORTER_PROMPTS, ENABLE_CACHING, REPLICA, SAME_PREFIXES, MORE_BATCHED_TOKENS),
)
