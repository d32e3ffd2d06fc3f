"""The slow first tokens are those of the first minute after the engine's first request."""

from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.measures.histogram import count_above


def _cold_start(case: Case) -> Finding | None:
    view = case.view
    if not case.slow_in_first_minute or case.symptom.objective == "expected_wait":
        return None
    other = max((view.ttft_share(phase) or 0.0 for phase in ("queue", "prefill")), default=0.0)
    if not case.cold and other >= view.thresholds.proven_score:
        return None
    answering = [step.histograms["ttft"] for step in view.window.steps if "ttft" in step.histograms]
    fast = sum(first.count - count_above(first, case.limit).possible for first in answering)
    return Finding(
        1.0,
        {"first_tokens_within_limit": fast, "ttft_mean_seconds": view.numbers.ttft_seconds.mean or 0.0},
        "Only first tokens of the engine's first minute of work were slow: kernels, caches and memory pools warm up"
        " then.",
        "slow first tokens after that minute.",
        easing=bool(answering) and count_above(answering[-1], case.limit).possible == 0,
        eliminated=fast < view.thresholds.few_finishes,
        at_most="medium",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="cold_start",
    phase="prefill",
    look="The restart mark: only the first minute after it is slow.",
    rule=_cold_start,
    families=TTFT,
    needs=("ttft",),
    uses=("queue", "prefill"),
    remedies=(
        Advice("send a warm-up request before the replica is put into rotation",
            "the first requests compile kernels, capture graphs and fill caches", "now", "ITL does not change"),
        Advice("let readiness depend on one answered request, not on the open port",
            "users no longer reach a cold replica", "restart", "ITL does not change"),
    ),
)
# fmt: on
