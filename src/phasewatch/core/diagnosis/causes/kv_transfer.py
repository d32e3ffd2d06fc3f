"""Requests wait for KV blocks computed elsewhere (P/D): deferred, not for want of room."""

from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.formatting import number, seconds
from phasewatch.core.measures.phases import mean_of


def _slow_link(view: WindowView) -> bool:
    """Whether one transfer takes most of the wait: a quick link needs no faster one, what is around it is slow."""
    wait, transfer = view.deferred_wait, view.transfer_seconds
    return wait is not None and transfer is not None and transfer >= view.thresholds.proven_score * wait


def _link_may_be_slow(view: WindowView) -> bool:
    return view.transfer_seconds is None or _slow_link(view)


def _kv_transfer(case: Case) -> Finding | None:
    view = case.view
    deferred, wait, transfer = view.window.gauges.get("waiting_deferred"), view.deferred_wait, view.transfer_seconds
    if deferred is None or wait is None or not view.from_elsewhere:
        return None
    held = [page.get("waiting_deferred", 0.0) > 0 for page in view.pages]
    ttft = mean_of(view.window, "ttft")
    if sum(held) / len(held) <= view.thresholds.most_scrapes or not ttft or view.queued:
        return None
    evidence = known(
        deferred_mean=deferred.mean,
        deferred_wait_seconds=wait,
        ttft_mean_seconds=ttft,
        transfer_mean_seconds=transfer,
    )
    which = "the link is the larger part." if _slow_link(view) else "the link is fast; transfer scheduling is slow."
    return Finding(
        min(1.0, wait / ttft),
        evidence,
        f"{number(deferred.mean)} requests wait for KV blocks from other engines, about {seconds(wait)} each"
        + ("." if transfer is None else f"; one transfer takes {seconds(transfer)}: {which}"),
        "transfers that are quick while requests wait for capacity.",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="kv_transfer",
    phase="queue",
    look="Deferred requests in **Queue, batch and KV cache**; the interconnect.",
    rule=_kv_transfer,
    families=TTFT,
    needs=("ttft",),
    feature=("waiting_deferred",),
    remedies=(
        Advice("check the interconnect (RDMA, UCX transport) where one transfer takes most of the wait",
            "bytes / transfer time is the real bandwidth", "now", "ITL does not change",
            fits=_link_may_be_slow),
        Advice("balance prefill and decode replicas (P:D ratio)",
            "the overloaded side holds the blocks of the other", "capacity", "the other phase follows the ratio"),
        Advice("send less through P/D: let the decode side prefill short prompts itself, where the router can",
            "a short prompt costs less than its transfer", "now", "decode streams share steps with those prompts"),
    ),
)
# fmt: on
