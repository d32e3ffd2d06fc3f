"""Answers end in errors or are refused."""

from phasewatch.core.diagnosis.causes._row import Advice, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.formatting import number, percent


def _requests_failing(case: Case) -> Finding | None:
    increases = case.view.window.increases
    evidence = {name: increases[name] for name in ("http_5xx", "finished_error", "rejections") if name in increases}
    share = case.symptom.value.value if case.symptom.value else 0.0
    refused = increases.get("rejections", 0.0)
    return Finding(
        1.0,
        evidence,
        f"{percent(share)} of the requests fail"
        f"{f', {number(refused)} of them rejected at the queue limit' if refused else ''}.",
        "failures that stop while the same requests go on.",
    )


def _refused(view: WindowView) -> bool:
    """Whether requests met the queue limit, or the page cannot tell."""
    return view.window.increases.get("rejections", 1.0) > 0


# fmt: off
CAUSE = CauseRow(
    verdict="requests_failing",
    phase="failures",
    look="The failing requests in **Arrivals**, then the API server's log.",
    rule=_requests_failing,
    families=("requests_failing",),
    remedies=(
        Advice("read the API server's log for the error",
            "/metrics counts failures, it does not say why", "now", "none"),
        Advice("--max-num-queued-reqs / --max-num-queued-tokens up, or shed load before the server does",
            "requests are rejected (503) at the queue limit", "restart",
            "TTFT grows with the longer queue", since="0.29.0",
            where="requests met the queue limit, or the page cannot tell", fits=_refused),
        Advice("kv_load_failure_policy: recompute, where KV blocks from elsewhere cannot be loaded (P/D, offload)",
            "since 0.17 its default is to fail the request", "restart", "TTFT of those requests grows", since="0.13.0",
            where="KV blocks come from elsewhere", fits=lambda view: view.from_elsewhere),
    ),
)
# fmt: on
