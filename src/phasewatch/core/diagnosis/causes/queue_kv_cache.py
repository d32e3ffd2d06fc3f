"""Requests wait because the KV cache has no room for the next prompt."""

from phasewatch.core.diagnosis.causes._queue import queue_finding, used
from phasewatch.core.diagnosis.causes._remedies import KV_ROOM
from phasewatch.core.diagnosis.causes._row import QUEUE_SIGNALS, TTFT, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number


def _queue_kv_cache(case: Case) -> Finding | None:
    view = case.view
    landing = view.no_room_to_land
    if view.kv_held or (not landing and not (view.queued and view.kv_limited)):
        return None
    usage, deferred = view.window.gauges["kv_usage"], view.window.gauges.get("waiting_deferred")
    who = None
    if landing and deferred and not view.queued:
        who = f". {number(deferred.mean)} requests find no room for KV blocks that come from other engines."
    return queue_finding(
        case,
        f"KV cache full: up to {used(usage.max)} used, {number(view.preemptions)} preemptions",
        "free KV blocks for a mean prompt while requests still wait: then another limit holds them.",
        who=who,
        low=not view.kv_capacity_known,
    )


CAUSE = CauseRow(
    verdict="queue_kv_cache",
    phase="queue",
    look="**Queue, batch and KV cache**: KV near 100 % while requests wait; preemptions.",
    rule=_queue_kv_cache,
    families=TTFT,
    needs=QUEUE_SIGNALS,
    uses=("queue", "prefill", "preemptions", "prompt_length"),
    demand=True,
    watch="waiting and KV cache usage",
    remedies=KV_ROOM,
)
