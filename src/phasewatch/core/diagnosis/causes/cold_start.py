"""The slow first tokens are those of the first minute after the engine's first request."""

from phasewatch.core.diagnosis.causes._row import PACE, TTFT, Advice, CauseRow, Finding
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.diagnosis.objectives import family_of, wait_limit
from phasewatch.core.measures.histogram import count_above


def _cold_start(case: Case) -> Finding | None:
    view = case.view
    if not case.slow_in_first_minute or case.symptom.objective == "expected_wait":
        return None
    if family_of(case.symptom.objective) in PACE and not (case.cold and case.stalls_in_first_minute):
        return None
    other = max((view.ttft_parts.share(phase) or 0.0 for phase in ("queue", "prefill")), default=0.0)
    if not case.cold and other >= view.thresholds.proven_score:
        return None
    limit = wait_limit(view.limits)
    assert limit is not None  # some are slower than it
    begun = case.background.first_request_at or 0.0
    since = [step for step in view.window.steps if step.start >= begun]
    answering = [step.histograms["ttft"] for step in since if "ttft" in step.histograms]
    woke = " since it woke up" if case.background.woke_up else ""
    fast = sum(first.count - count_above(first, limit.warning).possible for first in answering)
    return Finding(
        1.0,
        {"first_tokens_within_limit": fast, "ttft_mean_seconds": view.numbers.ttft_seconds.mean or 0.0},
        f"Only first tokens of the minute after the engine's first request{woke} were slow: kernels, caches and memory"
        " pools warm up then.",
        "slow first tokens after that minute.",
        easing=bool(answering) and count_above(answering[-1], limit.warning).possible == 0,
        eliminated=fast < view.thresholds.few_finishes,
        at_most="medium",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="cold_start",
    phase="prefill",
    look="The restart mark: only the first minute after it is slow.",
    rule=_cold_start,
    families=(*TTFT, *PACE),
    needs=("ttft",),
    uses=("queue", "prefill"),
    watch="the first minute after the next start: a warm-up request before rotation saves users from it",
    remedies=(
        Advice("send a warm-up request before the replica is put into rotation",
            "the first requests compile kernels, capture graphs and fill caches", "now", "ITL does not change"),
        Advice("let readiness depend on one answered request, not on the open port",
            "users no longer reach a cold replica", "restart", "ITL does not change"),
    ),
)
# fmt: on
