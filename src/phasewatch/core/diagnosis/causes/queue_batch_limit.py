"""Requests wait with room in the KV cache while as many run as ever: the batch is full (max_num_seqs)."""

from phasewatch.core.diagnosis.causes._queue import has_room, queue_finding, used
from phasewatch.core.diagnosis.causes._remedies import MORE_SEQS, REPLICA, SHED
from phasewatch.core.diagnosis.causes._row import PREFILL_TIME_SIGNALS, QUEUE_SIGNALS, TTFT, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number
from phasewatch.core.measures.phases import prefill_time_ratio_at_most


def _queue_batch_limit(case: Case) -> Finding | None:
    view, limits = case.view, case.view.thresholds
    prefill_ratio, ceiling = view.numbers.prefill_time_ratio, view.at_ceiling
    if not has_room(view) or ceiling is None or ceiling < limits.at_ceiling:
        return None
    # Prompts shorter than the batch hide in its steps; all prefill times one after the other still bound their share.
    most = prefill_time_ratio_at_most(view.window) if prefill_ratio is None else prefill_ratio
    if prefill_ratio is not None and prefill_ratio >= limits.prefill_bound_ratio:
        return None
    return queue_finding(
        case,
        f"Batch limit reached: {number(view.running_max)} running, KV cache"
        f" {used(view.window.gauges['kv_usage'].max)} used",
        "running above this limit, or prefill taking half of the engine's time.",
        low=most is None or most >= limits.prefill_bound_ratio,
    )


CAUSE = CauseRow(
    verdict="queue_batch_limit",
    phase="queue",
    look="**Queue, batch and KV cache**: running flat at its maximum, waiting grows, KV has room.",
    rule=_queue_batch_limit,
    families=TTFT,
    needs=QUEUE_SIGNALS,
    uses=("queue", *PREFILL_TIME_SIGNALS),
    demand=True,
    watch="waiting: it rises again where more come than run at a time",
    remedies=(SHED, MORE_SEQS, REPLICA),
)
