"""One more request in the batch and a step takes many times as long: the batch has left what was captured for it."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from phasewatch.core.diagnosis.causes._remedies import REPLICA, replicas
from phasewatch.core.diagnosis.causes._row import PACE, PREFILL_TIME_SIGNALS, Advice, CauseRow, Finding, Proposal
from phasewatch.core.diagnosis.causes._streams import rest, throughout
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, seconds


def _decode_batch_cliff(case: Case) -> Finding | None:
    cliff = case.past.cliff
    if cliff is None or not throughout(case):
        return None
    before, after = cliff.good_batch / cliff.good_seconds, cliff.batch / cliff.seconds
    return Finding(
        rest(case),
        {
            "last_good_batch": cliff.good_batch,
            "step_seconds_at_last_good_batch": cliff.good_seconds,
            "running": cliff.batch,
            "step_seconds": cliff.seconds,
            "tokens_per_second_at_last_good_batch": before,
            "tokens_per_second": after,
        },
        f"Between {number(cliff.good_batch)} and {number(cliff.batch)} running, a step goes from"
        f" {seconds(cliff.good_seconds)} to {seconds(cliff.seconds)}, and the engine's tokens a second fall from"
        f" {number(before)} to {number(after)}: larger batches are not captured or compiled (CUDA graph sizes).",
        f"steps as fast as before with {number(cliff.batch)} or more running.",
        at_most="medium",
    )


def _at_last_good(change: str) -> Callable[[Case], Proposal | None]:
    def proposes(case: Case) -> Proposal | None:
        cliff = case.past.cliff
        return None if cliff is None else Proposal(change.format(number(round(cliff.good_batch))))

    return proposes


def _capture(case: Case) -> Proposal | None:
    cliff = case.past.cliff
    return None if cliff is None else Proposal(
        "--compilation-config '{\"cudagraph_capture_sizes\": [...]}' with sizes up to"
        f" {number(ceil(case.view.running_max))}",
        f"steps above {number(round(cliff.good_batch))} requests then run from captured graphs as well",
    )  # fmt: skip


def _replicas(case: Case) -> Proposal | None:
    cliff = case.past.cliff
    return None if cliff is None else replicas(
        case.view.running_max / round(cliff.good_batch),
        f"{number(round(cliff.good_batch))} requests at a time are fast, and {number(case.view.running_max)} run",
    )  # fmt: skip


_cap = _at_last_good("cap concurrency at the gateway: {} requests at a time")
_fewer = _at_last_good("--max-num-seqs at the last good batch: {}")


# fmt: off
CAUSE = CauseRow(
    verdict="decode_batch_cliff",
    phase="decode",
    look="Running in **Queue, batch and KV cache** crosses a number, and ITL p50 jumps while tokens a second fall.",
    rule=_decode_batch_cliff,
    families=PACE,
    needs=("itl", "running", *PREFILL_TIME_SIGNALS),
    remedies=(
        Advice("cap concurrency at the gateway, at the last good batch", "fewer requests in a step give more tokens a"
            " second here", "now", "the rest waits: TTFT grows", effect="cures", proposes=_cap),
        Advice("--compilation-config '{\"cudagraph_capture_sizes\": [...]}' with sizes up to the largest batch",
            "steps of larger batches then run from captured graphs as well", "restart",
            "captures take memory from the KV cache and time at the start", effect="cures", proposes=_capture),
        Advice("--max-num-seqs at the last good batch", "no step serves more than it is fast for", "restart",
            "the rest waits: TTFT grows", effect="cures", proposes=_fewer),
        replace(REPLICA, proposes=_replicas),
    ),
)
# fmt: on
