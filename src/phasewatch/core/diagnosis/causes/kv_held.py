"""Requests wait though none runs: blocks of requests that have ended fill the KV cache, uncollected (P/D) or lost."""

from phasewatch.core.diagnosis.causes._queue import queue_finding, used
from phasewatch.core.diagnosis.causes._row import QUEUE_SIGNALS, TTFT, Advice, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case


def _kv_held(case: Case) -> Finding | None:
    view = case.view
    if not view.kv_held:
        return None
    return queue_finding(
        case,
        f"KV cache full although no request runs: up to {used(view.window.gauges['kv_usage'].max)} used by requests"
        " that have ended",
        "requests running in most of the scrapes with a queue, or free KV blocks for a mean prompt.",
        low=not view.kv_capacity_known,
    )


# fmt: off
CAUSE = CauseRow(
    verdict="kv_held",
    phase="queue",
    look="**Queue, batch and KV cache**: KV near 100 % and requests waiting, while none runs.",
    rule=_kv_held,
    families=TTFT,
    needs=QUEUE_SIGNALS,
    uses=("queue", "prompt_length"),
    demand=True,
    watch="waiting, and KV cache usage while nobody runs",
    remedies=(
        Advice("on a prefill engine of P/D: find out why decode engines do not collect (down, overloaded, unreachable)",
            "a prompt's blocks stay taken until its decode engine has fetched them", "now",
            "TTFT improves as soon as blocks are collected"),
        Advice("on a prefill engine of P/D: shorten the connector's timeout (NIXL: VLLM_NIXL_ABORT_REQUEST_TIMEOUT)",
            "blocks that nobody collects are freed only after it", "restart",
            "a decode engine that comes later than that has to compute the prompt again"),
        Advice("restart the engine if it takes no part in P/D, and report it to vLLM",
            "blocks that a finished or aborted request has left behind are free only after that", "restart",
            "requests that wait and cached prefixes are lost"),
    ),
)
# fmt: on
