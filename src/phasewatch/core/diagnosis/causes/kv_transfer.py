"""KV blocks computed elsewhere (P/D, offload) come late or not at all; who waits for them does not lack room."""

from phasewatch.core.diagnosis.causes._prefill import lost_on_the_way
from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.diagnosis.objectives import HANDOVERS
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.numbers import failed_transfers
from phasewatch.core.measures.phases import mean_of

# By signal: what failed, in words.
_FAILED = {
    "kv_failed_transfers": "transfers failed",
    "kv_failed_notifications": "notifications failed",
    "kv_failed_loads": "loads failed",
    "kv_expired": "prompts' blocks were not collected within their lease",
}


def _slow_link(view: WindowView) -> bool:
    """Whether one transfer takes most of the wait: a quick link needs no faster one, what is around it is slow."""
    wait, transfer = view.deferred_wait, view.transfer_seconds
    return wait is not None and transfer is not None and transfer >= view.thresholds.proven_score * wait


def _link_may_be_slow(view: WindowView) -> bool:
    return view.transfer_seconds is None or _slow_link(view)


def _waits(view: WindowView) -> bool:
    """Whether requests wait for blocks from elsewhere in most scrapes."""
    held = [page.get("waiting_deferred", 0.0) > 0 for page in view.pages]
    return view.from_elsewhere and sum(held) / len(held) > view.thresholds.most_scrapes


def _failing(view: WindowView) -> bool:
    """Whether transfers, notifications or loads fail; expired leases are another matter."""
    return any(view.window.increases.get(name, 0.0) > 0 for name in _FAILED if name != "kv_expired")


def _expiring(view: WindowView) -> bool:
    return view.window.increases.get("kv_expired", 0.0) > 0


def _computed_part(view: WindowView) -> float:
    """Share of the prompt tokens that are computed here."""
    computed, prompts = view.numbers.tokens.computed_prompt_per_second, view.numbers.tokens.prompt_per_second
    return min(1.0, computed / prompts) if computed and prompts else 0.0


def _computes_most(view: WindowView) -> bool:
    """Whether an engine that should get its prompts' blocks from elsewhere computes most of them itself."""
    return view.role == "decode" and _computed_part(view) > view.thresholds.proven_score


def _kv_transfer(case: Case) -> Finding | None:
    if case.symptom.objective == HANDOVERS:
        return _handovers(case)
    return _waiting(case) or (_computing(case) if case.symptom.objective.startswith("ttft") else None)


def _handovers(case: Case) -> Finding:
    """The symptom is its own proof."""
    view = case.view
    failed = {name: view.window.increases[name] for name in _FAILED if view.window.increases.get(name)}
    share = case.symptom.value.value if case.symptom.value else 0.0
    last = view.window.steps[-1].increases
    return Finding(
        1.0,
        known(**failed, failed_share=share, transfer_mean_seconds=view.transfer_seconds),
        f"KV transfers between prefill and decode fail ({percent(share)}): "
        + ", ".join(f"{number(count)} {_FAILED[name]}" for name, count in failed.items())
        + ". Those prompts are computed again, or fail.",
        "counters of failed and expired transfers that stand still.",
        easing=not any(last.get(name) for name in failed),
    )


def _waiting(case: Case) -> Finding | None:
    view = case.view
    deferred, wait, transfer = view.window.gauges.get("waiting_deferred"), view.deferred_wait, view.transfer_seconds
    ttft = mean_of(view.window, "ttft")
    if deferred is None or wait is None or not ttft or view.queued or not _waits(view):
        return None
    moved, took = (view.window.increases.get(name) for name in ("kv_load_bytes", "kv_load_seconds"))
    evidence = known(
        deferred_mean=deferred.mean,
        deferred_wait_seconds=wait,
        ttft_mean_seconds=ttft,
        transfer_mean_seconds=transfer,
        loaded_bytes_per_second=moved / took if moved and took else None,
    )
    which = "the link is the larger part." if _slow_link(view) else "the link is fast; transfer scheduling is slow."
    return Finding(
        min(1.0, wait / ttft),
        evidence,
        f"{number(deferred.mean)} requests wait for KV blocks from elsewhere, about {seconds(wait)} each"
        + ("." if transfer is None else f"; one transfer takes {seconds(transfer)}: {which}"),
        "transfers that are quick while requests wait for capacity.",
    )


def _computing(case: Case) -> Finding | None:
    """Prefill takes most of TTFT on an engine that should have none, or of those whose blocks were lost on the way."""
    view, parts, part = case.view, case.ttft, _computed_part(case.view)
    share = parts.share("prefill")
    if share is None or not parts.largest("prefill") or not part:
        return None
    lost, first = failed_transfers(view.window), view.window.histograms["ttft"]
    over = count_above(first, case.limit).interpolated
    of_them = 1.0 if _computes_most(view) else lost_on_the_way(case)
    if not of_them:
        return None
    why = f" {number(lost)} transfers failed." if lost else ""
    return Finding(
        share * of_them,
        known(
            computed_prompt_share=part,
            prefill_seconds=parts.by_phase["prefill"],
            failed_transfers=lost,
            first_tokens_over_limit=over,
        ),
        f"{percent(part)} of the prompt tokens are computed here, though another engine should have computed them:"
        f" prefill accounts for {seconds(parts.by_phase['prefill'])} of TTFT ({percent(share)}).{why}",
        "prompt tokens that come from the prefill side.",
        at_most="high" if view.role == "decode" else "medium",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="kv_transfer",
    phase="queue",
    look="Deferred requests in **Queue, batch and KV cache**; the interconnect.",
    rule=_kv_transfer,
    families=(*TTFT, HANDOVERS),
    watch="the counters of failed and expired transfers",
    remedies=(
        Advice("check the connector on both sides: roles, engine ids, and that the router passes on kv_transfer_params",
            "without them the decode side does not know that the blocks exist, and computes the prompt", "now",
            "decode streams no longer share steps with those prompts",
            where="an engine that should get its prompts computes most of them", fits=_computes_most),
        Advice("check the network between prefill and decode (UCX_TLS, RDMA, the NIC of each side, firewalls)",
            "transfers fail there", "now", "ITL does not change", where="transfers fail",
            fits=_failing),
        Advice("find out why decode engines collect late (overloaded, down), and give them room",
            "a prompt's blocks wait on the prefill side until its lease ends", "now",
            "TTFT improves on both sides", where="leases expire",
            fits=_expiring),
        Advice("a longer lease: kv_lease_duration in kv_connector_extra_config (30 s; before 0.22"
            " VLLM_NIXL_ABORT_REQUEST_TIMEOUT, 480 s)",
            "a decode engine that comes later than that has to compute the prompt again", "restart",
            "blocks that nobody collects stay longer", where="leases expire",
            fits=_expiring),
        Advice("check the interconnect (RDMA, UCX transport) where one transfer takes most of the wait",
            "bytes / transfer time is the real bandwidth", "now", "ITL does not change",
            where="requests wait for blocks from elsewhere, a fast link apart",
            fits=lambda view: _waits(view) and _link_may_be_slow(view)),
        Advice("balance prefill and decode replicas (P:D ratio)",
            "the overloaded side holds the blocks of the other", "capacity", "the other phase follows the ratio",
            where="requests wait for blocks from elsewhere, or leases expire",
            fits=lambda view: _waits(view) or _expiring(view)),
        Advice("send less through P/D: let the decode side prefill short prompts itself, where the router can",
            "a short prompt costs less than its transfer", "now", "decode streams share steps with those prompts",
            where="requests wait for blocks from elsewhere",
            fits=_waits),
    ),
)
# fmt: on
